"""Tables of how sure one can be, and of what each method had to spend: rows of text, as in `tables`.

seeds: intervals over training seeds.  settling: what would settle a comparison.  holm: counters of methods against
plain RL.  effort and equal_tokens: what a method did with its steps and its tokens.  false_alarms and balance: from
results/simulations.json.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from . import TalkError, stats
from .bars import METHODS
from .evidence import COUNTERS, ArmEvidence, Evidence
from .numbers import points, signed
from .readings import settlings
from .recipe import ARMS
from .runcharts import WINDOW, amount

Row = dict[str, str]


def between(low: float, high: float, text: Callable[[float], str] = points) -> str:
    """"[low, high]"."""
    return f"[{text(low)}, {text(high)}]"


def seeds(evidence: Evidence) -> list[Row]:
    """One row an arm with two seeds or more: t interval over seeds; the crossed bootstrap where problems are known."""
    rows = []
    for name, arm in evidence.arms.items():
        if len(arm.scores) < 2:
            continue
        t = stats.seed_interval(arm.scores)
        crossed = "-"
        runs = [run.scores() for run in evidence.runs if run.arm == name]
        if len(runs) > 1:
            found = stats.crossed_bootstrap(stats.score_matrix(runs)[0])
            crossed = between(found.low, found.high)
        rows.append({"arm": ARMS[name].label, "seeds": str(len(arm.scores)), "mean": points(t.value),
                     "spread": points(stats.sample_std(arm.scores)), "t interval over seeds": between(t.low, t.high),
                     "crossed bootstrap": crossed, "source": evidence.short})
    return rows


def settling(evidence: Evidence) -> list[Row]:
    """One row a method and partner: its difference to GRPO over seeds, p values, and seeds that would settle it."""
    return [{"comparison": f"{ARMS[name].label} minus GRPO{', untrained B' if partner == 'untrained' else ''}",
             "difference": signed(s.delta.value), "Welch interval": between(s.delta.low, s.delta.high, signed),
             "p": f"{s.p:.2f}", "permutation p": f"{s.p_permutation:.2f}",
             "seen with these seeds, 4 of 5 times": points(s.detectable_now),
             "seeds an arm to settle it": str(s.seeds) if s.seeds else "over 1,000", "source": evidence.short}
            for (name, partner), s in settlings(evidence).items()]


def holm(evidence: Evidence) -> list[Row]:
    """One row a comparison and counter: Welch's test over seeds, Holm-corrected over the counters of a comparison."""
    rows = []
    for a, b in (("grpo", "base"), *((name, "grpo") for name in METHODS[1:])):
        pair = [evidence.arms[name].counters if name in evidence.arms else () for name in (a, b)]
        if min(map(len, pair)) < 2:
            continue
        kept = [[{name: seed.get(name) for name in COUNTERS} for seed in side] for side in pair]
        for name, test in stats.counter_tests(*kept).items():
            rows.append({"comparison": f"{ARMS[a].label} minus {ARMS[b].label}", "counter": name,
                         "difference": signed(test.delta.value),
                         "Welch interval": between(test.delta.low, test.delta.high, signed),
                         "p": _p(test.p), "p, Holm": _p(test.p_holm), "source": evidence.short})
    return rows


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def effort(evidence: Evidence) -> list[Row]:
    """One row a trained arm with a history: what its steps took and what they left, means over seeds."""
    return [{"arm": ARMS[name].label, **_effort(arm), "solved, of 100": points(arm.mean), "source": evidence.short}
            for name, arm in evidence.arms.items() if arm.history]


def _effort(arm: ArmEvidence) -> Row:
    first, last, end = slice(None, WINDOW), slice(-WINDOW, None), slice(-1, None)
    columns = (("flat groups, first steps", "flat_groups", first, lambda v: points(v, 0)),
               ("flat groups, last steps", "flat_groups", last, lambda v: points(v, 0)),
               ("entropy first", "entropy", first, lambda v: f"{v:.2f}"),
               ("entropy last", "entropy", last, lambda v: f"{v:.2f}"),
               ("distance from the base", "distance", end, lambda v: f"{v:.3f}"))
    row = {"steps": f"{fmean(len(run) for run in arm.history):.0f}",
           **{name: amount(arm.cost[name]) for name in ("chats drawn", "tokens generated", "tokens trained")}}
    for head, key, part, text in columns:
        values = [fmean(step[key] for step in run[part]) for run in arm.history if key in run[-1]]
        row[head] = text(fmean(values)) if values else "-"
    return row


def equal_tokens(evidence: Evidence) -> list[Row]:
    """Methods at equal steps, then Reinforce-Ada with fewer steps, so that it generates as many tokens as GRPO."""
    rows = [("equal steps", name, arm) for name, arm in evidence.arms.items() if name in METHODS and arm.history]
    rows += [("equal tokens", name, arm) for name, arm in evidence.equal.items()] if rows else []
    return [{"compared at": at, "arm": ARMS[name].label, "steps": f"{len(arm.history[0])}",
             "tokens generated": amount(arm.cost["tokens generated"]),
             "every seed": " / ".join(points(score) for score in arm.scores), "mean": points(arm.mean),
             "source": evidence.short} for at, name, arm in rows]


SIMULATIONS = "results/simulations.json"


def simulations(root: str | Path) -> dict | None:
    """results/simulations.json; None where there is none."""
    path = Path(root) / SIMULATIONS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: found[key] for key in ("nominal", "n_sims", "worlds", "false_alarms", "balance")}
    except (ValueError, KeyError, TypeError) as error:
        raise TalkError(f"{path} is not a simulation file ({type(error).__name__}: {error}); make it again with "
                        "python -m talklib simulate") from error


def false_alarms(root: str | Path) -> list[Row]:
    """One row a rule of verdict: how often, of 100, it says "moved" where nothing differs, by world and seeds."""
    found = simulations(root)
    if found is None:
        return []
    rows: dict[str, Row] = {}
    for rate in found["false_alarms"]:
        row = rows.setdefault(rate["rule"], {"rule": rate["rule"]})
        row[f"{rate['world']}, {rate['seeds']} seeds"] = points(rate["rate"])
    return list(rows.values())


def balance(root: str | Path) -> list[Row]:
    """One row a solve rate: the mean advantage of kept chats by credit rule, and what half a group each would give."""
    found = simulations(root)
    if found is None:
        return []
    rows: dict[float, Row] = {}
    for entry in found["balance"]:
        row = rows.setdefault(entry["solve_rate"], {"chance that a chat succeeds": f"{entry['solve_rate']:.2f}",
                                                    "1/2 minus it": f"{entry['predicted']:+.2f}"})
        row[f"{entry['rule']}"] = f"{entry['mean_advantage']:+.3f}"
        row[f"{entry['rule']}: chats"] = f"{entry['chats']:.1f}"
    return list(rows.values())


TITLES = {
    "seeds": "Intervals over training seeds: problems solved, of 100. The crossed bootstrap resamples seeds and "
             "problems. The untrained pair's seeds are re-runs.",
    "settling": "What would settle a method against plain RL: Welch's t over seeds, two-sided at 5%, 80% power, were "
                "difference and spread as seen.",
    "holm": "Counters over training seeds, Holm-corrected over the counters of a comparison. Points of 100.",
    "effort": "What a method's steps took and left, means over seeds. Flat groups of 100; entropy in nats a token; "
              "distance as a share of the weights' norm.",
    "equal_tokens": "Problems solved, of 100, at equal steps and at equal tokens generated.",
    "false_alarms": "How often a rule says “moved”, of 100 simulated experiments, where no difference is.",
    "balance": "Mean advantage of the chats that train, by simulation, and chats drawn a problem.",
}
BY_SOURCE: dict[str, Callable[[Evidence], list[Row]]] = {
    "seeds": seeds, "settling": settling, "holm": holm, "effort": effort, "equal_tokens": equal_tokens}
SIMULATED: dict[str, Callable[[str | Path], list[Row]]] = {"false_alarms": false_alarms, "balance": balance}
