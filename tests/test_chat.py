"""What a copy may see, in any turn order, with any number of copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talklib import TalkError
from talklib.chat import Protocol, Turn, Utterance, derive_seed, play, see
from talklib.recipe import DESK_PROMPTS, PAPER_PROMPTS
from talklib.scripted import Scripted, messenger
from talklib.splitter import Problem, Split, Task

from conftest import tiny_recipe

orders = st.integers(1, 4).flatmap(lambda n: st.lists(st.sampled_from("ABCD"[:n]), min_size=n, max_size=9).map(
    lambda letters: "".join(["ABCD"[:n], *letters])).flatmap(lambda s: st.permutations(s).map("".join)))


def marked_task(copies: str) -> Task:
    return Task(Problem("p-0", "", "1"), Split(tuple((f"FACT-{c}-1.", f"FACT-{c}-2.") for c in copies), "WHY?"))


def says(view):
    return f"SAID-{view.copy}-{len(view.lines)}"


@given(orders, st.sampled_from(["open", "blocked"]), st.sampled_from([PAPER_PROMPTS, DESK_PROMPTS]))
def test_no_partner_fact_and_no_blocked_word_reaches_a_copy(order, channel, prompts):
    protocol = Protocol(order=order, channel=channel)
    seen = []

    class Spy(Scripted):
        def speak(self, requests):
            seen.extend(requests)
            return super().speak(requests)

    task = marked_task(protocol.copies)
    chat = play([task], dict.fromkeys(protocol.copies, Spy(says)), protocol, prompts, ("t",))[0]
    assert [turn.speaker for turn in chat.turns] == list(order)
    for now, request in enumerate(seen):
        text = "\n".join(message["content"] for message in request.messages)
        for other in protocol.copies:
            assert (f"FACT-{other}-1." in text) == (other == order[now])
        for before, speaker in enumerate(order[:now]):
            heard = f"SAID-{speaker}-{before}" in text
            assert heard == (speaker == order[now] or channel == "open")
        others = any(speaker != order[now] for speaker in order[:now])
        assert ("(no message)" in text) == (others and channel == "blocked")
        assert request.view.last == (order[now] not in order[now + 1:])


def test_last_messages_have_their_own_cap():
    protocol = Protocol(order="ABAB", message_tokens=5, last_tokens=9)
    assert [protocol.cap(turn) for turn in range(4)] == [5, 5, 9, 9]


@pytest.mark.parametrize("settings", [{"order": ""}, {"order": "AC"}, {"channel": "half"}, {"message_tokens": 0}])
def test_bad_protocols_are_named(settings):
    with pytest.raises(TalkError, match=f"Protocol.{next(iter(settings))}"):
        Protocol(**settings)


def test_missing_seat_and_too_few_halves_are_named(tasks):
    speaker = Scripted(says)
    with pytest.raises(TalkError, match="seat B"):
        play(tasks, {"A": speaker}, Protocol(), PAPER_PROMPTS, ("t",))
    with pytest.raises(TalkError, match="train-0"):
        play(tasks, dict.fromkeys("ABC", speaker), Protocol(order="ABC"), PAPER_PROMPTS, ("t",))


def test_seeds_depend_on_every_part_of_the_key_and_on_nothing_else():
    keys = [("train", 17, 0, "p", 0, 0), ("eval", 17, 0, "p", 0, 0), ("train", 18, 0, "p", 0, 0),
            ("train", 17, 1, "p", 0, 0), ("train", 17, 0, "q", 0, 0), ("train", 17, 0, "p", 1, 0),
            ("train", 17, 0, "p", 0, 1)]
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_empty_messages_are_played_on(tasks):
    chats = play(tasks, dict.fromkeys("AB", Scripted(lambda view: " ")), Protocol(), tiny_recipe().prompts, ("t",))
    assert all(turn.text == " " for chat in chats for turn in chat.turns)


def test_view_keeps_own_words_when_blocked():
    task = marked_task("AB")
    view = see(task, Protocol(channel="blocked"), [Turn("A", "mine"), Turn("B", "theirs")])
    assert view.lines == (("A", "mine"), ("B", "(no message)"))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.randoms())
def test_a_message_does_not_depend_on_its_batch(chosen, random):
    """Each (problem, chat, turn) has one seed and one view, whatever is played beside it and in whatever order."""
    tasks = [Task(Problem(f"p-{i}", "", "1"), Split(((f"{i} a.",), (f"{i} b.",)), "?")) for i in range(4)]

    class Noted(Scripted):
        def speak(self, requests):
            return [Utterance(f"{request.seed} {request.view.facts}") for request in requests]

    seats = dict.fromkeys("AB", Noted(says))
    alone = {(i, n): play([tasks[i]], seats, Protocol(), PAPER_PROMPTS, ("t", 1), indices=[n])[0]
             for i in range(4) for n in range(6)}
    rows = [(i, chosen[:at].count(i)) for at, i in enumerate(chosen)]
    random.shuffle(rows)
    together = play([tasks[i] for i, _ in rows], seats, Protocol(), PAPER_PROMPTS, ("t", 1), [n for _, n in rows])
    assert together == [alone[row] for row in rows]
    seeds = [turn.text.split()[0] for chat in together for turn in chat.turns]
    assert len(set(seeds)) == len(seeds)


def test_a_problem_played_twice_is_numbered(tasks):
    chats = play([tasks[0], tasks[1], tasks[0]], dict.fromkeys("AB", Scripted(says)), Protocol(), PAPER_PROMPTS, ("t",))
    assert [(chat.problem_id, chat.index) for chat in chats] == [("train-0", 0), ("train-1", 0), ("train-0", 1)]


def test_a_messenger_sends_its_facts_and_solves_with_what_it_heard():
    task = Task(Problem("p", "", "7"), Split((("Ann has 3.",), ("Ben has 4.",)), "How many?"))
    heard = []
    for channel in ("open", "blocked"):
        speaker = messenger(lambda text: heard.append(text) or "7")
        chat = play([task], {"A": speaker, "B": speaker}, Protocol(channel=channel), PAPER_PROMPTS, ("t",))[0]
        assert [turn.text for turn in chat.turns] == ["Ann has 3.", "Ben has 4.", "\\boxed{7}", "\\boxed{7}"]
    assert "Ben has 4." in heard[0] and "Ann has 3." in heard[1] and "boxed" not in heard[1]
    assert "Ben has 4." not in heard[2] and "Ann has 3." not in heard[3]
