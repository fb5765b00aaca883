"""What the notebooks share: a quiet start, tables, and prose whose numbers come from the results.

`Prose` fills text the way the paper's template is filled: a number enters by its key, so none is typed by hand.
"""

import logging
import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import jinja2

from . import TalkError
from .evidence import Evidence, from_post, from_runs


def start() -> None:
    """One thread a process, and no warnings of other libraries in the stored outputs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)


def load(scale: str) -> tuple[Evidence, Evidence]:
    """The post's figures, and the runs of results/SCALE."""
    return from_post(), from_runs(Path("results") / scale, scale)


def table(rows: Sequence[dict[str, str]], title: str = ""):
    """Rows as a Markdown table that a notebook shows."""
    from IPython.display import Markdown

    from .tables import markdown

    return Markdown((f"**{title}**\n\n" if title else "") + markdown(rows))


class Prose:
    """Text with numbers in it, for notebooks.

    In the text, `{{ p('grpo.score') }}` is a number of the post, `{{ o('grpo.score') }}` one of our runs and
    `{{ n('simulation.welch.3') }}` any, by its whole key; `has(..)` asks whether our runs give it and `value(..)` gives
    it unrounded, so that a sentence can depend on it. A number that is not there is a TalkError that names it."""

    def __init__(self, post: Evidence, ours: Evidence):
        self.post, self.ours = post, ours

    @cached_property
    def _numbers(self):
        from .paper import all_numbers

        return all_numbers([self.post, self.ours])

    def __call__(self, text: str):
        """The text, filled in, as Markdown."""
        from IPython.display import Markdown

        return Markdown(self.fill(text))

    def fill(self, text: str) -> str:
        """The text, filled in."""
        ours = self.ours.name
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True)
        return environment.from_string(text).render(
            n=lambda key: self._number(key).text, p=lambda key: self._number(f"{self.post.name}.{key}").text,
            o=lambda key: self._number(f"{ours}.{key}").text, value=lambda key: self._number(f"{ours}.{key}").value,
            has=lambda *keys: all(f"{ours}.{key}" in self._numbers for key in keys))

    def _number(self, key: str):
        if key not in self._numbers:
            raise TalkError(f"there is no number {key!r} in the results; ask has(..) first, or run the arm")
        return self._numbers[key]
