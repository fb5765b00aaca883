"""One run: an arm, a seed, a folder. `run_arm` is a plain function; whatever starts it (shell, notebook, Modal)
adds nothing to what it computes. Torch is imported inside, so that listing and planning runs stay light.
"""

import errno
import hashlib
import os
import pickle
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import TalkError, modelcard
from .grading import grader_stamp
from .recipe import ARMS, Arm, Recipe, get_arm
from .store import Run, load_run, mend, run_folder, save_run

PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "numpy", "math-verify",
            "latex2sympy2-extended", "talklib")
COMPLETE = "complete.json"
KEPT = 2
"""Checkpoints of a run that are kept. Dropped here, by number, and not by TRL, which would go by the clock."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Status:
    """What is known of one run without reading its chats."""

    arm: str
    seed: int
    state: str
    """done, stale (its recipe has changed), missing, part (a checkpoint waits), or broken."""
    note: str = ""


def run_arm(recipe: Recipe, arm: str | Arm, seed: int, out_dir: str | Path, *, partners: bool = True,
            say: Say = print, report_every: int = 10, after_checkpoint: Callable[[], None] | None = None,
            **overrides) -> Run:
    """Trains (unless the arm is untrained) and evaluates one arm with one seed; writes the run; returns it.

    A finished run of the same recipe is returned as it is. A run that was interrupted goes on from its last
    whole checkpoint in `.seed-N.work/` and ends with the same adapter as one that was not.

    Args:
        out_dir: results folder; the run lands in out_dir/ARM/seed-N.
        partners: also play a trained copy with the untrained model, in either seat.
        after_checkpoint: called once a checkpoint is whole on disk.
        overrides: arguments of TRL's GRPOConfig (`report_to`, ...).

    Raises:
        TalkError: unknown arm; a broken run in the folder; the same run already going on; a folder or disk that
            takes no more.
    """
    arm = get_arm(arm) if isinstance(arm, str) else arm
    folder = run_folder(out_dir, arm.name, seed)
    work = folder.with_name(f".{folder.name}.work")
    if _is_done(recipe, folder, say):  # a finished run can be had from a folder that cannot be written
        if work.exists():  # killed between the last two steps
            with _clear_errors(folder), _only_one(folder):
                shutil.rmtree(work, ignore_errors=True)
        return load_run(folder)
    with _clear_errors(folder), _only_one(folder):
        mend(folder)
        if _is_done(recipe, folder, say):  # by another process, a moment ago
            return load_run(folder)
        return _run(recipe, arm, seed, folder, partners, say, report_every, after_checkpoint, overrides)


def _is_done(recipe: Recipe, folder: Path, say: Say) -> bool:
    found = _look(recipe, folder)
    if found.state == "broken":
        raise TalkError(found.note)
    if found.state == "done":
        say(f"{found.arm}/seed-{found.seed}: done before, {found.note}")
    return found.state == "done"


def _run(recipe, arm, seed, folder, partners, say, report_every, after, overrides) -> Run:
    import torch

    from .data import load_tasks
    from .evaluate import evaluate, summarise
    from .speakers import MergedTwin, ModelSpeaker, load_model, load_tokenizer

    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    began, cpu = time.perf_counter(), time.process_time()
    train, held_out = load_tasks(recipe)
    tokenizer, model = load_tokenizer(recipe), load_model(recipe)
    window, needed = model.config.max_position_embeddings, recipe.max_prompt_tokens + recipe.protocol.last_tokens
    if needed > window:
        raise TalkError(f"Recipe.max_prompt_tokens plus Protocol.last_tokens is {needed}, more than the "
                        f"{window} tokens of {recipe.model}'s window; lower one of them")
    model.to("cuda" if torch.cuda.is_available() and not recipe.use_cpu else "cpu")
    work = folder.with_name(f".{folder.name}.work")
    if work.is_symlink():
        raise TalkError(f"{work} is a link; checkpoints are kept in their own folder alone: remove it")
    trained, history, hashes = model, [], {}
    twins = [MergedTwin(model), MergedTwin(model)] if recipe.merged_rollout else None
    if arm.trained:
        trainer, hashes = _train(recipe, arm, seed, work, model, tokenizer, train, say, report_every, after,
                                 overrides)
        trained, history = trainer.model, trainer.history
    trained_seconds = time.perf_counter() - began

    def speaker(policy: bool) -> ModelSpeaker:
        weights = trained  # the adapter is switched off below where it must be
        if twins is not None:
            weights = twins[0].load(trained) if policy and arm.trained else twins[1].model
        return ModelSpeaker(weights, tokenizer, recipe.eval_sampling, recipe.max_prompt_tokens,
                            recipe.generation_rows, adapter_off=twins is None and arm.trained and not policy,
                            decoding="dynamic" if recipe.decoding == "vllm" else recipe.decoding)

    policy, untrained = speaker(True), speaker(False)
    seatings = {"pair": {"A": policy, "B": policy}}
    if partners and arm.trained and arm.channel == "open":
        seatings |= {"as_a": {"A": policy, "B": untrained}, "as_b": {"A": untrained, "B": policy}}
    chats = {}
    for name, seats in seatings.items():
        chats[name] = evaluate(held_out, seats, recipe, arm.channel, seed, name)
        say(f"{arm.name}/seed-{seed}: {name} score {sum(c.reward for c in chats[name]) / len(chats[name]):.3f}")
    timings = {"train_seconds": trained_seconds if arm.trained else 0.0,
               "eval_seconds": time.perf_counter() - began - trained_seconds, "cpu_seconds": time.process_time() - cpu}
    record = _record(recipe, arm, seed, {name: summarise(played) for name, played in chats.items()}, history, timings)
    record |= {"adapter": hashes}
    record["sampling"]["end_ids"] = policy.end_ids
    adapter = None
    if arm.trained:
        adapter = work / "adapter"
        trained.save_pretrained(adapter)
        modelcard.write(adapter, record, arm)
    save_run(folder, record, chats, adapter)
    shutil.rmtree(work, ignore_errors=True)
    return load_run(folder)


def _record(recipe: Recipe, arm: Arm, seed: int, evaluations: dict, history: list[dict], timings: dict) -> dict:
    """run.json, but for what `save_run` adds."""
    pair = evaluations["pair"]
    return {
        "scale": recipe.scale, "arm": arm.name, "seed": seed, "score": pair["score"], "ci95": pair["ci95"],
        "counters": pair["counters"], "evaluations": evaluations, "history": history,
        "recipe": recipe.as_dict(), "recipe_digest": recipe.digest(),
        "sampling": {"train": asdict(recipe.train_sampling), "eval": asdict(recipe.eval_sampling)},
        "versions": versions(), "hardware": hardware(recipe), "git": git_state(), "timings": timings,
        "tokens": {name: int(sum(step[key] for step in history)) for name, key in (
            ("generated", "tokens_generated"), ("trained", "tokens_trained"), ("chats", "chats_drawn"))},
        "grader": grader_stamp(),
    }


def _train(recipe, arm, seed, work, model, tokenizer, tasks, say, report_every, after, overrides):
    from .trainers import ChatTrainer, MetricsFile, ProgressCallback

    trainer = ChatTrainer(model, tokenizer, tasks, recipe, arm, seed, work, **overrides, save_total_limit=None)
    first = adapter_sha256(trainer.model)

    def report(step, steps, log):
        if step % report_every == 0 or step in (1, steps):
            shown = " ".join(f"{name} {100 * log[name]:.0f}" for name in ("reward", "sends", "uses", "flat_groups")
                             if name in log)
            say(f"{arm.name}/seed-{seed}: step {step}/{steps}  {shown}")

    trainer.add_callback(ProgressCallback(report))
    trainer.add_callback(MetricsFile(metrics_file(work.parents[1], arm.name, seed)))
    trainer.add_callback(_sealer(after))
    found = last_checkpoint(work, recipe)
    if found is not None:
        say(f"{arm.name}/seed-{seed}: going on from {found.name}")
    _seal_recipe(work, recipe)
    if found is not None and _step(found) >= recipe.steps:
        _restore(trainer, found)
    else:
        trainer.train(resume_from_checkpoint=str(found) if found else None)
    return trainer, {"first_sha256": first, "last_sha256": adapter_sha256(trainer.model)}


def metrics_file(out_dir: str | Path, arm: str, seed: int) -> Path:
    """OUT/metrics/ARM-seed-N.jsonl: a line a training step, written while it goes on."""
    return Path(out_dir) / "metrics" / f"{arm}-seed-{seed}.jsonl"


def _restore(trainer, checkpoint: Path) -> None:
    """Takes up a run whose training had ended: transformers' `train` would add a step to it before it stops."""
    from transformers import TrainerState

    trainer._load_from_checkpoint(str(checkpoint))
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def _sealer(after: Callable[[], None] | None = None):
    """A callback that marks a checkpoint as whole once all of its files are on disk, and then calls `after`."""
    from transformers import TrainerCallback

    class Sealer(TrainerCallback):
        def on_save(self, args, state, control, **_):
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != COMPLETE)
            for path in files:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            from .store import to_json, write_atomic

            write_atomic(folder / COMPLETE, to_json({path.name: path.stat().st_size for path in files}))
            for older in _by_number(folder.parent)[:-KEPT]:
                shutil.rmtree(older, ignore_errors=True)
            if after is not None:
                after()

    return Sealer()


def _seal_recipe(work: Path, recipe: Recipe) -> None:
    from .store import write_atomic

    write_atomic(work / "recipe_digest", recipe.digest())


def last_checkpoint(work: Path, recipe: Recipe) -> Path | None:
    """The newest checkpoint that was written whole, under this very recipe; the others are left alone."""
    import json

    digest = work / "recipe_digest"
    if not digest.is_file() or digest.read_text() != recipe.digest():
        shutil.rmtree(work, ignore_errors=True)  # of another recipe: of no use, and TRL would mix the two
        return None
    whole = []
    for folder in _by_number(work):
        seal = folder / COMPLETE
        if seal.is_file() and all((folder / name).is_file() and (folder / name).stat().st_size == size
                                  for name, size in json.loads(seal.read_text()).items()):
            whole.append(folder)
    return whole[-1] if whole else None


def _by_number(work: Path) -> list[Path]:
    """Checkpoint folders by step, never by date: a clock may have been set back between two of them."""
    return sorted((path for path in work.glob("checkpoint-*") if path.name[11:].isdecimal()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name[11:])


TAKES_NO_MORE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR,
                 errno.EEXIST, errno.ELOOP}
_WRITE_FAILED = ("iostream error", "PytorchStreamWriter", "inline_container", "os error")
"""How torch and safetensors word a write that failed; neither raises OSError for it."""


@contextmanager
def _clear_errors(folder: Path):
    """A full or read-only disk, and a checkpoint that holds more than weights, as a TalkError that says what to do."""
    goes_on = "then give the same command again: it goes on from the last whole checkpoint"
    try:
        yield
    except pickle.UnpicklingError as error:
        work = folder.with_name(f".{folder.name}.work")
        raise TalkError(f"a checkpoint in {work} is damaged or holds code, which is never run; remove that folder and "
                        "run the arm again") from error
    except OSError as error:
        if error.errno not in TAKES_NO_MORE:
            raise
        raise TalkError(f"{folder} cannot be written ({error.strerror}: {error.filename or folder.parent}); "
                        f"make room there or choose another folder with --out, {goes_on}") from error
    except Exception as error:
        if not any(sign in str(error) for sign in _WRITE_FAILED):
            raise
        raise TalkError(f"{folder} cannot be written ({str(error).splitlines()[0]}); make room there or choose another "
                        f"folder with --out, {goes_on}") from error


@contextmanager
def _only_one(folder: Path):
    """A lock that dies with its process: the same run is never computed twice at a time."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+") as file:  # never through a link
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TalkError(f"{folder} is being computed by another process; wait for it, or stop it") from error
        yield


def status_of(recipe: Recipe, arm: str, seed: int, out_dir: str | Path) -> Status:
    """Whether this run is done, stale, missing, in part, or broken (with what is wrong with it)."""
    return _look(recipe, run_folder(out_dir, get_arm(arm).name, seed))


def _look(recipe: Recipe, folder: Path) -> Status:
    arm, seed = folder.parent.name, int(folder.name[5:])
    if not folder.exists():
        part = any(folder.with_name(f".{folder.name}.work").glob("checkpoint-*"))
        return Status(arm, seed, "part" if part else "missing")
    try:
        run = load_run(folder)
    except TalkError as error:
        return Status(arm, seed, "broken", str(error))
    if run.record["recipe_digest"] != recipe.digest():
        return Status(arm, seed, "stale", "its recipe differs from today's")
    return Status(arm, seed, "done", f"score {run.score:.3f}")


def status(recipe: Recipe, arms: Iterable[str], seeds: Iterable[int], out_dir: str | Path) -> list[Status]:
    """One entry a run, in the arms' order."""
    seeds = list(seeds)
    return [status_of(recipe, arm, seed, out_dir) for arm in arms for seed in seeds]


def arm_names(text: str) -> list[str]:
    """"all", or names separated by commas, in the arms' order."""
    wanted = list(ARMS) if text == "all" else [get_arm(name.strip()).name for name in text.split(",") if name.strip()]
    return [name for name in ARMS if name in wanted]


def adapter_sha256(peft_model) -> str:
    """Checksum of the trainable weights, names included: equal means bit for bit equal."""
    digest = hashlib.sha256()
    for name, weight in sorted(peft_model.named_parameters()):
        if weight.requires_grad:
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def hardware(recipe: Recipe) -> dict:
    """What ran it: processor kind, threads, GPU."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() and not recipe.use_cpu else None
    return {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(), "gpu": gpu}


def git_state() -> dict:
    """Commit of the code that ran and whether the working tree was changed; nulls outside a checkout.

    A container has no checkout: there the commit is the one that its image was built from."""
    if os.environ.get("TALKLIB_COMMIT"):
        return {"commit": os.environ["TALKLIB_COMMIT"], "dirty": None}
    root = Path(__file__).resolve().parent

    def git(*words):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=30, check=True).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
