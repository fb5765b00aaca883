"""The grader panel: what each rule says of each case, against a careful teacher."""

from collections import Counter

import pytest
from talklib.panel import RULES, cases, exact, last_number, panel, rules


@pytest.fixture(scope="module")
def judged():
    return panel()


def test_the_panel_is_broad(judged):
    assert len(judged) >= 60 and len({(case.text, case.gold) for case in judged}) == len(judged)
    kinds = Counter(case.kind for case in judged)
    assert {"unit", "dollar", "percent", "comma", "fraction", "several", "partner", "unclosed", "chain", "set", "text",
            "script", "long", "nested"} <= set(kinds)
    assert all(case.why and (case.text or case.kind == "silent") for case in judged)
    assert {case.teacher for case in judged} == {True, False}


def test_strict_never_forgives_what_a_teacher_would_not(judged):
    assert [case.text for case in judged if case.strict and not case.teacher] == []


def test_each_rule_agrees_with_the_teacher_this_often(judged):
    right = {rule: sum(getattr(case, rule) == case.teacher for case in judged) for rule in RULES}
    assert (len(judged), right) == (88, {"post": 61, "strict": 72, "last_number": 53, "exact": 50})


@pytest.mark.parametrize(("text", "gold", "post"), [  # Math-Verify 0.9.0; another version may read them otherwise
    (r"\boxed{18 dollars}", "18", False), (r"\boxed{18\text{ dollars}}", "18", True), (r"\boxed{5\%}", "5", True),
    (r"\boxed{5\%}", "0.05", True), (r"\boxed{16}.. wait, \boxed{18}", "18", False), (r"\boxed{18", "18", False),
    ("I have 18 and my partner needs 5", "5", True), (r"\boxed{70,000}", "70000", True)])
def test_math_verifys_known_readings(judged, text, gold, post):
    assert next(case.post for case in judged if (case.text, case.gold) == (text, gold)) is post


def test_the_two_simple_rules():
    assert last_number(r"\boxed{16}, or 1,800", "1800") and not last_number("eighteen", "18")
    assert not last_number("18", "x") and last_number(r"\boxed{18.0}", "18")
    assert exact(r"\boxed{16} \boxed{ 18 }", "18") and not exact(r"\boxed{18.0}", "18") and not exact("18", "18")
    assert rules([(r"\boxed{18}", "18")]) == [dict.fromkeys(RULES, True)]


def test_long_messages_are_shown_short(judged):
    assert max(len(case.shown) for case in judged) < 90
    assert len(cases()) == len(judged)
