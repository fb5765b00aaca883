"""Tables as rows of text, from `Evidence`; written as Markdown and CSV."""

from collections.abc import Sequence
from statistics import fmean

from .evidence import COUNTERS, Evidence
from .recipe import ARMS, Recipe

Row = dict[str, str]


def points(value: float | None, digits: int = 1) -> str:
    """A fraction as points of 100; a dash for what is not defined."""
    return "-" if value is None else f"{100 * value:.{digits}f}"


def signed(value: float) -> str:
    """A fraction as signed points of 100."""
    return f"{100 * value:+.1f}"


def scores(evidence: Evidence) -> list[Row]:
    """One row an arm: score, interval, seeds, mean."""
    return [{"arm": ARMS[name].label, "first seed": points(arm.scores[0]),
             "95% interval": f"[{points(arm.ci95[0])}, {points(arm.ci95[1])}]",
             "each seed": " / ".join(points(s) for s in arm.scores), "mean": points(arm.mean),
             "source": evidence.label} for name, arm in evidence.arms.items()]


def verdicts(evidence: Evidence) -> list[Row]:
    """One row a comparison: paired delta, noise band, widened interval, verdict."""
    return [{"comparison": f"{ARMS[a].label} minus {ARMS[b].label}", "paired delta": signed(v.paired.value),
             "95% interval": f"[{signed(v.paired.low)}, {signed(v.paired.high)}]", "noise band": points(v.band),
             "seed means": signed(v.centre), "widened interval": f"[{signed(v.widened[0])}, {signed(v.widened[1])}]",
             "verdict": v.verdict, "source": evidence.label} for (a, b), v in evidence.verdicts.items()]


def counters(evidence: Evidence) -> list[Row]:
    """One row an arm and seed: what the copies did, of 100, and characters a message."""
    rows = []
    for name, arm in evidence.arms.items():
        for seed, counted in zip(arm.seeds, arm.counters, strict=False):
            rows.append({"arm": ARMS[name].label, "seed": str(seed),
                         **{counter: points(counted.get(counter), 0) for counter in COUNTERS},
                         "characters": f"{counted['message_chars']:.0f}", "source": evidence.label})
    return rows


def new_partner(evidence: Evidence) -> list[Row]:
    """One row a trained arm: its own pair, and as A with the untrained model as B."""
    return [{"arm": ARMS[name].label, "own pair": " / ".join(points(s) for s in arm.scores),
             "with an untrained B": " / ".join(points(s) for s in arm.new_partner),
             "untrained pair": points(evidence.arms["base"].mean), "source": evidence.label}
            for name, arm in evidence.arms.items() if arm.new_partner and "base" in evidence.arms]


COSTS = (("chats drawn", "tokens", "chats"), ("tokens generated", "tokens", "generated"),
         ("tokens trained", "tokens", "trained"), ("train seconds", "timings", "train_seconds"))


def costs(evidence: Evidence) -> list[Row]:
    """One row a trained arm of runs on disk: what training took, means over seeds."""
    rows = []
    for name in ARMS:
        runs = [run.record for run in evidence.runs if run.arm == name and run.history]
        if runs:
            means = {label: f"{fmean(run[part][key] for run in runs):.0f}" for label, part, key in COSTS}
            rows.append({"arm": ARMS[name].label, **means, "source": evidence.label})
    return rows


SHOWN = {
    "model": "model", "data": "data", "split rule": "split_rule", "train problems": "n_train",
    "held-out problems": "n_test", "steps": "steps", "problems a step": "problems_per_step",
    "chats a problem": "chats_per_problem", "micro-batches": "micro_batches", "learning rate": "learning_rate",
    "schedule": "lr_schedule", "LoRA r": "lora_r", "LoRA alpha": "lora_alpha", "loss": "loss_type", "KL": "beta",
    "number type": "dtype", "chats a held-out problem": "eval_chats",
}


def settings() -> list[Row]:
    """One row a setting: the paper scale beside the desk scale."""
    paper, desk = Recipe.paper(), Recipe.desk()
    rows = [{"setting": label, "paper scale": str(getattr(paper, name)), "desk scale": str(getattr(desk, name))}
            for label, name in SHOWN.items()]
    for label, name in (("turns", "order"), ("tokens a message", "message_tokens"), ("tokens, last", "last_tokens")):
        rows.append({"setting": label, "paper scale": str(getattr(paper.protocol, name)),
                     "desk scale": str(getattr(desk.protocol, name))})
    for label, name in (("temperature", "temperature"), ("top-p", "top_p"), ("top-k", "top_k")):
        for when in ("train", "eval"):
            values = [str(getattr(getattr(r, f"{when}_sampling"), name)) for r in (paper, desk)]
            rows.append({"setting": f"{label}, {when}", "paper scale": values[0], "desk scale": values[1]})
    return rows


TABLES = {"scores": scores, "verdicts": verdicts, "counters": counters, "new_partner": new_partner, "costs": costs}


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; a sentence where there are none."""
    if not rows:
        return "No runs yet.\n"
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row[h] for h in heads) + " |" for row in rows)]) + "\n"
