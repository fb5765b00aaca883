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

    return {channel: play(FOLDER, 8, channel) for channel in ("open", "blocked")}


def test_messages_end_as_its_template_says(played):
    chats, speaker = played["open"]
    end = speaker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in speaker.end_ids
    turns = [turn for chat in chats for turn in chat.turns]
    ended = [turn for turn in turns if turn.completion_ids[-1] == end]
    assert len(ended) > len(turns) / 2 and not any("<|" in turn.text for turn in turns)
    start = speaker.tokenizer.convert_tokens_to_ids("<|im_start|>")
    for turn in turns:
        assert turn.prompt_ids[0] == start and turn.prompt_ids.count(start) == 3


def test_facts_cross_only_an_open_channel(played):
    from talklib.counters import count

    heard, cut = (count(played[channel][0]) for channel in ("open", "blocked"))
    assert heard["sends"] > 0.5 and heard["uses"] > cut["uses"]


def test_answers_are_found_and_graded(played):
    chats, _ = played["open"]
    assert sum("\\boxed" in turn.text for chat in chats for turn in chat.turns[2:]) > len(chats) / 2
    score = {channel: sum(chat.reward for chat in played[channel][0]) for channel in played}
    assert score["open"] >= score["blocked"] and score["open"] > 0
