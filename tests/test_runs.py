"""The real entry points, tiny: run, resume, status, broken folders."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from talklib import TalkError
from talklib.chat import Chat, Turn
from talklib.experiment import arm_names, last_checkpoint, run_arm, status_of
from talklib.recipe import ARMS, Recipe, get_arm, get_recipe
from talklib.splitter import Problem, Split, Task
from talklib.store import REQUIRED, chat_rows, chats_of, load_run, load_runs, run_folder, write_atomic

TINY = ("steps=4", "problems_per_step=2", "micro_batches=2", "n_train=16", "n_test=4", "checkpoint_every=1",
        "max_prompt_tokens=600", "protocol.message_tokens=6", "protocol.last_tokens=8", "lora_r=4", "lora_alpha=8")


@pytest.fixture(scope="module")
def folder(model_folder):
    return model_folder


def tiny(folder) -> Recipe:
    from talklib.__main__ import recipe_from

    return recipe_from("desk", [*TINY, f"model={folder}"])


def command(folder, out, arm, seed=17):
    changes = [word for change in (*TINY, f"model={folder}") for word in ("--set", change)]
    return [sys.executable, "-m", "talklib", "run", "--arms", arm, "--seeds", str(seed), "--out", str(out), *changes]


@pytest.fixture(scope="module")
def stored(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    run_arm(tiny(folder), "grpo", 17, out, say=lambda text: None)
    return out


def test_a_run_says_what_it_is(stored, folder):
    run = load_run(run_folder(stored, "grpo", 17))
    assert set(REQUIRED) <= set(run.record)
    assert run.record["evaluations"].keys() == {"pair", "as_a", "as_b"}
    assert [len(run.chats(name)) for name in ("pair", "as_a", "as_b")] == [8, 8, 8]
    assert [entry["step"] for entry in run.history] == [1, 2, 3, 4]
    assert run.record["tokens"]["chats"] == 4 * 8
    assert run.record["sampling"]["eval"]["top_p"] == 0.95 and run.record["sampling"]["eval"]["top_k"] == 0
    assert run.score == pytest.approx(sum(c.reward for c in run.chats()) / 8)
    assert (run.folder / "adapter" / "adapter_model.safetensors").is_file()
    untrained = {t.speaker for c in run.chats("as_a") for t in c.turns if not t.trained}
    assert untrained >= {"B"}


def test_a_finished_run_is_not_run_again_unless_its_recipe_changed(stored, folder):
    before = (run_folder(stored, "grpo", 17) / "run.json").read_bytes()
    said = []
    run_arm(tiny(folder), "grpo", 17, stored, say=said.append)
    assert (run_folder(stored, "grpo", 17) / "run.json").read_bytes() == before and "done before" in said[0]
    assert status_of(tiny(folder), "grpo", 17, stored).state == "done"
    assert status_of(replace(tiny(folder), learning_rate=0.5), "grpo", 17, stored).state == "stale"
    assert status_of(tiny(folder), "grpo", 18, stored).state == "missing"


@pytest.mark.slow
def test_killed_and_started_again_ends_the_same(folder, stored, tmp_path):
    whole = load_run(run_folder(stored, "grpo", 17)).record
    work = tmp_path / "grpo" / ".seed-17.work"

    def newest() -> int:
        return max((int(path.name.split("-")[1]) for path in work.glob("checkpoint-*")), default=0)

    for delay in (0.0, 0.05):  # at once: in the middle of writing a checkpoint; later: between two
        process = subprocess.Popen(command(folder, tmp_path, "grpo"), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        before = newest()
        while process.poll() is None and newest() <= before:
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert newest() > 0 and not (tmp_path / "grpo" / "seed-17").exists()
    subprocess.run(command(folder, tmp_path, "grpo"), check=True, capture_output=True)
    record = load_run(run_folder(tmp_path, "grpo", 17)).record
    assert record["adapter"] == whole["adapter"] and record["score"] == whole["score"]
    assert [e["reward"] for e in record["history"]] == [e["reward"] for e in whole["history"]]


def test_interrupted_after_training_and_before_its_end(folder, stored, tmp_path, monkeypatch):
    from talklib import evaluate

    def stopped(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evaluate, "evaluate", stopped)
        run_arm(tiny(folder), "grpo", 17, tmp_path, say=lambda text: None)
    assert (tmp_path / "grpo" / ".seed-17.work" / "checkpoint-4").is_dir()
    assert status_of(tiny(folder), "grpo", 17, tmp_path).state == "part"
    run = run_arm(tiny(folder), "grpo", 17, tmp_path, say=lambda text: None)
    whole = load_run(run_folder(stored, "grpo", 17))
    assert [entry["step"] for entry in run.history] == [1, 2, 3, 4]  # and not a fifth
    assert run.record["adapter"] == whole.record["adapter"] and run.score == whole.score


def test_a_checkpoint_without_its_seal_is_not_used(folder, tmp_path):
    recipe, work = tiny(folder), tmp_path / "w"
    for step in (1, 2):
        (work / f"checkpoint-{step}").mkdir(parents=True)
        (work / f"checkpoint-{step}" / "x").write_text("abc")
    write_atomic(work / "recipe_digest", recipe.digest())
    write_atomic(work / "checkpoint-1" / "complete.json", json.dumps({"x": 3}))
    assert last_checkpoint(work, recipe).name == "checkpoint-1"
    write_atomic(work / "checkpoint-2" / "complete.json", json.dumps({"x": 4}))
    assert last_checkpoint(work, recipe).name == "checkpoint-1"  # one byte short: cut off in the middle
    assert last_checkpoint(work, replace(recipe, steps=9)) is None


@pytest.mark.parametrize("harm", ["half json", "foreign json", "no chats", "cut chats", "other format"])
def test_broken_runs_are_named_and_left_alone(stored, folder, tmp_path, harm):
    shutil.copytree(stored, tmp_path / "r")
    run = run_folder(tmp_path / "r", "grpo", 17)
    text = (run / "run.json").read_text()
    if harm == "half json":
        (run / "run.json").write_text(text[:200])
    elif harm == "foreign json":
        (run / "run.json").write_text('{"a": 1}')
    elif harm == "other format":
        (run / "run.json").write_text(text.replace('"format": 1', '"format": 0'))
    elif harm == "no chats":
        (run / "chats.parquet").unlink()
    else:
        data = (run / "chats.parquet").read_bytes()
        (run / "chats.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(TalkError, match="seed-17"):
        load_runs(tmp_path / "r")[0].chats()
    done = subprocess.run([sys.executable, "-m", "talklib", "status", "--arms", "grpo", "--seeds", "17", "--out",
                           str(tmp_path / "r")], capture_output=True, text=True)
    assert done.returncode == 0 and ("broken" in done.stdout or harm == "cut chats")
    assert run.exists()


def test_half_written_and_foreign_folders_are_not_runs(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "r")
    (tmp_path / "r" / "grpo" / ".seed-18.tmp-99").mkdir()
    (tmp_path / "r" / "grpo" / "seed-x").mkdir()
    (tmp_path / "r" / "notes").mkdir()
    assert len(load_runs(tmp_path / "r")) == 1


def test_two_at_once_are_refused(stored, folder, tmp_path):
    from talklib.experiment import _only_one

    with _only_one(run_folder(tmp_path, "base", 17)), pytest.raises(TalkError, match="another process"):
        run_arm(tiny(folder), "base", 17, tmp_path, say=lambda text: None)


def test_chats_survive_the_file():
    split = Split((("Ann has 3.",), ("Ben has <4>.",)), "Why?")
    task = Task(Problem("t-0", "Ann has 3. Ben has <4>. Why?", "7"), split)
    turns = tuple(Turn(s, f"{s} ☃ \\boxed{{7}} </script>", trained=s == "A") for s in "ABAB")
    chat = Chat(task, turns, "open", "as_a", 1, (1.0, 1.0))
    assert chats_of(chat_rows("pair", [chat])) == [chat]


@pytest.mark.parametrize(("words", "message"), [
    (["run", "--arms", "gropo"], "grpo_blocked"), (["run", "--scale", "big"], "desk, paper"),
    (["run", "--seeds", "1,x"], "whole numbers"), (["run", "--set", "stepz=3"], "learning_rate"),
    (["run", "--set", "steps=many"], "int"), (["status", "--arms", "none"], "unknown arm"),
    ("run --arms base --jobs 1 --seeds 17 --out o --model no/where".split(), "--model FOLDER"),
    ("run --arms base --jobs 1 --seeds 17 --out o --set max_prompt_tokens=5000".split(), "window")])
def test_bad_words_end_with_status_2(words, message, tmp_path):
    done = subprocess.run([sys.executable, "-m", "talklib", *words], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_names():
    assert arm_names("grpo, base") == ["base", "grpo"] and arm_names("all") == list(ARMS)
    with pytest.raises(TalkError, match="reinforce_ada"):
        get_arm("ada")
    with pytest.raises(TalkError, match="paper"):
        get_recipe("huge")
