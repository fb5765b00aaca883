"""Both verdicts, the clock, and the fast path held equal to Math-Verify."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from talklib.chat import Chat, Turn
from talklib.grading import _PLAIN, Clock, boxes, fast, grade, grade_chats, grade_many, grader_stamp, slow, strict

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
pieces = ("Me You has 3 apples + 4 = 7 , so . 12 ( x ) the answer is - 5 / 2 * ? ! : ; 1,200 3.5 final answer: I hope "
          "answer is 9 Answer: 10 1/2 \n \t percent 3-4 5th").split(" ")
words = st.sampled_from([*pieces, "final answer is", "The final answer is 6. I hope", "answer is 8", "I", "hope"])
values = st.one_of(
    st.sampled_from(["7", "-3", "12.50", "0", "-0", "199", "007", "5.0", "12.5", "5", "1.000", "1.0001", "0.3333"]),
    st.integers(-10**15 + 1, 10**15 - 1).map(str),
    st.tuples(st.integers(-10**9 + 1, 10**9 - 1), st.text("0123456789", min_size=1, max_size=4)).map(
        lambda parts: f"{parts[0]}.{parts[1]}"))
near = values.flatmap(lambda value: st.tuples(st.just(value), st.one_of(st.just(value), values, st.sampled_from(
    [value + "0" if "." in value else value + ".0", value[:-1] + "9", value.lstrip("-")]))))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(words, max_size=12), near, st.sampled_from(["", ".", " ", "\n"]))
@example(["7", "*", "5", "=", "35", ",", "35", "+", "10", "="], ("199", "199"), "")
@example(["The final answer is 6. I hope"], ("8", "8"), "")
@example(["final answer is 6."], ("8", "8"), ".")
def test_fast_path_is_math_verifys_verdict(before, pair, after):
    answer, gold = pair
    text = " ".join([*before, f"\\boxed{{{answer}}}"]) + after
    quick = fast(text, gold)
    assert (quick is not None) == ("I hope" not in text and all(map(_PLAIN.fullmatch, pair)))
    if quick is not None:
        right, extracted = slow(text, gold)
        assert quick[0] == right and float(quick[1]) == float(extracted)


def test_fast_path_covers_the_desk_worlds_messages_and_is_right_on_them():
    from talklib.desk import world

    problems = world.tasks(30, 10, seed=3)[0]
    for n, problem in enumerate(problems):
        for answer in (problem.gold, str(n)):
            text = f"I have {n}, {n} * 2 = {2 * n}, so \\boxed{{{answer}}}"
            assert fast(text, problem.gold)[0] == slow(text, problem.gold)[0] == (answer == problem.gold)


@pytest.mark.parametrize("text", [r"\boxed{7} \boxed{8}", r"$7$ \boxed{8}", r"\frac{1}{2} \boxed{8}", r"\boxed{8} or 9",
                                  r"\boxed{8\%}", "8", "final answer is 9. I hope \\boxed{8}",
                                  r"\boxed{12345678901.5}", r"\boxed{0.1234567}", r"\boxed{٨}"])
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
    assert seen[0] is None
    assert seen[1] == {"post": True, "extracted": "18"}


def test_a_judge_that_is_killed_is_replaced():
    clock = Clock()
    assert clock.ask("18", "\\boxed{18}")["post"]
    clock._process.kill()
    clock._process.wait()
    assert clock.ask("18", "\\boxed{18}")["post"]
    clock.close()


def test_threads_share_the_judges():
    pairs = [(f"$x$ \\boxed{{{n % 3}}} {n}", "1") for n in range(200)]
    expected = [n % 3 == 1 for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: grade(*pair).post, pairs)) == expected
    assert [verdict.post for verdict in grade_many(pairs)] == expected


FORKED = """
import os, sys
from talklib.grading import slow, _judges
assert slow("$1$ \\\\boxed{18}", "18")[0]
parents = [c._process.pid for c in _judges._clocks if c._process]
child = os.fork()
if not child:
    right = slow("$2$ \\\\boxed{18}", "18")[0]
    own = [c._process.pid for c in _judges._clocks if c._process]
    _judges.close()
    os._exit(0 if right and not set(own) & set(parents) else 1)
assert os.waitpid(child, 0)[1] == 0
assert slow("$3$ \\\\boxed{18}", "18")[0]
assert [c._process.pid for c in _judges._clocks if c._process] == parents
print(parents[0])
"""


def alive(pid):
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


def gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_a_fork_starts_its_own_judge_and_none_outlives_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))


def test_a_judge_ends_with_a_parent_that_is_killed():
    script = ("from talklib.clock import Clock\nc = Clock()\nc.ask('1', '1')\nprint(c._process.pid, flush=True)\n"
              "c.ask('18', '\\\\boxed{10^{10^{10^{10}}}}', 2.0)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        judge = int(parent.stdout.readline())
        parent.kill()
    assert gone(judge, 20)


def test_ten_thousand_stored_answers_take_seconds():
    pairs = [(f"7 * {i % 90} = \\boxed{{{i % 190}}}", "18") for i in range(10_000)]
    pairs[::500] = [(f"${i}$ \\boxed{{18}}", "18") for i in range(20)]  # a few need Math-Verify
    began = time.perf_counter()
    verdicts = grade_many(pairs)
    took = time.perf_counter() - began
    assert sum(v.post for v in verdicts) == 20 + sum(i % 190 == 18 for i in range(10_000) if i % 500)
    assert took < 30, f"{took:.1f} s; about 1 where nothing else runs"


@pytest.mark.slow
def test_ten_thousand_hostile_strings_neither_hang_nor_crash_nor_leak():
    import random

    import psutil

    rng = random.Random(0)
    alphabet = [*"\\{}$^_%&#~[]()0123456789.,+-*/=<>| abixyz\n\x00é٣∫√", "\\boxed{", "\\frac{", "\\sqrt{", "\\text{",
                "^{10}", "\\[", "\\]", "\\int ", "\\sum_{", "!", "\\begin{matrix}", "final answer is ", "^{9^{9}}"]
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(40))) for _ in range(10_000)]
    clock, sizes, lost = Clock(), [], 0
    for number, text in enumerate(texts):
        reply = clock.ask("18", text, seconds=2.0)
        lost += reply is None
        strict(text, "18")
        if number % 2_500 == 2_499 and clock._process is not None:
            sizes.append(psutil.Process(clock._process.pid).memory_info().rss / 2**20)
    clock.close()
    assert lost < 20, f"{lost} of 10,000 ran into the clock"
    assert max(sizes) < 400 and sizes[-1] < sizes[0] + 100, f"MiB after each quarter: {sizes}"


@given(st.text(st.sampled_from("0123456789.,$%/{}\\ -+a^\u0663"), max_size=60), st.sampled_from(["18", "0.5", "x", ""]))
def test_strict_never_raises(text, gold):
    assert strict(f"\\boxed{{{text}}}", gold) in (True, False)


@given(st.integers(-10**12, 10**12), st.integers(-10**12, 10**12),
       st.sampled_from(["{}", "\\${}", "{} dollars", "{}.0"]))
def test_strict_is_equality_of_numbers(answer, gold, form):
    assert strict(f"So \\boxed{{{form.format(answer)}}}", str(gold)) == (answer == gold)
    assert strict(f"So \\boxed{{{form.format(gold)}}}.", f"{gold}")


@pytest.mark.parametrize(("text", "gold", "verdict"), [
    (r"\boxed{50\%}", "50%", True), (r"\boxed{50}", "50%", False), (r"\boxed{50\%}", "50", False),
    (r"\boxed{18} and \boxed{18}", "18", False), (r"\boxed{18}, not 19", "18", False), (r"\boxed{1/3}", "1/3", True),
    (r"\boxed{18 hundred}", "18", False), (r"\boxed{18K}", "18", False), (r"\boxed{18 x}", "18", False)])
def test_what_strict_takes_and_refuses(text, gold, verdict):
    assert strict(text, gold) is verdict


def test_boxes():
    assert boxes(r"\boxed{1} {\boxed{a{b}c}} \boxed {2} \boxed{3") == ["1", "a{b}c", "2"]
    assert boxes(r"\boxed{\boxed{7}} }}}{") == [r"\boxed{7}", "7"] and boxes(r"\boxed{\{8\}}") == [r"\{8\}"]
    began = time.perf_counter()
    assert boxes("\\boxed{" * 3_000) == [] and time.perf_counter() - began < 1


def test_chats_get_an_outcome_a_copy(tasks):
    turns = (Turn("A", "12"), Turn("B", "hm"), Turn("A", "so \\boxed{7}"), Turn("B", "\\boxed{8}"))
    chats = grade_chats([Chat(tasks[0], turns), Chat(tasks[0], turns[:2])])
    assert [chat.outcomes for chat in chats] == [(1.0, 0.0), (0.0, 0.0)] and chats[0].reward == 0.5


def test_the_stamp_names_rules_and_versions():
    assert set(grader_stamp()) == {"name", "math-verify", "latex2sympy2-extended"}
    assert grader_stamp()["math-verify"] == "0.9.0"
