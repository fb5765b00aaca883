"""The record of runs that were started elsewhere: OUT/remote.json, one entry a call. Nothing here asks the service."""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import TalkError
from .plan import Gpu, get_gpu
from .store import to_json, write_atomic

FORMAT = 1
STATES = ("starting", "running", "done", "failed", "lost", "cancelled")
"""`starting`: the service was asked, and its answer, the call's id, is not on disk yet."""
LIVE = ("starting", "running")
LOCK_SECONDS = 120.0
"""How long one command waits for another on the same record."""


@dataclass(frozen=True)
class Call:
    """One run on the service."""

    arm: str
    seed: int
    call_id: str
    digest: str
    """The recipe's."""
    folder: str
    """On the volume."""
    gpu: str
    """The kinds that were asked for, by preference, separated by commas."""
    spawned: str
    """UTC, ISO 8601."""
    state: str = "running"
    seconds: float | None = None
    """Over all attempts, as the containers measured them; an image's start is not in it."""
    usd: float | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.arm}/seed-{self.seed}"


def calls_in(out: str | Path) -> list[Call]:
    """The calls that OUT/remote.json keeps; none where there is no such file. TalkError for a broken one."""
    path = Path(out) / "remote.json"
    if not path.is_file():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}, this version reads {FORMAT}")
        found = [Call(**call) for call in record["calls"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TalkError(f"{path} cannot be read ({error}); the calls' ids are in it: restore it, or look them up with "
                        "`modal app list`, and remove it only when nothing runs any more") from error
    odd = [call.state for call in found if call.state not in STATES]
    if odd:
        raise TalkError(f"{path} has a call in the state {odd[0]!r}; states: {', '.join(STATES)}")
    return found


def keep(out: str | Path, calls: Sequence[Call]) -> None:
    """Writes OUT/remote.json whole."""
    write_atomic(Path(out) / "remote.json", to_json({"format": FORMAT, "calls": [asdict(call) for call in calls]}))


@contextmanager
def record_of(out: str | Path) -> Iterator[None]:
    """One command at a time reads and changes a record, so that two never start the same run."""
    path = Path(out) / ".remote.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+") as file:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise TalkError(f"another command is starting or collecting runs in {out}; wait for it") from error
                time.sleep(0.1)
        yield


def price_of(device: str | None, asked: str) -> Gpu:
    """The kind that a container's `device` (CUDA's name of it) is paid as, among the kinds that were asked for.

    A better GPU than any of them is lent at the price of the first, and so is one whose name is not known."""
    kinds = [get_gpu(name) for name in asked.split(",")]
    words = set(re.split(r"[^A-Z0-9]+", (device or "").upper()))
    return next((kind for kind in kinds if set(kind.name.upper().split("-")) <= words), kinds[0])


def scrub(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Text without anything that looks like a token, nor the values of variables that hold one."""
    for name, value in environment.items():
        if re.search("TOKEN|SECRET|API_KEY", name) and len(value) >= 8:
            text = text.replace(value, "[token]")
    return re.sub(r"\b(?:hf_|ghp_|sk-|ak-|as-)[A-Za-z0-9_-]{12,}", "[token]", text)


def table(calls: Sequence[Call]) -> list[dict[str, str]]:
    """One row a call, for notebooks and the shell."""
    return [{"run": call.name, "state": call.state, "GPU": call.gpu, "started": call.spawned,
             "minutes": "-" if call.seconds is None else f"{call.seconds / 60:.0f}",
             "dollars": "-" if call.usd is None else f"{call.usd:.2f}", "note": call.note or "-"} for call in calls]
