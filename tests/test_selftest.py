"""The selftest: what it says, and that it fails when something is broken."""

import subprocess
import sys

import pytest
from talklib import selftest
from talklib.splitter import Split


def test_it_says_what_it_checked_and_loads_no_torch():
    done = subprocess.run([sys.executable, "-m", "talklib", "selftest"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[1] for line in lines[:-1]} == set(selftest.CHECKS)
    assert all(line.startswith("ok ") for line in lines[:-1]) and "torch was not loaded" in lines[-1]


def leaks(task, protocol, turns, blocked="(no message)"):
    from talklib.chat import View

    now = len(turns)
    facts = task.split.facts_a + task.split.facts_b
    return View(protocol.order[now], facts, task.split.question, tuple((t.speaker, t.text) for t in turns),
                protocol.is_last(now))


@pytest.mark.parametrize(("part", "place", "broken"), [
    ("split", "talklib.selftest.split", lambda text, **settings: Split((("Ann has 3.",), ("Ben has 4.",)), "Why?")),
    ("chat", "talklib.chat.see", leaks),
    ("counters", "talklib.counters.sent", lambda chat, copy: set()),
    ("credit", "talklib.selftest.RULES", None),
    ("grading", "talklib.selftest.grade", lambda text, gold: _yes())])
def test_it_fails_when_a_part_is_broken(monkeypatch, part, place, broken):
    if part == "credit":
        from talklib.credit import RULES

        broken = {**RULES, "grpo": RULES["raft"]}
    monkeypatch.setattr(place, broken)
    assert not all(holds for _, holds in selftest.CHECKS[part]())


def _yes():
    from talklib.grading import Verdict

    return Verdict(True, True, "18")


def test_a_failed_check_is_the_exit_status(monkeypatch, capsys):
    from talklib.__main__ import main

    monkeypatch.setattr(selftest, "CHECKS", {"split": lambda: iter([("the sky is green", False)])})
    assert main(["selftest"]) == 1
    assert "FAIL  split     the sky is green" in capsys.readouterr().out
