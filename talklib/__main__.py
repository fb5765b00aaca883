"""The command line: `python -m talklib split | grade | count | run | status | figures | selftest`."""

import argparse
import json
import os
import sys
from dataclasses import fields, replace

from . import TalkError
from .experiment import arm_names, run_arm, status
from .parallel import run_many
from .recipe import SCALES, SEEDS, Protocol, Recipe, Sampling, get_arm, get_recipe
from .store import run_folder


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Bad input prints its message to standard error and returns 2."""
    options = parser().parse_args(argv)
    for name in ("model", "data"):  # shorthands of --set, so that a run's own processes get them too
        if getattr(options, name, None) and hasattr(options, "changes"):
            options.changes.append(f"{name}={getattr(options, name)}")
    if getattr(options, "model", None) and hasattr(options, "changes"):
        options.changes.insert(0, "model_revision=null")  # the recipe's is a commit of the recipe's own model
    try:
        return options.handler(options) or 0
    except TalkError as error:
        print(f"talklib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("talklib: interrupted; finished runs and checkpoints are kept, the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    """The argument parser of all commands."""
    from . import cli_core, cli_measure, cli_paper, cli_remote

    top = argparse.ArgumentParser(prog="python -m talklib", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    cli_core.add_commands(commands)
    cli_paper.add_commands(commands)
    cli_measure.add_commands(commands)
    cli_remote.add_commands(commands)
    for name, handler, text in (("run", _run, "train and evaluate arms; resumes what was broken off"),
                                ("status", _status, "what is done, missing, stale or broken")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(handler=handler)
        command.add_argument("--scale", default="desk", help=" or ".join(SCALES))
        command.add_argument("--arms", default="all", help="all, or names separated by commas")
        command.add_argument("--seeds", help="training seeds, separated by commas (default: the scale's)")
        command.add_argument("--out", help="results folder (default: results/SCALE)")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes",
                             help="change a recipe setting, as in steps=40 or protocol.message_tokens=80")
        command.add_argument("--model", help="a hub id or a folder, instead of the recipe's")
        command.add_argument("--data", help="hub, hub:OWNER/NAME:CONFIG, desk, a folder or a file, "
                                                 "instead of the recipe's")
        if name == "run":
            command.add_argument("--jobs", type=int, default=2, help="runs side by side, each its own process")
            command.add_argument("--report-to", default="none", help="trackio, tensorboard or wandb, through TRL")
            command.add_argument("--where", default="local", choices=("local", "modal"),
                                 help="this machine, or H100s on Modal (see `remote` for what follows)")
            command.add_argument("--dry-run", action="store_true", help="print the plan and its price; start nothing")
            command.add_argument("--gpu", default="H100", help="kinds for Modal, by preference, separated by commas")
            command.add_argument("--budget", type=float, help="dollars; a dearer plan is refused (Modal)")
            command.add_argument("--push-to-hub", metavar="OWNER/NAME", help="upload each adapter as "
                                 "OWNER/NAME-ARM-seed-N, private, with a model card")
    return top


def recipe_from(scale: str, changes: list[str]) -> Recipe:
    """The scale's recipe with NAME=VALUE changes; values are JSON, or else text."""
    recipe = get_recipe(scale)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise TalkError(f"--set takes NAME=VALUE, not {change!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        recipe = _changed(recipe, name, value)
    return recipe


def _changed(part, name: str, value):
    head, _, rest = name.partition(".")
    known = [f.name for f in fields(part)]
    if head not in known:
        raise TalkError(f"unknown setting {name!r} of {type(part).__name__}; settings: {', '.join(known)}")
    now = getattr(part, head)
    if rest:
        if not isinstance(now, Protocol | Sampling) and not hasattr(now, "__dataclass_fields__"):
            raise TalkError(f"setting {head!r} has no parts")
        return replace(part, **{head: _changed(now, rest, value)})
    if isinstance(now, tuple) and isinstance(value, list):
        value = tuple(value)
    if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if value is None and "None" in str(part.__dataclass_fields__[head].type):
        return replace(part, **{head: None})
    if now is not None and type(value) is not type(now):
        raise TalkError(f"setting {name!r} takes a {type(now).__name__}, not {value!r}")
    return replace(part, **{head: value})


def seeds_from(text: str | None, scale: str) -> list[int]:
    """Whole numbers separated by commas; the scale's own where none are given."""
    if text is None:
        return list(SEEDS[scale])
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise TalkError(f"--seeds takes whole numbers separated by commas, not {text!r}") from error


def _run(options) -> int:
    recipe = recipe_from(options.scale, options.changes)
    out = options.out or f"results/{options.scale}"
    arms, seeds = arm_names(options.arms), seeds_from(options.seeds, options.scale)
    if options.dry_run:
        from .plan import plan, text

        say(text(plan(recipe, arms, seeds, options.gpu.split(",")[0])))
        return 0
    if options.where == "modal":
        from .remote import Limits, launch

        if options.push_to_hub or options.report_to != "none":
            raise TalkError("--push-to-hub and --report-to are not for --where modal: every run keeps its metrics, and "
                            "`python -m talklib remote collect --push-to-hub OWNER/NAME` uploads the adapters")
        launch(recipe, arms, seeds, out, Limits(gpu=tuple(options.gpu.split(","))), options.budget, say)
        say(f"python -m talklib remote watch --out {out} follows them; this process may end")
        return 0
    rows = status(recipe, arms, seeds, out)
    broken = [row for row in rows if row.state == "broken"]
    if broken:
        raise TalkError(broken[0].note)
    waiting = [row for row in rows if row.state != "done"]
    print(f"{len(rows)} runs, {len(rows) - len(waiting)} done before", flush=True)
    if len(waiting) > 1 and options.jobs > 1:
        run_many(options.scale, [(row.arm, row.seed) for row in waiting], out, options.jobs, say, options.changes,
                 options.report_to)
    else:
        for row in waiting:
            run_arm(recipe, row.arm, row.seed, out, say=say, report_to=options.report_to)
    if options.push_to_hub:
        from .modelcard import push

        for row in rows:
            if get_arm(row.arm).trained:
                say(push(run_folder(out, row.arm, row.seed), options.push_to_hub))
    return 0


def say(text: str) -> None:
    print(text, flush=True)


def _status(options) -> int:
    recipe = recipe_from(options.scale, options.changes)
    out = options.out or f"results/{options.scale}"
    rows = status(recipe, arm_names(options.arms), seeds_from(options.seeds, options.scale), out)
    for row in rows:
        print(f"{row.arm:<16} seed {row.seed:<4} {row.state:<8} {row.note}")
    print(", ".join(f"{sum(row.state == state for row in rows)} {state}"
                    for state in ("done", "part", "missing", "stale", "broken")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
