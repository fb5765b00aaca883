"""Commands that measure beyond runs: `crossplay`, `ceilings` and `simulate`."""

import argparse


def add_commands(commands) -> None:
    """Adds the three to an argparse sub-parser collection."""
    for name, handler, text in (
            ("crossplay", crossplay_command, "every trained A with every trained B; wants the adapters"),
            ("ceilings", ceilings_command, "floors and ceilings of the held-out problems, without training")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(handler=handler)
        command.add_argument("--scale", default="desk", help="desk or paper")
        command.add_argument("--out", help=f"file to write (default: results/SCALE/{name}.json)")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes",
                             help="change a recipe setting, as in steps=40")
        if name == "ceilings":
            command.add_argument("--run", help="folder of a trained run with its adapter: what it makes of perfect "
                                               "messages")
        if name == "crossplay":
            command.add_argument("--results", help="results folder with adapters (default: results/SCALE)")
            command.add_argument("--jobs", type=int, default=2, help="rows side by side, each its own process")
            command.add_argument("--row", help=argparse.SUPPRESS)  # what the rows' own processes are started with
    command = commands.add_parser("simulate", help="how often each rule of verdict is wrong; no torch")
    command.set_defaults(handler=simulate_command)
    command.add_argument("--results", default="results/desk", help="runs whose spread is one of the worlds")
    command.add_argument("--sims", type=int, default=1000, help="simulated experiments a world")
    command.add_argument("--out", default="results/simulations.json", help="file to write")


def simulate_command(options: argparse.Namespace) -> int:
    from .simulate import write

    found = write(options.results, options.out, options.sims)
    print(f"simulate: {len(found['worlds'])} worlds of {options.sims} experiments in {options.out}")
    return 0


def crossplay_command(options: argparse.Namespace) -> int:
    """All pairings, or one row of them in a process of its own."""
    from .__main__ import recipe_from, say
    from .crossplay import crossplay, one_row

    recipe = recipe_from(options.scale, options.changes)
    results = options.results or f"results/{options.scale}"
    if options.row:
        one_row(recipe, results, options.row, say)
        return 0
    words = [word for change in options.changes for word in ("--set", change)]
    out = options.out or f"results/{options.scale}/crossplay.json"
    rows = crossplay(options.scale, recipe, results, out, options.jobs, say, words)
    say(f"crossplay: {len(rows)} pairings in {out}")
    return 0


def ceilings_command(options: argparse.Namespace) -> int:
    from .__main__ import recipe_from, say
    from .ceilings import write

    out = options.out or f"results/{options.scale}/ceilings.json"
    rows = write(recipe_from(options.scale, options.changes), out, options.run, say)
    say(f"ceilings: {len(rows)} rows in {out}")
    return 0
