"""Chats to be read: one self-contained page for a browser (`page`), and the same view inline in notebooks (`show`).

All marking is done here, by the sets that `counters` counts with: a copy's private numbers where it sends them, its
partner's where its last message uses them. Marks travel in the text as control characters; the page's script and
`chat_html` only turn them into elements, and put all else in as text, so that nothing a model writes is ever markup.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from .chat import Chat
from .counters import agree, copies_of, partner_numbers
from .evidence import Evidence
from .recipe import ARMS
from .splitter import Split, numbers, private_numbers
from .store import Run

SENT, USED, PRIVATE, END = "\x01", "\x02", "\x03", "\x04"
"""Signs round a marked number in texts: sent by its owner, used by the partner, private in the facts."""
LIMIT = 4_200_000
"""No more chats are added to the page beyond these bytes: it would be slow to open on a phone."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def spans(text: str, wanted: Iterable[str]) -> list[tuple[int, int]]:
    """Where the numbers `wanted` stand in a text, as (start, end); commas inside a number are passed over, as the
    counters do."""
    wanted = set(wanted)
    kept = [i for i, character in enumerate(text) if character != ","]
    bare = text.replace(",", "")
    return [(kept[m.start()], kept[m.end() - 1] + 1) for m in _NUMBER.finditer(bare) if m[0] in wanted]


def mark(text: str, wanted: Iterable[str], sign: str) -> str:
    """A text with `sign` and `END` round the numbers wanted. Control characters of its own become U+FFFD first."""
    text = _CONTROL.sub("\ufffd", text)
    for start, end in reversed(spans(text, wanted)):
        text = f"{text[:start]}{sign}{text[start:end]}{END}{text[end:]}"
    return text


@lru_cache(maxsize=4096)
def _own(split: Split, copy: str) -> frozenset[str]:
    return frozenset(private_numbers(split, copy))


@lru_cache(maxsize=4096)
def _partners(split: Split, copy: str) -> frozenset[str]:
    return frozenset(partner_numbers(split, copy))


def marked_turns(chat: Chat) -> list[str]:
    """A chat's texts, marked: what a copy sends before its last message, what it uses in it."""
    last = {turn.speaker: i for i, turn in enumerate(chat.turns)}
    split = chat.task.split
    return [mark(turn.text, _partners(split, turn.speaker), USED) if last[turn.speaker] == i
            else mark(turn.text, _own(split, turn.speaker), SENT) for i, turn in enumerate(chat.turns)]


def marked_facts(split: Split) -> list[list[str]]:
    """Each copy's facts, its private numbers marked."""
    return [[mark(fact, _own(split, copy), PRIVATE) for fact in held]
            for copy, held in zip("ABCDEFGH", split.facts, strict=False)]


def shares(chat: Chat) -> tuple[int, int, int, int]:
    """Sends, uses (percent, -1 where there is no such number), copies whose first message asks, 1 if they agree.

    As `counters` has them, with a problem's private numbers found once and not once a chat; a test holds them equal."""
    split, copies = chat.task.split, copies_of(chat)
    sends = [len(own & numbers(" ".join(chat.earlier_texts(copy)))) / len(own)
             for copy in copies if (own := _own(split, copy))]
    uses = [len(theirs & numbers(chat.last_text(copy))) / len(theirs)
            for copy in copies if (theirs := _partners(split, copy))]
    first = {turn.speaker: turn.text for turn in reversed(chat.turns)}
    return (*(round(100 * sum(part) / len(part)) if part else -1 for part in (sends, uses)),
            sum("?" in text for text in first.values()), int(agree(chat)))


# The page


def chat_sets(sources: Sequence[Evidence], limit: int = LIMIT) -> tuple[dict, list[str]]:
    """The page's data, and what was left out once it held `limit` bytes, in words.

    First the pairs, each arm's first seed before the others; then chats with an untrained partner, likewise."""
    problems: dict[tuple, int] = {}
    sets, left, size = [], [], 0
    for scale, run, evaluation in _in_order(sources):
        label = f"{scale}: {ARMS[run.arm].label}, seed {run.seed}{EVALUATIONS.get(evaluation, f', {evaluation}')}"
        if size > limit:
            left.append(label)
            continue
        chats = run.chats(evaluation)
        rows = [_row(chat, problems) for chat in chats]
        size += len(_json(rows).encode())
        order = "".join(turn.speaker for turn in chats[0].turns) if chats else ""
        sets.append({"key": f"{scale}-{run.arm}-{run.seed}-{evaluation}", "label": label,
                     "blocked": ARMS[run.arm].channel == "blocked", "order": order, "chats": rows})
    table = [{"id": key[0], "facts": marked_facts(key[1]), "question": key[1].question, "gold": key[2]}
             for key in problems]
    return {"problems": table, "sets": sets}, left


EVALUATIONS = {"pair": "", "as_a": ", with an untrained B", "as_b": ", with an untrained A"}


def _in_order(sources: Sequence[Evidence]) -> list[tuple[str, Run, str]]:
    """(scale, run, evaluation) of all runs, those that matter most first."""
    rows = []
    for source in sources:
        firsts = {run.arm: run.seed for run in reversed(source.runs)}
        for run in source.runs:
            for evaluation in run.evaluations:
                place = list(EVALUATIONS).index(evaluation) if evaluation in EVALUATIONS else 3
                rows.append(((place > 0 and firsts[run.arm] != run.seed, place, firsts[run.arm] != run.seed),
                             source.name, run, evaluation))
    return [row[1:] for row in sorted(rows, key=lambda row: row[0])]


def _row(chat: Chat, problems: dict[tuple, int]) -> list:
    """[problem, chat number, outcomes as digits, sends, uses, asks, agrees, text, text, ...]"""
    key = (chat.problem_id, chat.task.split, chat.task.problem.gold)
    outcomes = "".join(str(int(outcome)) for outcome in chat.outcomes or ())
    return [problems.setdefault(key, len(problems)), chat.index, outcomes, *shares(chat), *marked_turns(chat)]


def _json(value) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def embed(value) -> str:
    """JSON that can stand in a script element: no `<`, `>` or `&`, and no line separator that old parsers trip on."""
    text = _json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(sources: Sequence[Evidence], folder: str | Path, note: str = "", limit: int = LIMIT) -> str:
    """The reader as one HTML page, made from reader.template.html, .css and .js in `folder`. It asks for nothing from
    a network, and its policy forbids any script but its own."""
    folder = Path(folder)
    style, script, template = (
        (folder / f"reader.{part}").read_text(encoding="utf-8") for part in ("css", "js", "template.html"))
    data, left = chat_sets(sources, limit)
    count = sum(len(part["chats"]) for part in data["sets"])
    said = f"<p class='note'>{count:,} chats.</p>"
    if left:
        items = "".join(f"<li>{html.escape(label)}</li>" for label in left)
        said = (f"<details class='note'><summary>{count:,} chats; {len(left)} sets of chats left out to keep the page "
                f"light</summary><p>They are in the results folder. Left out:</p><ul>{items}</ul></details>")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"STYLE": style, "SCRIPT": script, "HASH": digest, "NOTE": html.escape(note), "COUNT": said,
             "DATA": embed(data)}
    return re.sub(r"\{\{ (\w+) \}\}", lambda m: parts[m[1]], template)


# Inline


_ELEMENTS = {SENT: ("<mark title='sent: a private number'><b>", "</b></mark>"),
             USED: ("<mark title='used: a number from the partner'><u>", "</u></mark>"),
             PRIVATE: ("<b title='private: the partner cannot see it'>", "</b>")}


def to_html(text: str) -> str:
    """Marked text as HTML: everything escaped, marks as elements (sent bold, used underlined, private bold)."""
    out, close = [], ""
    for part in re.split(f"([{SENT}{USED}{PRIVATE}{END}])", text):
        if part in _ELEMENTS:
            opening, close = _ELEMENTS[part]
            out.append(opening)
        elif part == END:
            out.append(close)
        else:
            out.append(html.escape(part))
    return "".join(out)


def chat_html(chat: Chat, title: str = "") -> str:
    """One chat as HTML without a style sheet, so that it reads the same wherever a notebook is shown."""
    lines = [f"<p><b>{html.escape(title)}</b> {_outcomes(chat)}</p>" if title else f"<p>{_outcomes(chat)}</p>"]
    for turn, text in zip(chat.turns, marked_turns(chat), strict=True):
        lines.append(f"<p><b>{html.escape(turn.speaker)}:</b> {to_html(text)}</p>")
    if chat.channel == "blocked":
        lines.append("<p><i>Blocked: neither copy saw the other's words.</i></p>")
    return "".join(lines)


def _outcomes(chat: Chat) -> str:
    marks = [f"{copy} {'right ✓' if outcome else 'wrong ✗'}"
             for copy, outcome in zip(copies_of(chat), chat.outcomes or (), strict=False)]
    return html.escape(", ".join(marks) or "not graded")


def pair_html(before: Chat | None, after: Chat | None, labels: tuple[str, str]) -> str:
    """One problem: its facts, then one or two chats on it side by side."""
    chat = before or after
    facts = "".join(f"<p><b>{copy} knows:</b> {to_html(' '.join(held))}</p>"
                    for copy, held in zip("ABCDEFGH", marked_facts(chat.task.split), strict=False))
    cells = "".join(f"<td style='text-align:left;vertical-align:top'>{chat_html(c, label)}</td>"
                    for c, label in zip((before, after), labels, strict=True) if c is not None)
    head = f"<p><b>{html.escape(chat.problem_id)}</b> {html.escape(chat.task.split.question)} " \
           f"<i>(answer {html.escape(chat.task.problem.gold)})</i></p>"
    return f"<div>{head}{facts}<table><tr>{cells}</tr></table></div>"


LEGEND = ("<p><mark><b>bold</b></mark>: a private number that a copy sends. <mark><u>underlined</u></mark>: a "
          "partner's private number that a last message uses.</p>")


def show(chats: Sequence[Chat], after: Sequence[Chat] | None = None, labels: tuple[str, str] = ("before", "after"),
         limit: int = 5, wanted: Mapping[str, bool] | None = None):
    """Chats inline in a notebook, as IPython's HTML; with `after`, the same problems side by side.

    `limit` is the most problems shown (one chat each); `wanted` may map problem ids to whether they are shown."""
    from IPython.display import HTML

    pairs: dict[str, list[Chat | None]] = {}
    for place, some in enumerate((chats, after or ())):
        for chat in some:
            slot = pairs.setdefault(chat.problem_id, [None, None])
            slot[place] = slot[place] or chat
    shown = [pair for key, pair in pairs.items() if (wanted or {}).get(key, wanted is None)
             and (after is None or all(pair))][:limit]
    titles = labels if after is not None else ("", "")
    return HTML(LEGEND + "<hr>".join(pair_html(*pair, titles) for pair in shown) if shown else "<p>No such chats.</p>")
