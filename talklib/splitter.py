"""A problem -> what each copy knows, and the question that all copies see.

The post's rule: a sentence ends at `.`, `?` or `!` followed by white space and a capital letter or `$`;
the question is the last sentence that ends in `?`; the others are the facts, dealt out like cards.
Its known limits (abbreviations such as "Mr." break a sentence, commands without a question mark are
dropped) are kept for parity; `audit` counts them, and `rule="careful"` mends them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from . import TalkError

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


_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Mt|vs)\.$")
RULES = ("post", "careful")


def sentences(text: str, rule: str = "post") -> list[str]:
    """A text's sentences. "post" is the post's rule; "careful" does not break after an abbreviation."""
    if rule not in RULES:
        raise TalkError(f"unknown split rule {rule!r}; rules: {', '.join(RULES)}")
    parts = [part for part in _POST_BREAK.split(text.strip()) if part]
    if rule == "post":
        return parts
    joined: list[str] = []
    for part in parts:
        if joined and _ABBREVIATION.search(joined[-1]):
            joined[-1] += " " + part
        else:
            joined.append(part)
    return joined


def deal(facts: list[str], copies: int = 2) -> tuple[tuple[str, ...], ...]:
    """Facts dealt out like cards: with two copies 1, 3, 5.. to A and 2, 4, 6.. to B."""
    return tuple(tuple(facts[start::copies]) for start in range(copies))


def split(question: str, copies: int = 2, rule: str = "post") -> Split | None:
    """One problem's text, dealt; None where the rule drops it (no question, too few facts, a half without a digit)."""
    parts = sentences(question, rule)
    asks = [i for i, part in enumerate(parts) if part.endswith("?")]
    if not asks:
        return None
    facts = [part for i, part in enumerate(parts) if i != asks[-1]]
    halves = deal(facts, copies)
    if len(facts) < copies or not all(re.search(r"\d", " ".join(half)) for half in halves):
        return None
    return Split(halves, parts[asks[-1]])


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def numbers(text: str) -> set[str]:
    """The distinct numbers of a text, as written, commas removed: "1,200 at 3.50" -> {"1200", "3.50"}."""
    return set(_NUMBER.findall(text.replace(",", "")))


def private_numbers(parts: Split, copy: str) -> set[str]:
    """Numbers in this copy's facts that stand neither in another copy's facts nor in the question."""
    others = [" ".join(parts.of(c)) for c in COPIES[: len(parts.facts)] if c != copy]
    return numbers(" ".join(parts.of(copy))) - numbers(" ".join([*others, parts.question]))


@dataclass(frozen=True)
class Audit:
    """What a split rule does to a list of problems. Counts of problems, unless said otherwise."""

    problems: int
    split: int
    no_question: int
    """Dropped: no sentence ends in a question mark (most of these end in a command)."""
    few_facts: int
    """Dropped: fewer facts than copies."""
    bare_half: int
    """Dropped: a half without a digit."""
    broken_abbreviation: int
    """A sentence of the post's rule ends in an abbreviation ("Mr.")."""
    number_in_question: int
    """Split, with a number in the question that both copies see."""
    private_a: float
    """Mean private numbers of copy A, over the problems that split."""
    private_b: float
    one_half_reaches: int
    """Split, and the gold is a number of one half, or the sum, difference, product or quotient of two of them:
    what a lucky copy could reach without its partner."""
    rules_differ: int
    """The careful rule splits the problem differently (or drops or keeps it instead)."""


def audit(problems: Sequence[Problem], rule: str = "post") -> Audit:
    """Counts what the rule keeps, drops and breaks."""
    parts = {p.id: split(p.question, rule=rule) for p in problems}
    kept = [(p, parts[p.id]) for p in problems if parts[p.id] is not None]
    lost = [p for p in problems if parts[p.id] is None]
    silent = [p for p in lost if not any(s.endswith("?") for s in sentences(p.question, rule))]
    few = [p for p in lost if p not in silent and len(sentences(p.question, rule)) < 3]
    mean = len(kept) or 1
    return Audit(
        len(problems), len(kept), len(silent), len(few), len(lost) - len(silent) - len(few),
        sum(any(_ABBREVIATION.search(s) for s in sentences(p.question)[:-1]) for p in problems),
        sum(bool(numbers(s.question)) for _, s in kept),
        sum(len(private_numbers(s, "A")) for _, s in kept) / mean,
        sum(len(private_numbers(s, "B")) for _, s in kept) / mean,
        sum(any(_reaches(p.gold, " ".join(half)) for half in s.facts) for p, s in kept),
        sum(split(p.question, rule="post") != split(p.question, rule="careful") for p in problems),
    )


def _reaches(gold: str, half: str) -> bool:
    values = sorted(float(n) for n in numbers(half))
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i:]]
    reached = {*values, *(a + b for a, b in pairs), *(b - a for a, b in pairs), *(a * b for a, b in pairs),
               *(b / a for a, b in pairs if a)}
    try:
        return any(abs(float(gold) - value) < 1e-9 for value in reached)
    except ValueError:
        return False
