"""The Modal app: what a container does, its image, volumes and limits. Nothing is sent until `Service.deploy`.

Modal checks neither GPU names nor limits before it is asked to start, so they are checked here.
"""

import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import TalkError
from .calls import scrub
from .experiment import git_state, run_arm
from .plan import get_gpu
from .recipe import VLLM, Recipe
from .store import run_folder, write_atomic

APP, VOLUME, MOUNT = "talklib", "talklib-results", "/results"
HUB_VOLUME, HUB_MOUNT = "talklib-hub", "/hub"
"""Model weights stay mapped while a run goes on; on a volume of their own they never hold up a commit of results."""
TORCH = "2.7.1"
"""The post's, whose CUDA build is the one that H100s ran; the desk scale's newer one is for the CPU."""
MOST_HOURS = 24.0
"""Modal's limit for one attempt."""
MOST_RETRIES = 10
PINNED = ("trl", "transformers", "peft", "accelerate", "datasets", "numpy", "pandas", "pyarrow", "scipy", "safetensors",
          "tokenizers", "huggingface_hub", "hf-xet", "fsspec", "math-verify", "latex2sympy2_extended", "sympy",
          "antlr4-python3-runtime", "jinja2")
"""What a run needs; Jupyter, figures and checks stay at home."""
STAYS = ("**/__pycache__/**", "**/*.md", "**/.*")
"""Named, since by default Modal takes Python files alone and the desk model would stay behind."""
NO_MODAL = ("Modal's client is not installed: `python -m pip install modal`. Without it, `--where local` trains on a "
            "GPU of your own, and `--dry-run` shows the plan")
NO_TOKEN = ("no Modal token is set: make an account at modal.com, then run `python -m modal token new` (or "
            "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET). Without one, `--where local` trains on a GPU of "
            "your own, and `--dry-run` shows the plan")


def pins(path: str | Path | None = None, vllm: bool = False) -> list[str]:
    """The image's packages at constraints.txt's versions, torch at the post's. TalkError names what lacks a pin.

    With `vllm`, vLLM too, and no pin for numpy: the numba that it brings wants one below 2.3."""
    path = Path(path) if path else Path(__file__).resolve().parents[1] / "constraints.txt"
    if not path.is_file():
        raise TalkError(f"{path} is missing: the image's versions are read from it, so start runs from a clone")
    found = dict(line.split("==") for line in path.read_text(encoding="utf-8").split() if "==" in line)
    found = {name.lower(): version for name, version in found.items()}
    lacking = [name for name in PINNED if name.lower() not in found]
    if lacking:
        raise TalkError(f"{path} has no pin for {', '.join(lacking)}")
    wanted = [name for name in PINNED if not (vllm and name == "numpy")]
    return [f"torch=={TORCH}", *([f"vllm=={VLLM}"] if vllm else []), *(f"{n}=={found[n.lower()]}" for n in wanted)]


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


# In the container


def remote_run(settings: dict, arm: str, seed: int) -> dict:
    """What a container does: the run, with its folder and checkpoints on the volume; returns the run's small files.

    Called again after a preemption it goes on from the last checkpoint, and a finished run is returned as it is. What
    goes wrong comes back as text, so that it can be read where torch is not installed; bad input is not tried again."""
    recipe = Recipe.from_dict(settings)
    out = Path(os.environ.get("TALKLIB_MOUNT", MOUNT)) / where(recipe)
    folder = run_folder(out, arm, seed)
    clock = Clock(folder.with_name(f".{folder.name}.seconds"))

    def kept() -> None:
        clock.tick()
        commit()

    kept()
    try:
        run = run_arm(recipe, arm, seed, out, after_checkpoint=kept)
    except TalkError as error:
        return {"failed": f"TalkError: {error}", **clock.spent()}
    except Exception as error:
        raise TalkError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None
    finally:
        kept()
    files = {name: (run.folder / name).read_bytes() for name in ("run.json", "chats.parquet")}
    return {"files": files, **clock.spent()}


class Clock:
    """Seconds of every attempt at a run, in a file beside it: a preempted attempt is paid too, up to its last tick."""

    def __init__(self, path: Path):
        self.path, self.began = path, time.monotonic()
        self.before = json.loads(path.read_text()) if path.is_file() else []

    def tick(self) -> None:
        write_atomic(self.path, json.dumps([*self.before, time.monotonic() - self.began]))

    def spent(self) -> dict:
        return {"seconds": sum(self.before) + time.monotonic() - self.began, "attempts": len(self.before) + 1}


def commit() -> None:
    """Puts on the volume what the container has written. Where the volume is busy, Modal commits it itself, seconds
    later; outside a container there is nothing to do."""
    import modal

    if modal.is_local():
        return
    try:
        modal.Volume.from_name(VOLUME).commit()
    except RuntimeError as error:
        print(f"remote: the volume is busy ({error}); it is committed in the background", flush=True)


def where(recipe: Recipe) -> str:
    """Folder of a recipe's runs on the volume: two recipes never share one."""
    return f"{recipe.scale}/{recipe.digest()}"


# Modal's objects


class Service:
    """Modal's client objects, built when first needed. Importing Modal needs no token; all but `build` does.

    `vllm`: put vLLM in the image."""

    def __init__(self, limits: Limits, vllm: bool = False):
        self.limits, self.vllm = limits, vllm

    def build(self):
        """(app, function, volume): nothing is sent yet."""
        import modal

        commit_id = git_state()["commit"] or "unknown"
        image = (modal.Image.debian_slim(python_version="3.11").pip_install(*pins(vllm=self.vllm))
                 .env({"TALKLIB_COMMIT": commit_id, "TOKENIZERS_PARALLELISM": "false", "HF_HOME": HUB_MOUNT})
                 .add_local_python_source("talklib", ignore=list(STAYS)))
        app = modal.App(APP, include_source=False)
        volume = modal.Volume.from_name(VOLUME, create_if_missing=True)
        hub = modal.Volume.from_name(HUB_VOLUME, create_if_missing=True)
        function = app.function(
            image=image, gpu=list(self.limits.gpu), volumes={MOUNT: volume, HUB_MOUNT: hub},
            timeout=int(self.limits.hours * 3600),
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

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder of the volume; none where there is no such folder."""
        import modal

        require_token()
        try:
            found = modal.Volume.from_name(VOLUME).listdir(folder)
        except (modal.exception.NotFoundError, FileNotFoundError):
            return []
        return [PurePosixPath(entry.path).name for entry in found if entry.type.name == "FILE"]


def require_token() -> None:
    """TalkError, saying what to do, where no Modal token is set. Looks at the settings alone: nothing is asked."""
    try:
        from modal.config import config
    except ModuleNotFoundError as error:
        raise TalkError(NO_MODAL) from error
    if not (config.get("token_id") and config.get("token_secret")):
        raise TalkError(NO_TOKEN)


@contextmanager
def asking() -> Iterator[None]:
    """Modal's own errors as a TalkError that says what to do."""
    try:
        import modal
    except ModuleNotFoundError as error:
        raise TalkError(NO_MODAL) from error
    try:
        yield
    except FileNotFoundError:
        raise
    except (modal.exception.AuthError, modal.exception.PermissionDeniedError) as error:
        raise TalkError(f"Modal refuses this token ({scrub(str(error))}); make one with `python -m modal token new`, "
                        "for the workspace that holds the runs") from error
    except AWAY as error:
        raise TalkError(f"Modal cannot be reached ({type(error).__name__}); calls that were started go on there, and "
                        "their ids are kept. Give the same command again") from error
    except modal.exception.RemoteError as error:
        raise TalkError(f"Modal could not build the image or start the app: {scrub(str(error))}") from error


def _away() -> tuple[type[Exception], ...]:
    """What says that the service, or the way to it, has a bad moment. A run's own errors never have these types."""
    try:
        from grpclib.exceptions import StreamTerminatedError
        from modal import exception
    except ModuleNotFoundError:
        return (OSError,)
    return (OSError, StreamTerminatedError, exception.ConnectionError, exception.ServiceError, exception.InternalError,
            exception.ResourceExhaustedError, exception.ClientClosed)


AWAY = _away()
