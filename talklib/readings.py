"""What an `Evidence` says beyond its verdicts: what would settle a method, and what cross-play says about codes."""

from dataclasses import dataclass
from statistics import fmean

from . import stats
from .bars import METHODS
from .evidence import Evidence
from .power import Settling, settle
from .recipe import ARMS


def settlings(evidence: Evidence) -> dict[tuple[str, str], Settling]:
    """(method, "own" or "untrained") -> what would settle it against GRPO, where both have two seeds or more."""
    found = {}
    for partner in ("own", "untrained"):
        for name in METHODS[1:]:
            pair = [_seeds(evidence, arm, partner) for arm in (name, "grpo")]
            if min(map(len, pair)) > 1 and max(map(stats.sample_std, pair)) > 0:
                found[name, partner] = settle(*pair)
    return found


def _seeds(evidence: Evidence, arm: str, partner: str) -> tuple[float, ...]:
    found = evidence.arms.get(arm)
    return () if found is None else found.scores if partner == "own" else found.new_partner


@dataclass(frozen=True)
class Codes:
    """Cross-play in four numbers and one difference. Fractions."""

    own: float
    """A trained copy with its own other half."""
    sibling: float
    """With a copy of the same method from another seed."""
    other: float
    """With a copy of another method."""
    untrained: float
    """With the untrained model in seat B."""
    premium: stats.Delta
    """own - sibling, mean over copies in seat A, with the t interval over them."""
    lowest_sibling: float


def codes(evidence: Evidence) -> Codes | None:
    """What cross-play says about shared against private codes; None without a method that has two seeds."""
    trained = [row for row in evidence.crossplay if ARMS[row.a[0]].trained]
    by_seat: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in trained:
        kind = ("own" if row.a == row.b else "untrained" if not ARMS[row.b[0]].trained
                else "sibling" if row.a[0] == row.b[0] else "other")
        by_seat.setdefault(row.a, {}).setdefault(kind, []).append(row.score)
    full = [found for found in by_seat.values() if {"own", "sibling", "other", "untrained"} <= set(found)]
    if len(full) < 2:
        return None
    means = {kind: fmean(fmean(found[kind]) for found in full) for kind in ("own", "sibling", "other", "untrained")}
    premium = stats.seed_interval([found["own"][0] - fmean(found["sibling"]) for found in full])
    return Codes(**means, premium=premium, lowest_sibling=min(min(found["sibling"]) for found in full))
