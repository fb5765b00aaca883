"""`python -m talklib figures`, `where` and `artifact`."""

import argparse
import json
from pathlib import Path

from . import TalkError


def add_commands(commands) -> None:
    """Adds `figures`, `where` and `artifact` to an argparse sub-parser collection."""
    command = commands.add_parser("figures", help="rebuild figures, tables and the paper from stored results, no torch")
    command.set_defaults(handler=figures_command)
    command.add_argument("--no-chats", action="store_true", help="leave paper/chats.html, the longest part, as it is")
    command.add_argument("--anew", action="store_true", help="rebuild even where nothing has changed")
    command = commands.add_parser("where", help="the file and field behind a number of the paper")
    command.set_defaults(handler=where_command)
    command.add_argument("number", help='as it is printed ("40.2", "+36.5"), or its key ("post.grpo.score")')
    command = commands.add_parser("artifact", help="run the six notebooks, rebuild figures and paper, compare")
    command.set_defaults(handler=artifact_command)
    command.add_argument("--in-place", action="store_true",
                         help="write the executed notebooks into notebooks/, training nothing")
    command.add_argument("--no-live", action="store_true", help="train nothing; use the stored runs alone")
    command.add_argument("--only", help="run the notebooks whose name holds this")
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="parameters",
                         help="a notebook parameter, as in n_show=5; values are JSON, or else text")


def figures_command(options: argparse.Namespace) -> int:
    from .artifact import root
    from .paper import build

    for line in build(root(), chats=not options.no_chats, anew=options.anew):
        print(line)
    return 0


def where_command(options: argparse.Namespace) -> int:
    """Prints every number that reads so, and the fields behind it."""
    from .artifact import root
    from .numbers import where
    from .paper import all_numbers, sources

    found = where(options.number, all_numbers(sources(root()), root()))
    if not found:
        raise TalkError(f"no number of the paper reads {options.number!r}; paper/numbers.json lists them all")
    for key, number in found:
        how = "" if number.how == "as stored" else f", {number.how} of"
        print(f"{number.text}  {key}  ({number.unit}; value {number.value}{how})")
        for source in number.sources:
            print(f"    {source}")
    return 0


def artifact_command(options: argparse.Namespace) -> int:
    from .artifact import closing_table, root, run_notebooks
    from .paper import build

    base = root()
    out = base / "notebooks" if options.in_place else base / "build" / "notebooks"
    run_notebooks(out, live=not options.no_live and not options.in_place, only=options.only,
                  parameters=parameters_from(options.parameters))
    build(base)
    print(f"\nexecuted notebooks: {Path(out).relative_to(base)}; figures and tables: figures; text: paper\n")
    print(closing_table(base / "build" / "live", base / "results" / "desk"))
    return 0


def parameters_from(words: list[str]) -> dict:
    """NAME=VALUE words as a dictionary."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise TalkError(f"--set takes NAME=VALUE, not {word!r}")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found
