"""Intervals, paired deltas, noise, seed spread and verdicts: the post's rules first, a reader's better tools after.

Scores are fractions. Every bootstrap is seeded, so that it repeats; every interval says what was resampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats

from . import TalkError

DRAWS = 2000
LEVEL = 0.95


def bootstrap_interval(values: Sequence[float], draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap of the mean, resampling `values` (one a problem): the post's interval."""
    values = np.asarray(values, dtype=float)
    if not len(values):
        raise TalkError("an interval needs at least one value")
    picks = np.random.default_rng(seed).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[picks].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Delta:
    """A difference and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2


def paired_delta(a: Mapping[str, float], b: Mapping[str, float], draws: int = DRAWS, seed: int = 0) -> Delta:
    """Mean of a - b over the same problems, with the problem bootstrap. TalkError names ids that do not match."""
    odd = sorted(set(a) ^ set(b))
    if odd or not a:
        raise TalkError(f"the two runs were not scored on the same problems: {', '.join(odd[:5]) or 'none'}")
    differences = [a[key] - b[key] for key in sorted(a)]
    return Delta(float(np.mean(differences)), *bootstrap_interval(differences, draws, seed))


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; the post's `run_std` of the untrained pair's re-runs."""
    if len(values) < 2:
        raise TalkError("a standard deviation needs at least two values")
    return float(np.std(values, ddof=1))


def noise_band(run_std: float, runs: int, n_a: int, n_b: int) -> float:
    """t(runs - 1) * run_std * sqrt(1/n_a + 1/n_b): what re-running alone moves a difference by."""
    return float(stats.t.ppf((1 + LEVEL) / 2, runs - 1)) * run_std * sqrt(1 / n_a + 1 / n_b)


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

    @property
    def widened(self) -> tuple[float, float]:
        return self.centre - self.half, self.centre + self.half


def verdict(paired: Delta, seeds_a: Sequence[float], seeds_b: Sequence[float], run_std: float, runs: int) -> Verdict:
    """The post's rule. "moved" needs all three: the paired interval excludes 0; the paired delta clears the noise
    band; the interval of half-width sqrt(h^2 + t_df^2 * sum of s^2/n), centred on the difference of the seed
    means, excludes 0. df = sum of (n_arm - 1)."""
    n_a, n_b = len(seeds_a), len(seeds_b)
    band = noise_band(run_std, runs, n_a, n_b)
    centre = float(np.mean(seeds_a) - np.mean(seeds_b))
    if min(n_a, n_b) < 2:
        return Verdict("unresolved", paired, band, centre, paired.half)
    spread = sample_std(seeds_a) ** 2 / n_a + sample_std(seeds_b) ** 2 / n_b
    t = float(stats.t.ppf((1 + LEVEL) / 2, n_a + n_b - 2))
    half = sqrt(paired.half**2 + t**2 * spread)
    moved = paired.low * paired.high > 0 and abs(paired.value) > band and abs(centre) > half
    return Verdict("moved" if moved else "flat", paired, band, centre, half)


def seed_interval(values: Sequence[float]) -> Delta:
    """Mean over training seeds with Student's t interval (n - 1): speaks of the next seed's training, which a
    bootstrap over problems does not."""
    mean, n = float(np.mean(values)), len(values)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sample_std(values) / sqrt(n)
    return Delta(mean, mean - half, mean + half)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[Delta, float]:
    """Difference of means over seeds with Welch's interval, and its two-sided p value."""
    found = stats.ttest_ind(a, b, equal_var=False)
    low, high = found.confidence_interval(LEVEL)
    return Delta(float(np.mean(a) - np.mean(b)), float(low), float(high)), float(found.pvalue)


def crossed_bootstrap(scores: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Delta:
    """Mean of a (seeds, problems) matrix; seeds and problems resampled independently of one another."""
    scores = np.asarray(scores, dtype=float)
    rng, (n, m) = np.random.default_rng(seed), scores.shape
    means = [scores[rng.integers(0, n, n)][:, rng.integers(0, m, m)].mean() for _ in range(draws)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Delta(float(scores.mean()), float(low), float(high))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p values (Holm 1979)."""
    adjusted, worst = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def power(difference: float, std_a: float, std_b: float, n: int, level: float = 1 - LEVEL) -> float:
    """Power of a two-sided t test with n seeds an arm (noncentral t, Welch-Satterthwaite df)."""
    va, vb = std_a**2 / n, std_b**2 / n
    df = (va + vb) ** 2 / (va**2 / (n - 1) + vb**2 / (n - 1))
    t, shift = stats.t.ppf(1 - level / 2, df), abs(difference) / sqrt(va + vb)
    return float(stats.nct.sf(t, df, shift) + stats.nct.cdf(-t, df, shift))


def seeds_needed(a: Sequence[float], b: Sequence[float], wanted: float = 0.8, most: int = 1000) -> int | None:
    """Fewest seeds an arm at which the difference seen, with the spread seen, is found with power `wanted`; None
    beyond `most`."""
    difference, spread = float(np.mean(a) - np.mean(b)), (sample_std(a), sample_std(b))
    if difference == 0 or max(spread) == 0:
        return None
    return next((n for n in range(2, most + 1) if power(difference, *spread, n) >= wanted), None)
