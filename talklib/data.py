"""Problems from GSM8K, from any file with a question and an answer column, or from the desk world; then dealt."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import TalkError
from .recipe import Columns, Recipe
from .splitter import Problem, Task, split

HUB = "openai/gsm8k"
HUB_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
"""A commit of the data set on the hub, so that a later edit there cannot change which problems are taken."""
HUB_SECONDS = 5.0
"""How long the hub may take to answer at all; the client's own retries would take minutes."""
OFFLINE = "Without a network, give a folder that holds train.jsonl and test.jsonl with --data FOLDER."
SUFFIXES = (".jsonl", ".json", ".parquet")
HELD_OUT_SHARE = 0.2
"""Share of a single file's problems that are held out; a folder says so itself."""


GSM8K = Columns()


@dataclass(frozen=True)
class Row:
    """One problem as read. `where` names the file and line, for messages."""

    question: str
    gold: str
    where: str


def gold_of(answer: object, where: str, marker: str = "####") -> str:
    """The text after the marker, commas removed. TalkError names the row where there is none."""
    if not marker and isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str):
        raise TalkError(f"{where}: the answer is {answer!r}, not text")
    _, found, gold = answer.rpartition(marker) if marker else ("", "all", answer)
    if not found or not gold.strip():
        raise TalkError(f"{where}: the answer has no text after '{marker}'" if marker else f"{where}: no answer")
    return gold.strip().replace(",", "")


def read_rows(path: str | Path, columns: Columns = GSM8K) -> list[Row]:
    """The rows of a JSON-lines or parquet file. TalkError names the file, the line and what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise TalkError(f"{path} does not exist. Expected JSON lines (or parquet) with the columns "
                        f"'{columns.question}' and '{columns.answer}'.")
    rows = [_row(record, where, columns) for where, record in _records(path)]
    if not rows:
        raise TalkError(f"{path} holds no problems")
    return rows


def _row(record: object, where: str, columns: Columns) -> Row:
    if not isinstance(record, dict):
        raise TalkError(f"{where}: expected an object with '{columns.question}' and '{columns.answer}'")
    for column in (columns.question, columns.answer):
        if record.get(column) is None:
            raise TalkError(f"{where}: no '{column}'; the columns there are {', '.join(map(str, record)) or 'none'}")
    question = record[columns.question]
    if not isinstance(question, str) or not question.strip():
        raise TalkError(f"{where}: the question is {'empty' if isinstance(question, str) else 'not text'}")
    return Row(question, gold_of(record[columns.answer], where, columns.marker), where)


def _records(path: Path) -> Iterator[tuple[str, object]]:
    """(where, record) of each row; lines are counted from 1, blank ones left out."""
    if path.suffix == ".parquet":
        for number, record in enumerate(_parquet(path), 1):
            yield f"{path}, row {number}", record
        return
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TalkError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}, line {number}", _json(line, f"{path}, line {number}")


def _parquet(path: Path) -> list[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise TalkError(f"{path} cannot be read as parquet: {error}") from error


def _json(line: bytes, where: str) -> object:
    try:
        return json.loads(line)
    except ValueError as error:  # also text that is not UTF-8
        raise TalkError(f"{where}: not JSON ({error})") from error


def shuffled(rows: list[Row], name: str, seed: int) -> list[Problem]:
    """Problems in shuffled order (what `datasets.shuffle(seed)` does), `NAME-I` with I the shuffled position."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return [Problem(f"{name}-{place}", rows[row].question, rows[row].gold) for place, row in enumerate(order.tolist())]


def load_folder(folder: str | Path, seed: int, columns: Columns = GSM8K) -> tuple[list[Problem], list[Problem]]:
    """All problems of FOLDER/train.* and FOLDER/test.* (.jsonl, .json or .parquet), each shuffled."""
    found = []
    for name in ("train", "test"):
        paths = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
        path = next((path for path in paths if path.is_file()), paths[0])
        found.append(shuffled(read_rows(path, columns), name, seed))
    return found[0], found[1]


def load_file(path: str | Path, seed: int, columns: Columns = GSM8K) -> tuple[list[Problem], list[Problem]]:
    """One file's problems, shuffled once and cut: the first `HELD_OUT_SHARE` of them are held out."""
    return _cut(read_rows(path, columns), seed)


def _cut(rows: list[Row], seed: int) -> tuple[list[Problem], list[Problem]]:
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    cut = round(HELD_OUT_SHARE * len(rows))
    return tuple([Problem(f"{name}-{place}", rows[row].question, rows[row].gold) for place, row in enumerate(part)]
                 for name, part in (("train", order[cut:]), ("test", order[:cut])))


def load_hub(seed: int, name: str = "", columns: Columns = GSM8K) -> tuple[list[Problem], list[Problem]]:
    """GSM8K at the pinned revision, or another data set of the hub, `OWNER/NAME` or `OWNER/NAME:CONFIG`.

    One without a test split has the first `HELD_OUT_SHARE` of its shuffled train split held out. No script of a data
    set is ever run. TalkError names the offline way where the hub cannot be reached."""
    import datasets

    path, _, config = name.partition(":")
    try:
        data = _cached() if not name else None
        if data is None:
            _knock()
            data = (datasets.load_dataset(path, config or None, trust_remote_code=False) if name
                    else datasets.load_dataset(HUB, "main", revision=HUB_REVISION))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise TalkError(f"cannot load {name or HUB} from the hub ({type(error).__name__}). {OFFLINE}") from error
    if "train" not in data:
        raise TalkError(f"{name} has no train split; it has {', '.join(data)}")
    rows = {part: [_row(record, f"{name or HUB} {part}, row {number}", columns)
                   for number, record in enumerate(data[part], 1)] for part in ("train", "test") if part in data}
    if "test" not in rows:
        return _cut(rows["train"], seed)
    return shuffled(rows["train"], "train", seed), shuffled(rows["test"], "test", seed)


def _cached() -> dict | None:
    """The pinned revision as `datasets` keeps it after a first download; no network is asked."""
    import datasets

    folder = Path(datasets.config.HF_DATASETS_CACHE) / HUB.replace("/", "___") / "main" / "0.0.0" / HUB_REVISION
    files = {name: folder / f"gsm8k-{name}.arrow" for name in ("train", "test")}
    if not all(path.is_file() for path in files.values()):
        return None
    return {name: datasets.Dataset.from_file(str(path)) for name, path in files.items()}


def _knock() -> None:
    """Raises an OSError where the hub does not answer within `HUB_SECONDS`, before the client starts its retries."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)


def load_problems(source: str, seed: int, n_train: int, n_test: int,
                  columns: Columns = GSM8K) -> tuple[list[Problem], list[Problem]]:
    """Train and held-out problems of `desk`, `hub`, `hub:OWNER/NAME:CONFIG`, a folder or a file, in shuffled order."""
    if source == "desk":
        from .desk import world

        return world.tasks(n_train, n_test, seed)
    if source == "hub" or source.startswith("hub:"):
        return load_hub(seed, source[4:], columns)
    return load_file(source, seed, columns) if Path(source).is_file() else load_folder(source, seed, columns)


def take(problems: Iterable[Problem], n: int, rule: str = "post") -> list[Task]:
    """The first n problems that split, in order. TalkError when there are fewer."""
    if n < 1:
        raise TalkError(f"{n} problems were asked for; it must be at least 1")
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
    return re.sub(r"[\W_]+", " ", text.lower()).strip()


def decontaminate(train: list[Problem], held_out: Iterable[Problem]) -> tuple[list[Problem], int]:
    """Train without problems that stand among the held-out ones too, and how many were dropped. Ids stay."""
    known = {bare(problem.question) for problem in held_out}
    clean = [problem for problem in train if bare(problem.question) not in known]
    return clean, len(train) - len(clean)


@dataclass(frozen=True)
class Dealt:
    """A data set as an experiment takes it."""

    train: list[Task]
    test: list[Task]
    problems: dict[str, list[Problem]]
    """All problems of "train" and "test", before the split rule and decontamination."""
    dropped: int
    """Train problems dropped because they stand among the held-out ones too."""


def deal_tasks(source: str, seed: int, n_train: int, n_test: int, rule: str = "post",
               columns: Columns = GSM8K) -> Dealt:
    """The first n_test held-out problems that split, and the first n_train of train that are not among them."""
    train, test = load_problems(source, seed, n_train, n_test, columns)
    held_out = take(test, n_test, rule)
    clean, dropped = decontaminate(train, [task.problem for task in held_out])
    return Dealt(take(clean, n_train, rule), held_out, {"train": train, "test": test}, dropped)


def load_tasks(recipe: Recipe) -> tuple[list[Task], list[Task]]:
    """The recipe's train and held-out tasks, decontaminated."""
    dealt = deal_tasks(recipe.data, recipe.data_seed, recipe.n_train, recipe.n_test, recipe.split_rule,
                       recipe.columns)
    return dealt.train, dealt.test
