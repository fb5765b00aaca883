"""Modal from both sides: its own client objects as they are built, and a scripted service in its place."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import modal
import pytest
from talklib import TalkError, modal_app, remote
from talklib.__main__ import main, recipe_from
from talklib.calls import Call, calls_in, keep, price_of, record_of, scrub
from talklib.modal_app import Limits, Service, pins
from talklib.recipe import Recipe
from talklib.remote import cancel, collect, launch, watch
from talklib.store import load_run, run_folder

from conftest import ROOT
from test_runs import TINY

QUIET = {"say": lambda text: None}


@pytest.fixture(autouse=True)
def no_token(monkeypatch, tmp_path):
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(modal.config.config, "get", lambda key, *rest: None if key.startswith("token") else "main")


# Modal's own objects


def test_the_function_is_what_the_limits_say(monkeypatch):
    asked, plain = {}, modal.App.function

    def function(self, **options):
        asked.update(options)
        return plain(self, **options)

    monkeypatch.setattr(modal.App, "function", function)
    app, made, volume = Service(Limits(gpu=("H100", "A100-80GB"), hours=5.0, retries=3, containers=7)).build()
    assert isinstance(app, modal.App) and app.name == modal_app.APP and isinstance(made, modal.Function)
    found = made._spec_  # the client's own record of what it will ask for
    assert list(found.gpus) == ["H100", "A100-80GB"]
    assert set(found.volumes) == {"/results", "/hub"} and modal_app.VOLUME in repr(found.volumes["/results"])
    assert modal_app.VOLUME in repr(volume) and modal_app.HUB_VOLUME in repr(found.volumes["/hub"])
    assert found.image is not None and not found.secrets
    assert (asked["timeout"], asked["max_containers"], asked["retries"].max_retries) == (5 * 3600, 7, 3)


def test_the_function_can_be_found_again_in_a_container():
    """A container imports talklib.remote and takes the function by its name: it must be a plain one of the module."""
    _, function, _ = Service(Limits()).build()
    raw = function._raw_f_
    assert (raw.__module__, raw.__qualname__) == ("talklib.modal_app", "remote_run") and function._tag_ == "remote_run"


def test_the_image_is_asked_for_the_pins(monkeypatch):
    asked, plain = [], modal.Image.pip_install
    monkeypatch.setattr(modal.Image, "pip_install", lambda self, *words, **more: asked.extend(words) or plain(
        self, *words, **more))
    Service(Limits()).build()
    assert asked == pins()
    asked.clear()
    Service(Limits(), vllm=True).build()
    assert set(asked) ^ set(pins()) == {"vllm==0.10.0", *(pin for pin in pins() if pin.startswith("numpy=="))}


def test_the_container_gets_the_package_with_its_desk_model(monkeypatch):
    """By default Modal takes Python files alone, and the desk model would stay behind."""
    made, plain = [], modal.Image.add_local_python_source
    monkeypatch.setattr(modal.Image, "add_local_python_source", lambda self, *names, **options: made.append(
        plain(self, *names, **options)) or made[-1])
    Service(Limits()).build()
    inner = next(part for name, part in vars(made[0]).items() if name.startswith("_sync_original"))
    entries = [entry for mount in inner._deps()[1:] for entry in mount._entries]  # the client's own walk over the files
    files = {str(place) for entry in entries for _, place in entry.get_files_to_upload()}
    assert {"/root/talklib/modal_app.py", "/root/talklib/judge.py", "/root/talklib/desk/model/model.safetensors",
            "/root/talklib/desk/model/tokenizer.json"} <= files
    assert not [path for path in files if "__pycache__" in path or not path.startswith("/root/talklib/")]


def test_the_image_has_the_pins_and_the_posts_torch():
    found = pins(ROOT / "constraints.txt")
    pinned = (ROOT / "constraints.txt").read_text()
    assert found[0] == "torch==2.7.1" and sum(pin.startswith("torch==") for pin in found) == 1
    for pin in found[1:]:
        assert pin.lower() in pinned.lower(), pin
    for name in ("trl==0.19.1", "transformers==4.54.0", "peft==0.16.0", "math-verify==0.9.0"):
        assert name in found
    assert not [pin for pin in found if pin.startswith(("jupyter", "matplotlib", "modal"))]


def test_pins_that_are_missing_are_named(tmp_path):
    (tmp_path / "c.txt").write_text("trl==0.19.1\n")
    with pytest.raises(TalkError, match="has no pin for transformers"):
        pins(tmp_path / "c.txt")
    with pytest.raises(TalkError, match="start runs from a clone"):
        pins(tmp_path / "none.txt")


@pytest.mark.parametrize(("wrong", "message"), [
    ({"gpu": ("H1000",)}, "unknown GPU 'H1000'"), ({"gpu": ()}, "unknown GPU ''"), ({"hours": 25}, "up to 24"),
    ({"hours": 0}, "up to 24"), ({"retries": 20}, "from 0 to 10"), ({"retries": 1.5}, "from 0 to 10"),
    ({"containers": 0}, "at least 1")])
def test_limits_that_modal_would_accept_are_refused(wrong, message):
    with pytest.raises(TalkError, match=message):
        Limits(**wrong)


def test_without_a_token_the_message_says_what_to_do(tmp_path, capsys):
    with pytest.raises(TalkError, match="modal token new"):
        launch(Recipe.paper(), ["grpo"], [17], tmp_path, **QUIET)
    assert calls_in(tmp_path) == []
    assert main(["run", "--scale", "paper", "--where", "modal", "--arms", "base", "--out", str(tmp_path)]) == 2
    assert "MODAL_TOKEN_ID" in capsys.readouterr().err
    keep(tmp_path, [Call("grpo", 17, "fc-1", "d", "paper/d", "H100", "now")])
    with pytest.raises(TalkError, match="modal token new"):
        collect(tmp_path, **QUIET)


def test_without_modals_client_the_message_says_what_to_do(monkeypatch, tmp_path):
    for name in ("modal", "modal.config"):
        monkeypatch.setitem(sys.modules, name, None)
    for ask in (modal_app.require_token, lambda: collect(tmp_path, **QUIET)):
        keep(tmp_path, [Call("grpo", 17, "fc-1", "d", "paper/d", "H100", "now")])
        with pytest.raises(TalkError, match="pip install modal"):
            ask()


class Volume:
    """Stands in for a volume, with the client's own entries."""

    def __init__(self, files):
        self.files = files

    def read_file(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        yield from (self.files[path][:2], self.files[path][2:])

    def listdir(self, folder):
        kind = modal.volume.FileEntryType
        found = [modal.volume.FileEntry(path, kind.FILE, 0, len(data)) for path, data in self.files.items()
                 if path.startswith(folder + "/")]
        if not found:
            raise modal.exception.NotFoundError(folder)
        return [*found, modal.volume.FileEntry(f"{folder}/more", kind.DIRECTORY, 0, 0)]

    def commit(self):
        raise RuntimeError("there are open files preventing the operation")


def test_files_of_the_volume(monkeypatch):
    monkeypatch.setattr(modal_app, "require_token", lambda: None)
    monkeypatch.setattr(modal.Volume, "from_name", lambda name: Volume({"a/b/x.json": b"12345"}))
    service = Service(Limits())
    assert service.read("a/b/x.json") == b"12345" and service.names("a/b") == ["x.json"] and service.names("c") == []
    with pytest.raises(FileNotFoundError):
        service.read("a/b/y.json")


def test_a_busy_volume_does_not_end_a_run(monkeypatch, capsys):
    monkeypatch.setattr(modal, "is_local", lambda: False)
    monkeypatch.setattr(modal.Volume, "from_name", lambda name: Volume({}))
    modal_app.commit()
    assert "committed in the background" in capsys.readouterr().out


# The container's side


@pytest.fixture(scope="module")
def recipe(model_folder):
    return recipe_from("desk", [*TINY, "steps=1", f"model={model_folder}"])


@pytest.fixture(scope="module")
def result(recipe, tmp_path_factory):
    """What `.local()` gives: Modal's function object, run in this process."""
    volume = tmp_path_factory.mktemp("volume")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALKLIB_MOUNT", str(volume))
        _, function, _ = Service(Limits()).build()
        found = function.local(recipe.as_dict(), "grpo", 17)
        again = function.local(recipe.as_dict(), "grpo", 17)  # as after a preemption right before the end
    assert again["files"] == found["files"]
    assert load_run(run_folder(volume / remote.where(recipe), "grpo", 17)).score >= 0
    return found, volume


def test_local_runs_a_tiny_arm(result):
    found, _ = result
    assert set(found["files"]) == {"run.json", "chats.parquet"} and found["seconds"] > 0
    assert json.loads(found["files"]["run.json"])["arm"] == "grpo"


def test_a_container_names_the_commit_of_its_image(monkeypatch):
    from talklib.experiment import git_state

    monkeypatch.setenv("TALKLIB_COMMIT", "abc123")
    assert git_state() == {"commit": "abc123", "dirty": None}


# A scripted service


class Scripted:
    """Stands in for Modal: calls answer from a script, one entry a look."""

    def __init__(self, script=None, files=None):
        self.script, self.files, self.spawned, self.cancelled, self.deployed = script or {}, files or {}, [], [], 0

    def deploy(self):
        self.deployed += 1
        return self

    def spawn(self, settings, arm, seed):
        self.spawned.append((arm, seed, settings["scale"]))
        return type("Handle", (), {"object_id": f"fc-{arm}-{seed}"})()

    def call(self, call_id):
        service = self

        class Handle:
            def get(self, timeout):
                assert timeout == 0
                step = service.script[call_id].pop(0)
                if isinstance(step, Exception):
                    raise step
                return step

            def cancel(self):
                service.cancelled.append(call_id)

        return Handle()

    def read(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def names(self, folder):
        return [path.rpartition("/")[2] for path in self.files if path.rpartition("/")[0] == folder]


def desk(recipe):
    """The recipe with a model that a container would have."""
    return replace(recipe, model="desk")


def pending(recipe, out, *names):
    keep(out, [Call(arm, seed, f"fc-{arm}-{seed}", recipe.digest(), remote.where(recipe), "H100", "2026-01-01")
               for arm, seed in names])


def test_launch_spawns_what_is_missing_and_keeps_ids(recipe, tmp_path):
    service = Scripted()
    calls = launch(desk(recipe), ["grpo", "base"], [17, 18], tmp_path, service=service, **QUIET)
    assert service.spawned == [("grpo", 17, "desk"), ("grpo", 18, "desk"), ("base", 17, "desk"), ("base", 18, "desk")]
    assert calls_in(tmp_path) == calls and {call.state for call in calls} == {"running"}
    again = Scripted()
    launch(desk(recipe), ["grpo", "base"], [17, 18, 19], tmp_path, service=again, **QUIET)
    assert again.spawned == [("grpo", 19, "desk"), ("base", 19, "desk")]


def test_an_id_is_on_disk_before_the_next_call(recipe, tmp_path):
    class Breaks(Scripted):
        def spawn(self, settings, arm, seed):
            if self.spawned:
                raise ConnectionError("the line is dead")
            return super().spawn(settings, arm, seed)

    with pytest.raises(TalkError, match="their ids are kept"):
        launch(desk(recipe), ["base"], [17, 18], tmp_path, service=Breaks(), **QUIET)
    assert [(call.name, call.state) for call in calls_in(tmp_path)] == [("base/seed-17", "running"),
                                                                       ("base/seed-18", "starting")]
    # the second may or may not have reached the service: it is not started a second time without a look
    with pytest.raises(TalkError, match="may be running without an id"):
        launch(desk(recipe), ["base"], [18], tmp_path, service=Scripted(), **QUIET)
    cancel(tmp_path, service=Scripted({"fc-base-17": [TimeoutError()]}), **QUIET)
    service = Scripted()
    launch(desk(recipe), ["base"], [18], tmp_path, service=service, **QUIET)
    assert service.spawned == [("base", 18, "desk")]


def test_a_run_under_way_with_other_settings_is_not_forgotten(recipe, tmp_path):
    """Its id would be overwritten, and nobody could end it."""
    launch(desk(recipe), ["base"], [17], tmp_path, service=Scripted(), **QUIET)
    with pytest.raises(TalkError, match="with other settings"):
        launch(replace(desk(recipe), eval_chats=1), ["base"], [17], tmp_path, service=Scripted(), **QUIET)
    assert [call.digest for call in calls_in(tmp_path)] == [desk(recipe).digest()]


def test_a_broken_run_is_named_before_anything_is_paid(recipe, tmp_path):
    run_folder(tmp_path, "base", 17).mkdir(parents=True)
    service = Scripted()
    with pytest.raises(TalkError, match="holds no run.json"):
        launch(desk(recipe), ["base"], [17], tmp_path, service=service, **QUIET)
    assert service.deployed == 0


def test_two_launches_at_once_start_one_run(recipe, tmp_path):
    services = [Scripted(), Scripted()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda service: launch(desk(recipe), ["base"], [17], tmp_path, service=service, **QUIET),
                      services))
    assert sum(len(service.spawned) for service in services) == 1


def test_a_record_in_use_is_waited_for(tmp_path, monkeypatch):
    from talklib import calls

    monkeypatch.setattr(calls, "LOCK_SECONDS", 0.0)
    with record_of(tmp_path), pytest.raises(TalkError, match="wait for it"), record_of(tmp_path):
        pass


@pytest.mark.parametrize(("error", "message"), [
    (modal.exception.AuthError("no"), "refuses this token"),
    (modal.exception.ConnectionError("x"), "cannot be reached"),
    (modal.exception.RemoteError("pip failed"), "could not build the image")])
def test_modals_errors_say_what_to_do(recipe, tmp_path, error, message):
    class Refuses(Scripted):
        def deploy(self):
            raise error

    with pytest.raises(TalkError, match=message):
        launch(desk(recipe), ["base"], [17], tmp_path, service=Refuses(), **QUIET)
    assert calls_in(tmp_path) == []


def test_a_budget_is_kept(tmp_path):
    service = Scripted()
    with pytest.raises(TalkError, match="nothing was started"):
        launch(Recipe.paper(), ["grpo"], [17, 18, 19], tmp_path, budget=5.0, service=service, **QUIET)
    assert service.deployed == 0 and service.spawned == []
    launch(Recipe.paper(), ["grpo"], [17], tmp_path, budget=10.0, service=service, **QUIET)
    assert len(service.spawned) == 1


def test_a_folder_of_this_machine_is_refused(recipe, tmp_path):
    with pytest.raises(TalkError, match="not in the container"):
        launch(recipe, ["grpo"], [17], tmp_path, service=Scripted(), **QUIET)


def test_collect_takes_each_call_as_it_stands(recipe, result, tmp_path):
    found, volume = result
    folder = f"{remote.where(recipe)}/grpo/seed-17"
    files = {f"{folder}/{name}": data for name, data in found["files"].items()}
    pending(recipe, tmp_path, ("grpo", 17), ("raft", 17), ("mixed", 17), ("reinforce_ada", 17), ("base", 17),
            ("grpo_blocked", 17))
    service = Scripted({
        "fc-grpo-17": [TimeoutError(), modal.exception.ConnectionError("gone"), found],
        "fc-raft-17": [modal.exception.OutputExpiredError()],
        "fc-mixed-17": [modal.exception.FunctionTimeoutError("6 hours")],
        "fc-reinforce_ada-17": [ValueError("CUDA out of memory")],
        "fc-base-17": [modal.exception.InternalFailure("container lost")],
        "fc-grpo_blocked-17": [modal.exception.NotFoundError("another workspace")]})
    said = []
    calls = {c.arm: c for c in collect(tmp_path, said.append, service)}
    assert calls["grpo"].state == "running" and calls["raft"].state == "lost"
    assert {calls[a].state for a in ("mixed", "reinforce_ada", "base")} == {"failed"}
    assert "CUDA out of memory" in (tmp_path / "reinforce_ada" / "seed-17.failed.log").read_text()
    assert calls["grpo_blocked"].state == "running" and any("not known to this token" in text for text in said)
    service.script["fc-grpo_blocked-17"] = [modal.exception.InternalError("a moment"), OSError("no route"),
                                            modal.exception.RemoteError("ended from outside")]
    calls = {c.arm: c for c in collect(tmp_path, said.append, service)}
    assert calls["grpo"].state == "running" and any("cannot be reached" in text for text in said)
    assert calls["grpo_blocked"].state == "running"
    calls = {c.arm: c for c in collect(tmp_path, said.append, service)}
    assert calls["grpo"].state == "done" and calls["grpo"].usd == pytest.approx(found["seconds"] / 3600 * 4.0)
    assert load_run(run_folder(tmp_path, "grpo", 17)).chats()
    assert calls_in(tmp_path) == list(calls.values())
    # an expired result that is on the volume is had from there
    other = tmp_path / "other"
    pending(recipe, other, ("grpo", 17))
    script = Scripted({"fc-grpo-17": [modal.exception.OutputExpiredError()]}, files)
    assert collect(other, service=script, **QUIET)[0].state == "done"
    assert load_run(run_folder(other, "grpo", 17)).seed == 17


def test_a_lost_call_can_be_launched_again(recipe, tmp_path):
    pending(desk(recipe), tmp_path, ("grpo", 17))
    collect(tmp_path, service=Scripted({"fc-grpo-17": [modal.exception.OutputExpiredError()]}), **QUIET)
    service = Scripted()
    calls = launch(desk(recipe), ["grpo"], [17], tmp_path, service=service, **QUIET)
    assert len(service.spawned) == 1 and [(c.state, c.arm) for c in calls] == [("running", "grpo")]


def refused(tmp_path, result, message, seed=17):
    """A wrong result makes its own call a failed one, and the next call is looked at all the same."""
    keep(tmp_path, [*calls_in(tmp_path), Call("raft", 17, "fc-raft-17", "d", "f", "H100", "2026-01-01")])
    service = Scripted({f"fc-grpo-{seed}": [result], "fc-raft-17": [ValueError("x")]})
    bad, other = collect(tmp_path, service=service, **QUIET)
    assert (bad.state, other.state) == ("failed", "failed") and message in bad.note
    assert message in (tmp_path / "grpo" / f"seed-{seed}.failed.log").read_text()
    assert not run_folder(tmp_path, "grpo", seed).exists() and not list(tmp_path.rglob("chats.parquet"))


@pytest.mark.parametrize("name", ["../run.json", "/etc/x", ".hidden", "a/b"])
def test_a_result_cannot_leave_its_folder(recipe, result, tmp_path, name):
    pending(recipe, tmp_path, ("grpo", 17))
    refused(tmp_path, {"files": {**result[0]["files"], name: b"x"}, "seconds": 1.0}, "refused")


def test_a_result_of_another_run_is_refused(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 18))
    refused(tmp_path, result[0], "says arm 'grpo', seed 17, which is not its folder", seed=18)


def test_a_result_of_another_recipe_is_refused(recipe, result, tmp_path):
    pending(desk(recipe), tmp_path, ("grpo", 17))
    refused(tmp_path, result[0], "is a run of recipe")


def test_a_cut_result_is_refused(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    files = result[0]["files"]
    cut = {**files, "chats.parquet": files["chats.parquet"][:-100]}
    refused(tmp_path, {"files": cut}, "not the file that run.json")


def test_an_older_run_is_replaced_whole(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    folder = run_folder(tmp_path, "grpo", 17)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    folder.with_suffix(".failed.log").write_text("an earlier try")
    assert collect(tmp_path, service=Scripted({"fc-grpo-17": [result[0]]}), **QUIET)[0].state == "done"
    assert sorted(path.name for path in folder.parent.iterdir() if path.name[0] != ".") == ["seed-17"]
    assert load_run(folder).chats() and not (tmp_path / ".taken").exists()


def test_bad_input_comes_back_as_text_and_is_not_tried_again(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("TALKLIB_MOUNT", str(tmp_path / "volume"))
    wrong = replace(recipe, max_prompt_tokens=10**6)
    found = modal_app.remote_run(wrong.as_dict(), "base", 17)
    assert set(found) == {"failed", "seconds", "attempts"} and "window" in found["failed"]
    pending(recipe, tmp_path, ("base", 17))
    [call] = collect(tmp_path, service=Scripted({"fc-base-17": [found]}), **QUIET)
    assert call.state == "failed" and "window" in call.note


def test_a_crash_comes_back_with_its_traceback(recipe, tmp_path, monkeypatch):
    """As a TalkError: what torch raised could not be read on a machine without torch, and a TimeoutError of the run's
    own would read as "not finished yet"."""
    monkeypatch.setenv("TALKLIB_MOUNT", str(tmp_path / "volume"))

    def crash(*words, **more):
        raise TimeoutError("a socket of the run's own")

    monkeypatch.setattr(modal_app, "run_arm", crash)
    with pytest.raises(TalkError, match="TimeoutError: a socket") as caught:
        modal_app.remote_run(recipe.as_dict(), "base", 17)
    pending(recipe, tmp_path, ("base", 17))
    [call] = collect(tmp_path, service=Scripted({"fc-base-17": [caught.value]}), **QUIET)
    assert call.state == "failed" and "in crash" in (tmp_path / "base" / "seed-17.failed.log").read_text()


def test_checkpoints_are_committed_and_every_attempt_is_paid(recipe, result, tmp_path, monkeypatch):
    """Killed in its first step, a run goes on from the volume; the seconds of both attempts count."""
    from talklib.trainers import ChatTrainer

    monkeypatch.setenv("TALKLIB_MOUNT", str(tmp_path))
    commits, plain, steps = [], ChatTrainer.rollout, []
    work = tmp_path / remote.where(recipe) / "grpo" / ".seed-17.work"
    monkeypatch.setattr(modal_app, "commit", lambda: commits.append(sorted(p.name for p in work.glob("checkpoint-*"))))

    def preempted(self, tasks):
        if self.state.global_step == 1 and not steps:
            steps.append(1)
            raise KeyboardInterrupt
        return plain(self, tasks)

    monkeypatch.setattr(ChatTrainer, "rollout", preempted)
    two = replace(recipe, steps=2)
    work = tmp_path / remote.where(two) / "grpo" / ".seed-17.work"
    with pytest.raises(KeyboardInterrupt):
        modal_app.remote_run(two.as_dict(), "grpo", 17)
    assert commits == [[], ["checkpoint-1"], ["checkpoint-1"]]
    seconds = work.with_name(".seed-17.seconds")
    assert len(first := json.loads(seconds.read_text())) == 1 and first[0] > 0
    seconds.write_text("[1000.0]")  # as if it had taken far longer than the second attempt will
    found = modal_app.remote_run(two.as_dict(), "grpo", 17)
    assert found["attempts"] == 2 and found["seconds"] > 1000
    assert ["checkpoint-1", "checkpoint-2"] in commits


def test_adapters_are_brought_when_asked_for(recipe, result, tmp_path):
    found, volume = result
    source = run_folder(volume / remote.where(recipe), "grpo", 17) / "adapter"
    files = {f"{remote.where(recipe)}/grpo/seed-17/adapter/{path.name}": path.read_bytes() for path in source.iterdir()}
    pending(recipe, tmp_path, ("grpo", 17))
    collect(tmp_path, service=Scripted({"fc-grpo-17": [found]}, files), **QUIET)
    target = run_folder(tmp_path, "grpo", 17) / "adapter"
    assert not target.exists()
    collect(tmp_path, service=Scripted({}, files), adapters=True, **QUIET)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == {p.name: p.read_bytes() for p in source.iterdir()}
    assert load_run(target.parent).chats()


@pytest.mark.parametrize(("device", "asked", "kind"), [
    ("NVIDIA H100 80GB HBM3", "H100", "H100"), ("NVIDIA H200", "H100", "H100"), (None, "L4,T4", "L4"),
    ("NVIDIA A100-SXM4-80GB", "H100,A100-40GB,A100-80GB", "A100-80GB"), ("Tesla T4", "H100,T4", "T4"),
    ("NVIDIA H100 80GB HBM3", "H100!", "H100"), ("NVIDIA L4", "L40S,L4", "L4")])
def test_a_run_is_priced_as_the_gpu_that_it_got(device, asked, kind):
    assert price_of(device, asked).name == kind


def test_tokens_stay_out_of_logs():
    """Made up here, so that no file holds one."""
    found = scrub("hf_" + "a1B2" * 8 + " and " + "as-" + "x" * 22 + " and hunter2hunter2",
                  {"MODAL_TOKEN_SECRET": "hunter2hunter2", "HOME": "and"})
    assert found == "[token] and [token] and [token]"


def test_cancel_takes_up_what_is_done_and_ends_the_rest(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17), ("raft", 17))
    service = Scripted({"fc-grpo-17": [result[0]], "fc-raft-17": [TimeoutError()]})
    assert [c.state for c in cancel(tmp_path, service=service, **QUIET)] == ["done", "cancelled"]
    assert service.cancelled == ["fc-raft-17"]


def test_watch_ends_when_nothing_runs(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    service = Scripted({"fc-grpo-17": [TimeoutError(), TimeoutError(), result[0]]})
    said = []
    assert watch(tmp_path, 0.0, said.append, service)[0].state == "done"
    assert sum("1 running: grpo/seed-17 no step yet" in text for text in said) == 2


def test_watching_shows_the_step(recipe, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    path = f"{remote.where(recipe)}/metrics/grpo-seed-17.jsonl"
    lines = "".join(json.dumps({"step": step, "reward": step / 100}) + "\n" for step in (1, 40))
    service = Scripted({"fc-grpo-17": [TimeoutError()]}, {path: lines.encode()})
    said = []
    watch(tmp_path, 0.0, said.append, service, most=1)
    assert remote.progress(calls_in(tmp_path)[0], service) == "step 40, reward 40 of 100"


def test_status_asks_nobody(recipe, tmp_path, capsys):
    pending(recipe, tmp_path, ("grpo", 17))
    assert main(["remote", "status", "--out", str(tmp_path)]) == 0
    assert "| grpo/seed-17 | running |" in capsys.readouterr().out
    assert main(["remote", "watch", "--adapters", "--out", str(tmp_path)]) == 2


def test_flags_that_a_container_would_not_see_are_refused(tmp_path, capsys):
    for words in (["--push-to-hub", "o/n"], ["--report-to", "wandb"]):
        assert main(["run", "--scale", "paper", "--where", "modal", "--out", str(tmp_path), *words]) == 2
        assert "remote collect" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "calls": []}', '{"format": 1, "calls": [{"arm": "grpo"}]}'])
def test_a_broken_record_is_named(tmp_path, text):
    (tmp_path / "remote.json").write_text(text)
    with pytest.raises(TalkError, match=r"remote\.json cannot be read"):
        calls_in(tmp_path)


def test_the_table_has_a_row_a_call(recipe, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    assert remote.table(calls_in(tmp_path))[0]["run"] == "grpo/seed-17"
    assert main(["remote", "collect", "--out", str(tmp_path / "nothing")]) == 2
