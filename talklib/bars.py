"""The post's three charts from `Evidence`: problems solved, what the copies do, and the training methods.

The same functions draw the post's figures and ours; each figure says whose it shows. All return a matplotlib Figure.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .evidence import COUNTERS, ArmEvidence, Evidence
from .recipe import ARMS
from .style import COLOURS, INK, canvas, empty, seed_dots, text_on

CONDITIONS = ("base_blocked", "base", "grpo_blocked", "grpo")
METHODS = ("grpo", "raft", "mixed", "reinforce_ada")
COUNTER_LABELS = {"sends": "sends the facts\nonly it has", "uses": "answer uses its\npartner's facts",
                  "agrees": "both give the\nsame answer", "asks": "first message\nasks"}
SHORT_LABELS = {"grpo": "GRPO\n(plain RL)", "raft": "RAFT\n(winning chats)", "mixed": "mixed\npartners",
                "reinforce_ada": "Reinforce-Ada\n(replays)"}
"""Arms among training methods."""


def note(evidence: Evidence, arms: tuple[str, ...]) -> str:
    """What a chart of these arms lacks, for its foot; empty when nothing is missing."""
    labels = {ARMS[arm].label for arm in arms}
    lacking = [text for text in evidence.missing if text.split(" seed")[0] in labels]
    return f"Not run: {'; '.join(lacking)}." if lacking else ""


def _wrapped(arm: str) -> str:
    return ARMS[arm].label.replace(", ", ",\n").replace(" (", "\n(")


def conditions(evidence: Evidence) -> Figure:
    """Problems solved in the four conditions: bar and whisker of the first seed, a dot a seed."""
    figure, [[axes]] = canvas("Problems the pair solved, of 100", evidence.label, 3.5, note=note(evidence, CONDITIONS))
    found = [arm for arm in CONDITIONS if arm in evidence.arms]
    for place, name in enumerate(found):
        arm = evidence.arms[name]
        score, low, high = 100 * arm.scores[0], 100 * arm.ci95[0], 100 * arm.ci95[1]
        axes.bar(place, score, 0.64, color=COLOURS[name], zorder=2)
        axes.errorbar(place + 0.1, score, [[score - low], [high - score]], color=INK, capsize=3.5, lw=1.2, zorder=3)
        if len(arm.dots) > 1:
            seed_dots(axes, place, [100 * s for s in arm.dots], 0.18, 0.3)
        _value(axes, place - 0.32, score, f"{score:.1f}", 11)
    _finish(axes, [_wrapped(name) for name in found], evidence, found)
    return figure


def methods(evidence: Evidence) -> Figure:
    """Training methods: bar of the mean over seeds, a dot a seed, the untrained pair as a line."""
    figure, [[axes]] = canvas("Problems solved by training method, of 100", evidence.label, 3.5,
                              note=note(evidence, METHODS))
    found = [arm for arm in METHODS if arm in evidence.arms]
    for place, name in enumerate(found):
        arm = evidence.arms[name]
        axes.bar(place, 100 * arm.mean, 0.64, color=COLOURS[name], zorder=2)
        seed_dots(axes, place, [100 * s for s in arm.scores], 0.12, 0.28)
        _value(axes, place - 0.32, 100 * arm.mean, f"{100 * arm.mean:.1f}", 11)
    if "base" in evidence.arms and found:
        level = 100 * evidence.arms["base"].mean
        axes.axhline(level, color=INK, lw=1.1, ls=(0, (4, 3)), zorder=3)
        axes.annotate(f"untrained\npair {level:.1f}", (len(found) - 0.6, level), (2, 3), textcoords="offset points",
                      va="bottom", size=9)
        axes.set_xlim(-0.5, len(found) + 0.1)
    _finish(axes, [SHORT_LABELS[name] for name in found], evidence, found)
    return figure


def _value(axes: Axes, left: float, top: float, text: str, size: float) -> None:
    """The number a bar stands for, on its left shoulder: whisker and dots keep to the right, so that none is taken
    for the bar's."""
    axes.annotate(text, (left, top), (0, 3), textcoords="offset points", ha="left", size=size, weight="bold")


def _finish(axes: Axes, labels: list[str], evidence: Evidence, found: list[str]) -> None:
    """Names under the bars, an axis that starts at 0, and a word where there is nothing."""
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    tops = [100 * max(*arm.dots, arm.ci95[1]) for arm in (evidence.arms[name] for name in found)]
    axes.set_ylim(0, max(tops, default=90) * 1.15 + 2)
    if not found:
        empty(axes)


def behaviour(evidence: Evidence) -> Figure:
    """What the copies do before and after training, of 100: paired bars of the first seed, a dot a seed."""
    pair = ("base", "grpo")
    figure, [[axes]] = canvas("What the copies do, of 100", evidence.label, 3.5, note=note(evidence, pair))
    found = [name for name in pair if name in evidence.arms]
    for name in found:
        shift = {"base": -0.2, "grpo": 0.2}[name]
        for place, counter in enumerate(COUNTERS):
            _counted(axes, place + shift, name, evidence.arms[name], counter)
        value = evidence.arms[name].counter(COUNTERS[0])
        if value is not None:
            axes.annotate({"base": "before", "grpo": "after"}[name], (shift, 0), (0, 4), textcoords="offset points",
                          ha="center", va="bottom", rotation=90, size=9.5, color=text_on(COLOURS[name]))
    axes.set_xticks(range(len(COUNTERS)), [COUNTER_LABELS[counter] for counter in COUNTERS])
    axes.set_ylim(0, 114)
    axes.set_yticks(range(0, 101, 25))
    axes.tick_params(axis="x", length=0, labelsize=9)
    if not found:
        empty(axes)
    return figure


def _counted(axes: Axes, place: float, name: str, arm: ArmEvidence, counter: str) -> None:
    """One bar: a counter of an arm's first seed, with dots of all seeds."""
    values = [100 * seed[counter] for seed in arm.counters if seed.get(counter) is not None]
    first = arm.counter(counter)
    if first is None:
        return
    axes.bar(place, 100 * first, 0.38, color=COLOURS[name], zorder=2)
    if len(values) > 1:
        seed_dots(axes, place, values, 0.04, 0.15)
    _value(axes, place - 0.19, 100 * first, f"{100 * first:.0f}", 10)
