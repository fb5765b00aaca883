"""`python -m talklib selftest`: split, chat, blocked channel, counters, credit and grading with scripted speakers."""

import re
import sys
from collections.abc import Callable, Iterator

from . import counters
from .chat import Chat, Protocol, play, see
from .clock import Clock
from .credit import RULES
from .grading import grade, grade_chats
from .recipe import ARMS, PAPER_PROMPTS
from .rollout import collect
from .scripted import messenger
from .splitter import Problem, Task, split

TEXT = "Ann has 3 red apples. Ben has 14 green apples. Cy brings 1,200 more. How many apples are there?"


def total(text: str) -> str:
    """The sum of a text's distinct numbers: all it takes to solve the selftest's problem."""
    return str(sum(int(n) for n in set(re.findall(r"\d+", text.replace(",", "")))))


def chats(channel: str) -> list[Chat]:
    task = Task(Problem("selftest-0", TEXT, "1217"), split(TEXT))
    speaker = messenger(total)
    return grade_chats(play([task], {"A": speaker, "B": speaker}, Protocol(channel=channel), PAPER_PROMPTS, ("x",)))


def check_split() -> Iterator[tuple[str, bool]]:
    parts = split(TEXT)
    yield "facts 1, 3, .. go to A and 2, 4, .. to B", parts.facts_a == (
        "Ann has 3 red apples.", "Cy brings 1,200 more.") and parts.facts_b == ("Ben has 14 green apples.",)
    yield "the last question is what both see", parts.question == "How many apples are there?"
    yield "a text without a question is dropped", split("Ann has 3 apples. Ben has 4.") is None
    command = "Mr. Ann has 3 apples. Ben has 4. Calculate their total."
    yield "the post's rule drops a command, the careful one keeps it whole", split(command) is None and split(
        command, rule="careful").facts_a == ("Mr. Ann has 3 apples.",)


def check_chat() -> Iterator[tuple[str, bool]]:
    open_chat, blocked = chats("open")[0], chats("blocked")[0]
    shown = {now: PAPER_PROMPTS.render(see(open_chat.task, Protocol(), open_chat.turns[:now])) for now in range(4)}
    yield "before a word is said neither copy is shown the other's facts", (
        "14" not in str(shown[0]) and "14" in str(shown[2]))
    yield "turns go A, B, A, B", [t.speaker for t in open_chat.turns] == list("ABAB")
    yield "a pair that sends its facts solves the problem", open_chat.reward == 1.0
    yield "with the channel blocked the same pair does not", blocked.reward == 0.0
    yield "a blocked copy never holds its partner's numbers", "14" not in blocked.last_text("A")


def check_counters() -> Iterator[tuple[str, bool]]:
    counted = counters.count(chats("open"))
    yield "sends is 1 for a messenger", counted["sends"] == 1.0
    yield "uses is 0 where the last message shows the answer alone", counted["uses"] == 0.0
    yield "asks is 0, agrees is 1", counted["asks"] == 0.0 and counted["agrees"] == 1.0


def check_credit() -> Iterator[tuple[str, bool]]:
    pool = [0.0, 1.0, 0.5, 0.5]
    yield "GRPO pays reward minus the group's mean", RULES["grpo"].advantages(pool, pool) == [-0.5, 0.5, 0.0, 0.0]
    yield "RAFT pays winners alone", RULES["raft"].advantages(pool, pool) == [0.0, 1.0, 0.0, 0.0]
    stuck = Task(Problem("p", "", "1"), split(TEXT))
    groups = collect([stuck], ARMS["reinforce_ada"], RULES["reinforce_ada"], 4, lambda tasks, numbers, _: [
        Chat(t, (), index=n, outcomes=(float(n == 5),) * 2) for t, n in zip(tasks, numbers, strict=True)])
    yield "Reinforce-Ada plays a stuck problem again", len(groups[0].pool) == 8 and groups[0].advantages[-1] == 0.875


def check_grading() -> Iterator[tuple[str, bool]]:
    yield "\\boxed{18} is right against 18", grade("so \\boxed{18}", "18").post
    yield "\\boxed{70,000} is right against 70000", grade("\\boxed{70,000}", "70000").post
    forgiven = grade("\\boxed{1800\\%}", "18")
    yield "1800% passes the post's rule and not the strict one", forgiven.post and not forgiven.strict
    yield "an empty message is wrong", not grade("  ", "18").post
    clock = Clock()
    yield "a tower of powers is stopped by the clock", clock.ask("18", "\\boxed{10^{10^{10}}}", seconds=1.0) is None
    yield "and the next message is graded", (clock.ask("18", "\\boxed{18}") or {}).get("post") is True
    clock.close()


CHECKS: dict[str, Callable[[], Iterator[tuple[str, bool]]]] = {
    "split": check_split, "chat": check_chat, "counters": check_counters, "credit": check_credit,
    "grading": check_grading}


def run() -> bool:
    """Prints what is checked, a line each; True when all of it holds."""
    results = []
    for part, check in CHECKS.items():
        for text, holds in check():
            print(f"{'ok  ' if holds else 'FAIL'}  {part:<9} {text}")
            results.append(holds)
    print(f"{sum(results)} of {len(results)} checks hold; torch was {'' if 'torch' in sys.modules else 'not '}loaded")
    return all(results)
