"""Pins, notebooks, commands: what a fresh clone relies on."""

import json
import re
import subprocess
import sys

import nbformat
import papermill
import pytest
from talklib import TalkError, artifact
from talklib.artifact import NOTEBOOKS
from talklib.splitter import Problem, Split, Task

from conftest import ROOT


def pins(path):
    return set(re.findall(r"^[ -]*([A-Za-z0-9_.-]+==[\w.]+)", (ROOT / path).read_text(), re.M))


def test_environment_carries_the_constraints():
    assert pins("environment.yml") == pins("constraints.txt")
    assert pins("requirements-colab.txt") <= pins("constraints.txt")
    assert not {pin for pin in pins("requirements-colab.txt") if pin.startswith(("torch", "numpy"))}


def test_the_installed_versions_are_the_pinned_ones():
    from importlib.metadata import version

    for pin in ("trl", "transformers", "peft", "datasets", "accelerate", "math-verify", "matplotlib", "papermill"):
        assert f"{pin}=={version(pin)}" in pins("constraints.txt")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_clean(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert book.metadata.kernelspec.name == "python3"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert any("parameters" in cell.metadata.get("tags", []) for cell in code)
    assert "scale" in papermill.inspect_notebook(str(path))
    assert not re.search(r"/(root|home|work|tmp)/", path.read_text())


def test_unknown_notebook_parameters_are_seen():
    known = papermill.inspect_notebook(str(ROOT / "notebooks" / "03_train.ipynb"))
    assert {"scale", "live", "seeds", "live_dir", "where", "budget"} == set(known)


def test_a_parameter_that_no_notebook_has_is_refused():
    words = "artifact --set n_shows=3".split()
    done = subprocess.run([sys.executable, "-m", "talklib", *words], capture_output=True, text=True)
    assert done.returncode == 2 and "n_show" in done.stderr.split("there are")[1]


def test_notebooks_that_fail_are_named_with_their_cells(tmp_path, monkeypatch, capfd):
    """Both of a wave, and the waves after it are not run."""
    (tmp_path / "notebooks").mkdir()
    for name, code in zip(NOTEBOOKS, ("1 / 0", "{}['gone']", "1", "1", "1", "1"), strict=True):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("2"), nbformat.v4.new_code_cell(code)])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.setattr(artifact, "root", lambda: tmp_path)
    with pytest.raises(TalkError) as caught:
        artifact.run_notebooks(tmp_path / "out", live=False)
    first, second = str(caught.value).splitlines()
    assert "notebook 01_split, cell 2: ZeroDivisionError" in first and "out/01_split.ipynb" in first
    assert "notebook 02_baseline, cell 2: KeyError: 'gone'" in second
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"01_split", "02_baseline"}
    artifact.run_notebooks(tmp_path / "out", live=False, only="04")
    assert "04_behavior: " in capfd.readouterr().out and (tmp_path / "out" / "04_behavior.ipynb").is_file()


def test_selftest_needs_no_torch():
    done = subprocess.run([sys.executable, "-m", "talklib", "selftest"], capture_output=True, text=True)
    assert done.returncode == 0 and "torch was not loaded" in done.stdout and "FAIL" not in done.stdout


def test_selftest_fails_when_something_is_wrong(monkeypatch, capsys):
    from talklib import credit, selftest

    monkeypatch.setitem(credit.RULES, "raft", credit.RULES["grpo"])
    assert selftest.run() is False and "FAIL" in capsys.readouterr().out


ROW = {"facts_a": ["Ann has 3 figs."], "facts_b": ["Ben has 14."], "question": "How many?", "gold": "17",
       "turns": [["A", "I have 3."], ["B", "What do you have?"], ["A", "3 + 14 = \\boxed{17}"], ["B", "\\boxed{14}"]]}


def count(tmp_path, text):
    (tmp_path / "chats.jsonl").write_text(text)
    return subprocess.run([sys.executable, "-m", "talklib", "count", str(tmp_path / "chats.jsonl")],
                          capture_output=True, text=True)


def test_count_by_hand(tmp_path):
    done = count(tmp_path, json.dumps(ROW) + "\n")
    assert json.loads(done.stdout) == {"score": 0.5, "sends": 0.5, "uses": 0.5, "asks": 0.5, "agrees": 0.0,
                                       "message_chars": 13.0, "n": 1}


@pytest.mark.parametrize(("row", "message"), [
    ({**ROW, "turns": [["C", "x"]]}, "turns"), ({k: v for k, v in ROW.items() if k != "gold"}, "gold"),
    ({**ROW, "facts_a": 3}, "facts_a"), ([], "object")])
def test_count_names_the_bad_row(tmp_path, row, message):
    done = count(tmp_path, json.dumps(ROW) + "\n" + json.dumps(row) + "\n")
    assert done.returncode == 2 and "line 2" in done.stderr and message in done.stderr


def test_numbers_that_both_or_the_question_hold_are_not_private():
    from talklib.chat import Chat, Turn
    from talklib.counters import count as counted
    from talklib.counters import private_numbers

    split = Split((("A has 3 and 5.",), ("B has 5 and 1,200.",)), "What of 3?")
    assert private_numbers(split, "A") == set() and private_numbers(split, "B") == {"1200"}
    chat = Chat(Task(Problem("p", "", "1"), split), tuple(Turn(s, t) for s, t in zip(
        "ABAB", ("hm?", "1200", "1200 \\boxed{\\$1,0}", "\\boxed{10}"), strict=True)))
    found = counted([chat])
    assert (found["sends"], found["uses"], found["asks"]) == (1.0, 1.0, 0.5)
