"""Questions that `claims` puts to an `Evidence`, one function each: the same for the post's figures and for ours.

An answer says how the claim stands and which numbers were looked at. The questions are our reading of the post, and so
are the limits in them (`NEAR`, `SMALL`, `MOST`): they are here to be argued with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from .bars import METHODS
from .credit import RULES
from .evidence import ArmEvidence, Evidence
from .numbers import points, signed
from .stats import Verdict, sample_std

HOLDS, REMARK, FAILS = "holds", "holds, with a remark", "does not hold"
UNKNOWN, ABSENT, DIFFERS = "cannot be checked", "not run", "differs"
SMALL = 0.06
"""A score that counts as near zero: 6 points of 100."""
NEAR = 0.05
"""Two scores that count as near one another: 5 points of 100."""
MOST = 0.5
"""A share that counts as most."""


@dataclass(frozen=True)
class Answer:
    """How a claim stands by one source."""

    verdict: str
    numbers: str = ""
    """What was looked at, as text."""
    remark: str = ""


def _stands(true: bool, numbers: str, remark: str = "", caveat: bool = False) -> Answer:
    """holds / holds with a remark / does not hold. A remark without `caveat` is kept, and the claim still holds."""
    return Answer(FAILS if not true else REMARK if caveat else HOLDS, numbers, remark)


NAMES = {"grpo": "GRPO", "raft": "RAFT", "mixed": "mixed", "reinforce_ada": "Reinforce-Ada"}


def _each(names: Sequence[str], text: Callable[[str], str]) -> str:
    return ", ".join(f"{NAMES[name]} {text(name)}" for name in names)


def _seeds(values: Sequence[float], digits: int = 1) -> str:
    return " / ".join(points(value, digits) for value in values)


def _counted(arm: ArmEvidence, name: str) -> list[float]:
    return [seed[name] for seed in arm.counters if seed.get(name) is not None]


def change(counter: str, up: bool) -> Callable[[Evidence], Answer]:
    """Whether training the talking pair moves a counter that way on the first seed; a remark where others differ."""

    def ask(e: Evidence) -> Answer:
        before, after = e.arms["base"].counter(counter), e.arms["grpo"].counter(counter)
        if before is None or after is None:
            return Answer(UNKNOWN, remark="the counter is not defined there")
        sign = 1 if up else -1
        others = _counted(e.arms["grpo"], counter)
        odd = [value for value in others if sign * (value - before) <= 0]
        numbers = f"{points(before, 0)} before, {points(after, 0)} after (seeds {_seeds(others, 0)})"
        remark = f"another way on {len(odd)} of {len(others)} seeds: {_seeds(odd, 0)}" if odd else ""
        return _stands(sign * (after - before) > 0, numbers, remark, caveat=bool(odd))

    return ask


def stops_asking(e: Evidence) -> Answer:
    """As `change`, and "stop" means down to near zero."""
    found, after = change("asks", False)(e), _counted(e.arms["grpo"], "asks")
    if found.verdict not in (HOLDS, REMARK):
        return found
    still = [value for value in after if value >= SMALL]
    return _stands(after[0] < SMALL, found.numbers, f"{len(still)} of {len(after)} seeds still ask: {_seeds(still, 0)}"
                   if still else "", caveat=bool(still))


def untrained(e: Evidence) -> Answer:
    arm = e.arms["base"]
    inside = arm.ci95[0] <= 0.11 <= arm.ci95[1]
    numbers = f"{points(arm.scores[0])} [{points(arm.ci95[0])}, {points(arm.ci95[1])}]"
    return _stands(inside, numbers, "" if inside else f"{'fewer' if arm.scores[0] < 0.11 else 'more'} here: 11 lies "
                   "outside the interval")


def trained(e: Evidence) -> Answer:
    arm = e.arms["grpo"]
    numbers = f"first seed {points(arm.scores[0])} [{points(arm.ci95[0])}, {points(arm.ci95[1])}], every seed " \
              f"{_seeds(arm.scores)}, mean {points(arm.mean)}"
    inside = arm.ci95[0] <= 0.40 <= arm.ci95[1]
    return _stands(inside, numbers, f"40 is the first of {len(arm.scores)} training seeds; their mean is "
                   f"{points(arm.mean)}" if inside else "another size here: 40 lies outside the interval",
                   caveat=abs(arm.mean - 0.40) > NEAR)


def needs_talk(e: Evidence) -> Answer:
    arm = e.arms["base_blocked"]
    return _stands(arm.ci95[1] < SMALL, f"untrained and blocked {points(arm.scores[0])} [{points(arm.ci95[0])}, "
                   f"{points(arm.ci95[1])}]", "small, and not zero: some answers can be guessed", caveat=True)


def blocked_floor(e: Evidence) -> Answer:
    arm = e.arms["grpo_blocked"]
    return _stands(max(arm.scores) < SMALL, f"every seed {_seeds(arm.scores)}")


def moved(e: Evidence) -> Answer:
    v = e.verdicts.get(("grpo", "grpo_blocked"))
    if v is None:
        return Answer(ABSENT, remark="needs runs of both arms and two re-runs of the untrained pair")
    return _stands(v.verdict == "moved", f"{signed(v.paired.value)} [{signed(v.paired.low)}, {signed(v.paired.high)}], "
                   f"difference of seed means {signed(v.centre)}; {v.verdict}", "worked out again from the parts")


def blocked_uses(e: Evidence) -> Answer:
    values = _counted(e.arms["grpo_blocked"], "uses")
    return _stands(bool(values) and values[0] < 0.10, f"uses, blocked, every seed {_seeds(values, 0)}",
                   f"5 is the first seed; all seeds run from {points(min(values), 0)} to {points(max(values), 0)}"
                   if values and max(values) > 0.10 else "", caveat=bool(values) and max(values) > 0.10)


def one_seed_fails(e: Evidence) -> Answer:
    arm = e.arms["grpo"]
    low = min(range(len(arm.scores)), key=lambda i: arm.scores[i])
    rest = [score for i, score in enumerate(arm.scores) if i != low]
    numbers = f"every seed {_seeds(arm.scores)}; lowest: sends {points(arm.counter('sends', low), 0)}, " \
              f"uses {points(arm.counter('uses', low), 0)}"
    split = bool(rest) and arm.scores[low] < 0.5 * min(rest)
    used, before = arm.counter("uses", low), e.arms["base"].counter("uses")
    short = split and used is not None and before is not None and used > before
    return _stands(split, numbers, f"it does use more than the untrained pair's {points(before, 0)}" if short else
                   "" if split else "no seed falls behind like that here", caveat=short)


def retained(e: Evidence) -> Answer:
    """The share of the gain over the untrained pair that is left with an untrained partner."""
    arm, base = e.arms["grpo"], e.arms["base"].mean
    if not arm.new_partner:
        return Answer(ABSENT, remark="needs the trained copy with an untrained partner")
    left = fmean(arm.new_partner) - base
    share = left / (arm.mean - base) if arm.mean > base else 1.0
    return _stands(share < MOST, f"own pair {_seeds(arm.scores)}, untrained partner {_seeds(arm.new_partner)}, "
                   f"untrained pair {points(base)}", f"{100 * share:.0f}% of the gain is left, by means over seeds",
                   caveat=share > 0.25)


def near_start(e: Evidence) -> Answer:
    arm, base = e.arms["grpo"], e.arms["base"].mean
    if not arm.new_partner:
        return Answer(ABSENT, remark="needs the trained copy with an untrained partner")
    gaps = [score - base for score in arm.new_partner]
    return _stands(max(map(abs, gaps)) < NEAR, f"{_seeds(arm.new_partner)} against {points(base)}",
                   "" if max(gaps) < NEAR else f"up to {points(max(gaps))} points above where two untrained start")


def method_means(e: Evidence) -> Answer:
    """Order of the methods' means: RAFT, GRPO, mixed, Reinforce-Ada."""
    order = ("raft", "grpo", "mixed", "reinforce_ada")
    means = [e.arms[name].mean for name in order]
    numbers = _each(order, lambda name: f"{points(e.arms[name].mean)} ({_seeds(e.arms[name].scores)})")
    best = max(METHODS, key=lambda name: e.arms[name].mean)
    if all(low < high for low, high in pairwise(means)):
        return Answer(HOLDS, numbers)
    return Answer(FAILS, numbers, f"another order here; {NAMES[best]} has the highest mean")


def _delta(v: Verdict) -> str:
    return f"{signed(v.paired.value)} [{signed(v.paired.low)}, {signed(v.paired.high)}] {v.verdict}"


def all_flat(e: Evidence) -> Answer:
    pairs = [pair for pair in e.verdicts if pair[1] == "grpo"]
    numbers = _each([pair[0] for pair in pairs], lambda name: _delta(e.verdicts[name, "grpo"]))
    if len(pairs) < 3:
        return Answer(ABSENT, numbers, "needs runs of all methods")
    return _stands(all(e.verdicts[pair].verdict == "flat" for pair in pairs), numbers,
                   "flat is not equal: so few seeds could not tell")


def spread(e: Evidence) -> Answer:
    values = e.arms["grpo"].scores
    low, high = points(min(values)), points(max(values))
    wide = max(values) - min(values) > 0.2
    return _stands(wide, f"{low} to {high}", "" if wide else "narrower here: training is steadier")


def budget(e: Evidence) -> Answer:
    costs = {name: e.arms[name].cost for name in METHODS}
    first = next(iter(costs["grpo"]), None)
    if first is None:
        return Answer(ABSENT, remark="needs what all of them cost")
    return _stands(True, f"{first}: " + _each(METHODS, lambda name: f"{costs[name][first]:,.1f}"),
                   "as many steps, not as much compute: Reinforce-Ada draws more chats", caveat=True)


def flat_teaches_nothing(e: Evidence) -> Answer:
    """By arithmetic: a group whose rewards are all equal has advantages of 0 under the credit rule."""
    advantages = RULES["grpo"].advantages([0.0] * 4, [0.0] * 4)
    return _stands(not any(advantages), "advantages of four failed chats: " + " / ".join(f"{a:g}" for a in advantages),
                   "by the credit rule, whatever the model")


def better_partners(e: Evidence) -> Answer:
    found = [e.partner_verdicts.get((name, "grpo")) for name in ("reinforce_ada", "raft")]
    if None in found:
        return Answer(ABSENT, remark="needs all three with an untrained partner")
    numbers = _each(("reinforce_ada", "raft"), lambda name: _delta(e.partner_verdicts[name, "grpo"]))
    true = all(v.paired.low > 0 for v in found)
    return _stands(true, numbers, "by the first seed; flat by the rule" if true else
                   "not on the first seed here", caveat=any(v.verdict != "moved" for v in found))


def design(e: Evidence) -> Answer:
    """Held-out problems, chats a problem, answers a score and training steps, as the source has them."""
    keys = ("holdout", "chats_per_problem", "answers", "steps")
    if e.ours:
        recipe = e.runs[0].record["recipe"] if e.runs else None
        if recipe is None:
            return Answer(ABSENT)
        chats = recipe["eval_chats"]
        values = (recipe["n_test"], chats, chats * len(set(recipe["protocol"]["order"])), recipe["steps"])
    else:
        values = tuple(int(e.facts[key][0]) for key in keys)
    return _stands(values == (300, 2, 4, 80), f"{values[0]} held-out problems, {values[1]} chats and {values[2]} "
                   f"answers each, {values[3]} steps",
                   "" if e.ours else "its figures do not state the 1,024 training problems", caveat=not e.ours)


def partner_flat(e: Evidence) -> Answer:
    v = e.partner_verdicts.get(("mixed", "grpo"))
    if v is None:
        return Answer(ABSENT, remark="needs both with an untrained partner")
    return _stands(v.verdict == "flat" and v.paired.low <= 0, f"mixed minus GRPO, untrained B: {_delta(v)}")


def flat_first(e: Evidence) -> Answer:
    """Whether most groups fail early: flat groups are an upper bound of failed ones."""
    if "flat_early" in e.facts:
        early, late = e.facts["flat_early"][0], e.facts["flat_late"][0]
        return Answer(UNKNOWN, f"Reinforce-Ada: flat groups {points(early, 0)} early, {points(late, 0)} late",
                      "the one published share is of another arm, counts groups that all won, and is under half")
    runs = e.arms["grpo"].history
    steps = [run[: max(1, len(run) // 8)] for run in runs if run]
    if not steps:
        return Answer(ABSENT, remark="needs a training history")
    share = fmean(fmean(step["flat_groups"] for step in run) for run in steps)
    reward = fmean(fmean(step["reward"] for step in run) for run in steps)
    return _stands(share > MOST, f"GRPO, first eighth of the steps: {points(share, 0)} of 100 groups flat",
                   f"groups that all won count too; the team reward is then {points(reward, 0)} of 100", caveat=True)


def ada_every_seed(e: Evidence) -> Answer:
    arm, base = e.arms["reinforce_ada"], e.arms["base"]
    sends, uses = _counted(arm, "sends"), _counted(arm, "uses")
    start = base.counter("uses")
    true = min(arm.scores) > 2 * base.mean and bool(uses) and start is not None and min(uses) > start
    return _stands(true, f"every seed {_seeds(arm.scores)}; sends {_seeds(sends, 0)}; uses {_seeds(uses, 0)}")


def ada_cost(e: Evidence) -> Answer:
    costs = [e.arms[name].cost for name in ("reinforce_ada", "grpo")]
    ratios = {key: costs[0][key] / costs[1][key] for key in costs[0] if costs[1].get(key)}
    if not ratios:
        return Answer(ABSENT, remark="needs what both cost")
    numbers = ", ".join(f"{key} x {ratio:.2f}" for key, ratio in ratios.items())
    true = all(1.75 <= ratio <= 2.25 for ratio in ratios.values())
    return _stands(true, numbers, "" if true else "dearer than GRPO here too, by less than twice"
                   if min(ratios.values()) > 1 else "")


def raft_shortest(e: Evidence) -> Answer:
    means = {name: fmean(_counted(e.arms[name], "message_chars")) for name in METHODS}
    firsts = {name: e.arms[name].counter("message_chars") for name in METHODS}
    true = min(means, key=means.get) == "raft"
    numbers = "characters, mean over seeds: " + _each(METHODS, lambda name: f"{means[name]:.1f}")
    least = min(means, key=means.get)
    if not true and means["raft"] < 1.05 * means[least]:
        return Answer(REMARK, numbers, f"a tie: those of {NAMES[least]} are as short")
    return _stands(true, numbers, "" if true else f"{NAMES[least]} writes shorter ones",
                   caveat=min(firsts, key=firsts.get) != "raft")


def raft_uses_least(e: Evidence) -> Answer:
    means = {name: fmean(_counted(e.arms[name], "uses")) for name in METHODS}
    firsts = {name: e.arms[name].counter("uses") for name in METHODS}
    least, first = min(means, key=means.get), min(firsts, key=firsts.get)
    numbers = "uses, mean over seeds (first seed): " + _each(
        METHODS, lambda name: f"{points(means[name], 0)} ({points(firsts[name], 0)})")
    if least == first == "raft":
        return Answer(HOLDS, numbers)
    if "raft" in (least, first):
        return Answer(REMARK, numbers, f"by means over seeds {NAMES[least]}, on the first seed {NAMES[first]}")
    return Answer(FAILS, numbers, f"{NAMES[least]} uses less, by the mean over seeds and on the first seed")


def noise(e: Evidence) -> Answer:
    runs = e.arms["base"].dots
    if len(runs) < 2:
        return Answer(ABSENT, remark="needs two re-runs of the untrained pair")
    std = sample_std(runs)
    return _stands(abs(std - 0.005) < 0.0015, f"re-runs {_seeds(runs)}; standard deviation {points(std)} points",
                   "" if abs(std - 0.005) < 0.0015 else "another noise floor here")


def price(e: Evidence) -> Answer:
    keys = ("usd", "gpu_minutes", "usd_methods", "gpu_minutes_methods")
    if any(key not in e.facts for key in keys):
        return Answer(UNKNOWN, remark="no GPU was paid for: a laptop's cores")
    usd, minutes, more, more_minutes = (e.facts[key][0] for key in keys)
    rates = [60 * usd / minutes, 60 * more / more_minutes]
    return _stands(max(rates) - min(rates) < 0.01, f"${usd:.2f} for {minutes:.1f} GPU minutes, ${more:.2f} for "
                   f"{more_minutes:,.0f}", f"both come to ${rates[0]:.2f} a GPU hour")


def beyond(why: str) -> Callable[[Evidence], Answer]:
    """A claim that no figure of either source can settle."""
    return lambda evidence: Answer(UNKNOWN, remark=why)
