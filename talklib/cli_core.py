"""Commands that need no model: split, grade, count, selftest."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from . import TalkError


def add_commands(commands) -> None:
    """Adds the four commands to an argparse sub-parser collection."""
    command = commands.add_parser("split", help="deal a data set's problems and write the list that an experiment uses")
    command.set_defaults(handler=split_command)
    command.add_argument("--data", default="hub", help="hub, desk, a folder (train.jsonl, test.jsonl) or a file")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--n-train", type=int, default=1024)
    command.add_argument("--n-test", type=int, default=300)
    command.add_argument("--rule", default="post", help="post or careful")
    command.add_argument("--question-column", default="question", help="for data of your own")
    command.add_argument("--answer-column", default="answer", help="for data of your own")
    command.add_argument("--marker", default="####", help="the gold stands after it; '' takes the whole answer")
    command.add_argument("--out", required=True, help="JSON file to write")
    command = commands.add_parser("grade", help="grade last messages, one JSON string a line on standard input")
    command.set_defaults(handler=grade_command)
    command.add_argument("--gold", required=True)
    command = commands.add_parser("count", help="count anybody's chats, one JSON object a line")
    command.set_defaults(handler=count_command)
    command.add_argument("file", help="JSON lines with facts_a, facts_b, question, gold, turns [[\"A\", \"text\"], ..]")
    command = commands.add_parser("selftest", help="check split, chat, counters, credit, grading; no torch")
    command.set_defaults(handler=lambda options: 0 if _selftest() else 1)


def _selftest() -> bool:
    from .selftest import run

    return run()


def split_command(options: argparse.Namespace) -> int:
    """Writes {"train": ids, "test": ids, "held": what each half holds, "audit", ..}."""
    from .data import Columns, deal_tasks
    from .splitter import audit
    from .store import to_json, write_atomic

    out = Path(options.out)
    if not out.parent.is_dir() or out.is_dir():
        raise TalkError(f"--out {out}: " + ("that is a folder; name a file" if out.is_dir() else
                                            f"there is no folder {out.parent}"))
    columns = Columns(options.question_column, options.answer_column, options.marker)
    dealt = deal_tasks(options.data, options.seed, options.n_train, options.n_test, options.rule, columns)
    held = {task.id: {"facts_a": task.split.facts_a, "facts_b": task.split.facts_b, "question": task.split.question,
                      "gold": task.problem.gold} for task in [*dealt.train, *dealt.test]}
    text = to_json({
        "data": options.data, "seed": options.seed, "rule": options.rule,
        "train": [task.id for task in dealt.train], "test": [task.id for task in dealt.test],
        "decontaminated_dropped": dealt.dropped,
        "audit": {name: asdict(audit(problems, options.rule)) for name, problems in dealt.problems.items()},
        "held": held})
    try:
        write_atomic(out, text)
    except OSError as error:
        raise TalkError(f"--out {out} cannot be written: {error.strerror}") from error
    print(f"{len(dealt.train)} train and {len(dealt.test)} held-out problems in {out}; {dealt.dropped} dropped from "
          "train because they stand among the held-out ones")
    return 0


def json_lines(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, object]]:
    """(line number, value) of each line that is not blank. TalkError names the line that is not JSON (or not UTF-8)."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise TalkError(f"{name}, line {number}: not JSON ({error})") from error


def grade_command(options: argparse.Namespace) -> int:
    """One JSON object a line on standard output: post, strict, extracted."""
    from .grading import grade

    if not options.gold.strip():
        raise TalkError("--gold is empty; give the bare answer, as in --gold 18")
    gold = options.gold.strip().replace(",", "")
    for number, text in json_lines(sys.stdin.buffer, "standard input"):
        if not isinstance(text, str):
            raise TalkError(f"standard input, line {number}: expected a JSON string, the copy's last message")
        print(json.dumps(asdict(grade(text, gold))), flush=True)
    return 0


def chat_from(row: object, where: str):
    """A chat from one row of `count`'s input. TalkError names the row and the field that is wrong.

    facts_a, facts_b (and facts_c, .. where more copies talk) are a text or a list of texts."""
    from .chat import Chat, Turn
    from .splitter import COPIES, Problem, Split, Task

    if not isinstance(row, dict):
        raise TalkError(f"{where}: expected a JSON object")
    for key in ("facts_a", "facts_b", "question", "gold", "turns"):
        if key not in row:
            raise TalkError(f"{where}: no '{key}'")
    if not isinstance(row["question"], str):
        raise TalkError(f"{where}: 'question' must be a text")
    if isinstance(row["gold"], bool) or not isinstance(row["gold"], str | int | float) or not str(row["gold"]).strip():
        raise TalkError(f"{where}: 'gold' must be a number or a text, not {row['gold']!r}")
    letters = [letter for letter in COPIES if f"facts_{letter.lower()}" in row]
    if letters != list(COPIES[: len(letters)]):
        raise TalkError(f"{where}: facts for {', '.join(letters)}; the letters must have no gap")
    held = tuple(_facts(row[f"facts_{letter.lower()}"], letter, where) for letter in letters)
    gold = str(row["gold"]).strip().replace(",", "")
    task = Task(Problem(where, " ".join([*sum(held, ()), row["question"]]), gold), Split(held, row["question"]))
    return Chat(task, tuple(Turn(speaker, text) for speaker, text in _turns(row["turns"], letters, where)))


def _facts(facts: object, letter: str, where: str) -> tuple[str, ...]:
    facts = [facts] if isinstance(facts, str) else facts
    if not isinstance(facts, list) or not all(isinstance(fact, str) for fact in facts):
        raise TalkError(f"{where}: 'facts_{letter.lower()}' must be a text or a list of texts")
    return tuple(facts)


def _turns(turns: object, letters: list[str], where: str) -> list[list[str]]:
    either = " or ".join(f'"{letter}"' for letter in letters)
    if not isinstance(turns, list) or not all(
            isinstance(t, list) and len(t) == 2 and t[0] in letters and isinstance(t[1], str) for t in turns):
        raise TalkError(f"{where}: 'turns' must be a list of [{either}, text]")
    silent = [letter for letter in letters if letter not in {t[0] for t in turns}]
    if silent:
        raise TalkError(f"{where}: {', '.join(silent)} has no turn; every copy that holds facts must have one")
    return turns


def count_command(options: argparse.Namespace) -> int:
    """One JSON object: score, sends, uses, asks, agrees, message_chars, n."""
    from .counters import count
    from .grading import grade_chats

    path = Path(options.file)
    if not path.is_file():
        raise TalkError(f"{path} does not exist; expected chats, one JSON object a line")
    with open(path, "rb") as file:
        chats = grade_chats([chat_from(row, f"{path}, line {n}") for n, row in json_lines(file, str(path))])
    if not chats:
        raise TalkError(f"{path} holds no chats")
    print(json.dumps({"score": sum(chat.reward for chat in chats) / len(chats), **count(chats), "n": len(chats)}))
    return 0
