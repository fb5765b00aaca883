"""Hand-worked cases of each rule, and what must hold of every group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talklib import TalkError
from talklib.chat import Chat
from talklib.credit import RULES, centred, get_rule, is_flat, keep_extremes, leave_one_out, winners
from talklib.recipe import ARMS
from talklib.rollout import collect
from talklib.splitter import Problem, Split, Task

rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=12)


def test_by_hand():
    assert centred([1, 0, 0.5, 0.5], [1, 0, 0.5, 0.5]) == [0.5, -0.5, 0, 0]
    assert winners([1, 0.5, 0, 1], [1, 0.5, 0, 1]) == [1, 0, 0, 1]
    assert leave_one_out([1, 0, 0, 0], [1, 0, 0, 0]) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    # Reinforce-Ada: 8 chats drawn, one right; the kept four are paid against the mean of all eight
    pool = [0, 0, 0, 0, 0, 1, 0, 0]
    kept = keep_extremes(pool, 4)
    assert kept == [0, 1, 2, 5] and centred([pool[i] for i in kept], pool) == [-0.125, -0.125, -0.125, 0.875]


@given(st.sampled_from([0.0, 0.5, 1.0]), st.integers(2, 12))
def test_a_flat_group_teaches_nothing(value, size):
    flat = [value] * size
    assert centred(flat, flat) == pytest.approx([0] * size)
    assert leave_one_out(flat, flat) == pytest.approx([0] * size)


@given(rewards)
def test_a_group_centred_on_itself_sums_to_nothing(pool):
    assert sum(centred(pool, pool)) == pytest.approx(0)
    n = len(pool)
    assert leave_one_out(pool, pool) == pytest.approx([n / (n - 1) * a for a in centred(pool, pool)])


@given(rewards)
def test_winners_are_never_paid_less_than_nothing(pool):
    assert all(a in (0.0, 1.0) for a in winners(pool, pool))


@given(rewards)
def test_kept_chats_have_spread_whenever_the_pool_has(pool):
    kept = keep_extremes(pool, 4)
    assert len(kept) == len(set(kept)) == 4
    values = [pool[i] for i in kept]
    assert is_flat(values) == is_flat(pool)
    assert max(values) == max(pool) and min(values) == min(pool)


@given(st.integers(1, 3), st.integers(8, 12))
def test_balanced_groups_against_the_pool_mean_lean_upwards(right, drawn):
    """The rule as the post states it: with 2 of 2 kept on each side, the mean advantage is 1/2 - solve rate."""
    pool = [1.0] * max(right, 2) + [0.0] * (drawn - max(right, 2))
    kept = keep_extremes(pool, 4)
    advantages = centred([pool[i] for i in kept], pool)
    assert sum(advantages) / 4 == pytest.approx(0.5 - sum(pool) / len(pool))


def make_task(i):
    return Task(Problem(f"p{i}", "", "1"), Split((("1",), ("2",)), "?"))


def world(outcomes):
    """A scripted play: chat `number` of each task scores outcomes[task][number]."""
    def play_round(tasks, numbers, untrained):
        partner = "untrained_b" if untrained else "self"
        return [Chat(t, (), partner=partner, index=n, outcomes=(outcomes[t.id][n],) * 2)
                for t, n in zip(tasks, numbers, strict=True)]
    return play_round


def test_only_stuck_problems_are_played_again():
    tasks = [make_task(i) for i in range(3)]
    outcomes = {"p0": [1, 0, 0, 0], "p1": [0] * 4 + [0, 1, 0, 0], "p2": [0] * 12}
    groups = collect(tasks, ARMS["reinforce_ada"], RULES["reinforce_ada"], 4, world(outcomes))
    assert [len(group.pool) for group in groups] == [4, 8, 12]
    assert [group.flat for group in groups] == [False, False, True]
    assert groups[1].advantages == (-0.125, -0.125, -0.125, 0.875)
    assert groups[2].advantages == (0, 0, 0, 0)


def test_mixed_partners_sit_in_half_of_the_chats():
    group = collect([make_task(0)], ARMS["mixed"], RULES["grpo"], 4, world({"p0": [1, 0, 0, 1]}))[0]
    assert [chat.partner for chat in group.pool] == ["self", "self", "untrained_b", "untrained_b"]
    assert group.advantages == (0.5, -0.5, -0.5, 0.5)


def test_stopping_variants():
    assert RULES["reinforce_ada_success"].stop([0, 0.5, 0, 1.0], 4)
    assert not RULES["reinforce_ada_success"].stop([0, 0.5, 0, 0.5], 4)
    assert not RULES["reinforce_ada_balanced"].stop([0, 0, 0, 1.0], 4)
    assert RULES["reinforce_ada_balanced"].stop([0, 0, 1.0, 1.0], 4)


def test_unknown_rule_names_the_rules():
    with pytest.raises(TalkError, match="reinforce_ada"):
        get_rule("grop")
