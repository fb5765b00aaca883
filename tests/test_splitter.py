"""The post's rule, the careful rule beside it, and the audit, on the real data where it lies beside the checkout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talklib import TalkError
from talklib.data import load_folder
from talklib.splitter import (
    Problem,
    Split,
    Task,
    audit,
    deal,
    drop_reason,
    numbers,
    private_numbers,
    reach,
    reaches,
    sentences,
    split,
)

from conftest import GSM8K, needs_gsm8k

facts = st.lists(st.sampled_from(["Ann has 3 figs.", "Ben has $4!", "It rains.", "He eats 7.", "Mr. Lee ate 1.5."]),
                 max_size=8)


@needs_gsm8k
def test_known_limits_of_the_rule_on_the_real_data():
    train, test = load_folder(GSM8K, 0)
    found = audit([*train, *test])
    assert (found.problems, found.split, found.no_question) == (8792, 4475, 352)
    assert (found.broken_abbreviation, found.number_in_question) == (188, 1207)
    assert found.split + found.no_question + found.few_facts + found.bare_half == found.problems
    assert found.kept_by_post_alone + found.kept_by_careful_alone < found.rules_differ


@needs_gsm8k
def test_the_careful_rule_on_the_real_data():
    train, test = load_folder(GSM8K, 0)
    post, careful = (audit([*train, *test], rule) for rule in ("post", "careful"))
    assert (post.rules_differ, careful.rules_differ) == (449, 449)
    assert careful.split - post.split == post.kept_by_careful_alone - post.kept_by_post_alone == 231
    assert careful.no_question == 4, "commands are questions too"
    titles = ("Mr.", "Mrs.", "Ms.", "Dr.")
    broken = [s for p in [*train, *test] for s in sentences(p.question, "careful") if s in titles]
    assert broken == []


def test_facts_are_dealt_like_cards():
    assert deal(list("12345")) == (("1", "3", "5"), ("2", "4"))
    assert deal(list("12345"), 3) == (("1", "4"), ("2", "5"), ("3",))


@given(facts, st.integers(2, 4))
def test_a_split_loses_and_invents_nothing(given_facts, copies):
    text = " ".join([*given_facts, "How many are left?"])
    parts, dealt = split(text, copies), sentences(text)[:-1]
    if parts is None:
        assert len(dealt) < copies or not all(any(c.isdigit() for c in " ".join(h)) for h in deal(dealt, copies))
        return
    assert parts.question == "How many are left?" and len(parts.facts) == copies
    assert [parts.facts[i % copies][i // copies] for i in range(len(dealt))] == dealt
    letters = "ABCD"[:copies]
    mine = {letter: private_numbers(parts, letter) for letter in letters}
    assert not any(mine[a] & mine[b] for a in letters for b in letters if a != b)
    assert all(mine[letter] <= numbers(" ".join(parts.of(letter))) - numbers(parts.question) for letter in letters)


@given(st.text(max_size=80), st.sampled_from(["post", "careful"]))
def test_any_text_is_cut_without_loss(text, rule):
    assert "".join("".join(sentences(text, rule)).split()) == "".join(text.split())
    assert (split(text, rule=rule) is None) == (drop_reason(text, rule=rule) is not None)


@pytest.mark.parametrize(("text", "reason"), [
    ("", "no_question"), ("Ann has 3 figs.", "no_question"), ("How many?", "few_facts"),
    ("Ann has 3. How many?", "few_facts"), ("Ann has 3. Ben runs. Why?", "bare_half"),
    ("Ann has 3. Ben has 4. Why?", None)])
def test_why_a_problem_is_dropped(text, reason):
    assert drop_reason(text) == reason
    assert (split(text) is None) == (reason is not None)


def test_the_last_question_is_the_question_and_other_questions_are_facts():
    parts = split("Ann has 3. Is it 5? Ben has 4. How many? So be it.")
    assert parts == Split((("Ann has 3.", "Ben has 4."), ("Is it 5?", "So be it.")), "How many?")
    assert split("Ann has 3. Is it 5? How many? So 7 be it.").question == "How many?"


@pytest.mark.parametrize(("text", "parts"), [
    ("Mr. Sam has 3 figs. Dr. Lee has 4.", ["Mr. Sam has 3 figs.", "Dr. Lee has 4."]),
    ("He wakes at 6 a.m. She wakes at 7.", ["He wakes at 6 a.m.", "She wakes at 7."]),
    ("He leaves at 6 a.m. ET on 3 May. He", ["He leaves at 6 a.m. ET on 3 May.", "He"]),
    ("They met at 5 p.m. Monday. All 3 ate.", ["They met at 5 p.m. Monday.", "All 3 ate."]),
    ("The U.S. Navy has 9. It needs 3.", ["The U.S. Navy has 9.", "It needs 3."]),
    ("She got a Ph.D. How long did it take?", ["She got a Ph.D.", "How long did it take?"]),
    ("J. K. Rowling wrote 7. He read 2.", ["J. K. Rowling wrote 7.", "He read 2."]),
    ("Box A is 3 more than Box B. Box C is 7.", ["Box A is 3 more than Box B.", "Box C is 7."]),
    ("Bus No. 5 has 40. 20 of them stand.", ["Bus No. 5 has 40.", "20 of them stand."]),
    ('He said "I have 5." She has 6.', ['He said "I have 5."', "She has 6."]),
    ("It costs $3.50 each. (It was 4.) So?", ["It costs $3.50 each.", "(It was 4.)", "So?"]),
    ("He bought M&Ms. Sue ate 2.", ["He bought M&Ms.", "Sue ate 2."]),
])
def test_careful_sentences(text, parts):
    assert sentences(text, "careful") == parts


@pytest.mark.parametrize("command", ["Calculate their total.", "If 2 rot, calculate what is left.", "Find how many.",
                                     "How many are there (in all)?)"])
def test_the_careful_rule_takes_a_command_for_a_question(command):
    assert split(f"Ann has 3 figs. Ben has 4. {command}", rule="careful").question == command
    assert (split(f"Ann has 3 figs. Ben has 4. {command}") is None) == (not command.endswith("?"))


def test_unknown_rule_is_named():
    with pytest.raises(TalkError, match="best.*post, careful"):
        sentences("Ann.", "best")


def test_private_numbers_leave_out_what_others_hold_and_what_all_see():
    parts = Split((("3 and 1,200 and 5.",), ("4 and 5.",)), "Of 4 or 3.50?")
    assert private_numbers(parts, "A") == {"3", "1200"}
    assert private_numbers(parts, "B") == set()


def test_what_one_half_reaches():
    assert reach("3 and 12 and 2") >= {3.0, 12.0, 2.0, 17.0, 15.0, 9.0, 36.0, 4.0, 6.0, 24.0, 0.25}
    parts = split("Ann has 3 figs. Ben has 40 figs. How many have they in 2 days?")
    assert reaches("6", parts) and reaches("80", parts) and not reaches("43", parts) and not reaches("six", parts)


def test_an_audit_takes_tasks_and_counts_leaks():
    text = "Ann and Mr. Ben have 3 figs. Cy has 4. How many are 3 and 4?"
    problem = Problem("a", text, "7")
    found = audit([problem])
    assert audit([Task(problem, split(text))]) == found
    assert (found.broken_abbreviation, found.number_in_question, found.fact_in_question) == (1, 1, 1)
    assert (found.private_a, found.private_b, found.one_half_reaches) == (0, 0, 1)
    assert audit([]).split == 0
