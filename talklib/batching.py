"""Which rows of a step are computed, in which micro-batches, and with what weight. No torch.

TRL 0.19.1 shuffles a step's rows into micro-batches of equal size, pads each, and divides by a divisor that
depends on the loss type and on the micro-batch. Rows whose advantage is 0 add nothing to the numerator but
count in the divisor. So each row's weight is fixed first, from that plain grouping (`row_weights`); then the
rows that matter are packed by length into as many micro-batches (`pack`). The gradient stays the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import TalkError
from .chat import Chat, derive_seed
from .rollout import Group

LOSS_TYPES = ("bnpo", "grpo", "dr_grpo")


@dataclass(frozen=True)
class Row:
    """One trained turn: what the model read, what it wrote, and what that was worth."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


def problems_at(step: int, n_problems: int, size: int, seed: int) -> list[int]:
    """Which problems step `step` (from 0) plays: every problem once an epoch, each epoch in an order of its own.

    A pure function of (seed, step), so that a resumed run needs no sampler state."""
    places = np.arange(step * size, (step + 1) * size)
    orders = {epoch: np.random.default_rng(derive_seed("order", seed, epoch)).permutation(n_problems)
              for epoch in set((places // n_problems).tolist())}
    return [int(orders[place // n_problems][place % n_problems]) for place in places.tolist()]


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """The trained turns of the kept chats, each with its chat's advantage, in the order played."""
    paid: list[tuple[Chat, float]] = [
        (group.pool[position], advantage)
        for group in groups
        for position, advantage in zip(group.kept, group.advantages, strict=True)
    ]
    return [Row(turn.prompt_ids, turn.completion_ids, advantage)
            for chat, advantage in paid for turn in chat.turns if turn.trained and turn.completion_ids]


def plain_groups(n_rows: int, micro_batches: int, seed: int, step: int) -> list[np.ndarray]:
    """The plain grouping: a permutation seeded by (seed, step), cut into micro-batches."""
    order = np.random.default_rng(derive_seed("shuffle", seed, step)).permutation(n_rows)
    return np.array_split(order, micro_batches)


def row_weights(lengths: Sequence[int], groups: Sequence[np.ndarray], loss_type: str, cap: int) -> np.ndarray:
    """The factor of each row's summed token losses within its micro-batch's loss. Shape (rows,).

    With T_i tokens in row i of micro-batch m (TRL 0.19.1, `GRPOTrainer._compute_loss`):
    bnpo: 1 / sum of T over m; grpo: 1 / (T_i * rows of m); dr_grpo: 1 / (rows of m * cap)."""
    if loss_type not in LOSS_TYPES:
        raise TalkError(f"Recipe.loss_type is {loss_type!r}; TRL 0.19.1 knows {', '.join(LOSS_TYPES)}")
    tokens = np.asarray(lengths, dtype=float)
    weights = np.zeros(len(tokens))
    for group in groups:
        if loss_type == "bnpo":
            weights[group] = 1.0 / max(tokens[group].sum(), 1.0)
        elif loss_type == "grpo":
            weights[group] = 1.0 / (tokens[group] * len(group))
        else:
            weights[group] = 1.0 / (len(group) * cap)
    return weights


def pack(rows: Sequence[Row], micro_batches: int) -> list[list[int]]:
    """Positions of the rows with an advantage, by length, in `micro_batches` runs of about equal padded size."""
    live = sorted((i for i, row in enumerate(rows) if row.advantage != 0.0), key=lambda i: (len(rows[i]), i))
    budget = sum(len(rows[i]) for i in live) / micro_batches
    runs: list[list[int]] = [[] for _ in range(micro_batches)]
    spent = 0.0
    for i in live:
        runs[min(int(spent / budget), micro_batches - 1)].append(i)
        spent += len(rows[i])
    return runs
