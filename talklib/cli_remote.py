"""`python -m talklib remote`: what follows once runs were started with `run --where modal`."""

import argparse

from . import TalkError


def add_commands(commands) -> None:
    """Adds `remote` to an argparse sub-parser collection."""
    command = commands.add_parser("remote", help="runs on Modal: status, watch, collect, cancel")
    command.set_defaults(handler=remote_command)
    command.add_argument("what", choices=("status", "collect", "watch", "cancel"),
                         help="status: the record as it stands, asking nobody; collect: take up what is done; watch: "
                              "collect until nothing runs; cancel: end the rest")
    command.add_argument("--out", default="results/paper", help="the results folder that the runs were started for")
    command.add_argument("--every", type=float, default=60.0, help="seconds between two looks of `watch`")
    command.add_argument("--adapters", action="store_true", help="with collect: the trained weights too, about 150 MB "
                                                                 "a run at the post's size")
    command.add_argument("--push-to-hub", metavar="OWNER/NAME", help="with collect: upload each adapter as "
                         "OWNER/NAME-ARM-seed-N, private, with a model card")


def remote_command(options: argparse.Namespace) -> int:
    """Does it, and prints the record as a table."""
    from . import remote
    from .__main__ import say
    from .tables import markdown

    if (options.adapters or options.push_to_hub) and options.what != "collect":
        raise TalkError("--adapters and --push-to-hub go with `remote collect`")
    if not remote.calls_in(options.out):
        raise TalkError(f"{options.out} has no remote.json: nothing was started from there")
    if options.what == "status":
        calls = remote.calls_in(options.out)
    elif options.what == "watch":
        calls = remote.watch(options.out, options.every, say)
    elif options.what == "cancel":
        calls = remote.cancel(options.out, say)
    else:
        calls = remote.collect(options.out, say, adapters=options.adapters or bool(options.push_to_hub))
    say(markdown(remote.table(calls)))
    if options.push_to_hub:
        _push(calls, options.out, options.push_to_hub, say)
    return 0


def _push(calls, out: str, repo: str, say) -> None:
    from .modelcard import push
    from .recipe import get_arm
    from .store import run_folder

    for call in calls:
        if call.state == "done" and get_arm(call.arm).trained:
            say(push(run_folder(out, call.arm, call.seed), repo))
