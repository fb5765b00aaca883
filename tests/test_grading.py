"""Both verdicts, the clock, and the fast path held equal to Math-Verify."""

import json
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from talklib.grading import Clock, fast, grade, grade_many, slow, strict

CASES = [  # text, gold, post, strict
    (r"so \boxed{18}", "18", True, True),
    (r"\boxed{18 dollars}", "18", False, True),
    (r"\boxed{18\text{ dollars}}", "18", True, True),
    (r"\boxed{16}.. wait, \boxed{18}", "18", False, False),
    (r"\boxed{1800\%}", "18", True, False),
    (r"\boxed{5\%}", "0.05", True, False),
    (r"\boxed{70,000}", "70000", True, True),
    (r"\boxed{\$70,000}", "70000", True, True),
    (r"\boxed{18", "18", False, False),
    ("I have 18 and my partner needs 5", "5", True, False),
    (r"\boxed{18.0}", "18", True, True),
    (r"\boxed{\frac{1}{2}}", "0.5", True, True),
    (r"\boxed{17}", "18", False, False),
    ("", "18", False, False),
    (" \n ", "18", False, False),
]


@pytest.mark.parametrize(("text", "gold", "post", "strictly"), CASES)
def test_verdicts(text, gold, post, strictly):
    verdict = grade(text, gold)
    assert (verdict.post, verdict.strict) == (post, strictly)


TOKENS = """Me You has 3 apples + 4 = 7 , so . 12 ( x ) the answer is - 5 / 2 * ? ! : ; 1,200 3.5"""
words = st.sampled_from(TOKENS.split())
values = st.sampled_from(["7", "-3", "12.50", "0", "199", "007", "5.0", "12.5", "5"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(words, max_size=12), values, values, st.sampled_from(["", ".", " "]))
@example(["7", "*", "5", "=", "35", ",", "35", "+", "10", "="], "199", "199", "")
def test_fast_path_is_math_verifys_verdict(before, answer, gold, after):
    text = " ".join([*before, f"\\boxed{{{answer}}}"]) + after
    quick = fast(text, gold)
    assert quick is not None
    assert quick[0] == slow(text, gold)[0]


@pytest.mark.parametrize("text", [r"\boxed{7} \boxed{8}", r"$7$ \boxed{8}", r"\frac{1}{2} \boxed{8}", r"\boxed{8} or 9",
                                  r"\boxed{8\%}", "8"])
def test_fast_path_declines_all_else(text):
    assert fast(text, "8") is None


@pytest.mark.parametrize("text", [
    "\\boxed{" + "9" * 10_000 + "}", "\\boxed{" * 500 + "1" + "}" * 500, "{" * 5000, "\\frac" * 3000, "\x00\u2028",
    "\\boxed{10^{10^{10^{10}}}}", "\\boxed{\\int_0^1 x^{x^x} dx}", "٣ \\boxed{٣}", "$" * 4001])
def test_hostile_text_neither_hangs_nor_raises(text):
    assert grade(text, "18").post is False


def test_clock_works_in_a_thread_and_recovers():
    clock, seen = Clock(), []

    def work():
        seen.append(clock.ask("18", "\\boxed{10^{10^{10}}}", seconds=1.0))
        seen.append(clock.ask("18", "\\boxed{18}"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(90)
    clock.close()
    assert seen[0] is None or seen[0]["post"] is False
    assert seen[1]["post"] is True


def test_many_stored_answers_are_graded_once_each():
    pairs = [(f"7 * {i % 90} = \\boxed{{{i % 190}}}", "18") for i in range(10_000)]
    began = time.perf_counter()
    verdicts = grade_many(pairs)
    assert sum(v.post for v in verdicts) == sum(i % 190 == 18 for i in range(10_000))
    assert all(fast(*pair) is not None for pair in pairs[:200]), time.perf_counter() - began


@given(st.text(max_size=60), st.sampled_from(["18", "0.5"]))
def test_strict_never_raises(text, gold):
    assert strict(f"\\boxed{{{text}}}", gold) in (True, False)


def talklib(*words, text=""):
    return subprocess.run([sys.executable, "-m", "talklib", *words], input=text, capture_output=True, text=True)


def test_command_line():
    done = talklib("grade", "--gold", "18", text='"so \\\\boxed{18}"\n"\\\\boxed{1800\\\\%}"\n')
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"post": True, "strict": True, "extracted": "18"}, {"post": True, "strict": False, "extracted": "1800\\%"}]
    bad = talklib("grade", "--gold", "18", text='"\\\\boxed{18}"\nnot json\n')
    assert bad.returncode == 2 and "line 2" in bad.stderr and len(bad.stdout.splitlines()) == 1
