"""Cross-play: every trained pair's A with every other's B, on the held-out problems.

A copy that does as well with a stranger as with its own other half speaks a code that others share; one that falls
back speaks a private one. All pairings play the same problems with the same seeds, so that they differ by who sits
where alone. Wants the adapters, which stay with the machine that trained them.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from . import TalkError
from .evaluate import evaluate, summarise
from .experiment import git_state, hardware, versions
from .grading import grader_stamp
from .parallel import Say, side_by_side
from .recipe import ARMS, Recipe
from .store import load_runs, run_folder, to_json, write_atomic

FORMAT = 1
UNTRAINED = "base"


@dataclass(frozen=True)
class Seat:
    """Who sits in a seat: an arm and its training seed; `base`, seed 0, is the untrained model."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}-{self.seed}"


def seats_in(results: str | Path) -> dict[Seat, str]:
    """The untrained model and every run trained on an open channel -> checksum of its adapter.

    Raises TalkError where a run has no adapter on this machine."""
    seats = {Seat(UNTRAINED, 0): "none"}
    for run in load_runs(results):
        if ARMS[run.arm].trained and ARMS[run.arm].channel == "open":
            if not (run.folder / "adapter").is_dir():
                raise TalkError(f"{run.folder} has no adapter/: adapters are not committed. Train the arms into a "
                                "folder of their own (python -m talklib run --arms all --out FOLDER) and name that")
            seats[Seat(run.arm, run.seed)] = run.record["adapter"]["last_sha256"]
    if len(seats) == 1:
        raise TalkError(f"{results} holds no trained pair; python -m talklib run trains them")
    return seats


def play_row(recipe: Recipe, results: str | Path, a: Seat, partners: Sequence[Seat], seed: int = 0) -> list[dict]:
    """One copy in seat A with each partner in seat B: a row a pairing, one chat a problem.

    `rewards` has a digit a problem, in the held-out order: how many of the two answers were right."""
    import torch

    from .data import load_tasks
    from .speakers import MergedTwin, ModelSpeaker, load_model, load_tokenizer

    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    _, held_out = load_tasks(recipe)
    tokenizer, base = load_tokenizer(recipe), load_model(recipe)
    base.to("cuda" if torch.cuda.is_available() and not recipe.use_cpu else "cpu")
    twins, once, rows = [MergedTwin(base), MergedTwin(base)], replace(recipe, eval_chats=1), []

    def speaker(twin: MergedTwin, seat: Seat) -> ModelSpeaker:
        trained = seat.arm != UNTRAINED
        weights = twin.load(with_adapter(base, run_folder(results, seat.arm, seat.seed)) if trained else None)
        return ModelSpeaker(weights, tokenizer, recipe.eval_sampling, recipe.max_prompt_tokens, recipe.generation_rows)

    in_a = speaker(twins[0], a)
    for b in partners:
        chats = evaluate(held_out, {"A": in_a, "B": speaker(twins[1], b)}, once, "open", seed, "crossplay")
        found = summarise(chats)
        rows.append({"a_arm": a.arm, "a_seed": a.seed, "b_arm": b.arm, "b_seed": b.seed, "score": found["score"],
                     "ci95": found["ci95"], "n_chats": len(chats), "counters": found["counters"],
                     "rewards": "".join(str(round(2 * chat.reward)) for chat in chats)})
    return rows


def with_adapter(base, run: str | Path):
    """The base model with a stored run's adapter (safetensors) round it; `base` itself is left as it was.

    Raises TalkError where the run's folder holds none."""
    import copy

    from peft import LoraConfig, PeftModel

    folder = Path(run) / "adapter"
    if not (folder / "adapter_model.safetensors").is_file():
        raise TalkError(f"{folder} holds no adapter_model.safetensors: adapters stay with the machine that trained "
                        "them; run the arm again to have it")
    try:  # these settings alone: peft would import whatever module the file names under megatron_core
        told = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        settings = {name: told[name] for name in ("r", "lora_alpha", "target_modules")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TalkError(f"{folder / 'adapter_config.json'} is not what a run leaves there ({error!r}); run the arm "
                        "again to have it") from error
    config = LoraConfig(**settings, task_type="CAUSAL_LM", inference_mode=True)
    return PeftModel.from_pretrained(copy.deepcopy(base), str(folder), config=config)


def crossplay(scale: str, recipe: Recipe, results: str | Path, out: str | Path, jobs: int = 2, say: Say = print,
              words: Sequence[str] = ()) -> list[dict]:
    """Plays all pairings, a process a row; writes `out`; returns the rows. A row that is done is kept when the same
    command is given again. `words` are the command-line words that make `recipe`."""
    seats = seats_in(results)
    work = _work(results)
    adapters = {str(seat): digest for seat, digest in seats.items()}
    stamp = to_json({"recipe": recipe.digest(), "grader": grader_stamp(), "seats": adapters})
    if not (work / "stamp.json").is_file() or (work / "stamp.json").read_text(encoding="utf-8") != stamp:
        shutil.rmtree(work, ignore_errors=True)  # of other runs: of no use
        write_atomic(work / "stamp.json", stamp)
    waiting = [seat for seat in seats if not (work / f"{seat}.json").is_file()]
    say(f"crossplay: {len(seats)} x {len(seats)} pairings, {len(seats) - len(waiting)} rows done before")
    side_by_side({f"crossplay {seat}": ["crossplay", "--scale", scale, "--results", str(results), "--row", str(seat),
                                        *words] for seat in waiting}, jobs, say)
    rows = [row for seat in seats for row in json.loads((work / f"{seat}.json").read_text(encoding="utf-8"))]
    from .data import load_tasks

    record = {"format": FORMAT, "scale": recipe.scale, "recipe_digest": recipe.digest(), "grader": grader_stamp(),
              "versions": versions(), "hardware": hardware(recipe), "git": git_state(),
              "sampling": asdict(recipe.eval_sampling), "adapters": adapters,
              "problems": [task.id for task in load_tasks(recipe)[1]], "rows": rows}
    write_atomic(out, to_json(record))
    shutil.rmtree(work, ignore_errors=True)
    return rows


def one_row(recipe: Recipe, results: str | Path, name: str, say: Say = print) -> None:
    """What a row's process does: plays it and leaves it in the work folder."""
    seats = seats_in(results)
    seat = next((seat for seat in seats if str(seat) == name), None)
    if seat is None:
        raise TalkError(f"--row {name}: no such copy; there are {', '.join(map(str, seats))}")
    rows = play_row(recipe, results, seat, list(seats))
    write_atomic(_work(results) / f"{seat}.json", to_json(rows))
    say(f"crossplay {seat}: with itself {rows[list(seats).index(seat)]['score']:.3f}, "
        f"mean {fmean(row['score'] for row in rows):.3f}")


def _work(results: str | Path) -> Path:
    return Path(results) / ".crossplay.work"
