"""`python -m bench.newer`: the tests that touch the training stack, against newer versions than the pinned ones.

Each set of versions gets an environment of its own under build/newer, apart from the project's. Nothing here decides
whether the project passes: it says, in bench/newer.md, what would happen to whoever moves the pins. An installation
takes about 4 minutes; an environment that is there already is used again (remove build/newer for newer versions).
"""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "newer"
SETS = {
    "newest transformers 4, TRL as pinned": ("transformers>=4,<5", "trl==0.19.1", "peft", "accelerate", "datasets"),
    "newest TRL 1 with transformers 5": ("transformers>=5,<6", "trl>=1,<2", "peft", "accelerate", "datasets"),
}
MOVED = {"transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "huggingface_hub", "safetensors",
         "fsspec", "dill", "multiprocess", "hf-xet", "typer", "click", "packaging", "requests", "httpx"}
"""Pins that these versions may move; all others stay, torch above all."""
NEEDED = ("torch", "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "seaborn", "jinja2", "psutil", "math-verify",
          "latex2sympy2_extended", "pytest", "pytest-timeout", "hypothesis")
TESTS = ("test_speakers", "test_trainers", "test_trajectory", "test_runs", "test_chat", "test_credit")
SHOWN = ("transformers", "trl", "peft", "accelerate", "torch")
NOTES = """\
What TRL 1 and transformers 5 do otherwise (read in TRL 1.16.0 and transformers 5.24.0): `GRPOConfig` has no
`max_prompt_length`; `_get_per_token_logps` is called `_get_per_token_logps_and_entropies`; `_step` is counted in
`training_step`, so that counting it in `_prepare_inputs` too skips micro-batches; the loss is divided by the
micro-batches inside `_compute_loss`; `generate` has no `use_model_defaults`; and the tokenizer of any Qwen2 model is
loaded as transformers' own Qwen2Tokenizer, which cuts the desk world's words into letters. `trainers` and
`speakers` meet all of these."""


@dataclass(frozen=True)
class Found:
    """What one set of versions did. `reasons` counts the failed tests by the error's first line."""

    name: str
    versions: dict[str, str]
    passed: int
    failed: int
    reasons: Counter
    tests: tuple[str, ...]
    """Names of the failed tests."""


def environment(name: str, wanted: tuple[str, ...]) -> Path:
    """The environment's Python; made and filled first where it is missing."""
    folder = FOLDER / re.sub(r"\W+", "-", name)
    python = folder / "bin" / "python"
    if (folder / "ready").is_file():
        return python
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines()
            if "==" in line and line.split("==")[0] not in MOVED]
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                    folder / "pins.txt", *NEEDED, *wanted], check=True)
    (folder / "ready").touch()
    return python


def versions(python: Path) -> dict[str, str]:
    """The installed versions of what is shown in the table."""
    script = f"from importlib.metadata import version\nfor n in {SHOWN}: print(n, version(n))"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def check(name: str, wanted: tuple[str, ...]) -> Found:
    """Runs the tests (but for the slow ones) in the environment."""
    python, report = environment(name, wanted), FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.xml"
    report.unlink(missing_ok=True)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--junitxml={report}",
             *(f"tests/{test}.py" for test in TESTS)]
    subprocess.run([python, *words], cwd=ROOT, capture_output=True, timeout=1800,
                   env={"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                        "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HOME": str(FOLDER)})
    return read(name, versions(python), report)


def read(name: str, found: dict[str, str], report: Path) -> Found:
    """A JUnit report as counts and reasons."""
    reasons, failed, passed = Counter(), [], 0
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is None:
            passed += case.find("skipped") is None
        else:
            failed.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
            reasons[reason_of(wrong)] += 1
    return Found(name, found, passed, len(failed), reasons, tuple(failed))


def reason_of(wrong: ElementTree.Element) -> str:
    """The first line of what went wrong, without paths; for a module that cannot be imported, the last."""
    text = wrong.get("message", "")
    if text.startswith("collection failure"):
        errors = [line[1:].strip() for line in (wrong.text or "").splitlines() if line.startswith("E ")]
        text = errors[-1] if errors else text
    line = text.strip().splitlines()[0] if text.strip() else "?"
    return re.sub(r"(/[\w.-]+){2,}", "..", line)[:160].replace("|", "\\|")


def table(found: list[Found]) -> str:
    """The Markdown that bench/newer.md holds."""
    lines = ["| versions | passed | failed | why |", "|---|---|---|---|"]
    for row in found:
        shown = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        why = "; ".join(f"{count} x {reason}" for reason, count in row.reasons.most_common(6)) or "-"
        lines.append(f"| {row.name}: {shown} | {row.passed} | {row.failed} | {why} |")
    for row in found:
        if row.tests:
            lines += ["", f"Failed with {row.name}:", "", *(f"- `{test}`" for test in row.tests[:40])]
    return "\n".join([*lines, "", f"Tests: {', '.join(TESTS)}, without the slow ones.", "", NOTES]) + "\n"


def main() -> None:
    found = [check(name, wanted) for name, wanted in SETS.items()]
    text = table(found)
    Path(__file__).with_name("newer.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
