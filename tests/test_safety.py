"""A results folder, a model or an adapter may come from a stranger: opening them runs no code, leads nowhere else,
and nothing that the environment keeps secret ends up in a file."""

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
from talklib import TalkError
from talklib.crossplay import with_adapter
from talklib.experiment import run_arm, status_of
from talklib.store import load_run, load_runs, run_folder, write_atomic

from conftest import ROOT, make_model, make_tokenizer
from made_runs import made_run
from test_kill import TINY, edited

SOURCES = sorted((ROOT / "talklib").rglob("*.py"))
SMALL = (*TINY[1:], "steps=2")
SILENT = {"say": lambda text: None}


class Bomb:
    """Unpickled without care it creates a file."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def plant(path, marker):
    path.write_bytes(pickle.dumps(Bomb(marker)))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "code-was-run"


def test_the_bomb_would_go_off(tmp_path, marker):
    plant(tmp_path / "b", marker)
    pickle.loads((tmp_path / "b").read_bytes())
    assert marker.exists()


# -- the source ------------------------------------------------------------------------------------

LOADERS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.hub.load", "np.load",
           "yaml.load", "yaml.unsafe_load", "pd.read_pickle", "joblib.load", "importlib.import_module"}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_source_reads_pickles_or_runs_text(path):
    for name, node in calls(path):
        assert name not in LOADERS and not re.match(r"(pickle|dill|marshal|shelve|cloudpickle)\.", name), name
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert words.get("shell", "False") == "False" and words.get("allow_pickle", "False") == "False", name
        assert words.get("trust_remote_code", "False") == "False", name
    if path.name in ("speakers.py",):
        fetches = [node for name, node in calls(path) if name == "loader"]
        assert fetches and all("trust_remote_code=False" in ast.unparse(node) for node in fetches)


def test_stored_results_hold_data_alone():
    files = [path for path in (ROOT / "results" / "desk").rglob("*") if path.is_file()]
    shared = [path for path in files if not any(part.startswith(".") or part == "adapter" for part in path.parts)]
    assert shared and {path.suffix for path in shared} <= {".json", ".parquet", ".md", ".csv", ".jsonl"}


# -- runs, checkpoints, adapters, models ------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(model_folder):
    return model_folder


def small(folder):
    from talklib.__main__ import recipe_from

    return recipe_from("desk", [*SMALL, f"model={folder}"])


@pytest.fixture(scope="module")
def broken_off(folder, tmp_path_factory):
    """Results with a run that was broken off in its second step."""
    from talklib.trainers import ChatTrainer

    out, rollout = tmp_path_factory.mktemp("results"), ChatTrainer.rollout

    def stopped(self, tasks):
        if self.state.global_step == 1:
            raise KeyboardInterrupt
        return rollout(self, tasks)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ChatTrainer, "rollout", stopped)
        run_arm(small(folder), "grpo", 17, out, **SILENT)
    return out


@pytest.mark.parametrize("name", ["run.json", "chats.parquet", "run.pkl", "adapter/adapter_model.bin"])
def test_a_pickle_in_a_run_is_not_unpickled(tmp_path, marker, name):
    run = made_run(tmp_path / "r", "grpo", 17)
    (run / "adapter").mkdir()
    plant(run / name, marker)
    try:
        found = load_runs(tmp_path / "r")
        assert len(found[0].chats()) == 4 and name not in ("run.json", "chats.parquet")
    except TalkError as error:
        assert name in str(error)
    status_of(small("desk"), "grpo", 17, tmp_path / "r")
    assert not marker.exists()


def test_an_adapter_that_is_no_safetensors_is_refused(tmp_path, marker, folder):
    run = made_run(tmp_path / "r", "grpo", 17)
    (run / "adapter").mkdir()
    plant(run / "adapter" / "adapter_model.bin", marker)
    with pytest.raises(TalkError, match="adapter_model.safetensors"):
        with_adapter(make_model(make_tokenizer()), run)
    plant(run / "adapter" / "adapter_model.safetensors", marker)
    settings = '{"peft_type": "LORA", "target_modules": ["q_proj"], "r": 4, "lora_alpha": 8}'
    (run / "adapter" / "adapter_config.json").write_text(settings)
    with pytest.raises(Exception, match="(?i)header|safetensor"):
        with_adapter(make_model(make_tokenizer()), run)
    assert not marker.exists()


def test_an_adapters_settings_import_no_module(tmp_path, marker, monkeypatch):
    """peft's megatron_core names a module that is imported; a stranger's folder may lie on the path."""
    from peft import get_peft_model
    from talklib.trainers import lora_config

    from conftest import tiny_recipe

    run = made_run(tmp_path / "r", "grpo", 17)
    get_peft_model(make_model(make_tokenizer()), lora_config(tiny_recipe())).save_pretrained(run / "adapter")
    (tmp_path / "bomb_module.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = json.loads((run / "adapter" / "adapter_config.json").read_text())
    told |= {"megatron_core": "bomb_module", "megatron_config": {"tensor_model_parallel_size": 1}}
    (run / "adapter" / "adapter_config.json").write_text(json.dumps(told))
    with_adapter(make_model(make_tokenizer()), run)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.bin"])
def test_a_checkpoint_that_holds_code_is_refused_by_name(folder, broken_off, tmp_path, marker, name):
    """transformers reads these with weights_only: tensors and plain containers, nothing callable."""
    shutil.copytree(broken_off, tmp_path / "r")
    checkpoint = tmp_path / "r" / "grpo" / ".seed-17.work" / "checkpoint-1"
    plant(checkpoint / name, marker)
    if name == "adapter_model.bin":
        (checkpoint / "adapter_model.safetensors").unlink()
    files = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.name != "complete.json"}
    write_atomic(checkpoint / "complete.json", json.dumps(files))
    with pytest.raises(TalkError, match=r"seed-17.work is damaged or holds code.*remove that folder"):
        run_arm(small(folder), "grpo", 17, tmp_path / "r", **SILENT)
    assert not marker.exists()


def test_saved_training_arguments_are_never_read(folder, broken_off, tmp_path, marker):
    shutil.copytree(broken_off, tmp_path / "r")
    checkpoint = tmp_path / "r" / "grpo" / ".seed-17.work" / "checkpoint-1"
    plant(checkpoint / "training_args.bin", marker)
    files = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.name != "complete.json"}
    write_atomic(checkpoint / "complete.json", json.dumps(files))
    said = []
    run = run_arm(small(folder), "grpo", 17, tmp_path / "r", say=said.append)
    assert "going on from checkpoint-1" in said[0] and not marker.exists()
    adapter = [path.name for path in (run.folder / "adapter").iterdir()]
    assert "adapter_model.safetensors" in adapter and not [n for n in adapter if n.endswith((".bin", ".pt", ".pth"))]


@pytest.mark.parametrize("kind", ["auto_map", "pytorch_model.bin"])
def test_a_models_own_code_is_not_run(folder, tmp_path, marker, kind):
    from talklib.speakers import load_model

    model = tmp_path / "model"
    shutil.copytree(folder, model)
    if kind == "auto_map":
        config = json.loads((model / "config.json").read_text())
        names = {"AutoConfig": "bomb.Config", "AutoModelForCausalLM": "bomb.Model"}
        config |= {"model_type": "bomb", "auto_map": names}
        (model / "config.json").write_text(json.dumps(config))
        (model / "bomb.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    else:
        (model / "model.safetensors").unlink()
        plant(model / kind, marker)
    with pytest.raises((TalkError, ValueError, pickle.UnpicklingError, RuntimeError)):
        load_model(small(model))
    assert not marker.exists()


# -- paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arm", "seed"), [("../grpo", 17), ("grpo/..", 17), ("/etc", 17), ("", 17), (".", 17),
                                           ("grpo", -1), ("grpo", "../17"), ("grpo", True), ("gr\npo", 1)])
def test_names_of_runs_lead_nowhere_else(tmp_path, arm, seed):
    with pytest.raises(TalkError, match="arm"):
        run_folder(tmp_path, arm, seed)


def test_folders_that_only_look_like_runs_are_left_out(tmp_path):
    made_run(tmp_path, "base", 17)
    for name in ("seed-017", "seed-\u0661\u0667", "seed-17 ", "seed-", "seed-1.5", "seed--1"):
        shutil.copytree(tmp_path / "base" / "seed-17", tmp_path / "base" / name)
    assert [run.seed for run in load_runs(tmp_path)] == [17]


@pytest.mark.parametrize("part", ["", "seed-17", "seed-17/run.json", "seed-17/chats.parquet", "seed-17/adapter"])
def test_links_in_results_are_refused(tmp_path, part):
    (made_run(tmp_path / "r", "base", 17) / "adapter").mkdir()
    place = tmp_path / "r" / "base" / part
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TalkError, match="is a link"):
        load_runs(tmp_path / "r")


@pytest.mark.parametrize("name", [".seed-17.lock", ".seed-17.work"])
def test_writing_does_not_follow_a_planted_link(tmp_path, folder, name):
    """A lock is opened and a work folder is filled: neither may be somebody's file or folder elsewhere."""
    target = tmp_path / "precious"
    target.mkdir() if name.endswith("work") else target.write_text("precious")
    (tmp_path / "r" / "base").mkdir(parents=True)
    (tmp_path / "r" / "base" / name).symlink_to(target)
    with pytest.raises(TalkError, match="link"):
        run_arm(small(folder), "base", 17, tmp_path / "r", **SILENT)
    assert target.is_dir() and not list(target.iterdir()) if name.endswith("work") else target.read_text() == "precious"


def test_a_planted_temporary_file_is_not_written_through(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / f".a.tmp-{os.getpid()}").symlink_to(tmp_path / "precious")
    write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "precious").read_text() == "precious" and (tmp_path / "a").read_text() == "new"


def test_a_run_that_claims_another_place_is_refused(tmp_path):
    run = made_run(tmp_path, "base", 17)
    edited(run, arm="../../elsewhere")
    with pytest.raises(TalkError, match="not its folder"):
        load_run(run)


# -- secrets -----------------------------------------------------------------------------------------

SECRETS = {name: f"planted{number}secret{name.lower()}" for number, name in enumerate(
    ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "WANDB_API_KEY",
     "ANTHROPIC_API_KEY"))}
SCRIPT = """
import shutil, sys
from talklib import evaluate
from talklib.__main__ import main, recipe_from
from talklib.experiment import run_arm
model, out, *changes = sys.argv[1:]
whole = evaluate.evaluate
def stopped(*args):
    raise KeyboardInterrupt
evaluate.evaluate = stopped
try:
    run_arm(recipe_from("desk", changes), "grpo", 17, out)
except KeyboardInterrupt:
    shutil.copytree(out, out + "-broken-off")
evaluate.evaluate = whole
words = [word for change in changes for word in ("--set", change)]
sys.exit(main(["run", "--arms", "grpo", "--seeds", "17", "--out", out, *words]))
"""


@pytest.mark.slow
def test_no_secret_of_the_environment_reaches_a_log_or_a_file(folder, tmp_path):
    changes = [*SMALL, f"model={folder}"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "r"), *changes],
                          capture_output=True, env={**os.environ, **SECRETS, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "chats.parquet", "adapter_model.safetensors", "training_args.bin"} <= {f.name for f in files}
    for name, text in [("stdout", done.stdout), ("stderr", done.stderr), *((f, f.read_bytes()) for f in files)]:
        assert not [secret for secret in SECRETS.values() if secret.encode() in text], name


TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}|\b(?:ak|as)-[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9-]{20,}|"
                   r"\bgh[pousr]_[A-Za-z0-9]{30,}|WANDB_API_KEY\s*=\s*\w{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----")


def test_tokens_are_recognised():
    for token in ("hf_" + "a1B2" * 8, "as-" + "x" * 22, "-----BEGIN" + " RSA PRIVATE KEY-----", "ghp_" + "a" * 36):
        assert TOKEN.search(f'"token": "{token}"')


def test_no_file_of_the_repository_holds_a_token():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert len(paths) > 50
    assert [path.name for path in paths if TOKEN.search(path.read_bytes().decode("latin-1"))] == []


def test_the_licence_of_every_pinned_package_is_listed():
    """`python -m bench.licences` makes the table."""
    from bench.licences import pinned

    rows = re.findall(r"^\| ([\w.-]+) \| ([\w.+-]+) \| (.+) \|$", (ROOT / "bench" / "licences.md").read_text(), re.M)
    assert {name: version for name, version, _ in rows[1:]} == pinned()
    assert not [row for row in rows if row[2] in ("not said", "not installed") or re.search(r"\bA?GPL", row[2])]
