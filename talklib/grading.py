"""A copy's last message against the gold: two verdicts, the post's rule and a strict one.

`post`: Math-Verify on the whole message. It forgives much (the last number of a message without a box, 1800% for
18), and reads two boxes close together as a set. `strict`: exactly one closed box that holds one plain number,
equal to the gold; units in words, dollar signs and thousands commas are allowed, a percent sign is not.
Training and scores use the post's rule; where the two differ, both are kept.

Math-Verify runs in a process of its own with a clock that kills it. A message whose only box is a plain number
and that holds no other LaTeX takes an exact fast path; a test holds it equal to Math-Verify.
"""

import atexit
import json
import re
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version

from .chat import Chat

SECONDS = 5.0
"""Most seconds Math-Verify may take for one message; then the answer counts as wrong."""
LONGEST = 20_000
"""Characters of a message that are read: its end, where the answer stands."""

_PLAIN = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")
_FAST = re.compile(r"[\w\s.,:;+*/=()?!'\"-]*?\\boxed\{(-?\d{1,15}(?:\.\d{1,6})?)\}[.\s]*", re.ASCII)
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?|-?\d+/\d+")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d{1,30})\}\{(\d{1,30})\}")


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
    """`grade` for many (text, gold) pairs."""
    return [grade(text, gold) for text, gold in pairs]


def grade_chats(chats: Sequence[Chat]) -> list[Chat]:
    """The chats with their outcomes filled in, by the post's rule, in the order A, B, .."""
    return [replace(chat, outcomes=tuple(float(grade(chat.last_text(copy), chat.task.problem.gold).post)
                                         for copy in sorted({turn.speaker for turn in chat.turns})))
            for chat in chats]


def fast(text: str, gold: str) -> tuple[bool, str] | None:
    """(right, answer) where the message ends in its only box, a plain number, after plain prose; else None."""
    found = _FAST.fullmatch(text)
    if found is None or not _PLAIN.fullmatch(gold):
        return None
    return Decimal(found[1]) == Decimal(gold), found[1]


def strict(text: str, gold: str) -> bool:
    """One closed box with one plain number (or fraction) in it, exactly equal to the gold."""
    answer, expected = _number(_only_box(text)), _number(gold)
    return answer is not None and answer == expected


def _only_box(text: str) -> str | None:
    """Content of the message's only \\boxed{...}; None for none, several, or an unclosed one."""
    if text.count("\\boxed") != 1:
        return None
    start = text.index("\\boxed") + len("\\boxed")
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + 1 : end]
    return None


def _number(text: str | None) -> Fraction | None:
    """A plain number with allowed trimmings: dollar sign, thousands commas, unit in words, a simple fraction."""
    if text is None or len(text) > 100:
        return None
    text = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1", text)
    text = _FRACTION.sub(r"\1/\2", text).replace("\\$", "").replace("$", "").replace("\\,", "").strip()
    match = re.fullmatch(rf"({_NUMBER.pattern})(?:\s+[A-Za-z][A-Za-z .]*)?", text, re.ASCII)
    if not match:
        return None
    try:
        return Fraction(match[1].replace(",", ""))
    except ZeroDivisionError:
        return None


class Clock:
    """Math-Verify in a process that is kept and, when it overruns, killed and replaced. Safe in threads."""

    def __init__(self):
        self._lock, self._process = threading.Lock(), None

    def ask(self, gold: str, text: str, seconds: float = SECONDS) -> dict | None:
        """The judge's reply, or None when it took longer than `seconds` or died."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
                self._exchange("1", "1", 60.0)  # the first import of sympy is not the message's fault
            reply = self._exchange(gold, text, seconds)
            if reply is None:
                self.close()
            return reply

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-m", "talklib.judge"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8")

    def _exchange(self, gold: str, text: str, seconds: float) -> dict | None:
        process = self._process
        try:
            process.stdin.write(json.dumps([gold, text]) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if selector.select(seconds) else ""
            return json.loads(line) if line else None
        except (BrokenPipeError, ValueError):
            return None

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None


_clock = Clock()
atexit.register(_clock.close)


def slow(text: str, gold: str) -> tuple[bool, str]:
    """(right, answer) by Math-Verify itself."""
    reply = _clock.ask(gold, text) or {"post": False, "extracted": ""}
    return reply["post"], reply["extracted"]


def grader_stamp() -> dict[str, str]:
    """What judged: kept with every run, so that stored chats are graded again when it changes."""
    return {"name": "post+strict 1", "math-verify": version("math-verify"),
            "latex2sympy2-extended": version("latex2sympy2-extended")}
