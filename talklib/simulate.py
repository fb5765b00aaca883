"""Two questions that runs cannot answer, answered by simulation: how often each rule of verdict says "moved" where no
difference is, and what replaying problems does to a credit rule's mean advantage.

`write` stores both in one file, from which tables are made; the same arguments give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import stats
from .credit import RULES, Rule
from .power import World, rates, world_of, worlds
from .store import load_runs, to_json, write_atomic

FORMAT = 1
SOLVE_RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
CREDIT = ("grpo", "reinforce_ada", "reinforce_ada_success", "reinforce_ada_balanced")


@dataclass(frozen=True)
class Balance:
    """What a credit rule does with a problem whose chats succeed with chance `solve_rate`."""

    rule: str
    solve_rate: float
    mean_advantage: float
    """Over kept chats, all pools; 0 for a baseline that is centred on what trains."""
    mean_advantage_spread: float
    """The same over pools that were not flat."""
    predicted: float
    """1/2 - solve_rate: the mean advantage of a group kept half right and half wrong, less its pool's mean."""
    flat: float
    """Share of pools whose chats all scored the same."""
    chats: float
    """Mean chats drawn."""


def balance(rule: Rule, solve_rate: float, size: int = 4, sims: int = 20_000, seed: int = 0) -> Balance:
    """Draws pools of chats that succeed (1) or fail (0), as the rule asks for them, and pays the kept ones."""
    rng = np.random.default_rng([seed, round(1000 * solve_rate)])
    means, flat, drawn = [], [], 0
    for draws in (rng.random((sims, rule.rounds * size)) < solve_rate).astype(float):
        pool = list(draws[:size])
        for number in range(1, rule.rounds):
            if rule.stop(pool, size):
                break
            pool += list(draws[number * size : (number + 1) * size])
        paid = rule.advantages([pool[i] for i in rule.keep(pool, size)], pool)
        means.append(float(np.mean(paid)))
        flat.append(len(set(pool)) == 1)
        drawn += len(pool)
    spread = np.array(means)[~np.array(flat)]
    return Balance(rule.name, solve_rate, float(np.mean(means)), float(spread.mean()) if len(spread) else 0.0,
                   0.5 - solve_rate, float(np.mean(flat)), drawn / sims)


def run_worlds(results: str | Path) -> dict[str, World]:
    """The world of our own runs: Reinforce-Ada and GRPO as they spread there; empty without two seeds of both."""
    runs = load_runs(results)
    arms = {arm: {run.seed: run.scores() for run in runs if run.arm == arm} for arm in ("reinforce_ada", "grpo")}
    base = [run.score for run in runs if run.arm == "base"]
    seeds = sorted(set(arms["reinforce_ada"]) & set(arms["grpo"]))
    if len(seeds) < 2 or len(base) < 2:
        return {}
    a, b = (stats.score_matrix([arms[arm][seed] for seed in seeds])[0] for arm in arms)
    return {"our Reinforce-Ada and GRPO": world_of(a, b, base)}


def simulate(results: str | Path, n_sims: int = 1000, seeds: Sequence[int] = (3, 5)) -> dict:
    """Both simulations as plain data."""
    every = worlds() | run_worlds(results)
    return {
        "format": FORMAT, "nominal": 1 - stats.LEVEL, "n_sims": n_sims,
        "worlds": {name: asdict(world) for name, world in every.items()},
        "false_alarms": [{"world": name, **asdict(rate)} for name, world in every.items()
                         for rate in rates(world, seeds, n_sims)],
        "balance": [asdict(balance(RULES[rule], rate)) for rule in CREDIT for rate in SOLVE_RATES],
    }


def write(results: str | Path, out: str | Path, n_sims: int = 1000) -> dict:
    """Simulates, writes `out`, returns what was written."""
    found = simulate(results, n_sims)
    write_atomic(out, to_json(found))
    return found
