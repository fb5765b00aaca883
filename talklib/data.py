"""Problems from GSM8K, from any file with a question and an answer column, or from the desk world; then dealt."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from . import TalkError
from .recipe import Recipe
from .splitter import Problem, Task, split

HUB = "openai/gsm8k"
HUB_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
"""A commit of the data set on the hub, so that a later edit there cannot change which problems are taken."""
OFFLINE = "Without a network, give a folder that holds train.jsonl and test.jsonl with --data FOLDER."


def gold_of(answer: str, where: str) -> str:
    """The text after `####`, commas removed. TalkError names the row where there is none."""
    _, marker, gold = answer.rpartition("####")
    if not marker or not gold.strip():
        raise TalkError(f"{where}: the answer has no text after '####'")
    return gold.strip().replace(",", "")


def read_rows(path: str | Path, question: str = "question", answer: str = "answer") -> list[tuple[str, str]]:
    """(question, answer) pairs of a JSON-lines or parquet file. TalkError names the file and row that is wrong."""
    path = Path(path)
    if not path.is_file():
        raise TalkError(f"{path} does not exist. Expected JSON lines (or parquet) with '{question}' and '{answer}'.")
    pairs = []
    for number, row in enumerate(_records(path), 1):
        where = f"{path}, row {number}"
        for column in (question, answer):
            if not isinstance(row, dict) or not isinstance(row.get(column), str):
                raise TalkError(f"{where}: no text in column '{column}'")
        if not row[question].strip():
            raise TalkError(f"{where}: the question is empty")
        pairs.append((row[question], row[answer]))
    return pairs


def _records(path: Path) -> Iterable[dict]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        yield from pq.read_table(path).to_pylist()
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise TalkError(f"{path}, line {number}: not JSON ({error})") from error


def shuffled(pairs: list[tuple[str, str]], name: str, seed: int, where: str) -> list[Problem]:
    """Problems in shuffled order (what `datasets.shuffle(seed)` does), `NAME-I` with I the shuffled position."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    return [Problem(f"{name}-{place}", pairs[row][0], gold_of(pairs[row][1], f"{where}, row {row + 1}"))
            for place, row in enumerate(order.tolist())]


def load_folder(folder: str | Path, seed: int) -> tuple[list[Problem], list[Problem]]:
    """All problems of FOLDER/train.jsonl and FOLDER/test.jsonl (or .parquet), shuffled."""
    found = []
    for name in ("train", "test"):
        path = next((p for p in (Path(folder) / f"{name}.jsonl", Path(folder) / f"{name}.parquet") if p.is_file()),
                    Path(folder) / f"{name}.jsonl")
        found.append(shuffled(read_rows(path), name, seed, str(path)))
    return found[0], found[1]


def load_hub(seed: int) -> tuple[list[Problem], list[Problem]]:
    """GSM8K from the hub at the pinned revision. TalkError names the offline way where it cannot be reached."""
    import datasets

    try:
        data = datasets.load_dataset(HUB, "main", revision=HUB_REVISION)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise TalkError(f"cannot load {HUB} from the hub ({type(error).__name__}). {OFFLINE}") from error
    return tuple(shuffled([(row["question"], row["answer"]) for row in data[name]], name, seed, f"{HUB} {name}")
                 for name in ("train", "test"))


def load_problems(source: str, seed: int, n_train: int, n_test: int) -> tuple[list[Problem], list[Problem]]:
    """Train and held-out problems of `desk`, `hub` or a folder, in shuffled order."""
    if source == "desk":
        from .desk import world

        return world.tasks(n_train, n_test, seed)
    return load_hub(seed) if source == "hub" else load_folder(source, seed)


def take(problems: Iterable[Problem], n: int, rule: str = "post") -> list[Task]:
    """The first n problems that split, in order. TalkError when there are fewer."""
    tasks = []
    for problem in problems:
        parts = split(problem.question, rule=rule)
        if parts is not None:
            tasks.append(Task(problem, parts))
        if len(tasks) == n:
            return tasks
    raise TalkError(f"only {len(tasks)} problems split by the rule '{rule}'; {n} were asked for")


def bare(text: str) -> str:
    """A question's letters and digits, lower case: what decontamination compares."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def decontaminate(train: list[Problem], held_out: Iterable[Problem]) -> tuple[list[Problem], int]:
    """Train without problems that stand among the held-out ones too, and how many were dropped."""
    known = {bare(problem.question) for problem in held_out}
    clean = [problem for problem in train if bare(problem.question) not in known]
    return clean, len(train) - len(clean)


def load_tasks(recipe: Recipe) -> tuple[list[Task], list[Task]]:
    """The recipe's train and held-out tasks, decontaminated."""
    train, test = load_problems(recipe.data, recipe.data_seed, recipe.n_train, recipe.n_test)
    held_out = take(test, recipe.n_test, recipe.split_rule)
    train, _ = decontaminate(train, [task.problem for task in held_out])
    return take(train, recipe.n_train, recipe.split_rule), held_out
