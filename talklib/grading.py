"""A copy's last message against the gold: two verdicts, the post's rule and a strict one.

`post`: Math-Verify on the whole message. It forgives much (the last number of a message without a box, 1800% for
18), and reads two boxes close together as a set. `strict`: exactly one closed box, no number after it, and in it one
plain number equal to the gold. Dollar signs, thousands commas, a unit, a simple or mixed fraction are allowed, as a
careful teacher would; a percent sign only where the gold has one, and no word that changes the value ("thousand").

Math-Verify runs in a process of its own with a clock that ends it (`clock`). A message whose only box is a plain number
and that holds no other LaTeX takes an exact fast path; a test holds it equal to Math-Verify.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version

from .chat import Chat
from .clock import SECONDS, Clock, Judges

__all__ = ["SECONDS", "Clock", "Verdict", "boxes", "fast", "grade", "grade_chats", "grade_many", "grader_stamp",
           "slow", "strict"]

LONGEST = 20_000
"""Characters of a message that are read: its end, where the answer stands."""
SHARE = 64
"""Messages for Math-Verify that are worth starting one more judge."""

_judges = Judges()


@dataclass(frozen=True)
class Verdict:
    """Whether a message is right by either rule, and the answer that was read ("" where none was)."""

    post: bool
    strict: bool
    extracted: str


def grade(text: str, gold: str) -> Verdict:
    """Both verdicts on one last message. Never raises on any text; never takes much longer than `SECONDS`."""
    return _grade(text[-LONGEST:], gold)


@lru_cache(maxsize=1 << 16)
def _grade(text: str, gold: str) -> Verdict:
    post, extracted = fast(text, gold) or slow(text, gold)
    return Verdict(post, strict(text, gold), extracted)


def grade_many(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    """`grade` for many (text, gold) pairs; each distinct pair once, several judges side by side where many need one."""
    pairs = [(text[-LONGEST:], gold) for text, gold in pairs]
    waiting = [pair for pair in dict.fromkeys(pairs) if fast(*pair) is None]
    with ThreadPoolExecutor(min(_judges.count, 1 + len(waiting) // SHARE)) as pool:
        judged = dict(zip(waiting, pool.map(lambda pair: _grade(*pair), waiting), strict=True))
    return [judged[pair] if pair in judged else _grade(*pair) for pair in pairs]


def grade_chats(chats: Sequence[Chat]) -> list[Chat]:
    """The chats with their outcomes filled in, by the post's rule, in the order A, B, .."""
    copies = [sorted({turn.speaker for turn in chat.turns}) for chat in chats]
    pairs = [(chat.last_text(copy), chat.task.problem.gold)
             for chat, own in zip(chats, copies, strict=True) for copy in own]
    verdicts = iter(grade_many(pairs))
    return [replace(chat, outcomes=tuple(float(next(verdicts).post) for _ in own))
            for chat, own in zip(chats, copies, strict=True)]


_PLAIN = re.compile(r"-?(?:\d{1,15}|\d{1,9}\.\d{1,4})", re.ASCII)
"""Numbers on which Math-Verify's comparison (6 decimals, 15 digits) is exact."""
_FAST = re.compile(rf"[\w\s.,:;+*/=()?!'\"-]*?\\boxed\{{({_PLAIN.pattern})\}}[.\s]*", re.ASCII)


def fast(text: str, gold: str) -> tuple[bool, str] | None:
    """(right, answer) where the message is plain prose that ends in its only box, a plain number; else None.

    Why that is Math-Verify's verdict: it tries its patterns by priority, and within one the match that ends last. A
    box ranks with "final answer .. is 5", which ends before it; only "final answer is 5. I hope" ranks above a box.
    """
    found = _FAST.fullmatch(text)
    if found is None or "I hope" in text or not _PLAIN.fullmatch(gold):
        return None
    return Decimal(found[1]) == Decimal(gold), found[1]


def slow(text: str, gold: str) -> tuple[bool, str]:
    """(right, answer) by Math-Verify itself; (False, "") when its time was up."""
    reply = _judges.ask(gold, text) or {"post": False, "extracted": ""}
    return reply["post"], reply["extracted"]


_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def boxes(text: str) -> list[str]:
    """What the closed `\\boxed{..}` of a text hold, in the order in which they open."""
    opened: list[int | None] = []
    found = []
    for mark in _BRACE.finditer(text):
        if mark[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                found.append((start, text[start : mark.start()]))
        elif mark[0] == "{":
            opened.append(None)
        elif mark[0].startswith("\\boxed"):
            opened.append(mark.end())
    return [held for _, held in sorted(found)]


def strict(text: str, gold: str) -> bool:
    """One closed box, no number after it, one plain number in it, exactly equal to the gold."""
    answer, expected = _number(_only_box(text)), _number(gold)
    return answer is not None and answer == expected


def _only_box(text: str) -> str | None:
    """What the message's only box holds; None for none, several, an unclosed one, or a number after it."""
    held = boxes(text)
    if text.count("\\boxed") != 1 or len(held) != 1:
        return None
    after = text[text.index("\\boxed") :].partition(held[0] + "}")[2]
    return None if re.search(r"\d", after) else held[0]


_LATEX = (  # pattern -> plain text, in this order
    (r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1"),
    (r"\\[dt]?frac\s*\{(\d{1,30})\}\s*\{(\d{1,30})\}", r" \1/\2"),
    (r"\{,\}|\\!", ""), (r"\\[,;: ]|~|\\q?quad", " "), (r"\\([$%])", r"\1"), ("\u2212", "-"),
)
_WORD = r"[A-Za-z]+(?:\^\{?[23]\}?|[²³])?"
_AMOUNT = re.compile(
    r"(?P<sign>[+-]?)\s*[$€£]?\s*(?:(?P<whole>\d{1,30}\s+)?(?P<over>\d{1,30})/(?P<under>\d{1,30})"
    r"|(?P<value>(?:\d{1,3}(?:,\d{3})+|\d{1,100})(?:\.\d{1,100})?|\.\d{1,100}))\.?"
    rf"\s*(?P<percent>%?)(?P<unit>[°$€£]?\s*/?\s*(?:{_WORD}(?:(?:[ .]+|\s?/\s?|-){_WORD})*)?)[ .]*", re.ASCII)
_NOT_A_UNIT = re.compile(r"(?i:\b(?:percent|pct|hundreds?|thousands?|[mbtr]+illions?|dozens?|scores?|half|quarters?"
                         r"|thirds?|and|or|to|plus|minus|times|over|point|not)\b)|\b(?:[kKMBxyzei]|bn|mn)\b")
"""Words that change the value or leave it open, and letters that stand for a factor or an unknown."""


def _number(text: str | None) -> tuple[Fraction, bool] | None:
    """(value, whether it is a percentage) of a plain number with its allowed trimmings; None for anything else."""
    if text is None or len(text) > 200:
        return None
    for pattern, plain in _LATEX:
        text = re.sub(pattern, plain, text)
    found = _AMOUNT.fullmatch(text.strip().strip("$").strip())
    if found is None or _NOT_A_UNIT.search(found["unit"]):
        return None
    try:
        value = Fraction(found["value"].replace(",", "")) if found["value"] else (
            Fraction(found["whole"] or 0) + Fraction(int(found["over"]), int(found["under"])))
    except ZeroDivisionError:
        return None
    return (-value if found["sign"] == "-" else value), bool(found["percent"])


def grader_stamp() -> dict[str, str]:
    """What judged: kept with every run, so that stored chats are graded again when it changes."""
    return {"name": "post+strict 2", "math-verify": version("math-verify"),
            "latex2sympy2-extended": version("latex2sympy2-extended")}
