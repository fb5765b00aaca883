"""Intervals and verdicts against hand-worked cases, properties, and simulated coverage."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from talklib import TalkError, power, stats
from talklib.evidence import from_post
from talklib.readings import settlings

fractions = st.lists(st.integers(0, 4).map(lambda n: n / 4), min_size=2, max_size=40)


@settings(max_examples=40)
@given(fractions)
def test_the_bootstrap_repeats_and_brackets_the_mean(values):
    low, high = stats.bootstrap_interval(values)
    assert (low, high) == stats.bootstrap_interval(values)
    assert low - 1e-12 <= np.mean(values) <= high + 1e-12


@settings(max_examples=40)
@given(fractions, st.randoms())
def test_a_paired_delta_turns_its_sign_with_its_arms(values, random):
    a = {f"p{i}": v for i, v in enumerate(values)}
    b = {key: random.choice(values) for key in a}
    there, back = stats.paired_delta(a, b), stats.paired_delta(b, a)
    assert there.value == pytest.approx(-back.value)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-9)


def test_problems_that_do_not_match_are_named():
    with pytest.raises(TalkError, match="p9"):
        stats.paired_delta({"p1": 1.0, "p9": 0.0}, {"p1": 1.0})


def test_the_verdict_by_hand():
    """Seeds .5 .6 against .1 .2, run_std .01 over 3 re-runs: t(2) = 4.303 for noise and for the seeds' spread."""
    found = stats.verdict(stats.Delta(0.4, 0.3, 0.5), [0.5, 0.6], [0.1, 0.2], 0.01, 3)
    t = scipy_stats.t.ppf(0.975, 2)
    assert found.band == pytest.approx(t * 0.01)
    assert found.half == pytest.approx(sqrt(0.1**2 + t**2 * 2 * (0.005 / 2)))
    assert found.centre == pytest.approx(0.4) and found.verdict == "moved"
    assert stats.verdict(stats.Delta(0.4, 0.3, 0.5), [0.5], [0.1], 0.01, 3).verdict == "unresolved"
    assert stats.verdict(stats.Delta(0.4, -0.1, 0.9), [0.5, 0.6], [0.1, 0.2], 0.01, 3).verdict == "flat"
    assert stats.verdict(stats.Delta(0.01, 0.005, 0.02), [0.5, 0.6], [0.1, 0.2], 0.01, 3).verdict == "flat"


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1))
def test_holm_never_lowers_and_keeps_the_order(p):
    adjusted = stats.holm(p)
    assert all(adjusted[name] >= p[name] and adjusted[name] <= 1 for name in p)
    ranked = sorted(p, key=p.get)
    assert [adjusted[name] for name in ranked] == sorted(adjusted.values())
    assert adjusted[ranked[0]] == pytest.approx(min(1, len(p) * p[ranked[0]]))


def test_over_three_seeds_student_covers_and_the_percentile_bootstrap_does_not():
    rng, boot, student = np.random.default_rng(1), 0, 0
    for i in range(600):
        seeds = rng.normal(0, 1, 3)
        low, high = stats.bootstrap_interval(seeds, 500, i)
        boot += low <= 0 <= high
        found = stats.seed_interval(seeds)
        student += found.low <= 0 <= found.high
    assert boot / 600 < 0.85 and 0.92 < student / 600 < 0.98


def test_power_agrees_with_simulated_experiments():
    rng, n, found = np.random.default_rng(2), 4, 0
    for _ in range(2000):
        a, b = rng.normal(1, 0.5, n), rng.normal(0, 0.5, n)
        found += scipy_stats.ttest_ind(a, b).pvalue < 0.05
    assert stats.power(1.0, 0.5, 0.5, n) == pytest.approx(found / 2000, abs=0.03)
    needed = stats.seeds_needed([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert stats.power(1.0, 1.0, 1.0, needed) >= 0.8 > stats.power(1.0, 1.0, 1.0, needed - 1)


def test_the_rules_false_alarms_when_nothing_differs():
    """No true effect, seeds that spread: resampling problems alone cries wolf, a t test over seeds keeps near 5%."""
    world = power.World((0.08, 0.08))
    rates = {row.rule: row.rate for row in power.rates(world, seeds=(3,), n_sims=400, draws=300)}
    assert rates == {row.rule: row.rate for row in power.rates(world, seeds=(3,), n_sims=400, draws=300)}
    problems_alone = max(rates.values())
    assert problems_alone > 0.3
    assert rates["the post's rule"] < 0.10
    assert any(0.01 < rate < 0.10 for rate in rates.values())


def test_settling_the_posts_comparison():
    found = settlings(from_post())["reinforce_ada", "own"]
    assert found.delta.value == pytest.approx(0.085) and found.seeds > 3 and found.power_now < 0.8


def test_the_crossed_bootstrap_adds_without_rounding():
    """Scores in quarters: whole-number sums give the same bits, so the order in which a processor adds is nothing."""
    rng, draws = np.random.default_rng(5), 500
    quarters = [rng.integers(0, 5, (seeds, 55)) for seeds in (5, 3)]
    found = stats.crossed_bootstrap(quarters[0] / 4, draws, 9, against=quarters[1] / 4)
    again = np.random.default_rng(9)
    problems = stats.resample_counts(again, draws, 55).astype(int)
    sums = [np.einsum("ds,dp,sp->d", stats.resample_counts(again, draws, len(arm)).astype(int), problems, arm)
            for arm in quarters]
    means = [total / 4 / arm.size for total, arm in zip(sums, quarters, strict=True)]
    assert (found.low, found.high) == tuple(np.quantile(means[0] - means[1], stats.TAILS))
