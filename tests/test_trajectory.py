"""Ten training steps of the desk model, stored: every change must follow them or say why not.

`python tests/test_trajectory.py` makes tests/data/trajectory.json anew and measures how far the steps drift with two
threads and with the processor's vector units switched off, which stands for other hardware.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

STORED = Path(__file__).parent / "data" / "trajectory.json"
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "numpy", "math-verify")
STEPS = 10
COUNTED = ("reward", "flat_groups", "chats_drawn", "tokens_generated", "tokens_trained", "rows_trained", "sends",
           "uses", "asks", "agrees", "message_chars")
"""Fields that are counts of what was sampled: equal, or a token was sampled otherwise."""
MEASURED = {"grad_norm": 1e-4, "entropy": 1e-5, "distance": 1e-4}
"""Sums of floats -> how far they may be apart, relative to the stored value, while the samples are the same. The
drift that was measured stands in the stored file and is at most a tenth of this (a test sees to it)."""
EXACT_STEPS = 3
"""Steps whose samples must be the same everywhere. A sum that differs in its last bits moves a sampled token only where
a draw falls between the two; in both ways that were measured (`drift` in the stored file) none did in all ten steps."""


def recipe():
    from talklib.recipe import Recipe

    return Recipe.desk(steps=STEPS, problems_per_step=4, micro_batches=4, n_train=64, n_test=4, checkpoint_every=1000)


def follow(threads: int = 1) -> list[dict]:
    """The ten steps, as the trainer recorded them."""
    import torch
    from talklib.data import load_tasks
    from talklib.recipe import ARMS
    from talklib.speakers import load_model, load_tokenizer
    from talklib.trainers import ChatTrainer

    torch.set_num_threads(threads)
    try:
        tasks, _ = load_tasks(recipe())
        with tempfile.TemporaryDirectory() as folder:
            trainer = ChatTrainer(load_model(recipe()), load_tokenizer(recipe()), tasks, recipe(), ARMS["grpo"], 17,
                                  folder)
            trainer.train()
        return [{name: entry[name] for name in (*COUNTED, *MEASURED)} for entry in trainer.history]
    finally:
        torch.set_num_threads(1)


def here() -> dict:
    """What the bits of a sum depend on."""
    import torch

    return {"processor": _processor(), "vectors": torch.backends.cpu.get_cpu_capability(),
            "python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def _processor() -> str:
    if not Path("/proc/cpuinfo").is_file():
        return platform.processor()
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # two generations of a server processor can go by one name
    return " / ".join(told.get(name, "?") for name in ("model name", "cpu family", "model", "stepping"))


def apart(steps: list[dict], others: list[dict]) -> dict:
    """First step (from 1) whose samples differ (None: none does), and the largest relative difference of each
    measured field over the steps before it."""
    parted = next((i for i, (a, b) in enumerate(zip(steps, others, strict=True))
                   if any(a[name] != b[name] for name in COUNTED)), None)
    same = list(zip(steps, others, strict=True))[:parted]
    return {"samples_part_at_step": None if parted is None else parted + 1, "largest_relative_difference": {
        name: max((abs(a[name] - b[name]) / max(abs(a[name]), 1e-12) for a, b in same), default=0.0)
        for name in MEASURED}}


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text())


@pytest.fixture(scope="module")
def steps():
    return follow()


def test_ten_steps_are_followed(stored, steps):
    if here() == stored["made_on"]:
        assert steps == stored["steps"], "bit for bit, on the same processor kind and versions"
        return
    found = apart(stored["steps"], steps)
    assert (found["samples_part_at_step"] or STEPS + 1) > EXACT_STEPS, found
    for name, limit in MEASURED.items():
        assert found["largest_relative_difference"][name] < limit, found


def test_the_steps_are_worth_following(stored):
    """Some learn and some do not; the gradient is not zero; the adapter moves."""
    steps = stored["steps"]
    assert len(steps) == STEPS and len({step["reward"] for step in steps}) > 3
    assert sum(step["grad_norm"] > 0 for step in steps) >= STEPS - 2
    assert [step["distance"] for step in steps] == sorted(step["distance"] for step in steps)
    assert any(step["flat_groups"] > 0 for step in steps) and any(step["flat_groups"] < 1 for step in steps)


def test_the_limits_are_wider_than_the_measured_drift(stored):
    for name, drift in stored["drift"].items():
        assert (drift["samples_part_at_step"] or STEPS + 1) > EXACT_STEPS, name
        for field, limit in MEASURED.items():
            assert drift["largest_relative_difference"][field] <= limit / 10, (name, field)


def test_a_small_change_would_be_seen(stored):
    steps = stored["steps"]
    for name, limit in MEASURED.items():
        changed = [{**step, name: step[name] * (1 + 2 * limit)} for step in steps]
        assert apart(steps, changed)["largest_relative_difference"][name] > limit
    changed = [*steps[:2], {**steps[2], "tokens_generated": steps[2]["tokens_generated"] + 1}, *steps[3:]]
    assert apart(steps, changed)["samples_part_at_step"] == 3


def remake() -> None:
    """Writes the stored file: the steps with one thread, and how far two other ways drift from them."""
    steps, drift = follow(), {}
    for name, changes, threads in (("two threads", {}, 2), ("no vector units", {"ATEN_CPU_CAPABILITY": "default"}, 1)):
        done = subprocess.run([sys.executable, __file__, str(threads)], capture_output=True, text=True, check=True,
                              env={**os.environ, "OMP_NUM_THREADS": str(threads), **changes})
        drift[name] = apart(steps, json.loads(done.stdout.splitlines()[-1]))
    STORED.parent.mkdir(exist_ok=True)
    told = {"command": "python tests/test_trajectory.py", "arm": "grpo", "seed": 17, "recipe": recipe().as_dict(),
            "made_on": here(), "drift": drift, "steps": steps}
    STORED.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(drift, indent=1))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(follow(int(sys.argv[1]))))
    else:
        remake()
