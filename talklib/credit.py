"""Rewards -> which chats train, and with what advantage. Pure arithmetic: no model, no randomness.

A problem's chats form a group. A rule says how often a problem may be played again (`rounds`), when to stop
(`stop`), which chats of the pool are kept (`keep`) and what each kept chat is paid (`advantages`). Every
trained turn of a chat, both copies', carries its chat's advantage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from . import TalkError

Rewards = Sequence[float]


def is_flat(rewards: Rewards) -> bool:
    """Whether all chats scored the same, so that a group baseline leaves nothing to learn."""
    return len(set(rewards)) <= 1


def centred(kept: Rewards, pool: Rewards) -> list[float]:
    """`r_i - mean(pool)`: GRPO's advantage without division by the spread (arXiv:2402.03300 divides; Dr. GRPO,
    arXiv:2503.20783, does not). With a pool wider than the kept chats it is Reinforce-Ada's global baseline."""
    baseline = fmean(pool)
    return [reward - baseline for reward in kept]


def leave_one_out(kept: Rewards, pool: Rewards) -> list[float]:
    """`r_i - mean of the others' rewards` (RLOO, arXiv:2402.14740): n/(n-1) times the centred advantage."""
    if len(pool) < 2:
        raise TalkError("leave-one-out needs at least 2 chats a problem")
    total, others = sum(pool), len(pool) - 1
    return [reward - (total - reward) / others for reward in kept]


def winners(kept: Rewards, pool: Rewards) -> list[float]:
    """1 for a chat whose every answer is right, else 0; nothing is subtracted (RAFT, arXiv:2304.06767)."""
    return [1.0 if reward == 1.0 else 0.0 for reward in kept]


def keep_all(pool: Rewards, size: int) -> list[int]:
    """Positions of the first `size` chats."""
    return list(range(len(pool)))[:size]


def keep_extremes(pool: Rewards, size: int) -> list[int]:
    """Positions of the `size/2` highest and `size/2` lowest rewards; ties go to the chat drawn first.

    A pool with any spread always gives a group with spread: its best and its worst are both kept."""
    order = sorted(range(len(pool)), key=lambda i: (-pool[i], i))
    high = order[: size // 2]
    rest = sorted((i for i in order if i not in high), key=lambda i: (pool[i], i))
    return sorted(high + rest[: size - len(high)])


def stop_on_spread(pool: Rewards, size: int) -> bool:
    """Stop as soon as the chats differ: what the post describes."""
    return not is_flat(pool)


def stop_on_success(pool: Rewards, size: int) -> bool:
    """Stop at the first success: Reinforce-Ada's positive-focused variant (arXiv:2510.04996)."""
    return any(reward == 1.0 for reward in pool)


def stop_when_balanced(pool: Rewards, size: int) -> bool:
    """Stop with size/2 successes and size/2 others: Reinforce-Ada's balanced variant (arXiv:2510.04996)."""
    right = sum(reward == 1.0 for reward in pool)
    return min(right, len(pool) - right) >= size // 2


def stop_at_once(pool: Rewards, size: int) -> bool:
    """One round only."""
    return True


@dataclass(frozen=True)
class Rule:
    """A way to turn a problem's rewards into advantages."""

    name: str
    advantages: Callable[[Rewards, Rewards], list[float]]
    """(kept rewards, pool rewards) -> one advantage a kept chat."""
    rounds: int = 1
    """Most rounds of chats a problem may be played."""
    stop: Callable[[Rewards, int], bool] = stop_at_once
    """(pool so far, group size) -> no further round."""
    keep: Callable[[Rewards, int], list[int]] = keep_all
    """(pool, group size) -> positions of the chats that train."""


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("grpo", centred),
        Rule("raft", winners),
        Rule("reinforce_ada", centred, rounds=3, stop=stop_on_spread, keep=keep_extremes),
        Rule("reinforce_ada_success", centred, rounds=3, stop=stop_on_success, keep=keep_extremes),
        Rule("reinforce_ada_balanced", centred, rounds=3, stop=stop_when_balanced, keep=keep_extremes),
        Rule("rloo", leave_one_out),
    )
}


def get_rule(name: str) -> Rule:
    """The rule of that name; TalkError lists the names there are."""
    if name not in RULES:
        raise TalkError(f"unknown credit rule {name!r}; rules: {', '.join(RULES)}")
    return RULES[name]
