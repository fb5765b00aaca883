"""Which chats a training step plays, and which of them it keeps. No torch: a scripted `play` fits.

A step takes some problems, plays each `size` times, and asks the credit rule whether a problem needs another
round. What comes back is one `Group` a problem: all chats drawn, those kept, and their advantages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .chat import Chat
from .credit import Rule, is_flat
from .recipe import Arm
from .splitter import Task

PlayRound = Callable[[Sequence[Task], Sequence[int], bool], list[Chat]]
"""(tasks, chat numbers, whether B is the untrained model) -> graded chats."""


@dataclass(frozen=True)
class Group:
    """One problem's chats at one step."""

    task: Task
    pool: tuple[Chat, ...]
    """Every chat drawn."""
    kept: tuple[int, ...]
    """Positions in `pool` of the chats that train."""
    advantages: tuple[float, ...]
    """One a kept chat."""

    @property
    def flat(self) -> bool:
        """Whether all chats drawn scored the same."""
        return is_flat([chat.reward for chat in self.pool])


def collect(tasks: Sequence[Task], arm: Arm, rule: Rule, size: int, play_round: PlayRound) -> list[Group]:
    """Plays the tasks, `size` chats each a round, until the rule stops or its rounds are used up."""
    pools: dict[str, list[Chat]] = {task.id: [] for task in tasks}
    waiting = list(tasks)
    for number in range(rule.rounds):
        for chat in _one_round(waiting, arm, size, number * size, play_round):
            pools[chat.problem_id].append(chat)
        waiting = [t for t in waiting if not rule.stop([c.reward for c in pools[t.id]], size)]
        if not waiting:
            break
    return [_credit(task, pools[task.id], rule, size) for task in tasks]


def _one_round(tasks: Sequence[Task], arm: Arm, size: int, first: int, play_round: PlayRound) -> list[Chat]:
    """The last `arm.untrained_partners` chats of a problem are played with an untrained B."""
    own = size - arm.untrained_partners
    chats = []
    for untrained, numbers in ((False, range(first, first + own)), (True, range(first + own, first + size))):
        rows = [(task, number) for task in tasks for number in numbers]
        if rows:
            chats += play_round([task for task, _ in rows], [number for _, number in rows], untrained)
    return sorted(chats, key=lambda chat: chat.index)


def _credit(task: Task, pool: list[Chat], rule: Rule, size: int) -> Group:
    rewards = [chat.reward for chat in pool]
    kept = rule.keep(rewards, size)
    return Group(task, tuple(pool), tuple(kept), tuple(rule.advantages([rewards[i] for i in kept], rewards)))
