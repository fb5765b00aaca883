"""The post's rule on the real data, loading, and what is said of bad input."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talklib import TalkError
from talklib.data import decontaminate, gold_of, load_folder, load_tasks, take
from talklib.recipe import Recipe
from talklib.splitter import Problem, audit, deal, private_numbers, sentences, split

from conftest import GSM8K, needs_gsm8k


def run(*words):
    return subprocess.run([sys.executable, "-m", "talklib", *words], capture_output=True, text=True)


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
    assert "Hannah" in " ".join(written["held"]["test-3"]["facts_a"] + written["held"]["test-3"]["facts_b"])
    assert (written["audit"]["train"]["split"], written["audit"]["test"]["split"]) == (3782, 693)
    assert written["decontaminated_dropped"] == 0


@needs_gsm8k
def test_known_limits_of_the_rule():
    train, test = load_folder(GSM8K, 0)
    found = audit([*train, *test])
    assert (found.problems, found.split, found.no_question, found.number_in_question) == (8792, 4475, 352, 1207)
    assert found.split + found.no_question + found.few_facts + found.bare_half == found.problems
    assert found.rules_differ > 50 and 150 < found.broken_abbreviation < 200


def test_facts_are_dealt_like_cards():
    assert deal(list("12345")) == (("1", "3", "5"), ("2", "4"))
    assert deal(list("12345"), 3) == (("1", "4"), ("2", "5"), ("3",))


@given(st.lists(st.sampled_from(["Ann has 3 figs.", "Ben has $4!", "It rains.", "He eats 7."]), max_size=8))
def test_a_split_loses_and_invents_nothing(facts):
    text = " ".join([*facts, "How many are left?"])
    parts = split(text)
    if parts is not None:
        again = [fact for pair in zip_longest(parts.facts_a, parts.facts_b) for fact in pair if fact]
        assert again == facts
        assert not private_numbers(parts, "A") & private_numbers(parts, "B")
    else:
        assert len(facts) < 2 or not all(any(c.isdigit() for c in " ".join(h)) for h in deal(facts))


@pytest.mark.parametrize("text", ["", "Ann has 3 figs.", "How many?", "Ann has 3. How many?",
                                  "Ann has 3. Ben runs. Why?"])
def test_what_does_not_split(text):
    assert split(text) is None


def test_careful_rule_keeps_abbreviations_whole():
    text = "Mr. Sam has 3 figs. Dr. Lee has 4. How many do they have?"
    assert sentences(text)[0] == "Mr." and sentences(text, "careful")[0] == "Mr. Sam has 3 figs."
    with pytest.raises(TalkError, match="careful"):
        sentences(text, "best")


def test_gold():
    assert gold_of("work\n#### 1,200", "x") == "1200"
    with pytest.raises(TalkError, match="row 7.*####"):
        gold_of("no marker", "row 7")


@pytest.mark.parametrize(("line", "message"), [
    ('{"answer": "#### 1"}', "row 2.*question"), ('{"question": "a?"}', "row 2.*answer"), ("{oops", "line 2.*JSON"),
    ('{"question": " ", "answer": "#### 1"}', "row 2.*empty"), ('{"question": "a?", "answer": "1"}', "row 2.*####")])
def test_bad_rows_are_named(tmp_path, line, message):
    good = '{"question": "Ann has 3. Ben has 4. How many?", "answer": "#### 7"}\n'
    (tmp_path / "train.jsonl").write_text(good + line + "\n")
    (tmp_path / "test.jsonl").write_text(good)
    with pytest.raises(TalkError, match=message):
        load_folder(tmp_path, 0)


def test_missing_folder_and_missing_hub_name_the_way_out(tmp_path):
    done = run("split", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "o.json"))
    assert done.returncode == 2 and "train.jsonl" in done.stderr
    assert not (tmp_path / "o.json").exists()


def test_an_unreachable_hub_names_the_offline_way(tmp_path, monkeypatch):
    import datasets

    def refused(*args, **settings):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    with pytest.raises(TalkError, match="--data FOLDER"):
        load_tasks(replace(Recipe.desk(), data="hub"))


def test_too_few_problems_are_named():
    with pytest.raises(TalkError, match="only 0 problems"):
        take([Problem("a", "Hm?", "1")], 2)


def test_decontamination_drops_what_is_held_out():
    same = Problem("train-0", "Ann  has 3 FIGS. How many?", "3")
    held_out = [Problem("test-0", "ann has 3 figs! how many", "3")]
    kept, dropped = decontaminate([same, Problem("train-1", "Other?", "1")], held_out)
    assert [p.id for p in kept] == ["train-1"] and dropped == 1
