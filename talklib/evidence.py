"""What charts and tables draw from: one shape for the post's figures and for runs on disk, with their source."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from .published import OURS, load
from .recipe import ARMS
from .stats import Delta as Interval
from .stats import Verdict, paired_delta, sample_std, verdict
from .store import Run, load_runs, problem_scores

COUNTERS = ("sends", "uses", "agrees", "asks")
_THEIRS = {"sends": "shared", "uses": "used", "agrees": "agree", "asks": "asked", "message_chars": "msg_chars"}


@dataclass(frozen=True)
class ArmEvidence:
    """One arm: a score a seed, the first seed's interval over problems, counters a seed. Fractions."""

    scores: tuple[float, ...]
    seeds: tuple[int, ...]
    ci95: tuple[float, float]
    """Of the first seed; 95% percentile bootstrap over problems."""
    counters: tuple[dict[str, float], ...]
    new_partner: tuple[float, ...] = ()
    """A trained, B untrained: a score a seed."""
    sources: tuple[str, ...] = ()
    """Where each seed's score stands: a file, and the field in it."""

    @property
    def mean(self) -> float:
        return fmean(self.scores)


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


def from_post() -> Evidence:
    """The post's published figures."""
    solve, methods = load("talk_to_solve"), load("talk_methods")
    arms = {}
    for name in ARMS:
        if name in OURS:
            entry, source = solve["arms"][OURS[name]], f"talk_to_solve.json: arms.{OURS[name]}"
        else:
            entry, source = methods["arms"][name], f"talk_methods.json: arms.{name}"
        arms[name] = _post_arm(name, entry, methods["arms"].get(name, {}), f"paper/published/{source}")
    runs, std = solve["noise"]["runs"], solve["noise"]["run_std"]
    deltas = {("grpo", "grpo_blocked"): solve["delta"]}
    deltas |= {(name, "grpo"): entry for name, entry in methods["deltas_vs_grpo"].items()}
    found = {}
    for (arm, against), delta in deltas.items():
        paired = Interval(delta["value"], *delta["ci95"])
        found[arm, against] = verdict(paired, arms[arm].scores, arms[against].scores, std, runs)
    return Evidence("post", "the post's figures (Qwen2.5-1.5B, GSM8K)", arms, found)


def _post_arm(name: str, entry: dict, method: dict, source: str) -> ArmEvidence:
    scores = entry.get("per_seed", [entry["score"]])
    counted = entry.get("talk_per_seed", [entry["talk"]] if "talk" in entry else [])
    counted = tuple({ours: talk[theirs] for ours, theirs in _THEIRS.items()} for talk in counted)
    fields = [f"{source}.per_seed[{i}]" if "per_seed" in entry else f"{source}.score" for i in range(len(scores))]
    seeds = tuple(load("talk_to_solve")["train_seeds"][: len(scores)]) if ARMS[name].trained else (0,)
    return ArmEvidence(tuple(scores), seeds, tuple(entry["ci95"]), counted,
                       tuple(method.get("untrained_partner", {}).get("per_seed", ())), tuple(fields))


def from_runs(results: str | Path, name: str = "desk", label: str | None = None) -> Evidence:
    """The runs under a results folder; arms without a run are left out."""
    runs = load_runs(results)
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    arms = {arm: _run_arm(found, Path(results)) for arm, found in by_arm.items() if found}
    label = label or {"desk": "our desk-scale runs (0.7M-parameter model)"}.get(name, f"our {name}-scale runs")
    return Evidence(name, label, arms, _verdicts(by_arm), tuple(runs))


def _run_arm(runs: list[Run], results: Path) -> ArmEvidence:
    where = "/".join(results.parts[-2:])  # results/SCALE: the same from any folder
    return ArmEvidence(
        tuple(run.score for run in runs), tuple(run.seed for run in runs), tuple(runs[0].record["ci95"]),
        tuple(run.record["counters"] for run in runs),
        tuple(run.record["evaluations"]["as_a"]["score"] for run in runs if "as_a" in run.evaluations),
        tuple(f"{where}/{run.arm}/seed-{run.seed}/run.json: score" for run in runs))


def _verdicts(by_arm: dict[str, list[Run]]) -> dict[tuple[str, str], Verdict]:
    """The post's rule for every comparison that both arms have runs for, and the noise of the untrained re-runs."""
    base = [run.score for run in by_arm["base"]]
    if len(base) < 2:
        return {}
    pairs = [("grpo", "grpo_blocked"), *((name, "grpo") for name in ("raft", "mixed", "reinforce_ada"))]
    found = {}
    for arm, against in pairs:
        a, b = by_arm[arm], by_arm[against]
        if a and b:
            paired = paired_delta(problem_scores(a[0]), problem_scores(b[0]))
            found[arm, against] = verdict(paired, [r.score for r in a], [r.score for r in b], sample_std(base),
                                          len(base))
    return found
