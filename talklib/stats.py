"""Intervals, paired deltas, noise, seed spread and verdicts: the post's rules first, a reader's better tools after.

Scores are fractions. Every bootstrap is seeded, so that it repeats; every interval says what was resampled.
`power` asks of these rules how many seeds they need and how often they are wrong.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb, inf, sqrt

import numpy as np
from scipy import stats

from . import TalkError

DRAWS = 2000
LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
DF = {
    "within": lambda variances, counts: sum(n - 1 for n in counts),
    "total": lambda variances, counts: sum(counts) - 1,
    "welch": lambda variances, counts: satterthwaite(variances, counts),
}
"""Degrees of freedom of the widened interval. The post's "sum of n_arm - 1" can be read as the sum over arms of
(n_arm - 1), `within`, which is the textbook's and ours, or as (sum of n_arm) - 1, `total`. The post's verdicts are the
same by both. `welch` is neither: it drops the assumption that both arms spread alike."""
MOST_RELABELLINGS = 200_000


@cache
def t_quantile(df: float) -> float:
    """Two-sided 95% quantile of Student's t; infinite at 0 degrees of freedom."""
    return float(stats.t.ppf(TAILS[1], df)) if df > 0 else inf


def _numbers(values: Sequence[float], least: int, what: str) -> np.ndarray:
    """`values` as floats, shape (n,); TalkError where there are fewer than `least` or one is not finite."""
    values = np.asarray(list(values), dtype=float)
    if len(values) < least:
        raise TalkError(f"{what} needs at least {least} value{'s' * (least > 1)}, got {len(values)}: run more seeds")
    if not np.isfinite(values).all():
        raise TalkError(f"{what}: value {int(np.argmin(np.isfinite(values)))} is not a finite number; leave it out")
    return values


# The post's rules


def bootstrap_interval(values: Sequence[float], draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap of the mean, resampling `values` (one a problem): the post's interval.

    Draws n values with replacement `draws` times; the 2.5% and 97.5% quantiles of their means (Efron 1979)."""
    values = _numbers(values, 1, "an interval")
    picks = np.random.default_rng(seed).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[picks].mean(1), TAILS)
    return float(low), float(high)


@dataclass(frozen=True)
class Delta:
    """A difference (or a mean) and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    @property
    def excludes_0(self) -> bool:
        """Whether 0 lies outside; an end at 0 counts as inside."""
        return self.low > 0 or self.high < 0


def paired_delta(a: Mapping[str, float], b: Mapping[str, float], draws: int = DRAWS, seed: int = 0) -> Delta:
    """Mean of a - b over the same problems, with the problem bootstrap. TalkError names ids that do not match."""
    rows, _ = score_matrix([a, b])
    differences = rows[0] - rows[1]
    return Delta(float(differences.mean()), *bootstrap_interval(differences, draws, seed))


def score_matrix(runs: Sequence[Mapping[str, float]]) -> tuple[np.ndarray, list[str]]:
    """Problem scores of several runs as a (runs, problems) matrix, and the sorted problem ids.

    TalkError names ids that some runs lack."""
    ids = sorted(set().union(*runs))
    odd = [key for key in ids if any(key not in run for run in runs)]
    if odd or not ids:
        raise TalkError(f"the runs were not scored on the same problems: {', '.join(odd[:5]) or 'none'}"
                        f"{f' and {len(odd) - 5} more' if len(odd) > 5 else ''}; evaluate them on one held-out set")
    return np.array([[run[key] for key in ids] for run in runs], dtype=float), ids


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; the post's `run_std` of the untrained pair's re-runs.

    Numbers that are all the same give 0 exactly: numpy's mean would leave a rest of the order of 1e-17."""
    values = _numbers(values, 2, "a standard deviation")
    return 0.0 if np.ptp(values) == 0 else float(np.std(values, ddof=1))


def noise_band(run_std: float, runs: int, n_a: int, n_b: int) -> float:
    """t(runs - 1) * run_std * sqrt(1/n_a + 1/n_b): what re-running alone moves a difference by."""
    if runs < 2:
        raise TalkError(f"a noise band needs at least 2 re-runs of the untrained pair, got {runs}: run base more often")
    return t_quantile(runs - 1) * run_std * sqrt(1 / n_a + 1 / n_b)


def satterthwaite(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Welch's degrees of freedom: (sum s^2/n)^2 / sum (s^2/n)^2/(n - 1) (Welch 1947). Without spread, sum n - 1."""
    parts = [v / n for v, n in zip(variances, counts, strict=True)]
    if max(parts) == 0:
        return sum(n - 1 for n in counts)
    shares = [part / sum(parts) for part in parts]  # in shares nothing underflows
    return 1 / sum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))


@dataclass(frozen=True)
class Verdict:
    """The post's verdict on a difference, with every part of it. Fractions."""

    verdict: str
    """moved, flat, or unresolved (one seed an arm)."""
    paired: Delta
    """First training seed, problems resampled."""
    band: float
    centre: float
    """Difference of the seed means."""
    half: float
    """Half-width of the interval widened by the spread between seeds."""
    spread: float = 0.0
    """sqrt(sum of s_arm^2 / n_arm): standard error of `centre` over training seeds."""
    df: float = 0.0
    """Degrees of freedom of `half`; 0 where unresolved."""

    @property
    def widened(self) -> tuple[float, float]:
        return self.centre - self.half, self.centre + self.half

    @property
    def tests(self) -> dict[str, bool]:
        """The three things that "moved" needs, each by itself."""
        return {"paired interval excludes 0": self.paired.excludes_0,
                "delta clears the noise band": abs(self.paired.value) > self.band,
                "widened interval excludes 0": self.df > 0 and abs(self.centre) > self.half}

    @property
    def signs_agree(self) -> bool:
        """Whether the first seed and the seed means point the same way. The rule does not ask."""
        return self.paired.value * self.centre > 0


def verdict(paired: Delta, seeds_a: Sequence[float], seeds_b: Sequence[float], run_std: float, runs: int,
            df: str = "within") -> Verdict:
    """The post's rule. "moved" needs all three: the paired interval excludes 0; the paired delta clears the noise
    band; the interval of half-width sqrt(h^2 + t_df^2 * sum of s^2/n), centred on the difference of the seed
    means, excludes 0. `df` names a reading in `DF`. One seed in either arm: "unresolved"."""
    if df not in DF:
        raise TalkError(f"unknown degrees of freedom {df!r}; there are: {', '.join(DF)}")
    arms = [_numbers(seeds, 1, "a verdict") for seeds in (seeds_a, seeds_b)]
    counts = [len(arm) for arm in arms]
    band, centre = noise_band(run_std, runs, *counts), float(arms[0].mean() - arms[1].mean())
    if min(counts) < 2:
        return Verdict("unresolved", paired, band, centre, paired.half)
    variances = [sample_std(arm) ** 2 for arm in arms]
    spread = sqrt(sum(v / n for v, n in zip(variances, counts, strict=True)))
    freedom = DF[df](variances, counts)
    half = sqrt(paired.half**2 + (t_quantile(freedom) * spread) ** 2)
    found = Verdict("", paired, band, centre, half, spread, freedom)
    return Verdict("moved" if all(found.tests.values()) else "flat", paired, band, centre, half, spread, freedom)


# A reader's better tools


def seed_interval(values: Sequence[float]) -> Delta:
    """Mean over training seeds with Student's t interval (n - 1): speaks of the mean over trainings to come, which a
    bootstrap over problems does not. (A percentile bootstrap over 3 seeds is just [lowest, highest]: the lowest three
    times over comes up in 1 of 27 resamples, more than 2.5%. It misses when all three fall on one side, 1 in 4.)"""
    values = _numbers(values, 2, "an interval over seeds")
    half = t_quantile(len(values) - 1) * sample_std(values) / sqrt(len(values))
    return Delta(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[Delta, float]:
    """Difference of means over seeds with Welch's interval, and its two-sided p value (Welch 1947).

    t = (mean_a - mean_b) / sqrt(s_a^2/n_a + s_b^2/n_b), df as in `satterthwaite`. Arms without any spread: p is 1
    where they are equal, else TalkError, since t is not defined."""
    a, b = (_numbers(values, 2, "Welch's test") for values in (a, b))
    value, variances = float(a.mean() - b.mean()), [sample_std(a) ** 2, sample_std(b) ** 2]
    error = sqrt(variances[0] / len(a) + variances[1] / len(b))
    if error == 0:
        if a[0] != b[0]:
            raise TalkError("Welch's test: neither arm has any spread between seeds, so t is not defined")
        return Delta(0.0, 0.0, 0.0), 1.0
    df = satterthwaite(variances, [len(a), len(b)])
    half = t_quantile(df) * error
    return Delta(value, value - half, value + half), float(2 * stats.t.sf(abs(value) / error, df))


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Exact two-sided p of the difference of means over all relabellings of the seeds (Fisher 1935). Assumes no
    shape at all, and so cannot be below 2 / C(6, 3) = 0.1 with three seeds an arm, however far apart they are."""
    a, b = (_numbers(values, 1, "a permutation test") for values in (a, b))
    if comb(len(a) + len(b), len(a)) > MOST_RELABELLINGS:
        raise TalkError(f"{len(a)} + {len(b)} seeds have too many relabellings to list; use welch()")
    pooled, seen = np.concatenate([a, b]), abs(a.mean() - b.mean())
    sums = np.array([pooled[list(pick)].sum() for pick in combinations(range(len(pooled)), len(a))])
    gaps = abs(sums / len(a) - (pooled.sum() - sums) / len(b))
    return float(np.mean(gaps >= seen - 1e-12))  # sums in another order differ by a rounding error


def crossed_bootstrap(scores: np.ndarray, draws: int = DRAWS, seed: int = 0,
                      against: np.ndarray | None = None) -> Delta:
    """Mean of a (seeds, problems) matrix; seeds and problems resampled independently of one another (Owen 2007, "The
    pigeonhole bootstrap"). `against`, (seeds, same problems), is subtracted: seeds are then resampled in each arm by
    itself, problems in both together."""
    arms = [np.atleast_2d(np.asarray(arm, dtype=float)) for arm in (scores, against) if arm is not None]
    if len({arm.shape[1] for arm in arms}) > 1 or not all(arm.size for arm in arms):
        raise TalkError(f"crossed bootstrap: matrices of shape {' and '.join(str(arm.shape) for arm in arms)}; both "
                        "need seeds x the same problems")
    rng = np.random.default_rng(seed)
    problems = resample_counts(rng, draws, arms[0].shape[1])
    parts = [np.einsum("dn,nd->d", resample_counts(rng, draws, len(arm)), arm @ problems.T) / arm.size for arm in arms]
    low, high = np.quantile(parts[0] - (parts[1] if len(parts) > 1 else 0.0), TAILS)
    return Delta(float(arms[0].mean() - (arms[1].mean() if len(arms) > 1 else 0.0)), float(low), float(high))


def resample_counts(rng: np.random.Generator, draws: int, n: int) -> np.ndarray:
    """(draws, n): how often each of n things comes up in a resample of n with replacement; a row sums to n.

    Counts and not shares: counts times scores in quarters add up without rounding, so that a matrix product gives the
    same bits on every processor, whatever the order of its sums; divide by n once, at the end."""
    return rng.multinomial(n, np.full(n, 1 / n), draws).astype(float)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p values: the i-th smallest of m is multiplied by m - i + 1, and none may fall below
    one before it (Holm 1979). Holds the chance of any false alarm among them, whatever their dependence."""
    if bad := [name for name, p in p_values.items() if not 0 <= p <= 1]:
        raise TalkError(f"Holm: the p value of {bad[0]!r} is {p_values[bad[0]]}, not in 0..1")
    adjusted, worst = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True)
class CounterTest:
    """A counter's difference between two arms, over training seeds."""

    delta: Delta
    """Welch's interval."""
    p: float
    p_holm: float
    """Adjusted for all counters tested with it."""


def counter_tests(a: Sequence[Mapping[str, float | None]], b: Sequence[Mapping[str, float | None]],
                  ) -> dict[str, CounterTest]:
    """Welch's test over seeds on every counter, Holm-corrected. `a` and `b` hold one dict of counters a seed; a
    counter that some seed leaves undefined (None) is left out."""
    runs = [*a, *b]
    names = [name for name in runs[0] if all(run.get(name) is not None for run in runs)] if runs else []
    found = {name: welch([run[name] for run in a], [run[name] for run in b]) for name in names}
    adjusted = holm({name: p for name, (_, p) in found.items()})
    return {name: CounterTest(delta, p, adjusted[name]) for name, (delta, p) in found.items()}


def power(difference: float, std_a: float, std_b: float, n: int, level: float = 1 - LEVEL) -> float:
    """Power of Welch's two-sided t test with n seeds an arm: P(F'(1, df, shift^2) > t^2), the square of a noncentral t,
    with shift = |difference| / sqrt((std_a^2 + std_b^2)/n) and df Satterthwaite's for the true spreads. `level` is the
    chance of a false alarm. (scipy's own noncentral t gives nan at some large shifts; its noncentral F does not.)"""
    if n < 2 or min(std_a, std_b) < 0 or max(std_a, std_b) == 0:
        raise TalkError(f"power needs 2 seeds or more and some spread; got n={n}, spreads {std_a} and {std_b}")
    df = satterthwaite([std_a**2, std_b**2], [n, n])
    shift = abs(difference) / sqrt((std_a**2 + std_b**2) / n)
    return float(stats.ncf.sf(stats.t.ppf(1 - level / 2, df) ** 2, 1, df, shift**2))


def seeds_needed(a: Sequence[float], b: Sequence[float], wanted: float = 0.8, most: int = 1000) -> int | None:
    """Fewest seeds an arm at which the difference seen, with the spread seen, is found with power `wanted`; None
    beyond `most`, and where no difference or no spread was seen."""
    difference, spread = float(np.mean(a) - np.mean(b)), (sample_std(a), sample_std(b))
    if difference == 0 or max(spread) == 0:
        return None
    counts = range(2, most + 1)  # power grows with the seeds, so the first that is enough can be found by halving
    place = bisect_left(counts, wanted, key=lambda n: power(difference, *spread, n))
    return counts[place] if place < len(counts) else None
