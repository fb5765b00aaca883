"""Play, grade and count a pair on the held-out problems."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from . import counters
from .chat import Chat, Speaker, play
from .grading import grade_chats, grade_many
from .recipe import Recipe
from .splitter import Task
from .stats import bootstrap_interval


def evaluate(tasks: Sequence[Task], seats: Mapping[str, Speaker], recipe: Recipe, channel: str, seed: int,
             name: str = "pair") -> list[Chat]:
    """`recipe.eval_chats` graded chats a problem. `name` says who sits where and is part of every seed."""
    repeated = [task for task in tasks for _ in range(recipe.eval_chats)]
    protocol = replace(recipe.protocol, channel=channel)
    return grade_chats(play(repeated, seats, protocol, recipe.prompts, ("eval", name, seed), partner=name))


def summarise(chats: Sequence[Chat]) -> dict:
    """Score (mean over problems of the mean of a problem's answers), its interval, and the counters."""
    by_problem: dict[str, list[Chat]] = {}
    for chat in chats:
        by_problem.setdefault(chat.problem_id, []).append(chat)
    scores = [fmean(chat.reward for chat in group) for group in by_problem.values()]
    copies = sorted({turn.speaker for turn in chats[0].turns})
    finals = [(chat.last_text(copy), chat.task.problem.gold) for chat in chats for copy in copies]
    return {
        "score": fmean(scores),
        "ci95": list(bootstrap_interval(scores)),
        "strict_score": fmean(float(verdict.strict) for verdict in grade_many(finals)),
        "pass_at_4": fmean(float(any(max(chat.outcomes) == 1 for chat in group)) for group in by_problem.values()),
        "final_chars": fmean(len(text) for text, _ in finals),
        "n_chats": len(chats),
        "counters": counters.count(chats),
    }
