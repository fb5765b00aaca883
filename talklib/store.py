"""Runs on disk. One run (an arm, a seed) is a folder: `run.json`, `chats.parquet`, and an `adapter/`.

A run is written under a temporary name, flushed, and renamed, so a reader sees a whole run or none. `run.json`
carries the checksum of its chats: a truncated or edited file is refused by name. It also says which grader
judged the chats; where that is not today's grader, chats are graded again when they are read.

A results folder may come from a stranger: it is read as JSON and parquet alone, names cannot lead out of it, and
links in it are refused.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pyarrow.parquet as pq

from . import TalkError
from .chat import Chat, Turn
from .grading import grade_chats, grade_many, grader_stamp
from .recipe import ARMS
from .splitter import Problem, Split, Task

FORMAT = 1
REQUIRED = ("format", "scale", "arm", "seed", "score", "ci95", "counters", "evaluations", "recipe", "recipe_digest",
            "sampling", "versions", "hardware", "git", "timings", "grader", "chats_sha256")

_TURN = pa.struct([("speaker", pa.string()), ("text", pa.string()), ("tokens", pa.int32()), ("trained", pa.bool_())])
SCHEMA = pa.schema([
    ("evaluation", pa.string()), ("problem_id", pa.string()), ("chat", pa.int32()), ("channel", pa.string()),
    ("partner", pa.string()), ("facts", pa.list_(pa.list_(pa.string()))), ("question", pa.string()),
    ("gold", pa.string()), ("turns", pa.list_(_TURN)), ("outcomes", pa.list_(pa.float64())),
    ("strict", pa.list_(pa.bool_())), ("extracted", pa.list_(pa.string())), ("reward", pa.float64()),
])


def run_folder(results: str | Path, arm: str, seed: int) -> Path:
    """results/ARM/seed-N. TalkError for a name or a number that would lead elsewhere."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", arm) or type(seed) is not int or seed < 0:
        raise TalkError(f"arm {arm!r}, seed {seed!r}: an arm's name is letters, digits and _, a seed a whole number "
                        "from 0 on")
    return Path(results) / arm / f"seed-{seed}"


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Writes a file under a temporary name, flushes it to disk, and renames it into place."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:  # x: never through a link that somebody left under this name
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_json(record: Mapping) -> str:
    """The one JSON layout of the project: indented, keys in the order given, a newline at the end."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def chat_rows(evaluation: str, chats: Sequence[Chat]) -> list[dict]:
    """Chats as rows of `SCHEMA`, each copy's last message judged by both rules."""
    copies = sorted({turn.speaker for chat in chats for turn in chat.turns})
    verdicts = iter(grade_many([(chat.last_text(copy), chat.task.problem.gold) for chat in chats for copy in copies]))
    rows = []
    for chat in chats:
        judged = [next(verdicts) for _ in copies]
        turns = [{"speaker": t.speaker, "text": t.text, "tokens": len(t.completion_ids), "trained": t.trained}
                 for t in chat.turns]
        rows.append({
            "evaluation": evaluation, "problem_id": chat.problem_id, "chat": chat.index, "channel": chat.channel,
            "partner": chat.partner, "facts": [list(held) for held in chat.task.split.facts],
            "question": chat.task.split.question, "gold": chat.task.problem.gold, "turns": turns,
            "outcomes": [float(v.post) for v in judged], "strict": [v.strict for v in judged],
            "extracted": [v.extracted for v in judged], "reward": fmean(float(v.post) for v in judged),
        })
    return rows


def chats_of(rows: Iterable[Mapping]) -> list[Chat]:
    """Rows of `SCHEMA` as chats."""
    chats = []
    for row in rows:
        split = Split(tuple(tuple(held) for held in row["facts"]), row["question"])
        task = Task(Problem(row["problem_id"], " ".join([*sum(split.facts, ()), split.question]), row["gold"]), split)
        turns = tuple(Turn(t["speaker"], t["text"], trained=t["trained"]) for t in row["turns"])
        chats.append(Chat(task, turns, row["channel"], row["partner"], row["chat"], tuple(row["outcomes"])))
    return chats


def save_run(folder: str | Path, record: Mapping, chats: Mapping[str, Sequence[Chat]],
             adapter: str | Path | None = None) -> Path:
    """Writes a run whole: `chats` maps an evaluation's name to its chats, `adapter` is a folder to take along."""
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    rows = [row for name, played in chats.items() for row in chat_rows(name, played)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, temporary / "chats.parquet", compression="zstd", compression_level=19)
    digest = hashlib.sha256((temporary / "chats.parquet").read_bytes()).hexdigest()
    if adapter is not None:
        shutil.copytree(adapter, temporary / "adapter")
    write_atomic(temporary / "run.json", to_json({**record, "format": FORMAT, "chats_sha256": digest}))
    for path in [*temporary.rglob("*"), temporary]:
        _flush(path)
    _swap(temporary, folder)
    return folder


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(new: Path, folder: Path) -> None:
    """Puts `new` where `folder` is; an older run there is moved aside first and removed last."""
    aside = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        os.rename(folder, aside)
    os.rename(new, folder)
    _flush(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def mend(folder: Path) -> None:
    """Clears away what a process that was killed while writing this run left behind. An older run that had been moved
    aside and not yet replaced is put back. Only for whoever holds the run's lock."""
    for aside in sorted(folder.parent.glob(f".{folder.name}.old-*")):
        if not folder.exists():
            os.rename(aside, folder)
    for left in (*folder.parent.glob(f".{folder.name}.tmp-*"), *folder.parent.glob(f".{folder.name}.old-*")):
        left.unlink() if left.is_symlink() else shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True)
class Run:
    """One stored run. `record` is run.json; chats are read when asked for."""

    folder: Path
    record: dict

    @property
    def arm(self) -> str:
        return self.record["arm"]

    @property
    def seed(self) -> int:
        return self.record["seed"]

    @property
    def score(self) -> float:
        return self.record["score"]

    @property
    def history(self) -> list[dict]:
        """One entry a training step; empty for an untrained arm."""
        return self.record.get("history", [])

    @cached_property
    def _table(self) -> pa.Table:
        path = self.folder / "chats.parquet"
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.record["chats_sha256"]:
            raise TalkError(f"{path} is not the file that run.json describes (truncated or edited); "
                            "restore it, or remove the folder and run the arm again")
        return pq.read_table(pa.BufferReader(data))

    @cached_property
    def _rows(self) -> list[dict]:
        return self._table.to_pylist()

    def chats(self, evaluation: str = "pair") -> list[Chat]:
        """Its chats of one evaluation, graded by today's grader."""
        chats = chats_of(row for row in self._rows if row["evaluation"] == evaluation)
        return chats if self.record["grader"] == grader_stamp() else grade_chats(chats)

    def scores(self, evaluation: str = "pair") -> dict[str, float]:
        """Problem id -> mean of its answers' outcomes, by today's grader."""
        if self.record["grader"] == grader_stamp():
            rows = self._table.select(["evaluation", "problem_id", "reward"]).to_pylist()  # turns are not unpacked
            pairs = [(row["problem_id"], row["reward"]) for row in rows if row["evaluation"] == evaluation]
        else:
            pairs = [(chat.problem_id, chat.reward) for chat in self.chats(evaluation)]
        rewards: dict[str, list[float]] = {}
        for problem, reward in pairs:
            rewards.setdefault(problem, []).append(reward)
        return {problem: fmean(values) for problem, values in rewards.items()}

    @property
    def evaluations(self) -> list[str]:
        return list(self.record["evaluations"])

    def frame(self):
        """All its chats as a pandas frame, one row a chat."""
        import pandas as pd

        return pd.DataFrame(self._rows)


def load_run(folder: str | Path) -> Run:
    """Reads one run's record. Raises TalkError, naming the file, for a missing, foreign or half-written run."""
    folder = Path(folder)
    path = folder / "run.json"
    remedy = "remove the folder and run the arm again"
    for part in (folder.parent, folder, path, folder / "chats.parquet", folder / "adapter"):
        if part.is_symlink():
            raise TalkError(f"{part} is a link; a run is read from its own folder alone, so put its files there")
    if not path.is_file():
        raise TalkError(f"{folder} holds no run.json: not a run, or half a copy of one; {remedy}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TalkError(f"{path} is not JSON ({error}); {remedy}") from error
    missing = [key for key in REQUIRED if not isinstance(record, dict) or key not in record]
    if missing:
        raise TalkError(f"{path} lacks {', '.join(missing)}: written by something else or an older version; {remedy}")
    if record["format"] != FORMAT:
        raise TalkError(f"{path} has format {record['format']}, this version reads format {FORMAT}; {remedy}")
    arm, seed = record["arm"], record["seed"]
    if (arm, seed) != (folder.absolute().parent.name, _seed_of(folder)):
        raise TalkError(f"{path} says arm {arm!r}, seed {seed!r}, which is not its folder; put it where it belongs")
    if not (folder / "chats.parquet").is_file():
        raise TalkError(f"{folder} holds no chats.parquet; {remedy}")
    return Run(folder, record)


def run_folders(results: str | Path) -> list[Path]:
    """Folders that are named like runs, arms in their order, then by seed. Hidden and foreign names are left out."""
    order = list(ARMS)
    found = [path for arm in order for path in (Path(results) / arm).glob("seed-*") if _seed_of(path) is not None]
    return sorted(found, key=lambda path: (order.index(path.parent.name), _seed_of(path)))


def _seed_of(folder: Path) -> int | None:
    """17 of a folder named seed-17; None for another name, seed-017 included."""
    found = re.fullmatch(r"seed-(0|[1-9]\d*)", folder.absolute().name, re.ASCII)
    return int(found[1]) if found else None


def load_runs(results: str | Path) -> list[Run]:
    """All runs under a results folder (none where there is no such folder)."""
    return [load_run(folder) for folder in run_folders(results)]
