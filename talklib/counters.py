"""What the copies do, counted from their chats alone: one function a counter.

Numbers are digits with an optional decimal part, commas removed first. A copy's private numbers are those in
its facts that stand neither in another copy's facts nor in the question. A share is averaged over copies that
have such a number, each copy of each chat counting once; where none has, the counter is None.
"""

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from .chat import Chat
from .grading import boxes
from .splitter import COPIES, Split, numbers, private_numbers


def partner_numbers(split: Split, copy: str) -> set[str]:
    """Private numbers of the other copies."""
    others = [c for c in COPIES[: len(split.facts)] if c != copy]
    return set().union(*(private_numbers(split, c) for c in others))


def copies_of(chat: Chat) -> list[str]:
    """The copies that speak in a chat."""
    return sorted({turn.speaker for turn in chat.turns})


def sent(chat: Chat, copy: str) -> set[str]:
    """Private numbers that a copy wrote before its last message."""
    return private_numbers(chat.task.split, copy) & numbers(" ".join(chat.earlier_texts(copy)))


def used(chat: Chat, copy: str) -> set[str]:
    """Partners' private numbers that a copy's last message holds."""
    return partner_numbers(chat.task.split, copy) & numbers(chat.last_text(copy))


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def sends(chats: Sequence[Chat]) -> float | None:
    """Share of its private numbers that a copy writes in its messages before its last one."""
    pairs = [(chat, copy, private_numbers(chat.task.split, copy)) for chat in chats for copy in copies_of(chat)]
    return _mean(len(sent(chat, copy)) / len(own) for chat, copy, own in pairs if own)


def uses(chats: Sequence[Chat]) -> float | None:
    """Share of its partners' private numbers that a copy's last message holds."""
    pairs = [(chat, copy, partner_numbers(chat.task.split, copy)) for chat in chats for copy in copies_of(chat)]
    return _mean(len(used(chat, copy)) / len(theirs) for chat, copy, theirs in pairs if theirs)


def asks(chats: Sequence[Chat]) -> float | None:
    """Share of first messages (each copy's first turn) that contain a question mark."""
    return _mean(float("?" in text) for chat in chats for text in _first_messages(chat))


def _first_messages(chat: Chat) -> list[str]:
    return [next(turn.text for turn in chat.turns if turn.speaker == copy) for copy in copies_of(chat)]


def boxed(text: str) -> str | None:
    """The text of the last closed box, commas and dollar signs dropped; None without one."""
    found = boxes(text)
    return re.sub(r"\\?\$|[,\s]", "", found[-1]) if found else None


def agree(chat: Chat) -> bool:
    """Whether all copies box the same text."""
    answers = {boxed(chat.last_text(copy)) for copy in copies_of(chat)}
    return len(answers) == 1 and None not in answers


def agrees(chats: Sequence[Chat]) -> float | None:
    """Share of chats whose boxed answers are all the same text."""
    return _mean(float(agree(chat)) for chat in chats)


def message_chars(chats: Sequence[Chat]) -> float | None:
    """Mean characters of the messages that are not a copy's last one."""
    return _mean(len(text) for chat in chats for copy in copies_of(chat) for text in chat.earlier_texts(copy))


COUNTERS = {"sends": sends, "uses": uses, "asks": asks, "agrees": agrees, "message_chars": message_chars}


def count(chats: Sequence[Chat]) -> dict[str, float | None]:
    """All counters of some chats."""
    return {name: function(chats) for name, function in COUNTERS.items()}


def marked(chat: Chat, turn: int) -> str:
    """A turn's text as Markdown: its speaker's private numbers bold where sent, the partners' italic where used."""
    said = chat.turns[turn]
    last = turn == max(i for i, t in enumerate(chat.turns) if t.speaker == said.speaker)
    shown = partner_numbers(chat.task.split, said.speaker) if last else private_numbers(chat.task.split, said.speaker)
    text = re.sub(r"([\\`*_{}\[\]<>|$])", r"\\\1", said.text)
    mark = "*" if last else "**"
    return re.sub(r"\d+(?:\.\d+)?", lambda m: f"{mark}{m[0]}{mark}" if m[0] in shown else m[0], text)
