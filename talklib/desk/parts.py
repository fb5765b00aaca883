"""What a word problem of the desk world is made of: cast, slots, steps, and the story that they make."""

from dataclasses import dataclass

import numpy as np

LIMIT = 199
"""No number, step or answer is larger: whole numbers up to here are single tokens."""
WIDE = (3, 40)
"""Range of an amount. Wide, so that nobody can guess it: each half lacks at least one."""


@dataclass(frozen=True)
class Cast:
    """Who and what a problem is about, and which of several wordings it takes."""

    name: str
    pronoun: str
    other: str
    third: str
    thing: str
    plant: str
    good: str
    wording: tuple[int, ...]
    """Random whole numbers; a wording list is indexed by one of them modulo its length."""

    def say(self, line: str, **numbers: int) -> str:
        """Fills `{N}` name, `{P}` pronoun, `{M}` other, `{L}` third, `{O}` thing, `{G}` plant, `{D}` good, numbers."""
        return line.format(N=self.name, P=self.pronoun, M=self.other, L=self.third, O=self.thing, G=self.plant,
                           D=self.good, **numbers)

    def pick(self, lines: tuple[str, ...], place: int) -> str:
        """One wording of several."""
        return lines[self.wording[place] % len(lines)]


@dataclass(frozen=True)
class Step:
    """One line of a solution: left op right = result, op one of + - * /."""

    left: int
    op: str
    right: int

    @property
    def result(self) -> int:
        """The exact result; -1 where a division leaves a remainder, which no problem may hold."""
        if self.op == "/":
            return self.left // self.right if self.left % self.right == 0 else -1
        return {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}[self.op]


@dataclass(frozen=True)
class Slot:
    """A drawn value and the position, among the problem's facts, of the fact that tells it."""

    value: int
    fact: int


@dataclass(frozen=True)
class Story:
    """A word problem with its solution."""

    kind: str
    shape: tuple[int, ...]
    """What fixes the kind's layout, number of facts and setting; drawn before the slots."""
    slots: tuple[Slot, ...]
    cast: Cast
    facts: tuple[str, ...]
    question: str
    formula: str
    """The answer as an expression of the numbers in the facts, written apart from the steps."""
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        return self.steps[-1].result

    @property
    def text(self) -> str:
        return " ".join((*self.facts, self.question))

    @property
    def key(self) -> str:
        """Kind, shape and slots: two problems with one key differ at most in names, things and wording."""
        return f"{self.kind} {self.shape} {[slot.value for slot in self.slots]}"

    @property
    def sound(self) -> bool:
        """Whether all numbers stay whole, and between 1 (the answer: 0) and LIMIT."""
        numbers = [n for step in self.steps for n in (step.left, step.right, step.result)]
        return self.answer >= 0 and all(1 <= n <= LIMIT for n in numbers[:-1]) and self.answer <= LIMIT


class Rng:
    """The few draws a kind needs, over a numpy Generator."""

    def __init__(self, generator: np.random.Generator):
        self.generator = generator

    def between(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high + 1))

    def wide(self) -> int:
        return self.between(*WIDE)

    def one(self, items):
        return items[int(self.generator.integers(len(items)))]


def chain(start: int, *moves: tuple[str, int]) -> tuple[Step, ...]:
    """Steps that carry one running value: chain(3, ("*", 4), ("+", 5)) is 3 * 4 = 12, 12 + 5 = 17."""
    steps = []
    for op, right in moves:
        steps.append(Step(start, op, right))
        start = steps[-1].result
    return tuple(steps)
