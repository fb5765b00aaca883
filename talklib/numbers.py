"""Every number that prose, captions and alt texts may use: its value, its text, and the file and field it is from.

`collect` gives them by key; paper/numbers.json holds them. A number that is worked out says how (mean, lowest, ...) and
names every field that went in. No number enters the paper by another door.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from . import stats
from .evidence import COUNTERS, ArmEvidence, Evidence
from .readings import codes, settlings
from .recipe import Recipe
from .runcharts import OWN, WINDOW, amount, crossplay_table, series
from .stats import Verdict

POINTS, SHARE = "points of 100", "of 100"
"""Units: a score, and a counter's share. Values are fractions; texts are of 100."""


@dataclass(frozen=True)
class Number:
    """One number. `value` is at full precision, `text` is what a reader sees."""

    value: float | str
    text: str
    unit: str
    sources: tuple[str, ...]
    """"file: field", each from the root of the repository."""
    how: str = "as stored"
    """What was done to the sources' values."""
    interval: tuple[float, float] | None = None

    def as_dict(self) -> dict:
        """The entry of numbers.json."""
        return {"value": self.value, "unit": self.unit, "text": self.text, "source": list(self.sources),
                "how": self.how, "published": all(s.startswith("paper/published/") for s in self.sources),
                "interval": list(self.interval) if self.interval else None}


def points(value: float | None, digits: int = 1) -> str:
    """A fraction as points of 100, halves to even; a dash for what is not defined."""
    return "-" if value is None else f"{100 * value:.{digits}f}"


def signed(value: float | None) -> str:
    """A fraction as signed points of 100; a dash for what is not defined."""
    return "-" if value is None else f"{100 * value:+.1f}"


def collect(evidence: Iterable[Evidence]) -> dict[str, Number]:
    """Key ("desk.grpo.score") -> number, of all sources and of the settings."""
    found: dict[str, Number] = dict(_settings())
    for source in evidence:
        for name, arm in source.arms.items():
            found |= {f"{source.name}.{name}.{key}": number for key, number in
                      {**_scores(arm), **_counters(arm), **_partners(arm), **_costs(arm)}.items()}
            found |= {f"{source.name}.{name}.{key}": number for key, number in _curves(source, name).items()}
            found |= {f"{source.name}.{name}.{key}": number for key, number in _kept(source, arm).items()}
        for prefix, verdicts in (("", source.verdicts), ("partner.", source.partner_verdicts)):
            for (a, b), verdict in verdicts.items():
                found |= {f"{source.name}.{prefix}{a}-{b}.{key}": number
                          for key, number in _verdict(source, (a, b), verdict, bool(prefix)).items()}
        found |= _others(source)
    return found


def _over(values: Sequence[float], sources: Sequence[str], prefix: str = "") -> dict[str, Number]:
    """Mean, lowest, highest and count of values over seeds, and the values themselves."""
    ways = {"mean": fmean, "low": min, "high": max}
    words = {"mean": "mean", "low": "lowest", "high": "highest"}
    found = {f"{prefix}{key}": Number(way(values), points(way(values)), POINTS, tuple(sources), words[key])
             for key, way in ways.items()}
    found[f"{prefix}count"] = Number(len(values), str(len(values)), "count", tuple(sources), "count")
    return found


def _scores(arm: ArmEvidence) -> dict[str, Number]:
    found = {"score": Number(arm.scores[0], points(arm.scores[0]), POINTS, arm.sources[:1], interval=arm.ci95),
             "score.whole": Number(arm.scores[0], points(arm.scores[0], 0), POINTS, arm.sources[:1]),
             **_over(arm.scores, arm.sources)}
    field = arm.sources[0].replace(": score", ": ci95").replace(".per_seed[0]", ".ci95").replace(".score", ".ci95")
    for key, end in (("ci.low", 0), ("ci.high", 1)):
        found[key] = Number(arm.ci95[end], points(arm.ci95[end]), POINTS, (f"{field}[{end}]",))
    for seed, score, source in zip(arm.seeds, arm.scores, arm.sources, strict=True):
        found[f"seed.{seed}"] = Number(score, points(score), POINTS, (source,))
    for i, rerun in enumerate(arm.reruns):
        where = f"paper/published/talk_to_solve.json: noise.base_reruns_points[{i}]"
        found[f"rerun.{i + 1}"] = Number(rerun, points(rerun), POINTS, (where,), "divided by 100")
    return found


_FIELDS = {"sends": "shared", "uses": "used", "agrees": "agree", "asks": "asked", "message_chars": "msg_chars"}


def _counters(arm: ArmEvidence) -> dict[str, Number]:
    """Counters of the first seed under their name, of each seed under name.seed; lowest and highest over seeds."""
    found = {}
    for name in (*COUNTERS, "message_chars"):
        rows = [(seed, counted[name], source) for seed, counted, source in
                zip(arm.seeds, arm.counters, arm.counter_sources, strict=False) if counted.get(name) is not None]
        if not rows or rows[0][0] != arm.seeds[0]:
            continue
        chars = name == "message_chars"
        unit = "characters" if chars else SHARE

        def number(value, sources, how="as stored", chars=chars, unit=unit):
            return Number(value, f"{value:.0f}" if chars else points(value, 0), unit, sources, how)

        fields = [f"{source}.{_FIELDS[name] if source.startswith('paper/') else name}" for *_, source in rows]
        values = [value for _, value, _ in rows]
        found[name] = number(values[0], (fields[0],))
        for (seed, value, _), source in zip(rows, fields, strict=True):
            found[f"{name}.{seed}"] = number(value, (source,))
        for key, way, word in (("mean", fmean, "mean"), ("low", min, "lowest"), ("high", max, "highest")):
            found[f"{name}.{key}"] = number(way(values), tuple(fields), word)
    return found


def _partners(arm: ArmEvidence) -> dict[str, Number]:
    if not arm.new_partner:
        return {}
    found = _over(arm.new_partner, arm.partner_sources, "partner.")
    for seed, score, source in zip(arm.partner_seeds, arm.new_partner, arm.partner_sources, strict=True):
        found[f"partner.{seed}"] = Number(score, points(score), POINTS, (source,))
    if arm.as_b:
        found |= _over(arm.as_b, [s.replace("as_a", "as_b") for s in arm.partner_sources], "as_b.")
    return found


def _kept(source: Evidence, arm: ArmEvidence) -> dict[str, Number]:
    """Share of a pair's gain over the untrained pair that is left with an untrained B; means over seeds."""
    base = source.arms.get("base")
    if not arm.new_partner or base is None or arm.mean <= base.mean:
        return {}
    value = (fmean(arm.new_partner) - base.mean) / (arm.mean - base.mean)
    where = (*arm.partner_sources, *arm.sources, *base.sources)
    return {"partner.kept": Number(value, points(value, 0), "percent", where, "gain with it over gain of the pair")}


def _costs(arm: ArmEvidence) -> dict[str, Number]:
    return {f"cost.{name.replace(' ', '_')}": Number(value, amount(value), name, arm.cost_sources[name], "mean")
            for name, value in arm.cost.items()}


def _curves(source: Evidence, name: str) -> dict[str, Number]:
    """Team reward and flat groups over the first and the last steps of the running mean, all seeds."""
    found = {}
    for key in ("reward", "flat_groups"):
        runs = series(source, name, key)
        if runs:
            files = tuple(f"{text.split(': ')[0]}: history[*].{key}" for text in source.arms[name].sources)
            for when, part in (("first", slice(None, WINDOW)), ("last", slice(-WINDOW, None))):
                value = fmean(fmean(run[part]) for run in runs) / 100
                found[f"{key}.{when}"] = Number(value, points(value, 0), SHARE, files, f"mean of the {when} {WINDOW}")
    return found


def _verdict(source: Evidence, pair: tuple[str, str], v: Verdict, partner: bool) -> dict[str, Number]:
    """Delta, its interval, the noise band, the widened interval, and the verdict."""
    if source.ours:
        arms = [source.arms[name] for name in pair]
        where = tuple(text for arm in arms for text in (arm.partner_sources if partner else arm.sources))
        how = "stats.verdict on problem scores"
    else:
        key = f"deltas_vs_grpo{'_untrained_partner' if partner else ''}.{pair[0]}"
        where = ("paper/published/talk_to_solve.json: delta" if pair[1] == "grpo_blocked"
                 else f"paper/published/talk_methods.json: {key}",)
        how = "stats.verdict on the published delta and seeds"
    ends = (("delta", v.paired.value), ("delta.low", v.paired.low), ("delta.high", v.paired.high),
            ("means", v.centre), ("widened.low", v.widened[0]), ("widened.high", v.widened[1]))
    found = {key: Number(value, signed(value), POINTS, where, how) for key, value in ends}
    found["delta"] = Number(v.paired.value, signed(v.paired.value), POINTS, where, how, (v.paired.low, v.paired.high))
    found["band"] = Number(v.band, points(v.band), POINTS, where, how)
    found["verdict"] = Number(v.verdict, v.verdict, "verdict", where, how)
    return found


def _others(source: Evidence) -> dict[str, Number]:
    """Noise floor, ceilings, costs in all, and whatever else the source states."""
    texts = {"fraction": lambda v: points(v, 0), "dollars": lambda v: f"${v:.2f}", "minutes": lambda v: f"{v:,.1f}",
             "count": lambda v: f"{v:,.0f}", "name": lambda v: v.split("/")[-1]}
    found = {f"{source.name}.{key}": Number(value, texts[unit](value), unit, (where,))
             for key, (value, unit, where) in source.facts.items()}
    base = source.arms.get("base")
    if source.run_std is not None and base:
        stored = source.facts.get("run_std")
        found[f"{source.name}.run_std"] = Number(
            source.run_std, points(source.run_std), POINTS, (stored[2],) if stored else base.sources,
            "as stored" if stored else "sample standard deviation")
    for row in source.ceilings:
        found[f"{source.name}.ceiling.{row.name}"] = Number(row.score, points(row.score), POINTS, (row.source,),
                                                            interval=row.ci95)
    for name, arm in source.equal.items():
        found |= {f"{source.name}.equal.{name}.{key}": number
                  for key, number in {**_scores(arm), **_costs(arm)}.items()}
        found[f"{source.name}.equal.{name}.steps"] = Number(
            len(arm.history[0]), str(len(arm.history[0])), "steps",
            (arm.sources[0].replace(": score", ": recipe.steps"),))
    return found | _codes(source) | _cells(source) | _settling(source)


def _cells(source: Evidence) -> dict[str, Number]:
    """Cross-play by arm: what stands in the cells of the heat map."""
    where = (f"{source.crossplay[0].source.split(': ')[0]}: rows[*].score",) if source.crossplay else ()
    return {f"{source.name}.cross.{row}.{'own' if column == OWN else column}": Number(
                fmean(values), points(fmean(values), 0), POINTS, where, "mean")
            for (row, column), values in crossplay_table(source)[2].items()}


def _codes(source: Evidence) -> dict[str, Number]:
    """Cross-play: means by whose partner it is, and what an own other half is worth over a sibling."""
    found = codes(source)
    if found is None:
        return {}
    where = (f"{source.crossplay[0].source.split(': ')[0]}: rows[*].score",)
    numbers = {f"{source.name}.codes.{key}": Number(value, points(value), POINTS, where, how) for key, value, how in (
        ("own", found.own, "mean"), ("sibling", found.sibling, "mean"), ("other", found.other, "mean"),
        ("untrained", found.untrained, "mean"), ("sibling.low", found.lowest_sibling, "lowest"))}
    for key, value in (("premium", found.premium.value), ("premium.low", found.premium.low),
                       ("premium.high", found.premium.high)):
        numbers[f"{source.name}.codes.{key}"] = Number(value, signed(value), POINTS, where,
                                                       "mean over copies in seat A, t interval")
    return numbers


def _settling(source: Evidence) -> dict[str, Number]:
    """Seeds an arm that would settle a method against GRPO, and the p of today's seeds."""
    numbers = {}
    for (name, partner), s in settlings(source).items():
        key = f"{source.name}.settle.{name}.{partner}"
        where = tuple(w for arm in (name, "grpo")
                      for w in (source.arms[arm].sources if partner == "own" else source.arms[arm].partner_sources))
        numbers[f"{key}.seeds"] = Number(s.seeds or "none", str(s.seeds) if s.seeds else "more than 1,000",
                                         "seeds an arm", where, "power.settle")
        numbers[f"{key}.p"] = Number(s.p, f"{s.p:.2f}", "p", where, "stats.welch")
        numbers[f"{key}.delta"] = Number(s.delta.value, signed(s.delta.value), POINTS, where, "stats.welch",
                                         (s.delta.low, s.delta.high))
    return numbers


def _settings() -> dict[str, Number]:
    """Numbers of the method and the recipes, from the code that uses them."""
    found = {"method.level": Number(stats.LEVEL, f"{100 * stats.LEVEL:.0f}", "percent", ("talklib/stats.py: LEVEL",)),
             "method.draws": Number(stats.DRAWS, f"{stats.DRAWS:,}", "count", ("talklib/stats.py: DRAWS",)),
             "method.window": Number(WINDOW, str(WINDOW), "steps", ("talklib/runcharts.py: WINDOW",)),
             "desk.parameters": _parameters()}
    for scale, recipe in (("full", Recipe.paper()), ("desk", Recipe.desk())):
        for name in ("n_train", "n_test", "steps", "problems_per_step", "chats_per_problem", "eval_chats", "lora_r"):
            value = getattr(recipe, name)
            found[f"recipe.{scale}.{name}"] = Number(value, f"{value:,}", "count", (f"talklib/recipe.py: {name}",))
    return found


def _parameters() -> Number:
    """Parameters of the desk model, counted in the header of its safetensors file (8 bytes of length, then JSON)."""
    where = "talklib/desk/model/model.safetensors"
    data = (Path(__file__).parent / "desk" / "model" / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    count = 0
    for name, entry in header.items():
        if name != "__metadata__":
            size = 1
            for length in entry["shape"]:
                size *= length
            count += size
    return Number(count, f"{count / 1e6:.1f}", "million", (f"{where}: shapes",), "sum of products")


def where(text: str, found: dict[str, Number]) -> list[tuple[str, Number]]:
    """The numbers whose text, or whose key, is `text`: what stands behind a number that a reader saw."""
    wanted = text.strip().rstrip("%")
    return [(key, n) for key, n in found.items() if n.text.lstrip("+$") == wanted.lstrip("+$") or key == wanted]
