"""`python -m talklib remote`: what follows once runs were started with `run --where modal`."""

import argparse


def add_commands(commands) -> None:
    """Adds `remote` to an argparse sub-parser collection."""
    command = commands.add_parser("remote", help="runs on Modal: watch, collect, cancel")
    command.set_defaults(handler=remote_command)
    command.add_argument("what", choices=("collect", "watch", "cancel"),
                         help="collect: take up what is done; watch: collect until nothing runs; cancel: end the rest")
    command.add_argument("--out", default="results/paper", help="the results folder that the runs were started for")
    command.add_argument("--every", type=float, default=60.0, help="seconds between two looks of `watch`")


def remote_command(options: argparse.Namespace) -> int:
    from . import TalkError, remote
    from .__main__ import say
    from .tables import markdown

    if not remote.calls_in(options.out):
        raise TalkError(f"{options.out} has no remote.json: nothing was started from there")
    if options.what == "watch":
        calls = remote.watch(options.out, options.every, say)
    else:
        calls = getattr(remote, options.what)(options.out, say)
    say(markdown(remote.table(calls)))
    return 0
