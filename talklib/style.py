"""One look for every figure: colours, type, a canvas with a title and a source, and files whose bytes repeat.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; nothing is told by colour alone, so figures can
be read in grey too. No pyplot: a `Figure` is returned, which notebooks show inline whatever the backend is.
"""

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from .store import write_atomic

COLOURS = {
    "base_blocked": "#999999", "base": "#56B4E9", "grpo_blocked": "#E69F00", "grpo": "#0072B2",
    "raft": "#D55E00", "mixed": "#CC79A7", "reinforce_ada": "#009E73",
}
"""Arm -> its colour, in every figure."""
INK, QUIET, PALE, PLAIN = "#1c1c1c", "#555555", "#c8c8c8", "#8a8a8a"
"""Lines and text; second text; context behind what is shown; bars that are no arm."""
WIDTH = 5.2
"""Inches. Narrow, so that 10-point type is still read when a page shows the figure at half its width."""
HEAD = 0.56
"""Inches kept above the axes for title and source."""
LINE = 0.15
"""Inches a line of the note below the axes takes."""
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 10, "axes.titleweight": "normal", "axes.titlelocation": "left", "axes.labelsize": 9.5,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "xtick.labelsize": 9.5, "ytick.labelsize": 9.5, "axes.linewidth": 0.9, "xtick.major.width": 0.9,
    "ytick.major.width": 0.9, "figure.dpi": 110, "savefig.dpi": 160, "figure.facecolor": "white",
    "savefig.facecolor": "white", "svg.hashsalt": "talklib", "svg.fonttype": "path", "path.simplify": True,
}

_LOOK = {**{key: value for key, value in dict.items(mpl.rcParamsDefault) if key != "backend"}, **STYLE}
"""Every setting, so that neither a user's matplotlibrc nor a notebook's theme moves a byte."""


class Chart(Figure):
    """A figure that shows itself in a notebook, as the PNG that `save` writes, whatever backend is set."""

    def _repr_png_(self) -> tuple[bytes, dict]:
        width, height = (round(110 * inches) for inches in self.get_size_inches())
        return figure_bytes(self, "png"), {"width": width, "height": height}


def canvas(title: str, source: str, height: float, rows: int = 1, columns: int = 1, note: str = "",
           width: float = WIDTH, **options) -> tuple[Chart, np.ndarray]:
    """A figure with title and source above its axes and a note below them; the axes, shape (rows, columns).

    `height` and `width` are inches; `options` go to `Figure.subplots`."""
    with mpl.rc_context(_LOOK):
        figure = Chart(figsize=(width, height))
        FigureCanvasAgg(figure)
        lines = note.count("\n") + 1 if note else 0
        foot = (LINE * lines + 0.08 * bool(lines)) / height
        figure.set_layout_engine("constrained", rect=(0, foot, 1, 1 - HEAD / height - foot))
        left = 0.08 / width
        figure.text(left, 1 - 0.09 / height, title, va="top", size=11.5, weight="bold")
        figure.text(left, 1 - 0.33 / height, source, va="top", size=9, color=QUIET)
        if note:
            figure.text(left, 0.05 / height, note, va="bottom", size=8, color=QUIET, linespacing=1.25)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def text_on(colour: str) -> str:
    """Black or white, whichever stands out more on a colour (WCAG 2 contrast)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def seed_dots(axes: Axes, place: float, values: list[float], low: float = -0.2, high: float = 0.2) -> None:
    """One dot a seed, side by side in seed order between `place + low` and `place + high`: no jitter, so that bytes
    repeat."""
    spread = np.linspace(low, high, len(values)) if len(values) > 1 else np.array([(low + high) / 2])
    axes.scatter(place + spread, values, s=15, color="white", edgecolor=INK, linewidth=0.9, zorder=4)


def empty(axes: Axes, text: str = "no runs yet") -> None:
    """Says in the axes that there is nothing to draw."""
    axes.text(0.5, 0.5, text, ha="center", va="center", color=QUIET, transform=axes.transAxes)


def figure_bytes(figure: Figure, ending: str) -> bytes:
    """The figure as "svg" or "png", without a date, a version or a random id in it.

    Axes are laid out once and then stay, so that both files, and a second call, show the same places."""
    buffer = io.BytesIO()
    with mpl.rc_context(_LOOK):
        if not isinstance(figure.get_layout_engine(), (PlaceHolderLayoutEngine, type(None))):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        # by the canvases themselves: `savefig` would draw it all once more, in case there were something to lay out
        screen, figure.dpi = figure.dpi, STYLE["savefig.dpi"]
        if ending == "svg":
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
        else:
            FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
        figure.dpi = screen
    return buffer.getvalue()


def save(figure: Figure, stem: str | Path) -> None:
    """Writes STEM.svg and STEM.png."""
    stem = Path(stem)
    for ending in ("svg", "png"):
        write_atomic(stem.with_name(f"{stem.name}.{ending}"), figure_bytes(figure, ending))
