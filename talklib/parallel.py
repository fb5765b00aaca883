"""Several runs side by side, each in its own process with one thread: two cores do two runs at a time."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import TalkError

Say = Callable[[str], None]


def run_many(scale: str, runs: Sequence[tuple[str, int]], out: str | Path, jobs: int = 2, say: Say = print,
             changes: Sequence[str] = (), report_to: str = "none") -> None:
    """Runs (arm, seed) pairs through `python -m talklib run`, `jobs` at a time; their lines go to `say`.

    One that fails does not stop the others. Raises TalkError, naming those that failed, once all have ended."""

    def one(run: tuple[str, int]) -> int:
        arm, seed = run
        command = [sys.executable, "-m", "talklib", "run", "--scale", scale, "--arms", arm, "--seeds", str(seed),
                   "--out", str(out), "--jobs", "1", "--report-to", report_to,
                   *(word for change in changes for word in ("--set", change))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) as process:
            for line in process.stdout:
                if line.startswith(f"{arm}/"):
                    say(line.rstrip())
            complaint = process.stderr.read()
        if process.returncode:
            say(f"{arm}/seed-{seed} failed: {complaint.strip().splitlines()[-1] if complaint.strip() else '?'}")
        return process.returncode

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        codes = list(pool.map(one, runs))
    failed = [f"{arm}/seed-{seed}" for (arm, seed), code in zip(runs, codes, strict=True) if code]
    if failed:
        raise TalkError(f"failed: {', '.join(failed)}; the others are done, and the same command goes on from there")
