"""What a rule of verdict can and cannot see: seeds that would settle a comparison, and how often a rule is wrong.

`settle` answers the first by the noncentral t, `rates` the second by simulation: scores are drawn from a world where
the true difference is known (0, unless told), and each rule is asked whether something moved. The simulated
verdict calls `stats.verdict` itself, never a copy of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy import stats as distributions

from . import TalkError
from .published import load
from .stats import (
    DRAWS,
    LEVEL,
    TAILS,
    Delta,
    permutation_p,
    power,
    resample_counts,
    sample_std,
    seeds_needed,
    verdict,
    welch,
)

Z = float(distributions.norm.ppf(TAILS[1]))
CHUNK = 250
"""Simulated experiments worked on at once: 250 x 5 seeds x 300 problems, twice, stay under 50 MB."""
Moved = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settling:
    """What it would take to settle a comparison of two arms over training seeds. Fractions."""

    delta: Delta
    """Difference of seed means, with Welch's interval."""
    p: float
    p_permutation: float
    stds: tuple[float, float]
    """Spread between seeds, arm by arm."""
    std_range: tuple[float, float]
    """95% interval of the larger spread (chi-square): with few seeds the spread itself is hardly known."""
    seeds: int | None
    """Fewest seeds an arm for 80% power at 5%, two-sided, were the difference and both spreads as seen; None: more
    than 1,000, or nothing was seen to differ."""
    power_now: float
    """Chance that a repeat with the smaller arm's number of seeds finds such a difference."""
    detectable_now: float
    """Smallest true difference which that repeat finds with 80% power."""


def settle(a: Sequence[float], b: Sequence[float], wanted: float = 0.8) -> Settling:
    """Seed scores of two arms -> how far they are from settled. TalkError under 2 seeds an arm or without spread."""
    delta, p = welch(a, b)
    stds, n = (sample_std(a), sample_std(b)), min(len(a), len(b))
    wide = max(((s, len(x)) for s, x in zip(stds, (a, b), strict=True)))
    return Settling(delta, p, permutation_p(a, b), stds, std_interval(*wide), seeds_needed(a, b, wanted),
                    power(delta.value, *stds, n), detectable(*stds, n, wanted))


def std_interval(std: float, n: int) -> tuple[float, float]:
    """95% interval of a standard deviation seen on n normal values: s * sqrt((n-1) / chi2 quantile)."""
    low, high = (sqrt((n - 1) / distributions.chi2.ppf(tail, n - 1)) for tail in reversed(TAILS))
    return std * low, std * high


def detectable(std_a: float, std_b: float, n: int, wanted: float = 0.8) -> float:
    """Smallest true difference that Welch's test with n seeds an arm finds with power `wanted`, by bisection."""
    low, high = 0.0, sqrt(std_a**2 + std_b**2)
    while power(high, std_a, std_b, n) < wanted:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, std_a, std_b, n) < wanted else (low, middle)
    return high


# How often a rule is wrong, by simulation


@dataclass(frozen=True)
class World:
    """Where scores come from: score(arm, seed, problem) = effect of the arm + seed + problem + rest, all normal with
    mean 0. The problem's part is shared by both arms, which is what pairing uses. Fractions, as standard deviations."""

    seed_stds: tuple[float, float]
    """Between training seeds, arm by arm: the part of a seed's score that evaluating on more problems leaves."""
    problem_std: float = 0.30
    rest_stds: tuple[float, float] = (0.27, 0.27)
    """Of one problem's mean of 4 answers: the luck of the answers, and what suits one training run but not another."""
    problems: int = 300
    run_std: float = 0.0046
    """True spread of the untrained pair's re-runs; each experiment sees an estimate of it."""
    reruns: int = 3
    effect: float = 0.0
    """True difference between the arms."""

    def __post_init__(self):
        stds = (*self.seed_stds, self.problem_std, *self.rest_stds, self.run_std)
        if min(stds) < 0 or self.problems < 2 or self.reruns < 2:
            raise TalkError(f"{self}: standard deviations must not be negative, problems and re-runs at least 2")

    def scores(self, rng: np.random.Generator, sims: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
        """Two arms, each (sims, seeds, problems)."""
        shared = rng.normal(0, self.problem_std, (sims, 1, self.problems))
        arms = []
        for mean, seed_std, rest_std in zip((self.effect, 0.0), self.seed_stds, self.rest_stds, strict=True):
            trained = rng.normal(mean, seed_std, (sims, seeds, 1))
            arms.append(trained + shared + rng.normal(0, rest_std, (sims, seeds, self.problems)))
        return arms[0], arms[1]


def post_world(arm: str = "reinforce_ada", against: str = "grpo") -> World:
    """The world whose standard deviations are the post's: from the seeds' scores of two arms, the width of each arm's
    interval over problems and the width of their paired interval.

    With v = n * (half / 1.96)^2 the variance over problems that an interval of half-width `half` stands for: v_delta =
    rest_a^2 + rest_b^2 and v_arm = problem^2 + rest_arm^2, hence problem^2 = (v_a + v_b - v_delta) / 2. A seed's
    variance is that of the seeds' scores less rest^2 / n. What comes out negative is 0."""
    solve, methods = load("talk_to_solve"), load("talk_methods")
    arms = methods["arms"] | {"grpo_blocked": solve["arms"]["trained_blocked"]}
    deltas = {(name, "grpo"): entry for name, entry in methods["deltas_vs_grpo"].items()}
    deltas["grpo", "grpo_blocked"] = solve["delta"]
    if (arm, against) not in deltas:
        raise TalkError(f"the post has no paired interval of {arm} against {against}; it has: "
                        f"{', '.join(f'{a} against {b}' for a, b in deltas)}")
    n, pair = solve["n_holdout"], (arms[arm], arms[against])
    variances = [n * (Delta(0, *entry["ci95"]).half / Z) ** 2 for entry in (*pair, deltas[arm, against])]
    return _world(variances, [entry["per_seed"] for entry in pair], n, solve["noise"]["run_std"],
                  solve["noise"]["runs"])


def world_of(a: np.ndarray, b: np.ndarray, reruns: Sequence[float]) -> World:
    """The same from two arms' problem scores, (seeds, problems) each, and the untrained pair's re-runs: variances over
    problems are means over seeds."""
    if a.shape != b.shape or len(a) < 2:
        raise TalkError(f"a world needs two arms with the same seeds and problems, got {a.shape} and {b.shape}")
    variances = [float(part.var(1, ddof=1).mean()) for part in (a, b, a - b)]
    return _world(variances, [list(a.mean(1)), list(b.mean(1))], a.shape[1], sample_std(reruns), len(reruns))


def _world(variances: Sequence[float], seeds: Sequence[Sequence[float]], n: int, run_std: float, runs: int) -> World:
    """`variances` over problems of two arms and of their difference; `seeds` the scores of each arm's seeds."""
    shared = max(0.0, (variances[0] + variances[1] - variances[2]) / 2)
    rests = [max(0.0, v - shared) for v in variances[:2]]
    spread = [max(0.0, sample_std(scores) ** 2 - rest / n) for scores, rest in zip(seeds, rests, strict=True)]
    return World((sqrt(spread[0]), sqrt(spread[1])), sqrt(shared), (sqrt(rests[0]), sqrt(rests[1])), n, run_std, runs)


def _intervals(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap means (sims, draws) -> percentile ends, each (sims,)."""
    low, high = np.quantile(means, TAILS, axis=1)
    return low, high


def _outside(ends: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return (ends[0] > 0) | (ends[1] < 0)


def by_problems(a: np.ndarray, b: np.ndarray, world: World, rng: np.random.Generator, draws: int) -> Moved:
    """The problem bootstrap alone, on the first seed's paired delta and on that of all seeds' means; and the post's
    rule, by each reading of its degrees of freedom, on the same first-seed intervals."""
    problems = resample_counts(rng, draws, world.problems)
    first = a[:, 0] - b[:, 0]
    ends = _intervals(first @ problems.T / world.problems)
    moved = {"problem bootstrap, first seed": _outside(ends),
             "problem bootstrap, mean of seeds": _outside(
                 _intervals((a.mean(1) - b.mean(1)) @ problems.T / world.problems))}
    seen = world.run_std * np.sqrt(rng.chisquare(world.reruns - 1, len(a)) / (world.reruns - 1))
    parts = list(zip(first.mean(1), *ends, a.mean(2), b.mean(2), seen, strict=True))
    for name, df in POST_RULES.items():
        verdicts = (verdict(Delta(value, low, high), of_a, of_b, std, world.reruns, df)
                    for value, low, high, of_a, of_b, std in parts)
        moved[name] = np.array([found.verdict == "moved" for found in verdicts])
    return moved


POST_RULES = {
    "the post's rule": "within", "the post's rule, df = N - 1": "total", "the post's rule, Welch's df": "welch"}


def by_seeds(a: np.ndarray, b: np.ndarray, world: World, rng: np.random.Generator, draws: int) -> Moved:
    """Welch's t test over the seeds' scores."""
    p = distributions.ttest_ind(a.mean(2), b.mean(2), axis=1, equal_var=False).pvalue
    return {"Welch's t over seeds": p < 1 - LEVEL}


def by_both(a: np.ndarray, b: np.ndarray, world: World, rng: np.random.Generator, draws: int) -> Moved:
    """The crossed bootstrap, seeds x problems, as in `stats.crossed_bootstrap`."""
    problems = resample_counts(rng, draws, world.problems)
    means = [np.einsum("dn,snd->sd", resample_counts(rng, draws, arm.shape[1]), arm @ problems.T) / arm[0].size
             for arm in (a, b)]
    return {"crossed bootstrap": _outside(_intervals(means[0] - means[1]))}


RULES: tuple[Callable[..., Moved], ...] = (by_problems, by_seeds, by_both)
"""(scores a, scores b, world, rng, draws) -> name of a rule -> whether it says "moved", (sims,)."""


@dataclass(frozen=True)
class Rate:
    """How often a rule said "moved"."""

    rule: str
    seeds: int
    """Training seeds an arm."""
    rate: float
    """Of all simulated experiments; with no true effect, the false alarms, nominally 0.05."""
    error: float
    """Standard error of `rate`: sqrt(rate * (1 - rate) / n_sims)."""
    n_sims: int
    effect: float


def rates(world: World, seeds: Sequence[int] = (3, 5), n_sims: int = 1000, seed: int = 0,
          draws: int = DRAWS) -> list[Rate]:
    """How often each rule says "moved" in `world`, at each number of training seeds an arm. With `world.effect` 0
    these are false alarms; otherwise power. Repeats exactly for the same arguments.

    A chunk of experiments shares one set of bootstrap resamples, which turns the bootstraps into matrix products and
    leaves every experiment's own verdict distributed as before."""
    if n_sims < 1 or min(seeds) < 2:
        raise TalkError(f"rates needs 1 simulation or more and 2 seeds an arm or more; got {n_sims} and {min(seeds)}")
    rows = []
    for n in seeds:
        rng = np.random.default_rng([seed, n])
        sizes = [min(CHUNK, n_sims - done) for done in range(0, n_sims, CHUNK)]
        chunks = [_chunk(world, rng, size, n, draws) for size in sizes]
        for rule in chunks[0]:
            rate = float(np.concatenate([chunk[rule] for chunk in chunks]).mean())
            rows.append(Rate(rule, n, rate, sqrt(rate * (1 - rate) / n_sims), n_sims, world.effect))
    return rows


def _chunk(world: World, rng: np.random.Generator, sims: int, seeds: int, draws: int) -> Moved:
    a, b = world.scores(rng, sims, seeds)
    return {name: moved for rule in RULES for name, moved in rule(a, b, world, rng, draws).items()}


def worlds() -> dict[str, World]:
    """The worlds that the simulation is shown for: the post's two main comparisons as they are, one where both arms
    spread as its GRPO does, and one where training seeds do not differ at all."""
    methods, control = post_world("reinforce_ada", "grpo"), post_world("grpo", "grpo_blocked")
    wide = max(methods.seed_stds)
    return {"Reinforce-Ada and GRPO": methods, "chatting and blocked": control,
            "both arms as GRPO": replace(methods, seed_stds=(wide, wide)),
            "no spread between seeds": replace(methods, seed_stds=(0.0, 0.0))}
