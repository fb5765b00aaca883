"""Figures from `Evidence`: the same functions draw the post's figures and ours, each labelled with its source.

Every function returns a matplotlib Figure; `save` writes SVG, PNG, the data as CSV, and alt text, the same bytes on
every rebuild. Arms keep one order and one colour (Okabe and Ito's palette, safe for colour-blind readers) everywhere.
"""

import csv
import io
from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .evidence import COUNTERS, ArmEvidence, Evidence
from .recipe import ARMS
from .store import write_atomic

COLOURS = {
    "base_blocked": "#999999", "base": "#56B4E9", "grpo_blocked": "#E69F00", "grpo": "#0072B2",
    "raft": "#D55E00", "mixed": "#CC79A7", "reinforce_ada": "#009E73",
}
CONDITIONS = ("base_blocked", "base", "grpo_blocked", "grpo")
METHODS = ("grpo", "raft", "mixed", "reinforce_ada")
COUNTER_LABELS = {"sends": "sends its own\nprivate numbers", "uses": "answer uses the\npartner's numbers",
                  "agrees": "both give the\nsame answer", "asks": "first message\nasks"}
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "figure.dpi": 110,
    "savefig.dpi": 150, "svg.hashsalt": "talklib", "svg.fonttype": "path",
}


def _axes(width: float, height: float, title: str, source: str):
    with sns.axes_style("ticks"), sns.plotting_context("paper"):
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(width, height), layout="constrained")
            FigureCanvasAgg(figure)  # no pyplot: nothing to close, and notebooks show it all the same
            axes = figure.add_subplot()
            axes.set_title(f"{title}\n", pad=4)
            axes.text(0, 1.02, source, transform=axes.transAxes, fontsize=7.5, color="#555555")
            sns.despine(ax=axes)
    return figure, axes


def _wrapped(arm: str) -> str:
    return ARMS[arm].label.replace(", ", ",\n").replace(" (", "\n(")


def conditions(evidence: Evidence) -> Figure:
    """Problems solved in the four conditions; bars are the first seed, whiskers its 95% interval, dots the seeds."""
    figure, axes = _axes(5.6, 3.4, "Problems the pair solved, of 100", evidence.label)
    found = [arm for arm in CONDITIONS if arm in evidence.arms]
    for place, name in enumerate(found):
        arm = evidence.arms[name]
        score, (low, high) = 100 * arm.scores[0], (100 * arm.ci95[0], 100 * arm.ci95[1])
        axes.bar(place, score, 0.62, color=COLOURS[name], zorder=2)
        axes.errorbar(place, score, [[score - low], [high - score]], color="#222222", capsize=3, lw=1, zorder=3)
        if len(arm.scores) > 1:
            _dots(axes, place, arm)
        axes.annotate(f"{score:.1f}", (place, max(high, 100 * max(arm.scores))), (0, 4), textcoords="offset points",
                      ha="center", weight="bold")
    _finish(axes, [_wrapped(name) for name in found], evidence, found)
    return figure


def _dots(axes, place: float, arm: ArmEvidence) -> None:
    """One dot a seed, side by side in seed order: no jitter, so that bytes repeat."""
    spread = np.linspace(-0.16, 0.16, len(arm.scores))
    axes.scatter(place + spread, [100 * s for s in arm.scores], s=13, color="white", edgecolor="#222222", lw=0.8,
                 zorder=4)


def _finish(axes, labels: list[str], evidence: Evidence, found: list[str]) -> None:
    axes.set_xticks(range(len(labels)), labels)
    tops = [100 * max(*evidence.arms[name].scores, evidence.arms[name].ci95[1]) for name in found] or [1]
    axes.set_ylim(0, max(tops) * 1.15 + 2)
    axes.tick_params(axis="x", length=0)
    if not found:
        axes.text(0.5, 0.5, "no runs yet", ha="center", transform=axes.transAxes)


def behaviour(evidence: Evidence) -> Figure:
    """What the copies do before and after training, of 100: paired bars, first training seed."""
    figure, axes = _axes(5.6, 3.4, "What the copies do, of 100", evidence.label)
    found = [arm for arm in ("base", "grpo") if arm in evidence.arms]
    for shift, name in zip((-0.19, 0.19), found, strict=False):
        values = [100 * evidence.arms[name].counters[0][counter] for counter in COUNTERS]
        axes.bar(np.arange(len(COUNTERS)) + shift, values, 0.36, color=COLOURS[name], label=ARMS[name].label, zorder=2)
        for place, value in enumerate(values):
            axes.annotate(f"{value:.0f}", (place + shift, value), (0, 2), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(COUNTERS)), [COUNTER_LABELS[counter] for counter in COUNTERS])
    axes.set_ylim(0, 112)
    axes.tick_params(axis="x", length=0)
    if found:
        axes.legend(frameon=False, loc="upper right", fontsize=8)
    return figure


def methods(evidence: Evidence) -> Figure:
    """Training methods: bar of the mean over seeds, a dot a seed, the untrained pair as a line."""
    figure, axes = _axes(5.6, 3.4, "Problems solved by training method, of 100", evidence.label)
    found = [arm for arm in METHODS if arm in evidence.arms]
    for place, name in enumerate(found):
        arm = evidence.arms[name]
        axes.bar(place, 100 * arm.mean, 0.62, color=COLOURS[name], zorder=2)
        _dots(axes, place, arm)
        axes.annotate(f"{100 * arm.mean:.1f}", (place, 100 * max(arm.mean, *arm.scores)), (0, 4),
                      textcoords="offset points", ha="center", weight="bold")
    if "base" in evidence.arms:
        level = 100 * evidence.arms["base"].mean
        axes.axhline(level, color="#222222", lw=1, ls=(0, (4, 3)), zorder=3)
        axes.annotate(f"untrained pair {level:.1f}", (1, level), (-2, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", fontsize=8)
    _finish(axes, [_wrapped(name) for name in found], evidence, found)
    return figure


def learning(evidence: Evidence, window: int = 8) -> Figure:
    """Team reward by training step, a line a seed, a running mean of `window` steps."""
    figure, axes = _axes(5.6, 3.4, "Team reward while training, of 100", evidence.label)
    ends: dict[str, list[float]] = {}
    for run in evidence.runs:
        rewards = [100 * step["reward"] for step in run.history]
        if len(rewards) >= window:
            smooth = np.convolve(rewards, np.ones(window) / window, "valid")
            axes.plot(np.arange(window, len(rewards) + 1), smooth, color=COLOURS[run.arm], lw=1.1, alpha=0.85)
            ends.setdefault(run.arm, []).append(float(smooth[-1]))
    for name, place in _apart({name: float(np.mean(values)) for name, values in ends.items()}).items():
        axes.annotate(ARMS[name].label, (1.0, place), (3, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", color=COLOURS[name], va="center", fontsize=8)
    axes.set_xlabel(f"training step (running mean of {window})")
    axes.set_ylim(bottom=0)
    return figure


def _apart(places: dict[str, float], gap: float = 4.0) -> dict[str, float]:
    """Label heights moved up until they are `gap` apart."""
    out, last = {}, -np.inf
    for name in sorted(places, key=places.get):
        last = out[name] = max(places[name], last + gap)
    return out


def alt_text(kind: str, evidence: Evidence) -> str:
    """Alt text of a figure, from the numbers it is drawn from."""
    if kind == "behaviour":
        parts = [f"{ARMS[a].label}: " + ", ".join(f"{c} {100 * evidence.arms[a].counters[0][c]:.0f}" for c in COUNTERS)
                 for a in ("base", "grpo") if a in evidence.arms]
        return f"Paired bars, of 100, {evidence.label}. " + "; ".join(parts) + "."
    if kind == "learning":
        rewards = {(run.arm, run.seed): [100 * step["reward"] for step in run.history] for run in evidence.runs}
        parts = [f"{arm} seed {seed} from {values[0]:.0f} to {np.mean(values[-8:]):.0f}"
                 for (arm, seed), values in rewards.items() if values]
        return f"Lines, team reward of 100 by step, {evidence.label}. " + "; ".join(parts) + "."
    names = CONDITIONS if kind == "conditions" else ("base", *METHODS)
    parts = [f"{ARMS[a].label} {100 * (arm.scores[0] if kind == 'conditions' else arm.mean):.1f}"
             f" (seeds {', '.join(f'{100 * s:.1f}' for s in arm.scores)})"
             for a in names if (arm := evidence.arms.get(a))]
    return f"Bars, problems solved of 100, {evidence.label}: " + "; ".join(parts) + "."


CAPTIONS = {
    "conditions": "Bars: the first training seed. Whiskers: 95% percentile bootstrap over problems, 2,000 draws. "
    "Dots: seeds (of the untrained pair, re-runs).",
    "behaviour": "Shares of private numbers sent and used, of chats whose two answers agree, and of first messages "
    "with a question mark; first training seed.",
    "methods": "Bars: mean over training seeds. Dots: training seeds. Dashed: the untrained pair.",
    "learning": "Each line is one training run; rewards of the chats played while training.",
}
DRAW = {"conditions": conditions, "behaviour": behaviour, "methods": methods, "learning": learning}


def data_rows(kind: str, evidence: Evidence) -> list[dict]:
    """The numbers behind a figure, as rows for its CSV."""
    if kind == "learning":
        return [{"arm": run.arm, "seed": run.seed, "step": int(step["step"]), "reward": round(step["reward"], 6)}
                for run in evidence.runs for step in run.history]
    names = {"conditions": CONDITIONS, "behaviour": ("base", "grpo"), "methods": ("base", *METHODS)}[kind]
    rows = []
    for name in names:
        arm = evidence.arms.get(name)
        for i, score in enumerate(arm.scores if arm else ()):
            counted = arm.counters[i] if i < len(arm.counters) else {}
            first = arm.ci95 if i == 0 else ("", "")
            rows.append({"arm": name, "seed": arm.seeds[i], "score": score, "ci95_low": first[0], "ci95_high": first[1],
                         **{counter: counted.get(counter, "") for counter in COUNTERS}, "source": arm.sources[i]})
    return rows


def to_csv(rows: list[dict]) -> str:
    """Rows as CSV text with one header line; empty text for no rows."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def save(figure: Figure, stem: str | Path) -> None:
    """STEM.svg and STEM.png, without a date or a version in them."""
    import matplotlib as mpl

    stem = Path(stem)
    with mpl.rc_context(STYLE):
        for ending, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, metadata=metadata)
            write_atomic(stem.with_suffix(f".{ending}"), buffer.getvalue())
