"""The conversation: who speaks when, what a copy sees at its turn, and the loop that plays it.

Turn order, number of copies, token caps and the channel are data (`Protocol`). What a copy may see is
decided in one place (`see`), apart from how it is worded (`Prompts.render`) and who writes the answer (a
`Speaker`). A blocked channel replaces the partner's words before anything is rendered, so no wording
can leak them. Randomness is never global: each message has its own seed, derived from
(purpose, run seed, step, problem, chat, turn), so a message does not depend on which others share its batch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

from . import TalkError
from .splitter import COPIES, Task

CHANNELS = ("open", "blocked")


@dataclass(frozen=True)
class Protocol:
    """Who speaks, how long, and whether the other side hears it."""

    order: str = "ABAB"
    """One letter a turn; a copy's last turn is the one that must hold its boxed answer."""
    message_tokens: int = 160
    """Most new tokens of a message before a copy's last one."""
    last_tokens: int = 384
    """Most new tokens of a copy's last message."""
    channel: str = "open"
    """"open", or "blocked": the partner's words are replaced by `Prompts.blocked`."""

    def __post_init__(self):
        if self.channel not in CHANNELS:
            raise TalkError(f"Protocol.channel is {self.channel!r}; it must be one of {', '.join(CHANNELS)}")
        if not self.order or set(self.order) != set(COPIES[: len(set(self.order))]):
            raise TalkError(f"Protocol.order is {self.order!r}; it must use the letters A, B, .. without a gap")
        for name in ("message_tokens", "last_tokens"):
            if getattr(self, name) < 1:
                raise TalkError(f"Protocol.{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def copies(self) -> str:
        """The letters of the copies that speak: "AB"."""
        return "".join(sorted(set(self.order)))

    def is_last(self, turn: int) -> bool:
        """Whether this turn is its speaker's last one."""
        return self.order[turn] not in self.order[turn + 1 :]

    def cap(self, turn: int) -> int:
        """Most new tokens at this turn."""
        return self.last_tokens if self.is_last(turn) else self.message_tokens


@dataclass(frozen=True)
class View:
    """All that one copy may know at its turn; whatever writes a message gets this and nothing else."""

    copy: str
    facts: tuple[str, ...]
    question: str
    lines: tuple[tuple[str, str], ...]
    """The conversation so far as (speaker, text); a partner's text is already replaced where blocked."""
    last: bool
    """Whether this is the copy's last message, the one with the boxed answer."""


@dataclass(frozen=True)
class Prompts:
    """The wording round a view. Ours, not the post's; a recipe may bring its own."""

    system: str
    facts: str
    """Heads the copy's own facts."""
    question: str
    talk: str
    """Heads the conversation so far."""
    silence: str
    """Stands there while nothing has been said."""
    own: str
    """Marks the copy's own lines."""
    partner: str
    """Marks a partner's lines; `{copy}` is replaced by its letter."""
    next: str
    """Asks for the next message."""
    last: str
    """Asks for the last message, with the boxed answer."""
    blocked: str = "(no message)"
    """What stands where a blocked partner's words would."""

    def render(self, view: View) -> list[dict[str, str]]:
        """Chat messages (`role`, `content`): a system message, if there is one, then one user message."""
        lines = [self._line(view.copy, speaker, text) for speaker, text in view.lines]
        talk = "\n".join(lines) or self.silence
        parts = [self.facts, "\n".join(view.facts), self.question, view.question, self.talk, talk]
        parts.append(self.last if view.last else self.next)
        user = {"role": "user", "content": "\n".join(part for part in parts if part)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def _line(self, copy: str, speaker: str, text: str) -> str:
        return (self.own if speaker == copy else self.partner.format(copy=speaker)) + " " + text


@dataclass(frozen=True)
class Turn:
    """One message. `prompt_ids` and `completion_ids` are the tokens the model read and wrote (empty for a
    scripted speaker); `trained` says whether gradient may flow into it."""

    speaker: str
    text: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    trained: bool = False


@dataclass(frozen=True)
class Chat:
    """One conversation on one task, graded or not yet."""

    task: Task
    turns: tuple[Turn, ...]
    channel: str = "open"
    partner: str = "self"
    """Who sat where: "self" (one model plays all copies), or the name of another seating."""
    index: int = 0
    """Number of this chat among those of its problem."""
    outcomes: tuple[float, ...] | None = None
    """1.0 or 0.0 for each copy, in the order A, B, ..; None while ungraded."""

    @property
    def problem_id(self) -> str:
        return self.task.id

    @property
    def reward(self) -> float | None:
        """Team reward: the mean of the copies' outcomes."""
        return None if self.outcomes is None else sum(self.outcomes) / len(self.outcomes)

    def last_text(self, copy: str) -> str:
        """A copy's last message, the one with its answer."""
        return next((turn.text for turn in reversed(self.turns) if turn.speaker == copy), "")

    def earlier_texts(self, copy: str) -> list[str]:
        """A copy's messages before its last one."""
        return [turn.text for turn in self.turns if turn.speaker == copy][:-1]


@dataclass(frozen=True)
class Request:
    """A message to be written: what the speaker sees, how it is worded, how long, and its own seed."""

    view: View
    messages: list[dict[str, str]] = field(repr=False)
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class Utterance:
    """What a speaker wrote, with the tokens it read and wrote where there are any."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()


class Speaker(Interface):
    """Whoever writes messages: a model, a script. `trained` marks the turns that may carry gradient."""

    trained: bool

    def speak(self, requests: Sequence[Request]) -> list[Utterance]:
        """One utterance a request, in order."""


def derive_seed(*key: object) -> int:
    """A 64-bit seed from a key such as ("train", seed, step, problem_id, chat, turn); stable everywhere."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def see(task: Task, protocol: Protocol, turns: Sequence[Turn], blocked: str = "(no message)") -> View:
    """What the copy whose turn it is may know after `turns`."""
    now = len(turns)
    copy = protocol.order[now]

    def heard(turn: Turn) -> str:
        return turn.text if turn.speaker == copy or protocol.channel == "open" else blocked

    lines = tuple((turn.speaker, heard(turn)) for turn in turns)
    return View(copy, task.split.of(copy), task.split.question, lines, protocol.is_last(now))


def play(
    tasks: Sequence[Task],
    seats: Mapping[str, Speaker],
    protocol: Protocol,
    prompts: Prompts,
    seed_key: tuple[object, ...],
    indices: Sequence[int] | None = None,
    partner: str = "self",
) -> list[Chat]:
    """Plays one chat a task, all chats side by side, one batch a turn.

    Args:
        tasks: one entry a chat; a problem that is to be played twice stands there twice.
        seats: the speaker of each copy; the same object may sit in several seats.
        seed_key: purpose, run seed and step; each message's seed adds problem, chat index and turn.
        indices: the chat's number among its problem's; by default its count of appearances so far.
        partner: name of the seating, kept in the chats.

    Raises:
        TalkError: a copy without a seat, or a task dealt to fewer copies than the protocol has.
    """
    missing = [copy for copy in protocol.copies if copy not in seats]
    if missing:
        raise TalkError(f"no speaker sits in seat {', '.join(missing)}; seats given: {', '.join(seats)}")
    for task in tasks:
        if len(task.split.facts) < len(protocol.copies):
            raise TalkError(f"problem {task.id} is dealt to {len(task.split.facts)} copies, "
                            f"the protocol {protocol.order} needs {len(protocol.copies)}")
    numbers = list(indices) if indices is not None else _appearances(tasks)
    turns: list[tuple[Turn, ...]] = [() for _ in tasks]
    for now, copy in enumerate(protocol.order):
        speaker = seats[copy]
        requests = []
        for task, number, so_far in zip(tasks, numbers, turns, strict=True):
            view = see(task, protocol, so_far, prompts.blocked)
            seed = derive_seed(*seed_key, task.id, number, now)
            requests.append(Request(view, prompts.render(view), protocol.cap(now), seed))
        said = speaker.speak(requests)
        turns = [so_far + (Turn(copy, u.text, u.prompt_ids, u.completion_ids, speaker.trained),)
                 for so_far, u in zip(turns, said, strict=True)]
    return [Chat(task, done, protocol.channel, partner, number)
            for task, done, number in zip(tasks, turns, numbers, strict=True)]


def _appearances(tasks: Sequence[Task]) -> list[int]:
    seen: dict[str, int] = {}
    numbers = []
    for task in tasks:
        numbers.append(seen.get(task.id, 0))
        seen[task.id] = numbers[-1] + 1
    return numbers
