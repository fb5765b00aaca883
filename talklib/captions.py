"""Captions and alt texts, from the numbers that the figures are drawn from."""

from collections.abc import Callable

from .bars import CONDITIONS, METHODS
from .evidence import COUNTERS, Evidence
from .numbers import Number, points
from .recipe import ARMS
from .runcharts import CROSS_LABELS, OWN, TRAINED, amount, crossplay_table, ladder

ORGANISM = ("The model is tiny, its problems are of our own writing and its habits before training were set by us; "
            "what training did to them is measured.")
"""Stands wherever a desk figure stands."""

Numbers = dict[str, Number]


def _interval(evidence: Evidence, n: Numbers) -> str:
    problems = n["post.holdout" if not evidence.ours else f"recipe.{_scale(evidence)}.n_test"].text
    return (f"{n['method.level'].text}% interval, a percentile bootstrap over the {problems} held-out problems with "
            f"{n['method.draws'].text} draws")


def _scale(evidence: Evidence) -> str:
    return "full" if evidence.name == "paper" else "desk"


def _conditions(evidence: Evidence, n: Numbers) -> str:
    return (f"Problems the pair solved, of 100. Bars: the first training seed. Whiskers: its {_interval(evidence, n)}. "
            "Dots: every training seed, or every re-run of the untrained pair.")


def _behaviour(evidence: Evidence, n: Numbers) -> str:
    return ("How often each thing happened, of 100, before (light) and after training (dark). Sends and uses are "
            "shares of private numbers, agrees a share of chats, asks a share of first messages. Bars: the first "
            "training seed. Dots: every seed. No interval is shown.")


def _methods(evidence: Evidence, n: Numbers) -> str:
    return ("Problems solved, of 100, by training method. Bars: the mean over training seeds. Dots: the seeds. Dashed: "
            "the untrained pair. The dots are the spread between trainings; no interval over problems is shown.")


def _learning(evidence: Evidence, n: Numbers) -> str:
    return (f"Team reward of the chats played while training, of 100, running mean of {n['method.window'].text} steps. "
            "Thin: each training seed. Thick: their mean, with its last value. Grey: the other arms' means. These are "
            "not scores on one set: half of the chats of mixed partners have an untrained B, and Reinforce-Ada replays "
            "the problems that went one way.")


def _flat_groups(evidence: Evidence, n: Numbers) -> str:
    return ("Of 100 problems of a step, those whose chats all scored the same and so carry no signal for GRPO; running "
            f"mean of {n['method.window'].text} steps. Thin: each training seed. Thick: their mean. Reinforce-Ada's "
            "are counted after its replays.")


def _crossplay(evidence: Evidence, n: Numbers) -> str:
    return ("Each cell: mean score of a copy in seat A (row) with a copy in seat B (column). First column, bold: its "
            "own other half. Elsewhere: partners from another seed or another method.")


def _crossplay_seeds(evidence: Evidence, n: Numbers) -> str:
    return ("Each cell: score of one trained copy in seat A (row) with one in seat B (column), one chat a problem, the "
            "same seeds for all pairings. Dots: its own other half.")


def _ceilings(evidence: Evidence, n: Numbers) -> str:
    return ("What talking could win on the same held-out problems: ceilings and floors (grey) with the four conditions "
            f"(first seed). Whiskers: the {_interval(evidence, n)}.")


def _cost(evidence: Evidence, n: Numbers) -> str:
    what = "training and evaluation" if evidence.ours else "as published"
    return (f"Means over training seeds. Chats and tokens are exact; minutes are of {what} and vary with what else the "
            "machine had to do.") if evidence.ours else \
        f"Minutes of one GPU a training seed, {what}."


CAPTIONS: dict[str, Callable[[Evidence, Numbers], str]] = {
    "conditions": _conditions, "behaviour": _behaviour, "methods": _methods, "learning": _learning,
    "flat_groups": _flat_groups, "crossplay": _crossplay, "crossplay_seeds": _crossplay_seeds,
    "ceilings": _ceilings, "cost": _cost}


def caption(kind: str, evidence: Evidence, n: Numbers) -> str:
    """A figure's caption: what is shown, which interval, whose numbers, and what is missing."""
    text = f"{CAPTIONS[kind](evidence, n)} Source: {evidence.label}."
    if evidence.missing:
        text += f" Not run: {'; '.join(evidence.missing)}."
    return f"{text} {ORGANISM}" if evidence.name == "desk" else text


def alt_text(kind: str, evidence: Evidence, n: Numbers) -> str:
    """What a figure shows, in words and numbers, for those who can't see it."""
    return {"behaviour": _alt_behaviour, "learning": _alt_curves, "flat_groups": _alt_curves, "cost": _alt_cost,
            "crossplay": _alt_crossplay, "crossplay_seeds": _alt_crossplay,
            "ceilings": _alt_ceilings}.get(kind, _alt_bars)(kind, evidence, n)


def _alt_bars(kind: str, evidence: Evidence, n: Numbers) -> str:
    """Values of the bars, whisker ends where there are any, and the dots."""
    parts = []
    for name in CONDITIONS if kind == "conditions" else ("base", *METHODS):
        arm, key = evidence.arms.get(name), f"{evidence.name}.{name}"
        if arm:
            whisker = f", interval {n[f'{key}.ci.low'].text} to {n[f'{key}.ci.high'].text}"
            bar = n[f"{key}.score"].text + whisker if kind == "conditions" else n[f"{key}.mean"].text
            dots = ", ".join(points(score) for score in arm.dots)
            parts.append(f"{ARMS[name].label} {bar} ({'dots' if len(arm.dots) > 1 else 'dot'} {dots})")
    return f"Bar chart, problems solved of 100, {evidence.label}: {'; '.join(parts) or 'no runs yet'}."


def _alt_behaviour(kind: str, evidence: Evidence, n: Numbers) -> str:
    parts = []
    for counter in COUNTERS:
        ends = [n[key].text for name in ("base", "grpo") if (key := f"{evidence.name}.{name}.{counter}") in n]
        parts.append(f"{counter} {' then '.join(ends) or 'not counted'}")
    return f"Paired bars before and after training, of 100, {evidence.label}: {'; '.join(parts)}."


def _alt_curves(kind: str, evidence: Evidence, n: Numbers) -> str:
    key = {"learning": "reward", "flat_groups": "flat_groups"}[kind]
    parts = [f"{ARMS[name].label} from {n[first].text} to {n[first.replace('first', 'last')].text}"
             for name in TRAINED if (first := f"{evidence.name}.{name}.{key}.first") in n]
    what = {"learning": "team reward", "flat_groups": "share of problems whose chats all scored the same"}[kind]
    return f"Curves by training step, {what}, of 100, {evidence.label}: {'; '.join(parts) or 'no runs yet'}."


def _alt_cost(kind: str, evidence: Evidence, n: Numbers) -> str:
    parts = [f"{ARMS[name].label} " + ", ".join(f"{amount(value)} {measure}" for measure, value in arm.cost.items())
             for name in METHODS if (arm := evidence.arms.get(name)) and arm.cost]
    return f"Bars, cost of a training run, {evidence.label}: {'; '.join(parts) or 'no runs yet'}."


def _alt_crossplay(kind: str, evidence: Evidence, n: Numbers) -> str:
    rows, columns, cells = crossplay_table(evidence)
    parts = []
    for row in rows:
        found = [f"with {'its own copy' if c == OWN else CROSS_LABELS[c]} "
                 f"{100 * sum(cells[row, c]) / len(cells[row, c]):.0f}" for c in columns if (row, c) in cells]
        parts.append(f"{CROSS_LABELS[row]} {', '.join(found)}")
    return f"Heat map, problems solved of 100, {evidence.label}: {'; '.join(parts) or 'no cross-play yet'}."


def _alt_ceilings(kind: str, evidence: Evidence, n: Numbers) -> str:
    parts = [f"{label} {points(score)}" for label, score, *_ in ladder(evidence)]
    return f"Bars, problems solved of 100, {evidence.label}: {'; '.join(parts) or 'not measured yet'}."
