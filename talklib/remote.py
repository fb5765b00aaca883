"""Runs on Modal: start them, watch them, take up what is done, end them.

`launch` deploys the app once, spawns a call a run and keeps the calls' ids in OUT/remote.json, so that the notebook or
the laptop may be closed; `collect` takes up whatever is done, from any machine with that file; `cancel` ends the rest.
A container that is taken away goes on from the run's last checkpoint on the volume. What touches Modal sits in
`modal_app.Service`; tests put a scripted one in its place, and look at Modal's own client objects as they are.
"""

import json
import os
import re
import shutil
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from . import TalkError
from .calls import LIVE, Call, calls_in, keep, price_of, record_of, scrub
from .calls import table as table
from .experiment import _only_one, metrics_file, status_of
from .modal_app import AWAY, Limits, Service, asking, where
from .modal_app import require_token as require_token
from .parallel import Say
from .plan import plan
from .recipe import Recipe, get_arm
from .store import _swap, load_run, run_folder, write_atomic

# Start


def launch(recipe: Recipe, arms: Iterable[str], seeds: Iterable[int], out: str | Path, limits: Limits | None = None,
           budget: float | None = None, say: Say = print, service=None) -> list[Call]:
    """Spawns every run that is neither done in `out` nor under way; returns the record of calls.

    Each id is on disk before the next call is spawned, so a broken connection loses none. Raises TalkError without a
    token, when the estimate of what would be started is above `budget` (dollars), when the recipe needs this machine's
    own files, or when one of the runs is under way with another recipe."""
    limits, seeds = limits or Limits(), list(seeds)
    service = service or Service(limits, vllm=recipe.decoding == "vllm")
    _check_hub(recipe)
    wanted = [(get_arm(arm).name, seed) for arm in arms for seed in seeds]
    with record_of(out):
        waiting = _waiting(recipe, wanted, out)
        cost = sum(plan(recipe, [arm], [seed], limits.gpu[0]).usd for arm, seed in waiting)
        say(f"remote: {len(wanted)} runs, {len(wanted) - len(waiting)} done or under way; the others about ${cost:.2f}")
        if budget is not None and cost > budget:
            raise TalkError(f"about ${cost:.2f} is above the budget of ${budget:.2f}; nothing was started. Fewer arms "
                            "or seeds, or a higher --budget")
        return _spawn(recipe, waiting, out, limits, say, service) if waiting else calls_in(out)


def _check_hub(recipe: Recipe) -> None:
    at_hub = recipe.data in ("hub", "desk") or recipe.data.startswith("hub:")
    if not at_hub or (recipe.model != "desk" and Path(recipe.model).expanduser().exists()):
        raise TalkError(f"model {recipe.model!r} and data {recipe.data!r}: a folder of this machine is not in the "
                        "container; name hub ids, or use --where local")


def _waiting(recipe: Recipe, wanted: Sequence[tuple[str, int]], out: str | Path) -> list[tuple[str, int]]:
    live = {(call.arm, call.seed): call for call in calls_in(out) if call.state in LIVE}
    for run in wanted:
        call = live.get(run)
        if call is not None and call.digest != recipe.digest():
            raise TalkError(f"{call.name} is under way in {out} with other settings; wait for it, cancel it with "
                            f"`python -m talklib remote cancel --out {out}`, or choose another --out")
        if call is not None and call.state == "starting":
            raise TalkError(f"{call.name} was being started at {call.spawned} when the connection broke, and may be "
                            "running without an id here: look at modal.com/apps, stop it there if so, then give "
                            f"`python -m talklib remote cancel --out {out}` and start again")
    found = {run: status_of(recipe, *run, out) for run in wanted if run not in live}
    broken = [status.note for status in found.values() if status.state == "broken"]
    if broken:
        raise TalkError(broken[0])
    return [run for run, status in found.items() if status.state != "done"]


def _spawn(recipe, waiting, out, limits: Limits, say: Say, service) -> list[Call]:
    calls = calls_in(out)
    with asking():
        function = service.deploy()
    for arm, seed in waiting:
        call = Call(arm, seed, "", recipe.digest(), where(recipe), ",".join(limits.gpu),
                    datetime.now(UTC).isoformat(timespec="seconds"), "starting")
        others = [old for old in calls if (old.arm, old.seed) != (arm, seed)]
        keep(out, [*others, call])
        with asking():
            handle = function.spawn(recipe.as_dict(), arm, seed)
        calls = [*others, replace(call, call_id=handle.object_id, state="running")]
        keep(out, calls)
        say(f"remote: {call.name} started, {handle.object_id}")
    return calls


# Take up, end


def collect(out: str | Path, say: Say = print, service=None, adapters: bool = False) -> list[Call]:
    """Looks at every call that is still running and takes up what is done; returns the record.

    A result whose time on the service has run out is read from the volume; a failed call keeps its complaint in
    OUT/ARM/seed-N.failed.log. One that cannot be reached now is left as it was. `adapters` brings the trained weights
    too (about 150 MB a run at the post's size), which otherwise stay on the volume."""
    service = service or Service(Limits())
    with record_of(out):
        calls = _collect(Path(out), say, service)
        for call in calls if adapters else ():
            if call.state == "done" and get_arm(call.arm).trained:
                _bring_adapter(call, Path(out), say, service)
        return calls


def _collect(out: Path, say: Say, service) -> list[Call]:
    calls = calls_in(out)
    for i, call in enumerate(calls):
        if call.state == "running":
            calls[i] = _look(call, out, service, say)
            if calls[i] != call:
                keep(out, calls)
    return calls


def _look(call: Call, out: Path, service, say: Say) -> Call:
    with asking():
        handle = service.call(call.call_id)
    import modal  # there, since `asking` found it

    try:
        result = handle.get(timeout=0)
    except modal.exception.OutputExpiredError:
        return _from_volume(call, out, service, say)
    except modal.exception.NotFoundError:
        say(f"remote: {call.name} is not known to this token's workspace; it is left as it is")
        return call
    except (modal.exception.AuthError, modal.exception.PermissionDeniedError) as error:
        with asking():
            raise error
    except modal.exception.FunctionTimeoutError as error:
        return _failed(call, out, error, say)
    except TimeoutError:  # the builtin: not finished yet
        return call
    except AWAY as error:
        say(f"remote: {call.name} cannot be reached now ({type(error).__name__}); it is left as it is")
        return call
    except (Exception, modal.exception.InputCancellation) as error:  # the run's own, or its container's
        return _failed(call, out, error, say)
    if "failed" in result:
        return _failed(replace(call, seconds=result.get("seconds")), out, TalkError(result["failed"]), say)
    return _take(call, out, result["files"], result.get("seconds"), say)


def _from_volume(call: Call, out: Path, service, say: Say) -> Call:
    """The run's files where the container left them; a call without them is lost."""
    folder = f"{call.folder}/{call.arm}/seed-{call.seed}"
    try:
        with asking():
            files = {name: service.read(f"{folder}/{name}") for name in ("run.json", "chats.parquet")}
    except FileNotFoundError:
        say(f"remote: {call.name} is lost: its result has expired and the volume has no run; launch it again")
        return replace(call, state="lost", note="result expired, no run on the volume")
    return _take(call, out, files, None, say)


def _take(call: Call, out: Path, files: Mapping[str, bytes], seconds: float | None, say: Say) -> Call:
    """Writes the files of a run into `out`, whole. Ones that are not this call's run make it a failed call."""
    aside = run_folder(out / ".taken", call.arm, call.seed)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        for name, data in files.items():
            _check_name(call, name)
            write_atomic(aside / name, data)
        run = load_run(aside)
        if run.record["recipe_digest"] != call.digest:
            raise TalkError(f"the result is a run of recipe {run.record['recipe_digest']}, not of {call.digest}, for "
                            f"which {call.name} was started")
        run.chats()  # refuses chats that are not those of run.json
    except TalkError as error:
        shutil.rmtree(aside, ignore_errors=True)
        return _failed(call, out, error, say)
    folder = run_folder(out, call.arm, call.seed)
    with _only_one(folder):
        _swap(aside, folder)
    folder.with_suffix(".failed.log").unlink(missing_ok=True)
    with suppress(OSError):
        aside.parent.rmdir()
        (out / ".taken").rmdir()
    timings = run.record["timings"]
    spent = seconds if seconds is not None else timings["train_seconds"] + timings["eval_seconds"]
    usd = spent / 3600 * price_of(run.record["hardware"].get("gpu"), call.gpu).usd_hour
    say(f"remote: {call.name} done, score {run.score:.3f}, {spent / 60:.0f} minutes, about ${usd:.2f}")
    return replace(call, state="done", seconds=spent, usd=usd, note="")


def _check_name(call: Call, name: str) -> None:
    if PurePosixPath(name).name != name or name.startswith(".") or not re.fullmatch(r"[\w.-]+", name):
        raise TalkError(f"{call.name}: the result holds a file named {name!r}, which is refused")


def _bring_adapter(call: Call, out: Path, say: Say, service) -> None:
    folder = run_folder(out, call.arm, call.seed)
    target, aside = folder / "adapter", folder.with_name(f".{folder.name}.adapter")
    if target.exists() or not folder.is_dir():
        return
    shutil.rmtree(aside, ignore_errors=True)
    there = f"{call.folder}/{call.arm}/seed-{call.seed}/adapter"
    with asking():
        for name in service.names(there):
            _check_name(call, name)
            write_atomic(aside / name, service.read(f"{there}/{name}"))
    if not (aside / "adapter_model.safetensors").is_file():
        shutil.rmtree(aside, ignore_errors=True)
        say(f"remote: {call.name} has no adapter on the volume")
        return
    os.rename(aside, target)
    say(f"remote: {call.name}'s adapter is in {target}")


def _failed(call: Call, out: Path, error: BaseException, say: Say) -> Call:
    log = run_folder(out, call.arm, call.seed).with_suffix(".failed.log")
    told = error if not isinstance(error, TalkError) else None  # a TalkError's text holds the container's own traceback
    write_atomic(log, scrub(f"{call.call_id}\n{type(error).__name__}: {error}\n"
                            + ("".join(traceback.format_exception(told)) if told else "")))
    say(f"remote: {call.name} failed ({type(error).__name__}); see {log}; launch it again to go on from its checkpoint")
    said = str(error).splitlines() or [""]
    return replace(call, state="failed", note=scrub(f"{type(error).__name__}: {said[0][:200]}"))


def cancel(out: str | Path, say: Say = print, service=None) -> list[Call]:
    """Ends every call that is still running, after taking up what is done. Checkpoints stay on the volume."""
    service = service or Service(Limits())
    with record_of(out):
        calls = _collect(Path(out), say, service)
        for i, call in enumerate(calls):
            if call.state not in LIVE:
                continue
            if call.call_id:
                with asking():
                    service.call(call.call_id).cancel()
            calls[i] = replace(call, state="cancelled", note="" if call.call_id else "its id is not known")
            keep(out, calls)
            say(f"remote: {call.name} cancelled" + ("" if call.call_id else ", as far as is known here"))
        return calls


def watch(out: str | Path, every: float = 60.0, say: Say = print, service=None, most: int | None = None) -> list[Call]:
    """Collects again every so many seconds until nothing runs; may be interrupted and given again."""
    service = service or Service(Limits())
    calls, looks = collect(out, say, service), 1
    while any(call.state == "running" for call in calls) and (most is None or looks < most):
        running = [call for call in calls if call.state == "running"]
        far = ", ".join(f"{call.name} {progress(call, service)}" for call in running)
        say(f"remote: {len(running)} running: {far}")
        time.sleep(every)
        calls, looks = collect(out, say, service), looks + 1
    return calls


def progress(call: Call, service) -> str:
    """How far a running call is, from the metrics on the volume: "step 40, reward 23 of 100"."""
    try:
        lines = service.read(str(metrics_file(call.folder, call.arm, call.seed))).decode().splitlines()
        last = json.loads(lines[-1])
        return f"step {last['step']}, reward {100 * last['reward']:.0f} of 100"
    except (FileNotFoundError, IndexError, ValueError, KeyError):
        return "no step yet"
    except AWAY:
        return "(not reached)"
