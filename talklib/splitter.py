"""A problem -> what each copy knows, and the question that all copies see.

The post's rule: a sentence ends at `.`, `?` or `!` followed by white space and a capital letter or `$`;
the question is the last sentence that ends in `?`; the others are the facts, dealt out like cards.
Its known limits (abbreviations such as "Mr." break a sentence, commands without a question mark are
dropped) are kept for parity; `audit` counts them, and `rule="careful"` mends them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

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


RULES = ("post", "careful")

_POST_BREAK = re.compile(r"(?<=[.?!])\s+(?=[A-Z$])")
_CAREFUL_BREAK = re.compile(r"""(?<=[.?!])["”’')\]]*\s+(?=["“‘'(\[]?[A-Z0-9$€£])""")

_WORD_BEFORE = r"(?:^|[\s(\[\"'“‘])"
_TITLE = re.compile(_WORD_BEFORE + r"(?:Mrs?|Ms|Mx|Drs?|St|Prof|Mt|Rev|Sgt|Capt|Lt|Col|Gov|Sen|vs|approx|e\.g|i\.e)\.$")
"""After one of these the sentence goes on."""
_NUMBERED = re.compile(_WORD_BEFORE + r"Nos?\.$")
_TIME = re.compile(r"\b[ap]\.m\.$", re.IGNORECASE)
_AFTER_TIME = re.compile(r"(?:[A-Z]{1,2}[DS]?T|GMT|UTC|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b")
_DOTTED = re.compile(r"\b(?:Ph\.D|(?:[A-Z]\.)+[A-Z]|Jr|Sr)\.$")
_INITIAL = re.compile(r"(?:^|\s)(?:[A-Z]\. ?)*[A-Z]\.$")
_STARTER = re.compile(r"(?:The|An?|He|She|It|They|We|I|You|How|What|When|Where|Who|Why|Which|If|In|On|At|After|Before|"
                      r"Each|Every|His|Her|Their|This|That|These|Those|There|Then|For|One|Some|All|Both|But|And|So)\b")
_COMMAND = re.compile(r"(?:^|[,;:]\s+)(?:then )?(?:calculate|compute|determine|estimate|express|figure out|find|give|"
                      r"name|solve|state|tell|work out|write|how|what)\b", re.IGNORECASE)


def sentences(text: str, rule: str = "post") -> list[str]:
    """A text's sentences by one of `RULES`.

    "post" is the post's rule, kept for parity. "careful" also breaks before a digit, an opening quote or bracket
    and after a closing one ("20 of them are red." is a sentence of its own), and does not break inside "Mr. Sam",
    "J. K. Rowling", "No. 5", "6 a.m. ET" or "the U.S. Navy". TalkError for another rule's name.
    """
    if rule not in RULES:
        raise TalkError(f"unknown split rule {rule!r}; rules: {', '.join(RULES)}")
    text = text.strip()
    if rule == "post":
        return [part for part in _POST_BREAK.split(text) if part]
    parts, start = [], 0
    for gap in _CAREFUL_BREAK.finditer(text):
        before = text[start : gap.start()]
        if _ends(before, text[gap.end() :]):
            parts.append(text[start : gap.end()].rstrip())
            start = gap.end()
    return [part for part in [*parts, text[start:]] if part]


def _ends(before: str, after: str) -> bool:
    """Whether a full stop at the end of `before` ends a sentence, rather than an abbreviation."""
    if before[-1] != ".":
        return True
    if _TITLE.search(before) or (_NUMBERED.search(before) and after[:1].isdigit()):
        return False
    if _TIME.search(before):
        return not _AFTER_TIME.match(after)
    if _DOTTED.search(before) or _INITIAL.fullmatch(before):
        return bool(_STARTER.match(after))
    return True


def question_at(parts: list[str], rule: str = "post") -> int | None:
    """Position of the question among the sentences: the last that ends in a question mark.

    The careful rule looks past a closing quote or bracket, and where nothing is asked it takes a last sentence that
    commands ("Calculate the total..", "If .., find ..").
    """
    closing = "\"”’')] " if rule == "careful" else ""
    asks = [i for i, part in enumerate(parts) if part.rstrip(closing).endswith("?")]
    if asks:
        return asks[-1]
    commands = rule == "careful" and parts and _COMMAND.search(parts[-1])
    return len(parts) - 1 if commands else None


def deal(facts: list[str], copies: int = 2) -> tuple[tuple[str, ...], ...]:
    """Facts dealt out like cards: with two copies 1, 3, 5.. to A and 2, 4, 6.. to B."""
    return tuple(tuple(facts[start::copies]) for start in range(copies))


def split(question: str, copies: int = 2, rule: str = "post") -> Split | None:
    """One problem's text, dealt; None where the rule drops it (`drop_reason` says why)."""
    return None if drop_reason(question, copies, rule) else _dealt(sentences(question, rule), copies, rule)


def drop_reason(question: str, copies: int = 2, rule: str = "post") -> str | None:
    """Why a problem is dropped: "no_question", "few_facts" (fewer than copies), "bare_half" (a half without a
    digit); None where it is kept."""
    parts = sentences(question, rule)
    if question_at(parts, rule) is None:
        return "no_question"
    if len(parts) - 1 < copies:
        return "few_facts"
    halves = _dealt(parts, copies, rule).facts
    return None if all(re.search(r"\d", " ".join(half)) for half in halves) else "bare_half"


def _dealt(parts: list[str], copies: int, rule: str) -> Split:
    at = question_at(parts, rule)
    return Split(deal(parts[:at] + parts[at + 1 :], copies), parts[at])


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def numbers(text: str) -> set[str]:
    """The distinct numbers of a text, as written, commas removed: "1,200 at 3.50" -> {"1200", "3.50"}."""
    return set(_NUMBER.findall(text.replace(",", "")))


def private_numbers(parts: Split, copy: str) -> set[str]:
    """Numbers in this copy's facts that stand neither in another copy's facts nor in the question."""
    others = [" ".join(parts.of(c)) for c in COPIES[: len(parts.facts)] if c != copy]
    return numbers(" ".join(parts.of(copy))) - numbers(" ".join([*others, parts.question]))


_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Mt|vs|a\.m|p\.m)\.$")


@dataclass(frozen=True)
class Audit:
    """What a split rule does to a list of problems. Counts of problems, unless said otherwise."""

    problems: int
    split: int
    no_question: int
    """Dropped: no sentence is a question (by the post's rule most of these end in a command)."""
    few_facts: int
    """Dropped: fewer facts than copies."""
    bare_half: int
    """Dropped: a half without a digit."""
    broken_abbreviation: int
    """A sentence of the post's rule, not the last, ends like an abbreviation ("Mr.", "6 a.m."). An upper count:
    a few of those times do end their sentence, and "M&Ms." is among them."""
    number_in_question: int
    """Split, with a number in the question that both copies see."""
    fact_in_question: int
    """Split, and a number of a fact stands in the question too: it is nobody's private number."""
    private_a: float
    """Mean private numbers of copy A, over the problems that split."""
    private_b: float
    one_half_reaches: int
    """Split, and one half with the question reaches the gold by at most one operation on its numbers: what a lucky
    copy could guess without its partner (see `reach`; an upper count, since a right number may be there by chance)."""
    rules_differ: int
    """The careful rule deals the problem otherwise than the post's (or drops or keeps it instead)."""
    kept_by_post_alone: int
    kept_by_careful_alone: int


def audit(problems: Sequence[Problem | Task], rule: str = "post") -> Audit:
    """Counts what the rule keeps, drops and breaks."""
    problems = [p.problem if isinstance(p, Task) else p for p in problems]
    lost = Counter(drop_reason(p.question, rule=rule) for p in problems)
    both = [tuple(split(p.question, rule=r) for r in RULES) for p in problems]
    kept = [(p, found[RULES.index(rule)]) for p, found in zip(problems, both, strict=True) if found[RULES.index(rule)]]
    count = len(kept) or 1
    return Audit(
        problems=len(problems), split=len(kept),
        no_question=lost["no_question"], few_facts=lost["few_facts"], bare_half=lost["bare_half"],
        broken_abbreviation=sum(any(map(_ABBREVIATION.search, sentences(p.question)[:-1])) for p in problems),
        number_in_question=sum(bool(numbers(s.question)) for _, s in kept),
        fact_in_question=sum(bool(numbers(s.question) & numbers(" ".join(sum(s.facts, ())))) for _, s in kept),
        private_a=sum(len(private_numbers(s, "A")) for _, s in kept) / count,
        private_b=sum(len(private_numbers(s, "B")) for _, s in kept) / count,
        one_half_reaches=sum(reaches(p.gold, s) for p, s in kept),
        rules_differ=sum(post != careful for post, careful in both),
        kept_by_post_alone=sum(post is not None and careful is None for post, careful in both),
        kept_by_careful_alone=sum(post is None and careful is not None for post, careful in both),
    )


def reach(held: str) -> set[float]:
    """What a text's numbers give by at most one operation: themselves, the sum of all, and the sum, difference,
    product and quotient of any two."""
    values = sorted(float(number) for number in numbers(held))
    found = {*values, sum(values)}
    for low, high in combinations_with_replacement(values, 2):
        found |= {low + high, high - low, low * high, *([high / low] if low else []), *([low / high] if high else [])}
    return found


def reaches(gold: str, parts: Split) -> bool:
    """Whether one copy's facts with the question reach the gold (`reach`). False for a gold that is no number."""
    try:
        value = float(gold)
    except ValueError:
        return False
    return any(abs(value - other) < 1e-9 * max(1.0, abs(value))
               for half in parts.facts for other in reach(" ".join([*half, parts.question])))
