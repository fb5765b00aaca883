"""Runs that are killed, starved of disk, started twice, set back in time: nothing lost, nothing counted twice.

All torch work happens in children of one warmed process (this file run as a script, `Driver`): it has imported
everything and judged every answer, so that an attempt costs a fork and not an import of torch. The driver itself
computes nothing: a process that has run torch or arrow may not be forked.
"""

import errno
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from talklib import TalkError
from talklib.experiment import last_checkpoint, run_arm, status_of
from talklib.store import load_run, load_runs, mend, run_folder, run_folders, save_run, write_atomic

from conftest import make_model, make_tokenizer
from made_runs import made_chat, made_run, made_task

KILLS = {"train": 18, "checkpoint": 14, "evaluate": 8, "write": 10}
"""How many of the 50 kills fall into each part of a run."""
TINY = ("steps=3", "problems_per_step=2", "micro_batches=2", "n_train=8", "n_test=2", "checkpoint_every=1",
        "max_prompt_tokens=600", "protocol.message_tokens=4", "protocol.last_tokens=5", "lora_r=4", "lora_alpha=8")
SEED = 17


def tiny(model):
    from talklib.__main__ import recipe_from

    return recipe_from("desk", [*TINY, f"model={model}"])


def told(record: dict) -> dict:
    """What a run says of itself that must not depend on how often it was interrupted."""
    steps = [{k: v for k, v in step.items() if k not in ("seconds_rollout", "epoch")} for step in record["history"]]
    return {**{k: v for k, v in record.items() if k not in ("timings", "git")}, "history": steps}


# -- the driver: runs in a process of its own ------------------------------------------------------


class Driver:
    """Forks children that run one arm, watches how far they are, and kills them there."""

    def __init__(self, model: Path, folder: Path):
        import talklib.data
        import talklib.evaluate
        import talklib.trainers  # noqa: F401 - warmed here, once

        self.recipe, self.folder = tiny(model), folder
        reference = folder / "reference"
        if self.child(lambda: self.note_answers(reference)) != 0:
            raise SystemExit("the undisturbed run failed")
        self.reference = self.read(reference)
        from talklib import grading

        for text, gold in json.loads((folder / "answers.json").read_text()):
            grading._grade(text, gold)  # children inherit the verdicts, so that none starts a judge of its own
        grading._judges.close()
        gc.collect()
        gc.freeze()  # children need not look through what was imported

    def note_answers(self, out: Path):
        from talklib import grading

        seen, judge = [], grading._grade
        grading._grade = lambda *pair: (seen.append(pair), judge(*pair))[1]
        self.run(out)
        write_atomic(self.folder / "answers.json", json.dumps(seen))

    def run(self, out: Path):
        run_arm(self.recipe, "grpo", SEED, out, say=lambda text: None)

    def read(self, out: Path) -> dict:
        """The run's record without times, the bytes of its chats, the steps in its stream of metrics."""
        run = load_run(run_folder(out, "grpo", SEED))
        streams = {path.name: [json.loads(line)["step"] for line in path.read_text().splitlines()]
                   for path in (out / "metrics").glob("*")}
        return {**told(run.record), "chats": (run.folder / "chats.parquet").read_bytes().hex(), "streams": streams}

    def child(self, work, watch=None) -> int:
        """Runs `work` in a fork. `watch(read)` may kill it. Returns its exit code, negative for a signal."""
        ours, theirs = os.pipe()
        process = os.fork()
        if not process:
            code = 70
            try:
                os.close(ours)
                if watch:
                    announce(theirs)
                work()
                code = 0
            except BaseException as error:
                write_atomic(self.folder / "complaint", f"{type(error).__name__}: {error}")
                code = 2 if isinstance(error, TalkError) else 1
            finally:
                os._exit(code)
        os.close(theirs)
        if watch:
            watch(process, ours)
        os.close(ours)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def complaint(self) -> str:
        return (self.folder / "complaint").read_text()

    def killed_at(self, out: Path, part: str, number: int, delay: float) -> int:
        """Starts (or resumes) the run and kills it `delay` after the `number`-th sign of that part of it."""

        def watch(process, ours):
            seen = 0
            while sign := os.read(ours, 1):
                seen += sign.decode() == part[0]
                if seen == number:
                    time.sleep(delay)
                    os.kill(process, signal.SIGKILL)
                    return

        return self.child(lambda: self.run(out), watch)

    def kills(self) -> dict:
        """50 kills, each of a run that goes on where the last one was cut off; a new run begins when one is whole."""
        rng, out, finished, killed, wrong = random.Random(6), self.folder / "killed", 0, Counter(), []
        plan = [part for part, count in KILLS.items() for _ in range(count)]
        rng.shuffle(plan)
        most = {"train": 10, "checkpoint": 24, "evaluate": 8, "write": 6}
        while plan:
            code = self.killed_at(out, plan[-1], rng.randint(1, most[plan[-1]]), rng.choice([0.0, 0.002, 0.03]))
            whole = run_folders(out)
            if code == -signal.SIGKILL:
                killed[plan.pop()] += 1
            elif code:
                wrong.append(self.complaint())
                break
            if whole and self.read(out) != self.reference:
                wrong.append(f"a run that differs, after {dict(killed)}")
            if whole and code == 0:
                finished += 1
                left = sorted(path.name for path in (out / "grpo").iterdir())
                if left != [".seed-17.lock", "seed-17"]:
                    wrong.append(f"left behind: {left}")
                shutil.rmtree(out)
        if self.child(lambda: self.run(out)) or self.read(out) != self.reference:
            wrong.append("the last run differs")
        return {"killed": killed, "finished": finished, "wrong": wrong}

    def disk_full(self) -> list:
        """A disk of 8 MiB that something else fills up during training, at a checkpoint and during the evaluation;
        then there is room again and the run goes on."""
        found = []
        for part in ("train", "checkpoint", "evaluate"):
            disk = self.folder / f"disk-{part}"
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
            if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
                return []

            def fill(process, ours, part=part, disk=disk):
                while (sign := os.read(ours, 1)) and sign.decode() != part[0]:
                    pass
                with suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
                while os.read(ours, 64):
                    pass

            try:
                code = self.child(lambda disk=disk: self.run(disk), fill)
                row = {"part": part, "code": code, "said": self.complaint(), "runs": len(run_folders(disk))}
                (disk / "filler").unlink()
                row["after"] = self.child(lambda disk=disk: self.run(disk))
                row["same"] = self.read(disk) == self.reference
                found.append(row)
            finally:
                subprocess.run(["umount", str(disk)])
        return found

    def file_limit(self) -> dict:
        """No file may pass 6 KiB: what a quota does, wherever the disk is."""

        def run():
            resource.setrlimit(resource.RLIMIT_FSIZE, (6144, resource.RLIM_INFINITY))
            self.run(self.folder / "limited")

        code = self.child(run)
        row = {"code": code, "said": self.complaint(), "runs": len(run_folders(self.folder / "limited"))}
        return {**row, "after": self.child(lambda: self.run(self.folder / "limited")),
                "same": self.read(self.folder / "limited") == self.reference}

    def clock_set_back(self) -> dict:
        """Checkpoints 1 and 2 are dated into the future, the later one less far; then the run goes on."""
        out = self.folder / "clock"
        while True:
            self.killed_at(out, "train", 9, 0.0)  # 4 messages a step: in the third
            work = out / "grpo" / ".seed-17.work"
            if last_checkpoint(work, self.recipe) is not None and last_checkpoint(work, self.recipe).name[-1] == "2":
                break
            shutil.rmtree(out)
        for step in (1, 2):
            date = time.time() + 86_400 * (3 - step)
            os.utime(work / f"checkpoint-{step}", (date, date))
        code = self.child(lambda: self.run(out))
        return {"code": code, "said": code and self.complaint(), "same": self.read(out) == self.reference}

    def two_at_once(self) -> dict:
        """A second process on the same run while the first is at work; the first is not disturbed."""
        out, second = self.folder / "twice", {}

        def watch(process, ours):
            os.read(ours, 1)
            second["code"] = self.child(lambda: self.run(out))
            second["said"] = self.complaint()
            while os.read(ours, 64):
                pass

        first = self.child(lambda: self.run(out), watch)
        return {"first": first, **second, "same": self.read(out) == self.reference}


def announce(pipe: int):
    """Writes a letter to the pipe at each sign of progress: t a message of training, c a checkpoint's file, e a
    message of the evaluation, w a step of writing the run."""
    import talklib.evaluate
    import talklib.speakers

    inside = ["t"]

    def tell(letter):
        with suppress(BrokenPipeError):
            os.write(pipe, letter.encode())

    speak, evaluate = talklib.speakers.ModelSpeaker.speak, talklib.evaluate.evaluate

    def spoken(self, requests):
        tell(inside[0])
        return speak(self, requests)

    def evaluated(*args):
        inside[0] = "e"
        return evaluate(*args)

    def heard(event, args):
        if event in ("open", "os.rename", "os.mkdir", "shutil.copyfile", "shutil.rmtree", "os.remove") and args:
            path = str(args[0])
            if ".work/checkpoint-" in path:
                tell("c")
            elif "/.seed-17.tmp-" in path or path.endswith("grpo/seed-17"):
                tell("w")

    talklib.speakers.ModelSpeaker.speak = spoken
    talklib.evaluate.evaluate = evaluated
    sys.addaudithook(heard)


SCENARIOS = {"kills": "test_fifty_kills_change_nothing",
             "disk_full": "test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room",
             "file_limit": "test_a_write_that_fails_half_way_is_named_and_the_run_goes_on",
             "clock_set_back": "test_checkpoints_go_by_their_number_when_the_clock_was_set_back",
             "two_at_once": "test_a_second_process_on_the_same_run_is_refused"}
"""A method of the driver -> the test that reads what it found."""


def drive(model: str, folder: str, *scenarios: str):
    began = time.monotonic()
    driver, report = Driver(Path(model), Path(folder)), {}
    for scenario in scenarios:
        report[scenario] = getattr(driver, scenario)()
        print(f"{scenario} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(report))


# -- the tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory, request):
    chosen = {item.name for item in request.session.items}
    scenarios = [scenario for scenario, test in SCENARIOS.items() if test in chosen]
    model, folder = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("driven")
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(model)
    tokenizer.save_pretrained(model)
    done = subprocess.run([sys.executable, __file__, model, folder, *scenarios], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_fifty_kills_change_nothing(report):
    assert report["kills"]["wrong"] == []
    assert report["kills"]["killed"] == KILLS and sum(KILLS.values()) == 50
    assert report["kills"]["finished"] >= 1


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(report):
    if not report["disk_full"]:
        pytest.skip("only root can mount a small disk; the limit on a file's size is tested in its place")
    for row in report["disk_full"]:
        assert (row["code"], row["runs"]) == (2, 0), row
        assert "cannot be written" in row["said"] and "make room" in row["said"] and "--out" in row["said"], row
        assert row["after"] == 0 and row["same"], row


@pytest.mark.slow
def test_a_write_that_fails_half_way_is_named_and_the_run_goes_on(report):
    row = report["file_limit"]
    assert (row["code"], row["runs"]) == (2, 0) and "cannot be written" in row["said"], row
    assert row["after"] == 0 and row["same"], row


@pytest.mark.slow
def test_checkpoints_go_by_their_number_when_the_clock_was_set_back(report):
    assert report["clock_set_back"] == {"code": 0, "said": 0, "same": True}


@pytest.mark.slow
def test_a_second_process_on_the_same_run_is_refused(report):
    found = report["two_at_once"]
    assert (found["first"], found["code"], found["same"]) == (0, 2, True), found
    assert "seed-17 is being computed by another process" in found["said"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "results").write_text("a file, where a folder is wanted")
    with pytest.raises(TalkError, match="results.*choose another folder with --out"):
        run_arm(tiny("desk"), "base", SEED, tmp_path / "results", say=lambda text: None)


def test_a_read_only_folder_is_named(tmp_path, monkeypatch):
    real = os.open

    def refused(path, flags, *rest, **options):  # permissions do not bind root, who runs tests in containers
        if str(path).startswith(str(tmp_path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(TalkError, match="Read-only file system.*--out"):
        run_arm(tiny("desk"), "base", SEED, tmp_path, say=lambda text: None)


def test_a_finished_run_can_be_had_from_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    from talklib.recipe import Recipe

    made_run(tmp_path, "base", SEED)

    def refused(*args, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refused)
    assert run_arm(Recipe.desk(), "base", SEED, tmp_path, say=lambda text: None).score == 0.5


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, call):
    write_atomic(tmp_path / "a", "old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        if call == "open":
            patch.setattr("builtins.open", full)
        else:
            patch.setattr(os, call, full)
        write_atomic(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("renames", [0, 1])
def test_a_run_that_replaces_an_older_one_leaves_one_of_the_two(tmp_path, monkeypatch, renames):
    """Cut off before either rename, and between the two."""
    folder, real, left = made_run(tmp_path, "base", SEED, score=0.25), os.rename, [renames]

    class Cut(BaseException):
        pass

    def cut(*paths):
        if not left[0]:
            raise Cut
        left[0] -= 1
        real(*paths)

    record = load_run(folder).record
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(os, "rename", cut)
        save_run(folder, {**record, "score": 0.75}, {"pair": [made_chat(made_task(), ("", "", "", ""))]})
    assert [run.score for run in load_runs(tmp_path)] == [0.25] * (1 - renames)
    mend(folder)
    assert [run.score for run in load_runs(tmp_path)] == [0.25]
    assert [path.name for path in folder.parent.iterdir()] == ["seed-17"]


def test_mending_leaves_a_whole_run_and_its_checkpoints_alone(tmp_path):
    folder = made_run(tmp_path, "grpo", SEED)
    (folder.parent / ".seed-17.work" / "checkpoint-1").mkdir(parents=True)
    for name in (".seed-17.old-5", ".seed-17.tmp-6", ".seed-18.tmp-6", ".seed-170.tmp-6"):
        (folder.parent / name).mkdir()
    mend(folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        ".seed-17.work", ".seed-170.tmp-6", ".seed-18.tmp-6", "seed-17"]
    assert load_run(folder).score == 0.5


def edited(folder: Path, **changes) -> None:
    record = {**json.loads((folder / "run.json").read_text()), **changes}
    (folder / "run.json").write_text(json.dumps({k: v for k, v in record.items() if v is not None}))


@pytest.mark.parametrize(("changes", "named"), [
    ({"format": 0}, "format 0, this version reads format 1"), ({"format": None}, "lacks format"),
    ({"ci95": None, "grader": None}, "lacks ci95, grader"), ({"seed": 18}, "says arm 'base', seed 18"),
    ({"arm": "../base"}, "not its folder")])
def test_a_results_folder_of_an_older_version_is_named_and_kept(tmp_path, changes, named):
    """Neither read as if it were today's nor written over."""
    folder = made_run(tmp_path, "base", SEED)
    edited(folder, **changes)
    before = (folder / "run.json").read_bytes()
    found = status_of(tiny("desk"), "base", SEED, tmp_path)
    assert found.state == "broken" and named in found.note and "run.json" in found.note
    assert "run the arm again" in found.note or "put it where it belongs" in found.note
    with pytest.raises(TalkError, match="run.json"):
        run_arm(tiny("desk"), "base", SEED, tmp_path, say=lambda text: None)
    assert (folder / "run.json").read_bytes() == before


if __name__ == "__main__":
    drive(*sys.argv[1:])
