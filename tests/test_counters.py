"""The five counters on chats worked out by hand, and their properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talklib import counters
from talklib.chat import Chat, Turn
from talklib.splitter import Problem, Split, Task, numbers


def chat(*turns, facts=(("Ann has 3 and 1,200.",), ("Ben has 14 and 5.",)), question="Of 5, how many?"):
    return Chat(Task(Problem("p", "", "7"), Split(facts, question)), tuple(Turn(*turn) for turn in turns))


# A's private numbers: 3 and 1200. B's: 14 (the 5 stands in the question).
PLAIN = chat(("A", "I have 3. You?"), ("B", "14 and 5"), ("A", "3 + 14 = \\boxed{17}"), ("B", "so \\boxed{\\$17}"))


def test_a_chat_by_hand():
    assert counters.count([PLAIN]) == {
        "sends": (1 / 2 + 1) / 2, "uses": (1 + 0) / 2, "asks": 0.5, "agrees": 1.0,
        "message_chars": (len("I have 3. You?") + len("14 and 5")) / 2}
    assert counters.sent(PLAIN, "A") == {"3"} and counters.sent(PLAIN, "B") == {"14"}
    assert counters.used(PLAIN, "A") == {"14"} and counters.used(PLAIN, "B") == set()


def test_last_messages_do_not_send_and_earlier_ones_do_not_use():
    said = chat(("A", "14"), ("B", "3, 1,200"), ("A", "3 and 1200"), ("B", "14"))
    assert counters.sends([said]) == 0 and counters.uses([said]) == 0


def test_numbers_are_whole_and_without_commas():
    said = chat(("A", "31200 and 30 and 1,200"), ("B", "3.14"), ("A", "x"), ("B", "y"))
    assert counters.sent(said, "A") == {"1200"} and counters.sent(said, "B") == set()


def test_copies_without_a_private_number_do_not_count():
    one_sided = chat(("A", "3"), ("B", "?"), ("A", "\\boxed{1}"), ("B", "3"), facts=(("Ann has 3.",), ("Ben has 5.",)))
    assert counters.sends([one_sided]) == 1.0, "A alone has one"
    assert counters.uses([one_sided]) == 1.0, "B alone has a partner with one"
    none = chat(("A", "5"), ("B", "5"), facts=(("Ann has 5.",), ("Ben has 5.",)))
    assert counters.sends([none]) is None and counters.uses([none]) is None


def test_every_copy_of_every_chat_counts_once():
    mute = chat(("A", ""), ("B", ""), ("A", ""), ("B", ""))
    assert counters.sends([PLAIN, mute, mute]) == pytest.approx((0.5 + 1 + 0 + 0 + 0 + 0) / 6)


def test_asks_looks_at_first_messages_alone():
    late = chat(("A", "3"), ("B", "14?"), ("A", "why?"), ("B", "what?"), ("A", "\\boxed{1}"), ("B", "\\boxed{1}?"))
    assert counters.asks([late]) == 0.5


@pytest.mark.parametrize(("mine", "yours", "same"), [
    ("\\boxed{1,200}", "\\boxed{\\$1200}", True), ("\\boxed{17}", "\\boxed{17.0}", False), ("17", "17", False),
    ("\\boxed{17", "\\boxed{17}", False), ("\\boxed{1} \\boxed{2}", "\\boxed{2}", True), ("", "", False),
    ("\\boxed{18\\text{ km}}", "\\boxed{18 \\text{km}}", True),
    ("\\boxed{\\frac{1}{2}}", "\\boxed{\\frac{1}{3}}", False)])
def test_agrees_compares_the_text_in_the_boxes(mine, yours, same):
    assert counters.agrees([chat(("A", "x"), ("B", "y"), ("A", mine), ("B", yours))]) == float(same)


def test_messages_that_are_not_last_are_measured():
    assert counters.message_chars([PLAIN, chat(("A", "1234"), ("B", ""), ("A", "long one"), ("B", "z"))]) == (
        14 + 8 + 4 + 0) / 4
    assert counters.message_chars([chat(("A", "only"), ("B", "last"))]) is None


def test_more_copies_have_all_others_for_partners():
    three = chat(("A", "3"), ("B", "x"), ("C", "8"), ("A", "8 9"), ("B", "8 3"), ("C", "9"),
                 facts=(("3",), ("9",), ("8",)), question="?")
    assert counters.partner_numbers(three.task.split, "A") == {"9", "8"}
    assert counters.sends([three]) == pytest.approx(2 / 3)
    assert counters.uses([three]) == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_no_chats_count_as_nothing():
    assert set(counters.count([]).values()) == {None}


words = st.lists(st.sampled_from(["3", "14", "1,200", "5", "?", "\\boxed{7}", "17", "have"]), max_size=6).map(" ".join)


@given(st.lists(st.tuples(words, words, words, words), min_size=1, max_size=4))
def test_shares_are_shares_and_do_not_depend_on_order(said):
    chats = [chat(*zip("ABAB", texts, strict=True)) for texts in said]
    counted = counters.count(chats)
    assert all(0 <= counted[name] <= 1 for name in ("sends", "uses", "asks", "agrees"))
    assert counters.count(chats[::-1]) == pytest.approx(counted)
    assert counters.count(chats + chats) == pytest.approx(counted)
    for one in chats:
        for copy in "AB":
            assert counters.sent(one, copy) <= numbers(" ".join(one.earlier_texts(copy)))
            assert counters.used(one, copy) <= numbers(one.last_text(copy))
            assert not counters.sent(one, copy) & counters.partner_numbers(one.task.split, copy)
