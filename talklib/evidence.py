"""What charts, tables, numbers and claims draw from: one shape for the post's figures and for runs on disk.

Nothing that reads an `Evidence` needs to know where it came from; each carries its label, and each number its source
as "file: field". What a source does not say is None or empty, and `missing` names the runs that are not there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from . import TalkError
from .published import OURS, load
from .recipe import ARMS, get_arm
from .stats import Delta, Verdict, paired_delta, sample_std, verdict
from .store import Run, load_runs

COUNTERS = ("sends", "uses", "agrees", "asks")
_THEIRS = {"sends": "shared", "uses": "used", "agrees": "agree", "asks": "asked", "message_chars": "msg_chars"}
COMPARISONS = (("grpo", "grpo_blocked"), ("raft", "grpo"), ("mixed", "grpo"), ("reinforce_ada", "grpo"))
"""(arm, against), as the post compares them."""
COSTS = {"chats drawn": ("tokens", "chats", 1), "tokens generated": ("tokens", "generated", 1),
         "tokens trained": ("tokens", "trained", 1), "CPU minutes": ("timings", "cpu_seconds", 60)}
"""Cost -> where run.json keeps it, and what to divide by. CPU minutes hold training and evaluation."""


@dataclass(frozen=True)
class ArmEvidence:
    """One arm: a score a seed, the first seed's interval over problems, counters a seed. Fractions."""

    scores: tuple[float, ...]
    seeds: tuple[int, ...]
    ci95: tuple[float, float]
    """Of the first seed; 95% percentile bootstrap over problems."""
    counters: tuple[dict[str, float | None], ...]
    new_partner: tuple[float, ...] = ()
    """A trained, B untrained: a score a seed."""
    sources: tuple[str, ...] = ()
    """Where each seed's score stands: a file, and the field in it."""
    counter_sources: tuple[str, ...] = ()
    partner_sources: tuple[str, ...] = ()
    partner_seeds: tuple[int, ...] = ()
    as_b: tuple[float, ...] = ()
    """A untrained, B trained: a score a seed."""
    pass_at_4: float | None = None
    """First seed: share of problems with a right one among their 4 answers."""
    reruns: tuple[float, ...] = ()
    """Of the untrained pair: further evaluations of the same model, where the source keeps them apart from scores."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """Mean over seeds, by name of the cost."""
    cost_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    history: tuple[tuple[dict, ...], ...] = ()
    """One entry a step, one list a seed; empty where the source has none."""

    @property
    def mean(self) -> float:
        return fmean(self.scores)

    @property
    def dots(self) -> tuple[float, ...]:
        """What a chart shows one dot each of: seeds, or re-runs of the untrained pair."""
        return self.reruns or self.scores

    def counter(self, name: str, seed: int = 0) -> float | None:
        """A counter of the seed at that position; None where it was not counted or is not defined."""
        return self.counters[seed].get(name) if seed < len(self.counters) else None


@dataclass(frozen=True)
class Row:
    """One row of a file beside the runs: a pairing of cross-play, or a ceiling or floor. Fractions."""

    score: float
    ci95: tuple[float, float] | None
    source: str
    a: tuple[str, int] | None = None
    """Cross-play: arm and seed of the copy in seat A."""
    b: tuple[str, int] | None = None
    label: str = ""
    """Ceilings: what the bar is called."""
    name: str = ""
    """Ceilings: key of the row."""


@dataclass(frozen=True)
class Evidence:
    """All that one source says."""

    name: str
    label: str
    """Stands in every figure drawn from it."""
    arms: dict[str, ArmEvidence]
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    """(arm, against) -> the post's rule applied."""
    runs: tuple[Run, ...] = ()
    short: str = ""
    """Names the source in tables."""
    partner_verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    """The same, each arm's A with the untrained model as B."""
    run_std: float | None = None
    """Standard deviation of the untrained pair's re-runs: the noise floor."""
    crossplay: tuple[Row, ...] = ()
    ceilings: tuple[Row, ...] = ()
    equal: dict[str, ArmEvidence] = field(default_factory=dict)
    """Arms run for fewer steps, so that they generate as many tokens as GRPO."""
    missing: tuple[str, ...] = ()
    """Runs that the other runs lead one to expect, in words."""
    facts: Mapping[str, tuple[float | str, str, str]] = field(default_factory=dict)
    """Other numbers that prose uses: key -> (value, unit, source)."""

    @property
    def ours(self) -> bool:
        """Whether this repository's code made the numbers."""
        return self.name != "post"


POST_FILES = {"solve": "paper/published/talk_to_solve.json", "methods": "paper/published/talk_methods.json"}


def from_post() -> Evidence:
    """The post's published figures."""
    solve, methods = load("talk_to_solve"), load("talk_methods")
    arms = {}
    for name in ARMS:
        if name in OURS:
            entry, source = solve["arms"][OURS[name]], f"{POST_FILES['solve']}: arms.{OURS[name]}"
        else:
            entry, source = methods["arms"][name], f"{POST_FILES['methods']}: arms.{name}"
        arms[name] = _post_arm(name, entry, methods["arms"].get(name, {}), source)
    facts = {name: (part[key], unit, f"{POST_FILES[file]}: {path}") for name, file, part, key, path, unit in (
        ("flat_early", "methods", methods["flat_groups"], "early", "flat_groups.early", "fraction"),
        ("flat_late", "methods", methods["flat_groups"], "late", "flat_groups.late", "fraction"),
        ("usd", "solve", solve, "usd", "usd", "dollars"), ("usd_methods", "methods", methods, "usd", "usd", "dollars"),
        ("gpu_minutes", "solve", solve, "gpu_minutes", "gpu_minutes", "minutes"),
        ("gpu_minutes_methods", "methods", methods, "gpu_minutes", "gpu_minutes", "minutes"),
        ("holdout", "solve", solve, "n_holdout", "n_holdout", "count"),
        ("answers", "solve", solve, "answers_per_problem", "answers_per_problem", "count"),
        ("chats_per_problem", "solve", solve, "chats_per_problem", "chats_per_problem", "count"),
        ("steps", "solve", solve["arms"]["trained_chat"], "steps", "arms.trained_chat.steps", "count"),
        ("model", "solve", solve, "base_model", "base_model", "name"),
        ("run_std", "solve", solve["noise"], "run_std", "noise.run_std", "fraction"))}
    return Evidence("post", "the post's figures (Qwen2.5-1.5B, GSM8K)", arms, _post_verdicts(arms), short="the post",
                    partner_verdicts=_post_verdicts(arms, partner=True), run_std=solve["noise"]["run_std"],
                    facts=facts)


def _post_arm(name: str, entry: dict, method: dict, source: str) -> ArmEvidence:
    file, _, path = source.partition(": ")
    count = len(entry.get("per_seed", [0]))
    counted = entry.get("talk_per_seed", [entry["talk"]] if "talk" in entry else [])
    seeds = load("talk_to_solve")["train_seeds"][:count] if ARMS[name].trained else [0]
    partner = method.get("untrained_partner", {}).get("per_seed", ())
    key = "talk_per_seed[{}]" if "talk_per_seed" in entry else "talk"
    where = f"{POST_FILES['methods']}: arms.{name}"
    return ArmEvidence(
        tuple(entry.get("per_seed", [entry["score"]])), tuple(seeds), tuple(entry["ci95"]),
        tuple({ours: talk[theirs] for ours, theirs in _THEIRS.items()} for talk in counted), tuple(partner),
        tuple(f"{source}.per_seed[{i}]" if "per_seed" in entry else f"{source}.score" for i in range(count)),
        tuple(f"{file}: {path}.{key.format(i)}" for i in range(len(counted))),
        tuple(f"{where}.untrained_partner.per_seed[{i}]" for i in range(len(partner))),
        tuple(seeds[: len(partner)]), pass_at_4=entry["pass_at_4"],
        reruns=tuple(p / 100 for p in load("talk_to_solve")["noise"]["base_reruns_points"]) if name == "base" else (),
        cost={"GPU minutes": method["gpu_minutes_per_seed"]} if method else {},
        cost_sources={"GPU minutes": (f"{where}.gpu_minutes_per_seed",)} if method else {})


def _post_verdicts(arms: dict[str, ArmEvidence], partner: bool = False) -> dict[tuple[str, str], Verdict]:
    """The rule of `stats.verdict` on the published paired deltas and seeds."""
    solve, methods = load("talk_to_solve"), load("talk_methods")
    deltas = {} if partner else {("grpo", "grpo_blocked"): solve["delta"]}
    key = "deltas_vs_grpo_untrained_partner" if partner else "deltas_vs_grpo"
    deltas |= {(name, "grpo"): methods[key][name] for name, against in COMPARISONS[1:]}
    noise, found = solve["noise"], {}
    for (arm, against), delta in deltas.items():
        a, b = ((arms[n].new_partner if partner else arms[n].scores) for n in (arm, against))
        found[arm, against] = verdict(Delta(delta["value"], *delta["ci95"]), a, b, noise["run_std"], noise["runs"])
    return found


LABELS = {"desk": "our desk-scale runs: a model organism, not the post's model",
          "paper": "our runs of the post's recipe at full size"}
EQUAL = "equal_tokens"
"""Folder beside the arms: runs of fewer steps."""
SHORT = {"desk": "ours, desk scale", "paper": "ours, full size"}


def from_runs(results: str | Path, name: str = "desk", label: str | None = None) -> Evidence:
    """The runs under a results folder; arms without a run are left out, and `missing` says so."""
    runs, results = load_runs(results), Path(results)
    by_arm, arms = _by_arm(runs, results)
    _, equal = _by_arm(load_runs(results / EQUAL), results / EQUAL)
    base = [run.score for run in by_arm["base"]]
    std = sample_std(base) if len(base) > 1 else None
    label = label or LABELS.get(name, f"our {name}-scale runs")
    return Evidence(name, label, arms, _verdicts(by_arm, std, "pair"), tuple(runs), SHORT.get(name, f"ours, {name}"),
                    _verdicts(by_arm, std, "as_a"), std, _rows(results, "crossplay"), _rows(results, "ceilings"),
                    equal, _missing(by_arm))


def _by_arm(runs: Sequence[Run], results: Path) -> tuple[dict[str, list[Run]], dict[str, ArmEvidence]]:
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    return by_arm, {arm: _run_arm(found, results) for arm, found in by_arm.items() if found}


def _where(results: Path, name: str) -> str:
    """A file's name from the root of the repository, the same from any folder: results/SCALE/..."""
    return "/".join([*results.parts[-3 if results.name == EQUAL else -2 :], name])


def _run_arm(runs: list[Run], results: Path) -> ArmEvidence:
    files = {run.seed: _where(results, f"{run.arm}/seed-{run.seed}/run.json") for run in runs}
    trained = [run for run in runs if run.history]
    partnered = {side: [run for run in runs if side in run.evaluations] for side in ("as_a", "as_b")}

    def of(side: str) -> tuple[float, ...]:
        return tuple(run.record["evaluations"][side]["score"] for run in partnered[side])

    return ArmEvidence(
        tuple(run.score for run in runs), tuple(run.seed for run in runs), tuple(runs[0].record["ci95"]),
        tuple(run.record["counters"] for run in runs), of("as_a"),
        tuple(f"{files[run.seed]}: score" for run in runs), tuple(f"{files[run.seed]}: counters" for run in runs),
        tuple(f"{files[run.seed]}: evaluations.as_a.score" for run in partnered["as_a"]),
        tuple(run.seed for run in partnered["as_a"]), of("as_b"),
        runs[0].record["evaluations"]["pair"].get("pass_at_4"),
        cost={name: fmean(run.record[part][key] / unit for run in trained) for name, (part, key, unit) in COSTS.items()}
        if trained else {},
        cost_sources={name: tuple(f"{files[run.seed]}: {part}.{key}" for run in trained)
                      for name, (part, key, _) in COSTS.items()} if trained else {},
        history=tuple(tuple(run.history) for run in trained))


def _verdicts(by_arm: dict[str, list[Run]], std: float | None, evaluation: str) -> dict[tuple[str, str], Verdict]:
    """The post's rule for every comparison that both arms have runs for, and the noise of the untrained re-runs."""
    found: dict[tuple[str, str], Verdict] = {}
    for arm, against in COMPARISONS if std is not None else ():
        pairs = [[run for run in by_arm[name] if evaluation in run.evaluations] for name in (arm, against)]
        if all(pairs):
            paired = paired_delta(*(runs[0].scores(evaluation) for runs in pairs))
            seeds = [[run.record["evaluations"][evaluation]["score"] for run in runs] for runs in pairs]
            found[arm, against] = verdict(paired, *seeds, std, len(by_arm["base"]))
    return found


def _missing(by_arm: dict[str, list[Run]]) -> tuple[str, ...]:
    """Arms without a run, and seeds that another arm has and this one lacks."""
    if not any(by_arm.values()):
        return ()
    trained = {run.seed for arm, runs in by_arm.items() if ARMS[arm].trained for run in runs}
    out = [ARMS[arm].label for arm, runs in by_arm.items() if not runs]
    for arm, runs in by_arm.items():
        lacking = sorted(trained - {run.seed for run in runs}) if runs and ARMS[arm].trained else []
        if lacking:
            out.append(f"{ARMS[arm].label} seed{'s' * (len(lacking) > 1)} {', '.join(map(str, lacking))}")
    return tuple(out)


def _rows(results: Path, name: str) -> tuple[Row, ...]:
    """results/SCALE/crossplay.json or ceilings.json; no rows where there is no such file."""
    path = results / f"{name}.json"
    if not path.is_file():
        return ()
    where = _where(results, path.name)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return tuple(_row(row, f"{where}: rows[{i}].score", name == "crossplay") for i, row in enumerate(rows))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TalkError(f"{path} is not a {name} file ({type(error).__name__}: {error}); make it again") from error


def _row(row: Mapping, source: str, seated: bool) -> Row:
    """One row of the file; `seated` rows name who sat in A and B."""
    ci95: Sequence[float] | None = row.get("ci95")
    a, b = (((get_arm(row[f"{side}_arm"]).name, int(row[f"{side}_seed"])) if seated else None) for side in "ab")
    label = "" if seated else row.get("label") or row["name"]
    return Row(float(row["score"]), tuple(ci95) if ci95 else None, source, a, b, label, row.get("name", ""))
