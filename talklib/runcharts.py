"""Charts that runs on disk can fill and a post can't: learning curves, flat groups, cross-play, ceilings, cost.

`cost` draws the post's too: its GPU minutes. All return a matplotlib Figure that says whose numbers it shows.
"""

from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .bars import METHODS, SHORT_LABELS, note
from .evidence import Evidence
from .recipe import ARMS
from .style import COLOURS, INK, PALE, PLAIN, canvas, empty, text_on

WINDOW = 8
"""Steps of the running mean in curves."""
TRAINED = tuple(name for name, arm in ARMS.items() if arm.trained)
PANEL_TITLES = {"grpo_blocked": "GRPO, blocked", "grpo": "GRPO, chatting"} | {
    name: ARMS[name].label for name in TRAINED if name not in ("grpo", "grpo_blocked")}


def smooth(values: list[float], window: int = WINDOW) -> np.ndarray:
    """Running mean, shape (len(values) - window + 1,); a list shorter than the window gives its plain mean."""
    window = min(window, len(values))
    return np.convolve(values, np.ones(window) / window, "valid")


def series(evidence: Evidence, arm: str, key: str) -> list[list[float]]:
    """A history's values of `key` by step, in points of 100, one list a seed; seeds without it are left out."""
    runs = evidence.arms[arm].history if arm in evidence.arms else ()
    return [[100 * step[key] for step in run] for run in runs if run and all(key in step for step in run)]


def learning(evidence: Evidence) -> Figure:
    """Team reward by step: a panel an arm, thin lines the seeds, the thick one their mean, the other arms in grey."""
    return _curves(evidence, "reward", "Team reward while training, of 100")


def flat_groups(evidence: Evidence) -> Figure:
    """Share of problems whose chats all scored the same, and so teach nothing, by step."""
    return _curves(evidence, "flat_groups", "Problems whose chats all scored the same, of 100")


def _curves(evidence: Evidence, key: str, title: str) -> Figure:
    found = [arm for arm in TRAINED if series(evidence, arm, key)]
    rows = max(1, -(-len(found) // 3))
    figure, grid = canvas(title, evidence.label, 1.0 + 1.55 * rows, rows, 3, note=note(evidence, TRAINED),
                          sharex=True, sharey=True)
    panels = list(grid.flat)
    means = {arm: _mean(series(evidence, arm, key)) for arm in found}
    for axes, arm in zip(panels, found, strict=False):
        for other in found:
            if other != arm:
                axes.plot(*means[other], color=PALE, lw=1, zorder=1)
        for values in series(evidence, arm, key):
            curve = smooth(values)
            axes.plot(_steps(curve, len(values)), curve, color=COLOURS[arm], lw=0.8, alpha=0.65, zorder=2)
        axes.plot(*means[arm], color=COLOURS[arm], lw=2.4, zorder=3)
        axes.set_title(PANEL_TITLES[arm], loc="left", size=9.5)
        axes.annotate(f"{means[arm][1][-1]:.0f}", (means[arm][0][-1], means[arm][1][-1]), (3, 0),
                      textcoords="offset points", va="center", weight="bold")
        axes.margins(x=0.02)
    panels[0].set_ylim(bottom=0)  # shared, so once all is drawn
    for i, axes in enumerate(panels[len(found):], len(found)):
        axes.set_axis_off()
        if i >= 3:  # sharex leaves labels to the lowest row alone: the panel above an empty one shows its own
            panels[i - 3].tick_params(labelbottom=True)
    if not found:
        empty(panels[0])
    for axes in grid[-1]:
        axes.set_xlabel("step")
    return figure


def _steps(curve: np.ndarray, steps: int) -> np.ndarray:
    return np.arange(steps - len(curve) + 1, steps + 1)


def _mean(runs: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean over seeds of the smoothed curves, as far as the shortest seed goes."""
    length = min(len(values) for values in runs)
    curve = np.mean([smooth(values[:length]) for values in runs], axis=0)
    return _steps(curve, length), curve


OWN = "its own\ncopy"
CROSS_LABELS = {name: arm.label for name, arm in ARMS.items()} | {
    "base": "untrained", "grpo": "GRPO", "grpo_blocked": "GRPO, blocked"}


def crossplay_table(evidence: Evidence) -> tuple[list[str], list[str], dict[tuple[str, str], list[float]]]:
    """Rows (arm in seat A), columns (its own copy, then the arm in seat B), and the scores behind each cell.

    A pairing of a run with itself stands under "its own copy"; under an arm's name stand partners that trained apart
    (another seed, or another method) and, for the untrained model, all pairings."""
    cells: dict[tuple[str, str], list[float]] = {}
    for row in evidence.crossplay:
        untrained = not ARMS[row.b[0]].trained
        own = row.a == row.b or (row.a[0] == row.b[0] and untrained)
        cells.setdefault((row.a[0], OWN if own else row.b[0]), []).append(row.score)
    arms = [arm for arm in ARMS if any(arm in key for key in cells)]
    return arms, [OWN, *(arm for arm in arms if any(key[1] == arm for key in cells))], cells


def crossplay(evidence: Evidence) -> Figure:
    """Who can talk to whom: a cell is the mean score of A's arm with B's arm; a copy's own other half comes first."""
    import seaborn as sns

    rows, columns, cells = crossplay_table(evidence)
    figure, [[axes]] = canvas("Who can talk to whom: problems solved, of 100", evidence.label,
                              1.5 + 0.42 * max(len(rows), 2))
    if not rows:
        empty(axes, "no cross-play yet")
        return figure
    values = np.array([[100 * fmean(cells[row, column]) if (row, column) in cells else np.nan for column in columns]
                       for row in rows])
    sns.heatmap(values, ax=axes, cmap="cividis", vmin=0, annot=False, cbar=False, linewidths=1.5, linecolor="white")
    for (i, j), value in np.ndenumerate(values):
        colour = axes.collections[0].cmap(axes.collections[0].norm(value)) if value == value else "white"
        axes.text(j + 0.5, i + 0.5, f"{value:.0f}" if value == value else "–", ha="center", va="center",
                  color=text_on(colour), weight="bold" if columns[j] == OWN else "normal")
    axes.axvline(1, color=INK, lw=2)
    names = {**CROSS_LABELS, OWN: OWN}
    axes.set_xticks(np.arange(len(columns)) + 0.5, [names[c].replace(" ", "\n").replace("-", "-\n") if c != OWN else OWN
                                                    for c in columns], size=8.5, rotation=0)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [names[r] for r in rows], rotation=0)
    axes.set_xlabel("in seat B: its own copy, then partners that trained apart")
    axes.set_ylabel("in seat A")
    axes.tick_params(length=0)
    return figure


def crossplay_seeds(evidence: Evidence) -> Figure:
    """The same, run by run: a row a copy in seat A, a column a copy in seat B; own other halves bear a dot."""
    import seaborn as sns

    seats = list(dict.fromkeys(row.a for row in evidence.crossplay))
    figure, [[axes]] = canvas("Who can talk to whom, run by run, of 100", evidence.label, 5.0)
    if not seats:
        empty(axes, "no cross-play yet")
        return figure
    place = {seat: i for i, seat in enumerate(seats)}
    values = np.full((len(seats), len(seats)), np.nan)
    for row in evidence.crossplay:
        values[place[row.a], place[row.b]] = 100 * row.score
    sns.heatmap(values, ax=axes, cmap="cividis", vmin=0, linewidths=0.4, linecolor="white",
                cbar_kws={"shrink": 0.8, "aspect": 30})
    for seat, i in place.items():
        if ARMS[seat[0]].trained:
            axes.scatter(i + 0.5, i + 0.5, s=9, color=INK, zorder=4)
    arms = list(dict.fromkeys(arm for arm, _ in seats))
    counts = [sum(seat[0] == arm for seat in seats) for arm in arms]
    edges = np.cumsum([0, *counts])
    for edge in edges[1:-1]:
        axes.axhline(edge, color="white", lw=3)
        axes.axvline(edge, color="white", lw=3)
    middles = (edges[:-1] + edges[1:]) / 2
    names = [CROSS_LABELS[arm].replace(" ", "\n").replace("-", "-\n").replace("untrained", "un-\ntrained")
             for arm in arms]
    axes.set_xticks(middles, names, size=8.5, rotation=0)
    axes.set_yticks(middles, [CROSS_LABELS[arm] for arm in arms], rotation=0)
    axes.set_xlabel("in seat B, a column a training seed")
    axes.set_ylabel("in seat A, a row a training seed")
    axes.tick_params(length=0)
    return figure


LADDER = ("base_blocked", "base", "grpo_blocked", "grpo")


def ladder(evidence: Evidence) -> list[tuple[str, float, tuple[float, float] | None, str]]:
    """Ceilings and floors with the four conditions among them, lowest first: (label, score, ci95, colour)."""
    rows = [(row.label, row.score, row.ci95, PLAIN) for row in evidence.ceilings]
    rows += [(ARMS[name].label, evidence.arms[name].scores[0], evidence.arms[name].ci95, COLOURS[name])
             for name in LADDER if name in evidence.arms and rows]
    return sorted(rows, key=lambda row: row[1])


def ceilings(evidence: Evidence) -> Figure:
    """What talking could win: ceilings and floors (grey) and the four conditions (first seed), with 95% whiskers."""
    rows = ladder(evidence)
    figure, [[axes]] = canvas("Between floor and ceiling: problems solved, of 100", evidence.label,
                              1.1 + 0.29 * max(len(rows), 4))
    for place, (_, score, ci95, colour) in enumerate(rows):
        axes.barh(place, 100 * score, 0.68, color=colour, zorder=2)
        top = score
        if ci95:
            axes.errorbar(100 * score, place, xerr=[[100 * (score - ci95[0])], [100 * (ci95[1] - score)]], color=INK,
                          capsize=2.5, lw=1.1, zorder=3)
            top = ci95[1]
        axes.annotate(f"{100 * score:.1f}", (100 * top, place), (5, 0), textcoords="offset points", va="center",
                      weight="bold")
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 25))
    if not rows:
        empty(axes, "not measured yet")
    return figure


def cost(evidence: Evidence) -> Figure:
    """What a method costs: a panel a measure, a bar a method, means over training seeds."""
    found = [arm for arm in METHODS if arm in evidence.arms and evidence.arms[arm].cost]
    measures = list(dict.fromkeys(name for arm in found for name in evidence.arms[arm].cost))
    columns = min(2, max(1, len(measures)))
    rows = max(1, -(-len(measures) // columns))
    figure, grid = canvas("What a training run costs", evidence.label, 0.95 + 1.45 * rows, rows, columns,
                          note=note(evidence, METHODS), sharey=True)
    for axes, measure in zip(grid.flat, measures, strict=False):
        _bars(axes, evidence, found, measure)
    for axes in list(grid.flat)[len(measures):]:
        axes.set_axis_off()
    if not measures:
        empty(grid[0, 0])
    return figure


def _bars(axes: Axes, evidence: Evidence, found: list[str], measure: str) -> None:
    values = [evidence.arms[arm].cost.get(measure, 0.0) for arm in found]
    axes.barh(range(len(found)), values, 0.68, color=[COLOURS[arm] for arm in found], zorder=2)
    for place, value in enumerate(values):
        axes.annotate(amount(value), (value, place), (4, 0), textcoords="offset points", va="center", size=9,
                      weight="bold")
    axes.set_yticks(range(len(found)), [SHORT_LABELS[arm].split("\n")[0] for arm in found])
    axes.set_ylim(len(found) - 0.4, -0.6)  # the first method on top
    axes.set_xlim(0, max(values) * 1.32)
    axes.set_title(measure, loc="left", size=9.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def amount(value: float) -> str:
    """A cost as text: whole numbers with thousands separated, small ones with one decimal."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
