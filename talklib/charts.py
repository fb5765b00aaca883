"""Every chart, by kind. `bars` has the post's three, `runcharts` those that runs fill; `figures` writes them to files.

    conditions(evidence)    problems solved, four conditions        learning(evidence)      team reward by step
    behaviour(evidence)     what the copies do, before and after    flat_groups(evidence)   problems that teach nothing
    methods(evidence)       training methods, untrained line        crossplay(evidence)     who can talk to whom
    cost(evidence)          what a method costs                     crossplay_seeds(..)     the same, run by run
    ceilings(evidence)      floors and ceilings

`evidence` comes from `evidence.from_post()` or `evidence.from_runs(folder, scale)`. Each returns a Figure that a
notebook shows inline whatever its backend is.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from .bars import CONDITIONS, METHODS, behaviour, conditions, methods
from .evidence import Evidence
from .runcharts import ceilings, cost, crossplay, crossplay_seeds, flat_groups, learning
from .style import COLOURS, save

__all__ = ["COLOURS", "CONDITIONS", "DRAW", "METHODS", "behaviour", "ceilings", "conditions", "cost", "crossplay",
           "crossplay_seeds", "flat_groups", "kinds", "learning", "methods", "save"]

DRAW: dict[str, Callable[[Evidence], Figure]] = {
    "conditions": conditions, "behaviour": behaviour, "methods": methods, "learning": learning,
    "flat_groups": flat_groups, "crossplay": crossplay, "crossplay_seeds": crossplay_seeds,
    "ceilings": ceilings, "cost": cost}
"""Kind -> the function that draws it, in the order of the paper."""


def kinds(evidence: Evidence) -> list[str]:
    """The charts that a source has numbers for; the post's three always, saying so where they lack runs."""
    curves = any(arm.history for arm in evidence.arms.values())
    has = {"learning": curves, "flat_groups": curves, "crossplay": bool(evidence.crossplay),
           "crossplay_seeds": bool(evidence.crossplay),
           "ceilings": bool(evidence.ceilings), "cost": any(arm.cost for arm in evidence.arms.values())}
    return [kind for kind in DRAW if has.get(kind, True)]
