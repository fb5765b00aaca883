"""Modal from both sides: its own client objects as they are built, and a scripted service in its place."""

import json

import modal
import pytest
from talklib import TalkError, remote
from talklib.__main__ import main, recipe_from
from talklib.recipe import Recipe
from talklib.remote import Call, Limits, Service, calls_in, cancel, collect, keep, launch, pins, watch
from talklib.store import load_run, run_folder

from conftest import ROOT, make_model, make_tokenizer
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
    assert isinstance(app, modal.App) and app.name == remote.APP and isinstance(made, modal.Function)
    found = made._spec_  # the client's own record of what it will ask for
    assert list(found.gpus) == ["H100", "A100-80GB"]
    assert set(found.volumes) == {remote.MOUNT} and remote.VOLUME in repr(found.volumes)
    assert found.image is not None and "talklib" in repr(found.mounts) and not found.secrets
    assert (asked["timeout"], asked["max_containers"], asked["retries"].max_retries) == (5 * 3600, 7, 3)


def test_the_function_can_be_found_again_in_a_container():
    """A container imports talklib.remote and takes the function by its name: it must be a plain one of the module."""
    _, function, _ = Service(Limits()).build()
    raw = function._raw_f_
    assert (raw.__module__, raw.__qualname__) == ("talklib.remote", "remote_run") and function._tag_ == "remote_run"


def test_the_image_is_asked_for_the_pins(monkeypatch):
    asked, plain = [], modal.Image.pip_install
    monkeypatch.setattr(modal.Image, "pip_install", lambda self, *words, **more: asked.extend(words) or plain(
        self, *words, **more))
    Service(Limits()).build()
    assert asked == pins()


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


# The container's side


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


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


def desk(recipe):
    """The recipe with a model that a container would have."""
    from dataclasses import replace

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

    with pytest.raises(ConnectionError):
        launch(desk(recipe), ["base"], [17, 18], tmp_path, service=Breaks(), **QUIET)
    assert [call.name for call in calls_in(tmp_path)] == ["base/seed-17"]


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
    pending(recipe, tmp_path, ("grpo", 17), ("raft", 17), ("mixed", 17), ("reinforce_ada", 17), ("base", 17))
    service = Scripted({
        "fc-grpo-17": [TimeoutError(), modal.exception.ConnectionError("gone"), found],
        "fc-raft-17": [modal.exception.OutputExpiredError()],
        "fc-mixed-17": [modal.exception.FunctionTimeoutError("6 hours")],
        "fc-reinforce_ada-17": [ValueError("CUDA out of memory")],
        "fc-base-17": [modal.exception.InternalFailure("container lost")]})
    said = []
    calls = {c.arm: c for c in collect(tmp_path, said.append, service)}
    assert calls["grpo"].state == "running" and calls["raft"].state == "lost"
    assert {calls[a].state for a in ("mixed", "reinforce_ada", "base")} == {"failed"}
    assert "CUDA out of memory" in (tmp_path / "reinforce_ada" / "seed-17.failed.log").read_text()
    calls = {c.arm: c for c in collect(tmp_path, said.append, service)}
    assert calls["grpo"].state == "running" and "cannot be reached" in said[-1]
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


@pytest.mark.parametrize("name", ["../run.json", "/etc/x", ".hidden", "a/b"])
def test_a_result_cannot_leave_its_folder(recipe, result, tmp_path, name):
    pending(recipe, tmp_path, ("grpo", 17))
    bad = {"files": {**result[0]["files"], name: b"x"}, "seconds": 1.0}
    with pytest.raises(TalkError, match="refused"):
        collect(tmp_path, service=Scripted({"fc-grpo-17": [bad]}), **QUIET)
    assert not run_folder(tmp_path, "grpo", 17).exists()


def test_a_result_of_another_run_is_refused(recipe, result, tmp_path):
    pending(recipe, tmp_path, ("grpo", 18))
    with pytest.raises(TalkError, match="says arm 'grpo', seed 17, which is not its folder"):
        collect(tmp_path, service=Scripted({"fc-grpo-18": [result[0]]}), **QUIET)


def test_a_result_of_another_recipe_is_refused(recipe, result, tmp_path):
    pending(desk(recipe), tmp_path, ("grpo", 17))
    with pytest.raises(TalkError, match="is a run of recipe"):
        collect(tmp_path, service=Scripted({"fc-grpo-17": [result[0]]}), **QUIET)
    assert not run_folder(tmp_path, "grpo", 17).exists()


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
    assert sum("1 running" in text for text in said) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "calls": []}', '{"format": 1, "calls": [{"arm": "grpo"}]}'])
def test_a_broken_record_is_named(tmp_path, text):
    (tmp_path / "remote.json").write_text(text)
    with pytest.raises(TalkError, match=r"remote\.json cannot be read"):
        calls_in(tmp_path)


def test_the_table_has_a_row_a_call(recipe, tmp_path):
    pending(recipe, tmp_path, ("grpo", 17))
    assert remote.table(calls_in(tmp_path))[0]["run"] == "grpo/seed-17"
    assert main(["remote", "collect", "--out", str(tmp_path / "nothing")]) == 2
