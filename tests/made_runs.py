"""Small results folders for tests, written by the store's own writer round a few made-up chats."""

from pathlib import Path

from talklib.chat import Chat, Turn
from talklib.counters import count
from talklib.grading import grader_stamp
from talklib.recipe import ARMS, Recipe
from talklib.splitter import Problem, Task, split
from talklib.store import run_folder, save_run

TEXT = "Ann has 3 apples. Ben has 4 apples. How many apples do they have together?"


def made_task(number: int = 0, text: str = TEXT, gold: str = "7") -> Task:
    return Task(Problem(f"test-{number}", text, gold), split(text))


def made_chat(task: Task, words: tuple[str, ...], index: int = 0, outcomes=(1.0, 0.0), channel: str = "open") -> Chat:
    turns = tuple(Turn(copy, text) for copy, text in zip("ABAB", words, strict=True))
    return Chat(task, turns, channel, "pair", index, outcomes)


WORDS = ("I have 3", "What do you have?", "3 + 4 = \\boxed{7}", "\\boxed{4}")


def made_run(results: Path, arm: str, seed: int, score: float = 0.5, words: tuple[str, ...] = WORDS, chats=None,
             **changes) -> Path:
    """One run on disk: two problems, two chats each, all with these words, unless `chats` are given."""
    channel = ARMS[arm].channel
    chats = chats or [made_chat(made_task(p), words, i, channel=channel) for p in range(2) for i in range(2)]
    counted, ci95 = count(chats), [score - 0.02, score + 0.02]
    part = {"score": score, "ci95": ci95, "counters": counted, "pass_at_4": 1.0, "n_chats": len(chats)}
    played = {"pair": chats} | ({"as_a": chats} if ARMS[arm].trained and channel == "open" else {})
    recipe = Recipe.desk()
    history = [{"step": step, "reward": score * step / 10, "flat_groups": 0.5} for step in range(1, 11)]
    record = {"scale": "desk", "arm": arm, "seed": seed, "score": score, "ci95": ci95, "counters": counted,
              "evaluations": {name: part for name in played}, "history": history if ARMS[arm].trained else [],
              "recipe": recipe.as_dict(), "recipe_digest": recipe.digest(), "sampling": {}, "versions": {},
              "hardware": {}, "git": {}, "timings": {"train_seconds": 1.0, "eval_seconds": 1.0, "cpu_seconds": 60.0},
              "tokens": {"generated": 1000, "trained": 500, "chats": 40}, "adapter": {}, "grader": grader_stamp()}
    return save_run(run_folder(results, arm, seed), {**record, **changes}, played)
