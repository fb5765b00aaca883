"""Loading, dealing, decontamination, and what is said of bad input."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from talklib import TalkError, data
from talklib.data import Columns, deal_tasks, decontaminate, gold_of, load_folder, load_tasks, read_rows, take
from talklib.recipe import Recipe
from talklib.splitter import Problem

from conftest import GSM8K, needs_gsm8k

GOOD = {"question": "Ann has 3. Ben has 4. How many?", "answer": "#### 7"}


def run(*words, **environment):
    return subprocess.run([sys.executable, "-m", "talklib", *words], capture_output=True, text=True,
                          env={**os.environ, **environment})


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@needs_gsm8k
def test_counts_of_the_real_data(tmp_path):
    out = tmp_path / "split.json"
    done = run("split", "--data", str(GSM8K), "--seed", "0", "--n-train", "1024", "--n-test", "300", "--out", str(out))
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert (len(written["train"]), len(written["test"])) == (1024, 300)
    assert written["train"][:6] == [f"train-{i}" for i in (0, 1, 2, 4, 5, 10)]
    assert written["test"][:6] == [f"test-{i}" for i in (3, 4, 5, 6, 7, 12)]
    assert (written["train"][-1], written["test"][-1]) == ("train-2046", "test-555")
    held = {name: " ".join(written["held"][name]["facts_a"] + written["held"][name]["facts_b"])
            for name in ("test-3", "test-4")}
    assert "Hannah" in held["test-3"] and "Bethany" in held["test-4"]
    assert (written["audit"]["train"]["split"], written["audit"]["test"]["split"]) == (3782, 693)
    assert written["decontaminated_dropped"] == 0


def test_another_seed_is_another_order(tmp_path):
    rows = [{"question": f"Ann has {i}. Ben has 4. How many?", "answer": f"#### {i + 4}"} for i in range(20)]
    write(tmp_path / "train.jsonl", *rows)
    write(tmp_path / "test.jsonl", *rows)
    orders = [[p.question for p in load_folder(tmp_path, seed)[0]] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])


def test_gold():
    assert gold_of("work\n#### 1,200", "x") == "1200"
    assert gold_of("#### 1 #### 2", "x") == "2"
    assert gold_of(18, "x", marker="") == "18"
    for answer in ("no marker", "####  ", 18):
        with pytest.raises(TalkError, match="row 7"):
            gold_of(answer, "row 7")
    for answer in ("", True, None):
        with pytest.raises(TalkError, match="row 7"):
            gold_of(answer, "row 7", marker="")


@pytest.mark.parametrize(("line", "message"), [
    ('{"answer": "#### 1"}', "line 3: no 'question'.*answer"), ('{"question": "a?"}', "line 3: no 'answer'"),
    ("{oops", "line 3: not JSON"), ('{"question": " ", "answer": "#### 1"}', "line 3.*empty"),
    ('{"question": 5, "answer": "#### 1"}', "line 3.*not text"), ("[1]", "line 3: expected an object"),
    ('{"question": "a?", "answer": "1"}', "line 3.*####"), ('{"question": "a?", "answer": 1}', "line 3.*not text")])
def test_bad_rows_are_named_by_their_line(tmp_path, line, message):
    write(tmp_path / "train.jsonl", GOOD, "", line)  # the blank line counts, as it does in an editor
    write(tmp_path / "test.jsonl", GOOD)
    with pytest.raises(TalkError, match=f"train.jsonl, {message}"):
        load_folder(tmp_path, 0)


def test_files_that_are_no_text_or_no_parquet_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe{}\n")
    with pytest.raises(TalkError, match="a.jsonl, line 2"):
        read_rows(tmp_path / "a.jsonl")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(TalkError, match="b.parquet cannot be read"):
        read_rows(tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text("\n\n")
    with pytest.raises(TalkError, match="c.jsonl holds no problems"):
        read_rows(tmp_path / "c.jsonl")


def test_other_columns_parquet_and_a_single_file(tmp_path):
    rows = [{"prompt": f"Ann has {i}. Ben has 4. How many?", "target": i + 4} for i in range(10)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    dealt = deal_tasks(str(tmp_path / "all.parquet"), 0, 8, 2, columns=Columns("prompt", "target", marker=""))
    assert [t.id for t in dealt.train] == [f"train-{i}" for i in range(8)]
    assert [t.id for t in dealt.test] == ["test-0", "test-1"]
    questions = [t.problem.question for t in (*dealt.train, *dealt.test)]
    assert sorted(questions) == sorted(row["prompt"] for row in rows)
    assert {t.problem.gold for t in (*dealt.train, *dealt.test)} == {str(i + 4) for i in range(10)}
    with pytest.raises(TalkError, match="row 1: no 'question'; the columns there are prompt, target"):
        read_rows(tmp_path / "all.parquet")


def test_columns_on_the_command_line(tmp_path):
    write(tmp_path / "all.jsonl", *({"q": f"Ann has {i}. Ben has 4. How many?", "a": str(i + 4)} for i in range(10)))
    done = run("split", "--data", str(tmp_path / "all.jsonl"), "--question-column", "q", "--answer-column", "a",
               "--marker", "", "--n-train", "8", "--n-test", "2", "--out", str(tmp_path / "o.json"))
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "o.json").read_text())
    assert len(written["train"]) == 8 and set(written["held"]) == {*written["train"], *written["test"]}


@pytest.mark.parametrize(("words", "named"), [
    (["--data", "none-such"], "train.jsonl"), (["--data", "desk", "--rule", "best"], "post, careful"),
    (["--data", "desk", "--n-train", "0"], "at least 1")])
def test_split_says_what_is_wrong(tmp_path, words, named):
    done = run("split", *words, "--n-test", "3", "--out", str(tmp_path / "o.json"))
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_out_that_cannot_be_is_named(tmp_path):
    for out, named in ((tmp_path, "folder"), (tmp_path / "no" / "o.json", "no folder")):
        done = run("split", "--data", "desk", "--out", str(out))
        assert done.returncode == 2 and named in done.stderr


def test_an_unreachable_hub_names_the_offline_way_at_once(tmp_path):
    began = time.perf_counter()
    done = run("split", "--data", "hub", "--out", str(tmp_path / "o.json"), HF_ENDPOINT="http://localhost:9",
               HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 2 and "--data FOLDER" in done.stderr and "Retrying" not in done.stderr
    assert time.perf_counter() - began < 20, "the client's own retries take longer"


def test_a_hub_that_answers_and_then_fails_is_named_too(monkeypatch):
    import datasets

    def refused(*args, **settings):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    monkeypatch.setattr(data, "_knock", lambda: None)
    with pytest.raises(TalkError, match="--data FOLDER"):
        load_tasks(replace(Recipe.desk(), data="hub"))


def test_the_hub_is_read_at_the_pinned_revision(monkeypatch):
    import datasets

    asked = []

    def answers(*args, **settings):
        asked.append((args, settings))
        return {"train": [GOOD, {**GOOD, "question": "Cy has 5. Di has 6. How many?"}], "test": [GOOD]}

    monkeypatch.setattr(datasets, "load_dataset", answers)
    monkeypatch.setattr(data, "_knock", lambda: None)
    monkeypatch.setattr(data, "_cached", lambda: None)
    train, test = load_tasks(replace(Recipe.desk(), data="hub", n_train=1, n_test=1))
    assert asked == [(("openai/gsm8k", "main"), {"revision": data.HUB_REVISION})]
    assert [t.problem.question[:2] for t in train] == ["Cy"], "the held-out problem stands in train, and is dropped"
    assert [t.id for t in test] == ["test-0"]


def test_a_downloaded_revision_needs_no_network(monkeypatch, tmp_path):
    import datasets

    folder = tmp_path / "openai___gsm8k" / "main" / "0.0.0" / data.HUB_REVISION
    for name in ("train", "test"):
        made = datasets.Dataset.from_list([GOOD]).save_to_disk(str(folder / name)) or folder / name
        next(made.glob("*.arrow")).rename(folder / f"gsm8k-{name}.arrow")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(data, "_knock", lambda: pytest.fail("the network was asked"))
    train, test = data.load_hub(0)
    assert (train[0].id, train[0].gold, test[0].question) == ("train-0", "7", GOOD["question"])


def test_too_few_problems_are_named():
    with pytest.raises(TalkError, match="only 0 problems"):
        take([Problem("a", "Hm?", "1")], 2)


def test_decontamination_drops_what_is_held_out_and_keeps_ids():
    train = [Problem("train-0", "Ann  has 3 FIGS. How many?", "3"), Problem("train-1", "Other?", "1"),
             Problem("train-2", "Anne has 3 figs. How many?", "3")]
    kept, dropped = decontaminate(train, [Problem("test-0", "ann has 3 figs! how many", "3")])
    assert [p.id for p in kept] == ["train-1", "train-2"] and dropped == 1


def test_desk_tasks_are_the_recipes():
    train, test = load_tasks(replace(Recipe.desk(), n_train=8, n_test=4))
    assert (len(train), len(test)) == (8, 4)
    assert not {t.problem.question for t in train} & {t.problem.question for t in test}
