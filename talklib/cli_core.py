"""Commands that need no model: split, grade, count, selftest."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from . import TalkError


def add_commands(commands) -> None:
    """Adds the four commands to an argparse sub-parser collection."""
    command = commands.add_parser("split", help="deal a data set's problems and write the list that an experiment uses")
    command.set_defaults(handler=split_command)
    command.add_argument("--data", default="hub", help="hub, desk, or a folder with train.jsonl and test.jsonl")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--n-train", type=int, default=1024)
    command.add_argument("--n-test", type=int, default=300)
    command.add_argument("--rule", default="post", help="post or careful")
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
    from .data import decontaminate, load_problems, take
    from .splitter import audit
    from .store import to_json, write_atomic

    train, test = load_problems(options.data, options.seed, options.n_train, options.n_test)
    held_out = take(test, options.n_test, options.rule)
    clean, dropped = decontaminate(train, [task.problem for task in held_out])
    tasks = {"train": take(clean, options.n_train, options.rule), "test": held_out}
    held = {task.id: {"facts_a": task.split.facts_a, "facts_b": task.split.facts_b, "question": task.split.question,
                      "gold": task.problem.gold} for part in tasks.values() for task in part}
    out = Path(options.out)
    if not out.parent.is_dir():
        raise TalkError(f"--out {out}: there is no folder {out.parent}")
    write_atomic(out, to_json({
        "data": options.data, "seed": options.seed, "rule": options.rule,
        **{name: [task.id for task in part] for name, part in tasks.items()}, "decontaminated_dropped": dropped,
        "audit": {"train": asdict(audit(train, options.rule)), "test": asdict(audit(test, options.rule))},
        "held": held}))
    print(f"{len(tasks['train'])} train and {len(tasks['test'])} held-out problems in {out}; {dropped} dropped from "
          "train because they stand among the held-out ones")
    return 0


def json_lines(lines, name: str) -> Iterator[tuple[int, object]]:
    """(line number, value) of each line that is not blank. TalkError names the line that is not JSON."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise TalkError(f"{name}, line {number}: not JSON ({error})") from error


def grade_command(options: argparse.Namespace) -> int:
    """One JSON object a line on standard output: post, strict, extracted."""
    from .grading import grade

    for number, text in json_lines(sys.stdin, "standard input"):
        if not isinstance(text, str):
            raise TalkError(f"standard input, line {number}: expected a JSON string, the copy's last message")
        print(json.dumps(asdict(grade(text, options.gold)), ensure_ascii=False), flush=True)
    return 0


def chat_from(row: object, where: str):
    """A chat from one row of `count`'s input. TalkError names the row and the field that is wrong."""
    from .chat import Chat, Turn
    from .splitter import Problem, Split, Task

    if not isinstance(row, dict):
        raise TalkError(f"{where}: expected a JSON object")
    for key in ("facts_a", "facts_b", "question", "gold", "turns"):
        if key not in row:
            raise TalkError(f"{where}: no '{key}'")
    held = []
    for key in ("facts_a", "facts_b"):
        facts = [row[key]] if isinstance(row[key], str) else row[key]
        if not isinstance(facts, list) or not all(isinstance(fact, str) for fact in facts):
            raise TalkError(f"{where}: '{key}' must be a text or a list of texts")
        held.append(tuple(facts))
    turns = row["turns"]
    if not isinstance(turns, list) or not all(
            isinstance(t, list) and len(t) == 2 and t[0] in ("A", "B") and isinstance(t[1], str) for t in turns):
        raise TalkError(f"{where}: 'turns' must be a list of [\"A\" or \"B\", text]")
    if {t[0] for t in turns} != {"A", "B"}:
        raise TalkError(f"{where}: both A and B must have a turn")
    task = Task(Problem(where, "", str(row["gold"]).replace(",", "")), Split(tuple(held), str(row["question"])))
    return Chat(task, tuple(Turn(speaker, text) for speaker, text in turns))


def count_command(options: argparse.Namespace) -> int:
    """One JSON object: score, sends, uses, asks, agrees, message_chars, n."""
    from .counters import count
    from .grading import grade_chats

    path = Path(options.file)
    if not path.is_file():
        raise TalkError(f"{path} does not exist; expected chats, one JSON object a line")
    with open(path, encoding="utf-8") as file:
        chats = grade_chats([chat_from(row, f"{path}, line {n}") for n, row in json_lines(file, str(path))])
    if not chats:
        raise TalkError(f"{path} holds no chats")
    print(json.dumps({"score": sum(chat.reward for chat in chats) / len(chats), **count(chats), "n": len(chats)}))
    return 0
