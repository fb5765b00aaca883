"""A real pretrained chat model through the same code, where `python -m bench.real_model` has fetched one."""

import os
from pathlib import Path

import pytest

from conftest import ROOT

FOLDER = Path(os.environ.get("TALKLIB_REAL_MODEL", ROOT / "build" / "real_model" / "model"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (FOLDER / "config.json").is_file(), reason=(
    "no real model at hand; python -m bench.real_model fetches one, or name a folder in TALKLIB_REAL_MODEL"))]


@pytest.fixture(scope="module")
def played():
    from bench.real_model import play

    return {channel: play(FOLDER, 4, channel) for channel in ("open", "blocked")}


def test_messages_end_as_its_template_says(played):
    chats, speaker = played["open"]
    end = speaker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    turns = [turn for chat in chats for turn in chat.turns]
    assert end in speaker.end_ids and not any("<|" in turn.text for turn in turns)
    assert any(turn.completion_ids[-1] == end for turn in turns)  # it does stop by itself
    assert not any(set(turn.completion_ids[:-1]) & set(speaker.end_ids) for turn in turns)
    start = speaker.tokenizer.convert_tokens_to_ids("<|im_start|>")
    for turn in turns:
        assert turn.prompt_ids[0] == start and turn.prompt_ids.count(start) == 3


def test_words_cross_only_an_open_channel(played):
    """What A wrote first stands in B's prompt, or does not: so small a model need not use it."""
    for channel, (chats, speaker) in played.items():
        for chat in chats:
            read = speaker.decode(chat.turns[1].prompt_ids)
            assert (chat.turns[0].text in read) == (channel == "open"), channel
            assert ("(no message)" in read) == (channel == "blocked")


def test_a_pretrained_model_says_numbers_that_only_it_was_given(played):
    """0.43 over 20 chats, measured; random weights are at 0."""
    from talklib.counters import count

    assert count(played["open"][0])["sends"] > 0.1


def test_its_answers_are_graded(played):
    from talklib.grading import grade

    for chats, _ in played.values():
        for chat in chats:
            assert len(chat.outcomes) == 2
            for copy, outcome in zip("AB", chat.outcomes, strict=True):
                assert outcome == float(grade(chat.last_text(copy), chat.task.problem.gold).post)
