"""Several jobs side by side, each in its own process with one thread: two cores do two at a time."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import TalkError

Say = Callable[[str], None]


def run_many(scale: str, runs: Sequence[tuple[str, int]], out: str | Path, jobs: int = 2, say: Say = print,
             changes: Sequence[str] = (), report_to: str = "none") -> None:
    """Runs (arm, seed) pairs through `python -m talklib run`, `jobs` at a time; their lines go to `say`.

    One that fails does not stop the others. Raises TalkError, naming those that failed, once all have ended."""
    side_by_side({f"{arm}/seed-{seed}": ["run", "--scale", scale, "--arms", arm, "--seeds", str(seed), "--out",
                                         str(out), "--jobs", "1", "--report-to", report_to,
                                         *(word for change in changes for word in ("--set", change))]
                  for arm, seed in runs}, jobs, say)


def side_by_side(commands: Mapping[str, Sequence[str]], jobs: int = 2, say: Say = print) -> None:
    """Runs `python -m talklib WORDS` for each label -> words; lines that begin with a job's label go to `say`.

    One that fails does not stop the others. Raises TalkError, naming those that failed, once all have ended."""

    def one(label: str) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with subprocess.Popen([sys.executable, "-m", "talklib", *commands[label]], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=environment) as process:
            for line in process.stdout:
                if line.startswith(label):
                    say(line.rstrip())
            complaint = process.stderr.read()
        if process.returncode:
            say(f"{label} failed: {complaint.strip().splitlines()[-1] if complaint.strip() else '?'}")
        return process.returncode

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        codes = dict(zip(commands, pool.map(one, commands), strict=True))
    failed = [label for label, code in codes.items() if code]
    if failed:
        raise TalkError(f"failed: {', '.join(failed)}; the others are done, and the same command goes on from there")
