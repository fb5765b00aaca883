"""`grade` and `count` as a stranger calls them, and modules that must not load torch. (`split`: test_data.)"""

import json
import subprocess
import sys

import pytest

PRINTED = ["score", "sends", "uses", "asks", "agrees", "message_chars", "n"]
ROW = {"facts_a": ["Ann has 3."], "facts_b": "Ben has 4.", "question": "How many?", "gold": 7,
       "turns": [["A", "I have 3"], ["B", "4?"], ["A", "3 + 4 = \\boxed{7}"], ["B", "\\boxed{8}"]]}


def talklib(*words, text=""):
    done = subprocess.run([sys.executable, "-m", "talklib", *map(str, words)], capture_output=True,
                          input=text if isinstance(text, bytes) else text.encode())
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def grade(*texts, gold="18"):
    return talklib("grade", "--gold", gold, text="\n".join(map(json.dumps, texts)))


def test_grade_writes_a_line_a_line():
    code, out, _ = grade("so \\boxed{18}", "\\boxed{1800\\%}", "", "\ud800 \\boxed{18}")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"post": True, "strict": True, "extracted": "18"}, {"post": True, "strict": False, "extracted": "1800\\%"},
        {"post": False, "strict": False, "extracted": ""}, {"post": True, "strict": True, "extracted": "18"}]


def test_grade_takes_a_gold_with_commas_and_skips_blank_lines():
    code, out, _ = talklib("grade", "--gold", "1,200", text='\n"\\\\boxed{1200}"\n\n')
    assert code == 0 and json.loads(out) == {"post": True, "strict": True, "extracted": "1200"}


@pytest.mark.parametrize(("line", "named"), [
    (b"not json", "line 2: not JSON"), (b"18", "line 2: expected a JSON string"), (b'"\xff"', "line 2: not JSON"),
    (b"null", "line 2: expected"), (b'["a"]', "line 2: expected")])
def test_grade_names_a_bad_line_and_keeps_what_was_graded(line, named):
    code, out, err = talklib("grade", "--gold", "18", text=b'"\\\\boxed{18}"\n' + line + b"\n")
    assert code == 2 and named in err and len(out.splitlines()) == 1


def test_grade_wants_a_gold():
    code, _, err = talklib("grade", "--gold", " ")
    assert code == 2 and "--gold 18" in err


def count(tmp_path, *rows):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return talklib("count", path)


def test_count_prints_score_and_counters(tmp_path):
    code, out, _ = count(tmp_path, ROW, "", {**ROW, "turns": [["A", "?"], ["B", ""], ["A", "7"], ["B", "hm"]]})
    counted = json.loads(out)
    assert code == 0 and list(counted) == PRINTED
    assert counted == {"score": 0.5, "sends": 0.5, "uses": 0.25, "asks": 0.5, "agrees": 0.0,
                       "message_chars": (8 + 2 + 1 + 0) / 4, "n": 2}


def test_count_takes_three_copies_and_a_gold_with_commas(tmp_path):
    row = {**ROW, "facts_c": ["Cy has 1,200."], "gold": "1,207", "turns": [
        *ROW["turns"][:2], ["C", "1200"], ["A", "\\boxed{1207}"], ["B", "1200 \\boxed{1207}"], ["C", "\\boxed{1,207}"]]}
    code, out, _ = count(tmp_path, row)
    assert code == 0 and json.loads(out) == {"score": 1.0, "sends": 1.0, "uses": pytest.approx(0.5 / 3), "asks": 1 / 3,
                                             "agrees": 1.0, "message_chars": (8 + 2 + 4) / 3, "n": 1}


@pytest.mark.parametrize(("change", "named"), [
    ({"gold": None}, "'gold'"), ({"gold": []}, "'gold'"), ({"question": 3}, "'question'"),
    ({"facts_a": 3}, "'facts_a'"), ({"facts_b": [3]}, "'facts_b'"), ({"turns": "AB"}, "'turns'"),
    ({"turns": [["C", "x"]]}, '"A" or "B"'),
    ({"turns": [["A", 3]]}, "'turns'"), ({"turns": [["A", "x"]]}, "B has no turn"), ({"facts_d": "x"}, "no gap")])
def test_count_names_a_bad_row(tmp_path, change, named):
    code, out, err = count(tmp_path, ROW, {**ROW, **change})
    assert code == 2 and "line 2" in err and named in err and not out


@pytest.mark.parametrize("missing", list(ROW))
def test_count_names_a_missing_field(tmp_path, missing):
    code, _, err = count(tmp_path, {key: value for key, value in ROW.items() if key != missing})
    assert code == 2 and f"line 1: no '{missing}'" in err


def test_count_names_files_that_hold_no_chats(tmp_path):
    assert count(tmp_path, "{oops")[0] == 2 and "line 1: not JSON" in count(tmp_path, "{oops")[2]
    assert "expected a JSON object" in count(tmp_path, "[]")[2]
    assert "holds no chats" in count(tmp_path)[2]
    assert talklib("count", tmp_path / "none")[0] == 2 and talklib("count", tmp_path)[0] == 2


@pytest.mark.parametrize("module", [
    "talklib", "talklib.splitter", "talklib.chat", "talklib.data", "talklib.grading", "talklib.panel",
    "talklib.counters", "talklib.selftest", "talklib.recipe", "talklib.credit", "talklib.store", "talklib.cli_core"])
def test_light_modules_load_no_torch(module):
    script = f"import sys, {module}; sys.exit(sum(name in sys.modules for name in ('torch', 'sympy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
