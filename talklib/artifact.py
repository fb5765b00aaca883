"""`make artifact`: the six notebooks run by papermill, the figures and the paper, and a closing table."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from . import TalkError
from .published import published
from .recipe import ARMS
from .store import load_run, load_runs, run_folder

WAVES = (("01_split", "02_baseline"), ("03_train",), ("04_behavior", "05_methods", "06_figures"))
"""The six notebooks; side by side but for the one that trains, which keeps two cores busy by itself."""
NOTEBOOKS = tuple(name for wave in WAVES for name in wave)
LIVE = ("grpo", "grpo_blocked", "base", "base_blocked")
"""Arms that `make artifact` trains and plays anew, the slow ones first."""
LIVE_SEED = 17
TOLERANCE = 0.15
"""How far a live score may lie from the stored one on another machine: sums in another order part the runs, and
after 80 steps two runs with the same seed are about as far apart as two seeds."""


def root() -> Path:
    """The checkout: where notebooks/, results/ and figures/ are. TalkError where the package stands alone."""
    here = Path(__file__).resolve().parents[1]
    if not (here / "notebooks").is_dir():
        raise TalkError(f"{here} holds no notebooks/: run this from a clone, installed with pip install -e .")
    return here


def run_notebooks(out: Path, live: bool, only: str | None = None,
                  parameters: Mapping[str, object] | None = None) -> None:
    """Executes the notebooks in order, each from a clean kernel, those of a wave side by side; stops after the first
    wave in which one fails, naming the cell.

    `parameters` go to the notebooks that know them; one that none knows is a TalkError (papermill only warns)."""
    import papermill

    out = Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sources = {name: root() / "notebooks" / f"{name}.ipynb" for name in NOTEBOOKS if not only or only in name}
    known = {name: set(papermill.inspect_notebook(str(path))) for name, path in sources.items()}
    parameters = dict(parameters or {})
    for parameter in parameters:
        if not any(parameter in names for names in known.values()):
            raise TalkError(f"no notebook has a parameter {parameter!r}; there are "
                            f"{', '.join(sorted(set().union(*known.values())))}")
    os.environ.pop("MPLBACKEND", None)  # agg there would remove the inline figures
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # processes: papermill changes its process's folder, and ends its kernel when interrupted only outside a thread;
    # forked where that is sound, since its import takes seconds
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    wanted = {**({"live": True} if live else {}), **parameters}
    for wave in WAVES:
        names = [name for name in wave if name in sources]
        with ProcessPoolExecutor(len(wave), mp_context=context) as pool:
            jobs = [pool.submit(_execute, sources[name], out / f"{name}.ipynb",
                                {key: value for key, value in wanted.items() if key in known[name]}, root())
                    for name in names]
            wrong = [complaint for job in jobs if (complaint := job.result())]
        if wrong:
            raise TalkError("\n".join(wrong))


def _execute(source: Path, target: Path, parameters: dict, folder: Path) -> str:
    """One notebook by papermill, in `folder`. Returns what is wrong, in words."""
    import papermill

    began = time.perf_counter()
    try:
        papermill.execute_notebook(str(source), str(target), parameters=parameters, kernel_name="python3",
                                   cwd=str(folder), progress_bar=False, log_output=False)
    except papermill.PapermillExecutionError as error:
        return (f"notebook {source.stem}, cell {error.exec_count}: {error.ename}: {error.evalue}; the executed copy is "
                f"{target}")
    _tidy(target)
    print(f"{source.stem}: {time.perf_counter() - began:.0f} s", flush=True)
    return ""


def _tidy(path: Path) -> None:
    """Drops what papermill notes of this machine and this hour: paths and times say nothing to a reader."""
    import nbformat

    book = nbformat.read(path, 4)
    for part in (book, *book.cells):
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    nbformat.write(book, path)


def closing_table(live_dir: Path, results: Path) -> str:
    """The post's figure, the committed runs', and this run's, in problems solved out of 100."""
    post = published()
    runs = load_runs(results)
    heads = "post (1.5B, GSM8K)", "committed (desk)", "this run (desk)"
    lines = [f"{'problems solved, of 100':<28}{heads[0]:>20}{heads[1]:>18}{heads[2]:>17}"]
    for arm in ("base_blocked", "base", "grpo_blocked", "grpo"):
        ours = [run.score for run in runs if run.arm == arm]
        spread = f"{100 * sum(ours) / len(ours):.1f} ({len(ours)} seeds)" if ours else "missing"
        folder = run_folder(live_dir, arm, LIVE_SEED)
        live = f"{100 * load_run(folder).score:.1f}" if folder.is_dir() else "-"
        lines.append(f"{ARMS[arm].label:<28}{100 * post[arm]:>20.1f}{spread:>18}{live:>17}")
    return "\n".join(lines)


def compare(live_dir: str | Path, results: str | Path, arms: Sequence[str] = LIVE, seed: int = LIVE_SEED) -> list[dict]:
    """Live runs against the stored ones of the same seed: equal bit for bit where code, versions and processor are
    the same, else within `TOLERANCE`. Raises TalkError where a run is neither."""
    rows = []
    for arm in arms:
        live, stored = (load_run(run_folder(where, arm, seed)) for where in (live_dir, results))
        same = live.record["adapter"] == stored.record["adapter"] and live.score == stored.score
        alike = all(live.record[key] == stored.record[key] for key in ("hardware", "versions", "recipe_digest"))
        apart = abs(live.score - stored.score)
        if apart > TOLERANCE:
            raise TalkError(f"{arm}/seed-{seed}: this run scored {live.score:.3f}, the stored one {stored.score:.3f}; "
                            f"more than {TOLERANCE} apart")
        scores = {name: f"{100 * run.score:.1f}" for name, run in (("stored", stored), ("this run", live))}
        rows.append({"arm": ARMS[arm].label, **scores,
                     "machine": "like the stored run's" if alike else "another",
                     "equal": "bit for bit" if same else f"within {100 * apart:.1f} points"})
    return rows
