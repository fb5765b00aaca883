"""Runs on Modal: a thin shell round `experiment.run_arm`, one container an arm and seed.

`launch` deploys the app once, spawns a call a run and keeps the calls' ids in OUT/remote.json, so that the notebook or
the laptop may be closed; `collect` takes up whatever is done, from any machine with that file; `cancel` ends the rest.
A container that is taken away goes on from the run's last checkpoint on the volume. Modal checks neither GPU names nor
limits before it is asked to start, so they are checked here. What touches Modal sits in `Service`; tests put a
scripted one in its place, and Modal's own client objects are looked at as they are.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from . import TalkError
from .experiment import git_state, run_arm, status_of
from .parallel import Say
from .plan import get_gpu, plan
from .recipe import Recipe, get_arm
from .store import load_run, run_folder, to_json, write_atomic

APP, VOLUME, MOUNT = "talklib", "talklib-results", "/results"
FORMAT = 1
TORCH = "2.7.1"
"""The post's, whose CUDA build is the one that H100s ran; the desk scale's newer one is for the CPU."""
MOST_HOURS = 24.0
"""Modal's limit for one attempt."""
MOST_RETRIES = 10
PINNED = ("trl", "transformers", "peft", "accelerate", "datasets", "numpy", "pandas", "pyarrow", "scipy", "safetensors",
          "tokenizers", "huggingface_hub", "hf-xet", "fsspec", "math-verify", "latex2sympy2_extended", "sympy",
          "antlr4-python3-runtime", "jinja2")
"""What a run needs; Jupyter, figures and checks stay at home."""
STATES = ("running", "done", "failed", "lost", "cancelled")


def pins(path: str | Path | None = None) -> list[str]:
    """The image's packages at constraints.txt's versions, torch at the post's. TalkError names what lacks a pin."""
    path = Path(path) if path else Path(__file__).resolve().parents[1] / "constraints.txt"
    if not path.is_file():
        raise TalkError(f"{path} is missing: the image's versions are read from it, so start runs from a clone")
    found = dict(line.split("==") for line in path.read_text(encoding="utf-8").split() if "==" in line)
    found = {name.lower(): version for name, version in found.items()}
    lacking = [name for name in PINNED if name.lower() not in found]
    if lacking:
        raise TalkError(f"{path} has no pin for {', '.join(lacking)}")
    return [f"torch=={TORCH}", *(f"{name}=={found[name.lower()]}" for name in PINNED)]


@dataclass(frozen=True)
class Limits:
    """Where and how long a run may go on."""

    gpu: tuple[str, ...] = ("H100",)
    """Kinds in the order of preference."""
    hours: float = 6.0
    """Of one attempt; the post's longest run took 3.5."""
    retries: int = 4
    """After preemptions and crashes; each goes on from the last checkpoint."""
    containers: int = 10
    """Most side by side."""

    def __post_init__(self):
        for name in self.gpu or ("",):
            get_gpu(name)
        if not 0 < self.hours <= MOST_HOURS:
            raise TalkError(f"hours is {self.hours}; one attempt may take up to {MOST_HOURS:g}")
        if not (isinstance(self.retries, int) and 0 <= self.retries <= MOST_RETRIES):
            raise TalkError(f"retries is {self.retries}; it must be a whole number from 0 to {MOST_RETRIES}")
        if self.containers < 1:
            raise TalkError(f"containers is {self.containers}; it must be at least 1")


def remote_run(settings: dict, arm: str, seed: int) -> dict:
    """What a container does: the run, with its folder and checkpoints on the volume; returns the run's small files.

    Called again after a preemption it goes on from the last checkpoint, and a finished run is returned as it is."""
    began = time.time()
    recipe = Recipe.from_dict(settings)
    run = run_arm(recipe, arm, seed, Path(os.environ.get("TALKLIB_MOUNT", MOUNT)) / where(recipe))
    files = {name: (run.folder / name).read_bytes() for name in ("run.json", "chats.parquet")}
    return {"files": files, "seconds": time.time() - began}


def where(recipe: Recipe) -> str:
    """Folder of a recipe's runs on the volume: two recipes never share one."""
    return f"{recipe.scale}/{recipe.digest()}"


class Service:
    """Modal's client objects, built when first needed. Importing Modal needs no token; all but `build` does."""

    def __init__(self, limits: Limits):
        self.limits = limits

    def build(self):
        """(app, function, volume): nothing is sent yet."""
        import modal

        commit = git_state()["commit"] or "unknown"
        image = (modal.Image.debian_slim(python_version="3.11").pip_install(*pins())
                 .env({"TALKLIB_COMMIT": commit, "TOKENIZERS_PARALLELISM": "false", "HF_HOME": f"{MOUNT}/hub"})
                 .add_local_python_source("talklib"))
        app = modal.App(APP)
        volume = modal.Volume.from_name(VOLUME, create_if_missing=True)
        function = app.function(
            image=image, gpu=list(self.limits.gpu), volumes={MOUNT: volume}, timeout=int(self.limits.hours * 3600),
            retries=modal.Retries(max_retries=self.limits.retries, initial_delay=10.0, backoff_coefficient=2.0),
            max_containers=self.limits.containers, single_use_containers=True)(remote_run)
        return app, function, volume

    def deploy(self):
        """Puts the app in place; returns what `spawn` is called on. Calls outlive this process."""
        require_token()
        app, function, _ = self.build()
        app.deploy()
        return function

    def call(self, call_id: str):
        """A call that was spawned before, from its id."""
        import modal

        require_token()
        return modal.FunctionCall.from_id(call_id)

    def read(self, path: str) -> bytes:
        """A file of the volume. Raises FileNotFoundError."""
        import modal

        require_token()
        try:
            return b"".join(modal.Volume.from_name(VOLUME).read_file(path))
        except modal.exception.NotFoundError as error:
            raise FileNotFoundError(path) from error


def require_token() -> None:
    """TalkError, saying what to do, where no Modal token is set. Looks at the settings alone: nothing is asked."""
    from modal.config import config

    if not (config.get("token_id") and config.get("token_secret")):
        raise TalkError("no Modal token is set: make an account at modal.com, then run `python -m modal token new` (or "
                        "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET). Without one, `--where local` trains on a GPU of "
                        "your own, and `--dry-run` shows the plan")


# The record of calls


@dataclass(frozen=True)
class Call:
    """One spawned run."""

    arm: str
    seed: int
    call_id: str
    digest: str
    """The recipe's."""
    folder: str
    """On the volume."""
    gpu: str
    spawned: str
    """UTC, ISO 8601."""
    state: str = "running"
    seconds: float | None = None
    """Of the attempt that ended, as the container measured them."""
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
    write_atomic(Path(out) / "remote.json", to_json({"format": FORMAT, "app": APP, "volume": VOLUME,
                                                     "calls": [asdict(call) for call in calls]}))


def launch(recipe: Recipe, arms: Iterable[str], seeds: Iterable[int], out: str | Path, limits: Limits | None = None,
           budget: float | None = None, say: Say = print, service=None) -> list[Call]:
    """Spawns every run that is neither done in `out` nor under way; returns the record of calls.

    Each id is on disk before the next call is spawned, so a broken connection loses none. Raises TalkError without a
    token, when the estimate is above `budget` (dollars), or when the recipe needs this machine's own files."""
    limits = limits or Limits()
    if recipe.data not in ("hub", "desk") or (recipe.model != "desk" and Path(recipe.model).exists()):
        raise TalkError(f"model {recipe.model!r} and data {recipe.data!r}: a folder of this machine is not in the "
                        "container; name hub ids, or use --where local")
    calls, seeds = calls_in(out), list(seeds)
    busy = {(call.arm, call.seed) for call in calls if call.state == "running" and call.digest == recipe.digest()}
    wanted = [(get_arm(arm).name, seed) for arm in arms for seed in seeds]
    waiting = [run for run in wanted if run not in busy and status_of(recipe, *run, out).state != "done"]
    cost = sum(plan(recipe, [arm], [seed], limits.gpu[0]).usd for arm, seed in waiting)
    say(f"remote: {len(wanted)} runs, {len(wanted) - len(waiting)} done or under way; the others about ${cost:.2f}")
    if budget is not None and cost > budget:
        raise TalkError(f"about ${cost:.2f} is above the budget of ${budget:.2f}; nothing was started. Fewer arms or "
                        "seeds, or a higher --budget")
    if not waiting:
        return calls
    function = (service or Service(limits)).deploy()
    for arm, seed in waiting:
        handle = function.spawn(recipe.as_dict(), arm, seed)
        call = Call(arm, seed, handle.object_id, recipe.digest(), where(recipe), limits.gpu[0],
                    datetime.now(UTC).isoformat(timespec="seconds"))
        calls = [old for old in calls if (old.arm, old.seed) != (arm, seed)] + [call]
        keep(out, calls)
        say(f"remote: {call.name} started, {call.call_id}")
    return calls


def collect(out: str | Path, say: Say = print, service=None) -> list[Call]:
    """Looks at every call that is still running and takes up what is done; returns the record.

    A result whose time on the service has run out is read from the volume; a failed call keeps its complaint in
    OUT/ARM/seed-N.failed.log. One that cannot be reached now is left as it was."""
    service, calls = service or Service(Limits()), calls_in(out)
    for i, call in enumerate(calls):
        if call.state == "running":
            calls[i] = _look(call, Path(out), service, say)
            if calls[i] != call:
                keep(out, calls)
    return calls


def _look(call: Call, out: Path, service, say: Say) -> Call:
    import modal

    try:
        result = service.call(call.call_id).get(timeout=0)
    except TalkError:
        raise
    except modal.exception.OutputExpiredError:
        return _from_volume(call, out, service, say)
    except (modal.exception.FunctionTimeoutError, modal.exception.InputCancellation) as error:
        return _failed(call, out, error, say)
    except TimeoutError:  # the builtin: not finished yet
        return call
    except (modal.exception.ConnectionError, modal.exception.ServiceError) as error:
        say(f"remote: {call.name} cannot be reached now ({type(error).__name__}); it is left as it is")
        return call
    except Exception as error:  # whatever the run itself raised comes back as its own kind
        return _failed(call, out, error, say)
    return _take(call, out, result["files"], result.get("seconds"), say)


def _from_volume(call: Call, out: Path, service, say: Say) -> Call:
    """The run's files where the container left them; a call without them is lost."""
    folder = f"{call.folder}/{call.arm}/seed-{call.seed}"
    try:
        files = {name: service.read(f"{folder}/{name}") for name in ("run.json", "chats.parquet")}
    except FileNotFoundError:
        say(f"remote: {call.name} is lost: its result has expired and the volume has no run; launch it again")
        return replace(call, state="lost", note="result expired, no run on the volume")
    return _take(call, out, files, None, say)


def _take(call: Call, out: Path, files: Mapping[str, bytes], seconds: float | None, say: Say) -> Call:
    """Writes the files of a run into `out`, whole; checked before they stand where a run stands."""
    folder = run_folder(out, call.arm, call.seed)
    aside = run_folder(out / ".taken", call.arm, call.seed)
    for name, data in files.items():
        if PurePosixPath(name).name != name or name.startswith(".") or not re.fullmatch(r"[\w.-]+", name):
            raise TalkError(f"{call.name}: the result holds a file named {name!r}, which is refused")
        write_atomic(aside / name, data)
    run = load_run(aside)
    if run.record["recipe_digest"] != call.digest:
        raise TalkError(f"{aside} is a run of recipe {run.record['recipe_digest']}, not of {call.digest}, for which "
                        f"{call.name} was started; it is left there")
    run.chats()  # refuses chats that are not those of run.json
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.rename(aside, folder)
    shutil.rmtree(out / ".taken")
    timings = run.record["timings"]
    spent = seconds if seconds is not None else timings["train_seconds"] + timings["eval_seconds"]
    usd = spent / 3600 * get_gpu(call.gpu).usd_hour
    say(f"remote: {call.name} done, score {run.score:.3f}, {spent / 60:.0f} minutes, about ${usd:.2f}")
    return replace(call, state="done", seconds=spent, usd=usd)


def _failed(call: Call, out: Path, error: Exception, say: Say) -> Call:
    log = run_folder(out, call.arm, call.seed).with_suffix(".failed.log")
    write_atomic(log, f"{call.call_id}\n{type(error).__name__}: {error}\n")
    say(f"remote: {call.name} failed ({type(error).__name__}); see {log}; launch it again to go on from its checkpoint")
    return replace(call, state="failed", note=f"{type(error).__name__}: {str(error)[:200]}")


def cancel(out: str | Path, say: Say = print, service=None) -> list[Call]:
    """Ends every call that is still running, after taking up what is done. Checkpoints stay on the volume."""
    service = service or Service(Limits())
    calls = collect(out, say, service)
    for i, call in enumerate(calls):
        if call.state == "running":
            service.call(call.call_id).cancel()
            calls[i] = replace(call, state="cancelled")
            keep(out, calls)
            say(f"remote: {call.name} cancelled")
    return calls


def watch(out: str | Path, every: float = 60.0, say: Say = print, service=None, most: int | None = None) -> list[Call]:
    """Collects again every so many seconds until nothing runs; may be interrupted and given again."""
    calls, looks = collect(out, say, service), 1
    while any(call.state == "running" for call in calls) and (most is None or looks < most):
        running = [call.name for call in calls if call.state == "running"]
        say(f"remote: {len(running)} running ({', '.join(running[:4])}{' ..' if len(running) > 4 else ''})")
        time.sleep(every)
        calls, looks = collect(out, say, service), looks + 1
    return calls


def table(calls: Sequence[Call]) -> list[dict[str, str]]:
    """One row a call, for notebooks and the shell."""
    return [{"run": call.name, "state": call.state, "GPU": call.gpu, "started": call.spawned,
             "minutes": "-" if call.seconds is None else f"{call.seconds / 60:.0f}",
             "dollars": "-" if call.usd is None else f"{call.usd:.2f}", "note": call.note or "-"} for call in calls]
