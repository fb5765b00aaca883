r"""Four grading rules side by side on small cases, each with the verdict of a careful teacher and why.

`post` is Math-Verify on the whole last message (what training and scores use), `strict` our own, `last_number` takes
the last number of the message, `exact` wants the last box to hold the gold's very characters. The teacher is asked to
mark "a last message that ends with the answer in \boxed{}": one final answer, clearly marked, with the right value.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from .grading import boxes, grade_many

RULES = ("post", "strict", "last_number", "exact")

_CASES = r"""
plain | so \boxed{18} | 18 | yes | the answer, boxed
plain | \boxed{17} | 18 | no | another number
plain | \boxed{ 18 } | 18 | yes | spaces mean nothing
plain | \boxed {18} | 18 | yes | LaTeX allows the space
plain | \boxed{18.} | 18 | yes | a full stop slipped in
plain | \boxed{18.0} | 18 | yes | the same value
plain | \boxed{018} | 18 | yes | the same value
plain | \boxed{+18} | 18 | yes | the same value
plain | \boxed{-18} | 18 | no | the sign is wrong
plain | \boxed{-3} | -3 | yes | a negative gold
plain | \boxed{.5} | 0.5 | yes | the same value
plain | $\boxed{18}$ | 18 | yes | the box stands in math mode
plain | \[ 9 + 9 = \boxed{18} \] | 18 | yes | the box ends a displayed sum
plain | \boxed{180} | 18 | no | one digit too many
plain | \boxed{0.333333} | 0.3333333333 | no | rounded: not the value asked for
trailing | \boxed{18} dollars. | 18 | yes | the unit stands outside
trailing | \boxed{18} is my answer, since 9 + 9 = 18 | 18 | yes | the reason follows the answer
trailing | \boxed{18}, or maybe 19 | 18 | no | not decided
unit | \boxed{18 dollars} | 18 | yes | the unit belongs to the answer
unit | \boxed{18\text{ dollars}} | 18 | yes | the unit belongs to the answer
unit | \boxed{18\ \text{km/h}} | 18 | yes | the unit belongs to the answer
unit | \boxed{18 \text{ cm}^2} | 18 | yes | the unit belongs to the answer
unit | \boxed{18kg} | 18 | yes | the unit belongs to the answer
unit | \boxed{18 thousand} | 18 | no | that is 18000
unit | \boxed{18 thousand} | 18000 | yes | in words, but that value
unit | \boxed{2 dozen} | 24 | yes | in words, but that value
unit | \boxed{2 dozen} | 2 | no | that is 24
unit | \boxed{18x} | 18 | no | an unknown is left
unit | \boxed{18 and a half} | 18 | no | that is 18.5
dollar | \boxed{\$18} | 18 | yes | money asked for, money given
dollar | \boxed{$18} | 18 | yes | the backslash is forgotten
dollar | \boxed{18\$} | 18 | yes | the sign stands behind
dollar | \boxed{\$18.00} | 18 | yes | dollars and no cents
percent | \boxed{5\%} | 5 | no | the gold is a count
percent | \boxed{5\%} | 0.05 | no | asked for a number, not a percentage
percent | \boxed{1800\%} | 18 | no | the value, but nobody writes 18 so
percent | \boxed{18 percent} | 18 | no | the gold is a count
comma | \boxed{70,000} | 70000 | yes | thousands commas
comma | \boxed{\$70,000} | 70000 | yes | thousands commas and money
comma | \boxed{70{,}000} | 70000 | yes | thousands commas as LaTeX sets them
comma | \boxed{70\,000} | 70000 | yes | a thin space between thousands
comma | \boxed{7,0000} | 70000 | no | misplaced: 7, 70000 or a slip?
comma | \boxed{1,2} | 12 | no | a pair, or 1.2
fraction | \boxed{\frac{1}{2}} | 0.5 | yes | the same value
fraction | \boxed{\dfrac{36}{2}} | 18 | yes | not cancelled, the same value
fraction | \boxed{1/2} | 0.5 | yes | the same value
fraction | \boxed{3\frac{1}{2}} | 3.5 | yes | a mixed number
fraction | \boxed{3 1/2} | 3.5 | yes | a mixed number
fraction | \boxed{1/0} | 0 | no | no number
several | \boxed{16}.. wait, \boxed{18} | 18 | no | two answers; the first is not taken back
several | First \boxed{9} each. Both have \boxed{18} | 18 | no | two answers
several | \boxed{18} and again \boxed{18} | 18 | yes | twice the same
several | \boxed{18}, \boxed{19} | 18 | no | two answers
several | \boxed{\boxed{18}} | 18 | yes | boxed twice, one answer
partner | You said \boxed{12}. I get \boxed{18} | 18 | yes | the first box is the partner's
partner | My partner boxed 12. \boxed{18} | 18 | yes | one box, one answer
unclosed | \boxed{18 | 18 | no | cut off: more digits may have followed
unclosed | \boxed{\boxed{18} | 18 | no | cut off
unclosed | \boxed 18 | 18 | no | LaTeX would box the 1 alone
no box | I have 18 | 18 | no | no box
no box | I have 18 and my partner needs 5 | 5 | no | no box, and 5 is not said to be the answer
no box | The final answer is 18. | 18 | no | no box
chain | \boxed{9 + 9 = 18} | 18 | yes | the chain ends in the answer
chain | \boxed{9 + 9} | 18 | no | not worked out
chain | \boxed{x = 18} | 18 | yes | names what it found
chain | \boxed{18 = 9 + 9} | 18 | yes | the answer with its reason
set | \boxed{18, 19} | 18 | no | two answers
set | \boxed{\{18\}} | 18 | no | a set is asked of nobody
set | \boxed{18-20} | 18 | no | a range
set | \boxed{18 or 19} | 18 | no | not decided
text | \boxed{\text{18}} | 18 | yes | the answer, set as text
text | \boxed{eighteen} | 18 | no | asked for a number
text | \boxed{} | 18 | no | an empty box
text | \boxed{?} | 18 | no | no answer
text | \boxed{\text{the answer is } 18} | 18 | yes | words in the box, one number
script | \boxed{١٨} | 18 | yes | 18 in Arabic-Indic digits
script | \boxed{１８} | 18 | yes | 18 in full-width digits
script | \boxed{−18} | -18 | yes | a typographic minus
script | \boxed{18²} | 18 | no | that is 324
silent | | 18 | no | nothing was said
silent | ? | 18 | no | nothing was answered
"""
_LONG = (
    ("long", r"\boxed{" + "9" * 10_000 + "}", "18", False, "ten thousand digits"),
    ("long", "so " * 5_000 + r"\boxed{18}", "18", True, "long-winded, then the answer"),
    ("long", r"\boxed{18} " + "so " * 20_000, "18", True, "the answer, then a great many words"),
    ("nested", r"\boxed{" * 200 + "18" + "}" * 200, "18", True, "boxed two hundred times"),
    ("nested", r"\boxed{" + "{" * 300 + "18" + "}" * 300 + "}", "18", True, "braces mean nothing"),
    ("nested", r"\boxed{" + r"\frac{1}{" * 60 + "1" + "}" * 61, "18", False, "a tower of fractions"),
    ("hostile", r"\boxed{10^{10^{10}}}", "18", False, "a number no machine can write out"),
)


@dataclass(frozen=True)
class Case:
    """One message, the gold, and what the teacher and each rule say."""

    kind: str
    text: str
    gold: str
    teacher: bool
    why: str
    post: bool
    strict: bool
    last_number: bool
    exact: bool

    @property
    def shown(self) -> str:
        """The message, its middle left out where it is long."""
        long = len(self.text) >= 60
        return f"{self.text[:28]} .. {self.text[-22:]} ({len(self.text)} characters)" if long else self.text


def cases() -> list[tuple[str, str, str, bool, str]]:
    """(kind, text, gold, the teacher's verdict, why) of every case."""
    rows = [re.split(r"\s*\|\s*", line) for line in _CASES.strip().split("\n")]
    return [(kind, text, gold, teacher == "yes", why) for kind, text, gold, teacher, why in rows] + list(_LONG)


_LAST = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)


def last_number(text: str, gold: str) -> bool:
    """Whether the last number of the message is the gold; commas removed first."""
    found = _LAST.findall(text[-20_000:].replace(",", ""))
    try:
        return bool(found) and Decimal(found[-1]) == Decimal(gold)
    except InvalidOperation:
        return False


def exact(text: str, gold: str) -> bool:
    """Whether the last closed box holds the gold's very characters."""
    held = boxes(text)
    return bool(held) and held[-1].strip() == gold


def rules(pairs: Iterable[tuple[str, str]]) -> list[dict[str, bool]]:
    """The four verdicts on (text, gold) pairs, such as stored last messages."""
    pairs = list(pairs)
    return [{"post": verdict.post, "strict": verdict.strict, "last_number": last_number(*pair), "exact": exact(*pair)}
            for verdict, pair in zip(grade_many(pairs), pairs, strict=True)]


def panel() -> list[Case]:
    """Every case with the four verdicts. Takes a few seconds: one case runs into Math-Verify's clock."""
    found = cases()
    judged = rules((text, gold) for _, text, gold, _, _ in found)
    return [Case(*case, **verdicts) for case, verdicts in zip(found, judged, strict=True)]
