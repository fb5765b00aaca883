"""Tables as rows of text, from `Evidence`; written as Markdown, CSV and LaTeX."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from . import stattables
from .bars import CONDITIONS, METHODS
from .evidence import COUNTERS, Evidence
from .figures import to_csv
from .numbers import points, signed
from .recipe import ARMS, Recipe
from .runcharts import amount
from .stats import Verdict
from .stattables import between as _between
from .store import write_atomic

Row = dict[str, str]


def _seeds(values: Sequence[float]) -> str:
    return " / ".join(points(value) for value in values) or "-"


def scores(evidence: Evidence, names: Sequence[str] = tuple(ARMS)) -> list[Row]:
    """One row an arm: score of the first seed, its interval, every seed, their mean, and pass@4."""
    return [{"arm": ARMS[name].label, "first seed": points(arm.scores[0]), "95% interval": _between(*arm.ci95),
             "every seed": _seeds(arm.dots), "mean": points(arm.mean), "any of 4 right": points(arm.pass_at_4),
             "source": evidence.short} for name, arm in evidence.arms.items() if name in names]


def conditions(evidence: Evidence) -> list[Row]:
    """The four conditions: chat against blocked, before and after training."""
    return scores(evidence, CONDITIONS)


def methods(evidence: Evidence) -> list[Row]:
    """One row a method: every seed, mean, and the difference to GRPO with its verdict."""
    rows = []
    for name in METHODS:
        arm, verdict = evidence.arms.get(name), evidence.verdicts.get((name, "grpo"))
        if arm:
            rows.append({"method": ARMS[name].label, "every seed": _seeds(arm.scores), "mean": points(arm.mean),
                         "paired delta to GRPO": signed(verdict.paired.value) if verdict else "-",
                         "95% interval": _between(verdict.paired.low, verdict.paired.high, signed) if verdict else "-",
                         "verdict": verdict.verdict if verdict else "-", "source": evidence.short})
    return rows


def verdicts(evidence: Evidence) -> list[Row]:
    """One row a comparison: paired delta, noise band, widened interval, verdict; then the same with a new partner."""
    kinds = (("", evidence.verdicts), (", untrained B", evidence.partner_verdicts))
    return [_verdict(evidence, pair, found, suffix) for suffix, verdicts in kinds for pair, found in verdicts.items()]


def _verdict(evidence: Evidence, pair: tuple[str, str], v: Verdict, suffix: str) -> Row:
    return {"comparison": f"{ARMS[pair[0]].label} minus {ARMS[pair[1]].label}{suffix}",
            "paired delta": signed(v.paired.value), "95% interval": _between(v.paired.low, v.paired.high, signed),
            "noise band": points(v.band), "seed means": signed(v.centre),
            "widened interval": _between(*v.widened, signed), "verdict": v.verdict, "source": evidence.short}


def new_partner(evidence: Evidence) -> list[Row]:
    """One row a trained arm: its own pair, with the untrained model in seat B or A, and the untrained pair."""
    return [{"arm": ARMS[name].label, "own pair": _seeds(arm.scores), "with an untrained B": _seeds(arm.new_partner),
             "with an untrained A": _seeds(arm.as_b), "untrained pair": points(evidence.arms["base"].mean),
             "source": evidence.short}
            for name, arm in evidence.arms.items() if arm.new_partner and "base" in evidence.arms]


def counters(evidence: Evidence) -> list[Row]:
    """One row an arm and seed: what the copies did, of 100, and characters a message."""
    rows = []
    for name, arm in evidence.arms.items():
        for i, seed in enumerate(arm.seeds[: len(arm.counters)]):
            chars = arm.counter("message_chars", i)
            rows.append({"arm": ARMS[name].label, "seed": str(seed) if ARMS[name].trained or evidence.ours else "-",
                         **{counter: points(arm.counter(counter, i), 0) for counter in COUNTERS},
                         "characters": "-" if chars is None else f"{chars:.0f}", "source": evidence.short})
    return rows


SUMS = {"four conditions, all seeds": "", "three more methods, all seeds": "_methods"}
COST_HEADS = ("arm", "measure", "mean a seed", "times GRPO's", "in all", "source")


def costs(evidence: Evidence) -> list[Row]:
    """One row a trained arm and measure: the mean over seeds, its ratio to GRPO's; then sums that a source states."""
    rows = []
    for name, arm in evidence.arms.items():
        for measure, value in arm.cost.items():
            plain = evidence.arms["grpo"].cost.get(measure) if "grpo" in evidence.arms else None
            rows.append({"arm": ARMS[name].label, "measure": measure, "mean a seed": amount(value),
                         "times GRPO's": f"{value / plain:.2f}" if plain else "-", "source": evidence.short})
    for (what, key), measure in product(SUMS.items(), ("GPU minutes", "US dollars")):
        fact = evidence.facts.get({"GPU minutes": "gpu_minutes", "US dollars": "usd"}[measure] + key)
        if fact:
            rows.append({"arm": what, "measure": measure, "in all": f"{fact[0]:,.2f}", "source": evidence.short})
    return [{**{h: "-" for h in COST_HEADS}, **row} for row in rows]


def ceilings(evidence: Evidence) -> list[Row]:
    """One row a ceiling or floor: its score and interval."""
    return [{"what": row.label, "score": points(row.score), "95% interval": _between(*row.ci95) if row.ci95 else "-",
             "source": evidence.short} for row in evidence.ceilings]


def crossplay(evidence: Evidence) -> list[Row]:
    """One row a pair of arms: mean, lowest and highest score over the pairings of their seeds."""
    pairs: dict[tuple[str, str, str], list[float]] = {}
    for row in evidence.crossplay:
        kind = "its own copy" if row.a == row.b else "trained apart"
        pairs.setdefault((row.a[0], row.b[0], kind), []).append(row.score)
    return [{"in seat A": ARMS[a].label, "in seat B": ARMS[b].label, "partner": kind, "mean": points(fmean(found)),
             "lowest": points(min(found)), "highest": points(max(found)), "pairings": str(len(found)),
             "source": evidence.short} for (a, b, kind), found in pairs.items()]


SHOWN = {
    "model": "model", "data": "data", "split rule": "split_rule", "train problems": "n_train",
    "held-out problems": "n_test", "steps": "steps", "problems a step": "problems_per_step",
    "chats a problem": "chats_per_problem", "micro-batches": "micro_batches", "learning rate": "learning_rate",
    "schedule": "lr_schedule", "clip norm": "max_grad_norm", "LoRA r": "lora_r", "LoRA alpha": "lora_alpha",
    "loss": "loss_type", "KL": "beta", "number type": "dtype", "chats a held-out problem": "eval_chats",
    "turns": "protocol.order", "tokens a message": "protocol.message_tokens", "tokens, last": "protocol.last_tokens",
    "temperature, train": "train_sampling.temperature", "temperature, evaluation": "eval_sampling.temperature",
    "top-p, train": "train_sampling.top_p", "top-p, evaluation": "eval_sampling.top_p",
    "top-k, train": "train_sampling.top_k", "top-k, evaluation": "eval_sampling.top_k",
}
"""Setting as tables call it -> where a recipe keeps it."""


def settings() -> list[Row]:
    """One row a setting: the post's, as our full-size recipe holds it, beside the desk scale's."""
    rows = []
    for label, path in SHOWN.items():
        values = [_setting(recipe, path) for recipe in (Recipe.paper(), Recipe.desk())]
        rows.append({"setting": label, "full size (the post's)": values[0], "desk scale": values[1],
                     "same": "yes" if values[0] == values[1] else "no"})
    return rows


def _setting(recipe: Recipe, path: str) -> str:
    part = recipe
    for name in path.split("."):
        part = getattr(part, name)
    return f"{part:g}" if isinstance(part, float) else str(part)


TABLES: dict[str, Callable[[Evidence], list[Row]]] = {
    "conditions": conditions, "verdicts": verdicts, "methods": methods, "new_partner": new_partner,
    "counters": counters, "costs": costs, "crossplay": crossplay, "ceilings": ceilings}
"""Name -> rows of one source, in the order of the paper."""
TITLES = {
    "settings": "Settings at the two scales.",
    "conditions": "Chat against blocked, before and after training: problems solved, of 100. Interval: percentile "
                  "bootstrap over problems. The untrained pair's seeds are re-runs.",
    "verdicts": "Comparisons by the post's rule. Points of 100; the paired delta is the first training seed's.",
    "methods": "Training methods: problems solved, of 100, by training seed.",
    "new_partner": "A trained copy with an untrained partner: problems solved, of 100, by training seed.",
    "counters": "What the copies do, of 100, by training seed, and mean characters of a message.",
    "costs": "What a training run costs, means over seeds.",
    "crossplay": "Who can talk to whom: problems solved, of 100.",
    "ceilings": "Ceilings and floors on the held-out problems: problems solved, of 100.",
    "claims": "The post's claims, checked against its own figures and asked of our runs.",
    **stattables.TITLES,
}


def gather(sources: Sequence[Evidence], root: Path) -> dict[str, list[Row]]:
    """Every table: the post's rows first, then ours; tables that no source can fill are left out."""
    found = {"settings": settings()}
    found |= {name: [row for source in sources for row in make(source)]
              for name, make in {**TABLES, **stattables.BY_SOURCE}.items()}
    found |= {name: make(root) for name, make in stattables.SIMULATED.items()}
    return {name: rows for name, rows in found.items() if rows}


def write(root: Path, found: dict[str, list[Row]]) -> None:
    """figures/table-NAME.md, .csv and .tex."""
    for name, rows in found.items():
        for ending, text in (("md", markdown(rows)), ("csv", to_csv(rows)), ("tex", latex(rows, TITLES[name], name))):
            write_atomic(root / "figures" / f"table-{name}.{ending}", text)


_NUMERIC = re.compile(r"[-+$]?[\d.,]+( / [\d.,]+)*|\[[-+\d., ]+\]|-|yes|no")


def numeric(rows: Sequence[Row], head: str) -> bool:
    """Whether a column holds numbers alone, and so is set flush right."""
    return all(_NUMERIC.fullmatch(row[head]) for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; a sentence where there are none."""
    if not rows:
        return "No runs yet.\n"
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("--:" if numeric(rows, h) else "---" for h in heads) + "|"]
    cells = [[row[h].replace("|", "\\|").replace("\n", " ") for h in heads] for row in rows]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)]) + "\n"


_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def tex_escape(text: str) -> str:
    """Text with LaTeX's special characters made plain."""
    return "".join(_TEX.get(character, character) for character in text)


def latex(rows: Sequence[Row], title: str, name: str) -> str:
    r"""Rows as a LaTeX table; wants `\usepackage{booktabs}` and, for paragraphs in cells, `array`."""
    heads = list(rows[0])
    wide = {h: max(len(row[h]) for row in rows) > 60 for h in heads}
    columns = "".join("r" if numeric(rows, h) else "p{0.28\\linewidth}" if wide[h] else "l" for h in heads)
    body = [" & ".join(tex_escape(row[h]) for h in heads) + r" \\" for row in rows]
    # a cell that starts with [ after \\ would be read as a length: the brace stops that
    body = [f"{{}}{line}" if line.startswith("[") else line for line in body]
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{tex_escape(title)}}}", rf"\label{{tab:{name}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(tex_escape(h) for h in heads) + r" \\", r"\midrule",
        *body, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])
