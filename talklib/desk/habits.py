"""What the base model is taught to write: first the right thing, later a mixture of habits.

The shares in `Habits` were set by us, so that the untrained pair starts near the untrained pair of the post. What
training then does to them is measured, not set.
"""

import re
from dataclasses import dataclass, fields

from ..chat import Prompts, Protocol, Turn, see
from ..splitter import Problem, Task, split
from .parts import LIMIT, Rng, Step, Story
from .stories import redraw

ASKS = ("What do you know?", "What are your numbers?", "Can you tell me your facts?", "What do you have?")
VAGUE = ("Let us solve this.", "I am ready to start.", "We can do it together.", "I will think about it.")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Habits:
    """Shares of each way to write a message. The first four are of first messages and sum to 1."""

    restate: float
    """Writes its own facts out."""
    bare: float
    """Writes its own numbers, without their meaning."""
    ask: float
    """Asks the partner."""
    vague: float
    """Says nothing of use."""
    combine: float
    """Last message, where the partner's numbers were sent: solves the problem."""
    sloppy: float
    """The same, but takes one wrong step with one number of each side."""
    own: float
    """Uses its own numbers only. The rest makes the partner's numbers up."""
    echo: float
    """B's last message: repeats the answer that A has just given."""


CAPABLE = Habits(restate=0.6, bare=0.4, ask=0.0, vague=0.0, combine=1.0, sloppy=0.0, own=0.0, echo=0.0)
"""First stage: everything is sent and everything is combined."""
MIXED = Habits(restate=0.35, bare=0.34, ask=0.23, vague=0.08, combine=0.18, sloppy=0.35, own=0.23, echo=0.13)
"""Second stage: the habits of the shipped base."""


def one_of(rng: Rng, shares: dict[str, float]) -> str:
    """A name drawn by its share; shares need not sum to 1."""
    point = rng.generator.random() * sum(shares.values())
    for name, share in shares.items():
        point -= share
        if point < 0:
            return name
    return name


def numbers(facts) -> list[int]:
    """The numbers of some sentences, in order."""
    return [int(n) for n in _NUMBER.findall(" ".join(facts))]


def first_message(habit: str, facts, rng: Rng) -> str:
    """A first message in that habit."""
    if habit == "restate":
        return " ".join(facts)
    if habit == "bare":
        return ", ".join(map(str, numbers(facts)))
    return rng.one(ASKS if habit == "ask" else VAGUE)


def solution(steps) -> str:
    """Steps as a last message: "3 * 4 = 12, 12 + 5 = \\boxed{17}"."""
    *early, end = steps
    lines = [f"{s.left} {s.op} {s.right} = {s.result}" for s in early]
    return ", ".join([*lines, f"{end.left} {end.op} {end.right} = \\boxed{{{end.result}}}"])


def made_up(story: Story, copy: int, rng: Rng) -> str:
    """Solves a problem in which the partner's numbers are drawn anew from their true range, none of them true."""
    for _ in range(50):
        other = redraw(story, copy, rng)
        if other is not None and other.answer != story.answer and other.facts[1 - copy] != story.facts[1 - copy]:
            return solution(other.steps)
    return own_only(story, copy, rng)


def one_step(lefts, rights, rng: Rng, avoid: int) -> str | None:
    """One step from a number of each list, its result in range and not the answer; None where there is none."""
    steps = [Step(a, op, b) for a in lefts for b in rights for op in "+-*"]
    fit = [step for step in steps if 0 <= step.result <= LIMIT and step.result != avoid]
    return solution([rng.one(fit)]) if fit else None


def own_only(story: Story, copy: int, rng: Rng) -> str:
    """An answer from a copy's own numbers: one step, or its only number."""
    own = numbers(story.facts[copy::2])
    text = one_step(own[:1], own[1:], rng, story.answer) if len(own) > 1 else None
    return text or f"I have {own[0]}, so \\boxed{{{own[0]}}}"


def sloppy(story: Story, copy: int, rng: Rng) -> str:
    """One wrong step with one number of each side."""
    text = one_step(numbers(story.facts[copy::2]), numbers(story.facts[1 - copy :: 2]), rng, story.answer)
    return text or own_only(story, copy, rng)


def last_message(story: Story, copy: int, habits: Habits, sent: bool, heard_answer: str | None, rng: Rng) -> str:
    """A last message. `sent`: whether the partner's numbers were sent and heard; `heard_answer`: its boxed one."""
    if heard_answer is not None and rng.generator.random() < habits.echo:
        return f"Yes, \\boxed{{{heard_answer}}}"
    guess = max(1.0 - habits.combine - habits.sloppy - habits.own, 0.0)
    shares = {"combine": habits.combine, "sloppy": habits.sloppy} if sent else {}
    shares |= {"own": habits.own, "made_up": guess if guess or sent else 1.0}
    habit = one_of(rng, shares)
    if habit == "combine":
        return solution(story.steps)
    return {"sloppy": sloppy, "own": own_only, "made_up": made_up}[habit](story, copy, rng)


def transcript(story: Story, habits: Habits, protocol: Protocol, prompts: Prompts, rng: Rng, a_errs: bool = False):
    """Plays one chat by habit; returns [(chat messages seen, message written)], a turn each.

    `a_errs`: A's last message is wrong although it could know better, so that B learns to work for itself."""
    dealt = split(story.text)
    task = Task(Problem("base", story.text, str(story.answer)), dealt)
    turns: list[Turn] = []
    sent: dict[str, bool] = {}
    out = []
    firsts = {field.name: getattr(habits, field.name) for field in fields(Habits)[:4]}
    for copy in protocol.order:
        seat = "AB".index(copy)
        view = see(task, protocol, turns, prompts.blocked)
        if view.last:
            heard = sent["AB"[1 - seat]] and protocol.channel == "open"
            boxed = re.findall(r"boxed\{(\d+)\}", turns[-1].text) if protocol.channel == "open" else []
            if a_errs and seat == 0:
                text = (made_up if rng.between(0, 1) else own_only)(story, seat, rng)
            else:
                text = last_message(story, seat, habits, heard, boxed[0] if boxed else None, rng)
        else:
            habit = one_of(rng, firsts)
            sent[copy] = habit in ("restate", "bare")
            text = first_message(habit, dealt.facts[seat], rng)
        out.append((prompts.render(view), text))
        turns.append(Turn(copy, text))
    return out
