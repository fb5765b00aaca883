"""A problem -> what each copy knows, and the question that all copies see.

The post's rule: a sentence ends at `.`, `?` or `!` followed by white space and a capital letter or `$`;
the question is the last sentence that ends in `?`; the others are the facts, dealt out like cards.
Its known limits (abbreviations such as "Mr." break a sentence, commands without a question mark are
dropped) are kept for parity; `audit` counts them, and `rule="careful"` mends them.
"""

import re
from dataclasses import dataclass

COPIES = "ABCDEFGH"


@dataclass(frozen=True)
class Problem:
    """One word problem. `gold` is the bare answer: the text after `####`, commas removed."""

    id: str
    question: str
    gold: str


@dataclass(frozen=True)
class Split:
    """What each copy holds: `facts[0]` is A's, `facts[1]` is B's, and so on; all see `question`."""

    facts: tuple[tuple[str, ...], ...]
    question: str

    def of(self, copy: str) -> tuple[str, ...]:
        """The facts that copy ("A", "B", ...) holds."""
        return self.facts[COPIES.index(copy)]

    @property
    def facts_a(self) -> tuple[str, ...]:
        return self.facts[0]

    @property
    def facts_b(self) -> tuple[str, ...]:
        return self.facts[1]


@dataclass(frozen=True)
class Task:
    """A problem together with the way its facts were dealt: what a chat is played on."""

    problem: Problem
    split: Split

    @property
    def id(self) -> str:
        return self.problem.id


_POST_BREAK = re.compile(r"(?<=[.?!])\s+(?=[A-Z$])")


def sentences(text: str) -> list[str]:
    """The post's sentence rule."""
    return [part for part in _POST_BREAK.split(text.strip()) if part]


def deal(facts: list[str], copies: int = 2) -> tuple[tuple[str, ...], ...]:
    """Facts dealt out like cards: with two copies 1, 3, 5.. to A and 2, 4, 6.. to B."""
    return tuple(tuple(facts[start::copies]) for start in range(copies))


def split(question: str, copies: int = 2) -> Split | None:
    """The post's split of one problem's text, or None where the rule drops it."""
    parts = sentences(question)
    asks = [i for i, part in enumerate(parts) if part.endswith("?")]
    if not asks:
        return None
    facts = [part for i, part in enumerate(parts) if i != asks[-1]]
    halves = deal(facts, copies)
    if len(facts) < copies or not all(re.search(r"\d", " ".join(half)) for half in halves):
        return None
    return Split(halves, parts[asks[-1]])
