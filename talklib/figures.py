"""All figures, written: SVG, PNG, the data behind each as CSV, and captions.json with caption and alt text."""

import csv
import io
from pathlib import Path

from .captions import alt_text, caption
from .charts import CONDITIONS, DRAW, METHODS, kinds
from .evidence import COUNTERS, Evidence
from .numbers import Number
from .runcharts import ladder
from .store import to_json, write_atomic
from .style import save


def write(root: Path, sources: list[Evidence], numbers: dict[str, Number]) -> list[str]:
    """figures/KIND-SOURCE.svg, .png and .csv, and figures/captions.json; returns the names."""
    captions = {}
    for source in sources:
        for kind in kinds(source):
            name = f"{kind}-{source.name}"
            save(DRAW[kind](source), root / "figures" / name)
            write_atomic(root / "figures" / f"{name}.csv", to_csv(data_rows(kind, source)))
            captions[name] = {"caption": caption(kind, source, numbers), "alt": alt_text(kind, source, numbers)}
    write_atomic(root / "figures" / "captions.json", to_json(captions))
    return list(captions)


def data_rows(kind: str, evidence: Evidence) -> list[dict]:
    """The numbers behind a figure at full precision, as rows for its CSV, each with its source."""
    make = {"learning": lambda e: _curve_rows(e, "reward"), "flat_groups": lambda e: _curve_rows(e, "flat_groups"),
            "crossplay": _cross_rows, "crossplay_seeds": _cross_rows, "ceilings": _ceiling_rows,
            "cost": _cost_rows}.get(kind)
    if make:
        return make(evidence)
    names = {"conditions": CONDITIONS, "behaviour": ("base", "grpo"), "methods": ("base", *METHODS)}[kind]
    return [row for name in names if name in evidence.arms for row in _arm_rows(name, evidence)]


def _arm_rows(name: str, evidence: Evidence) -> list[dict]:
    arm = evidence.arms[name]
    rows = []
    for i, score in enumerate(arm.scores):
        first = arm.ci95 if i == 0 else ("", "")
        rows.append({"arm": name, "seed": arm.seeds[i], "score": score, "ci95_low": first[0], "ci95_high": first[1],
                     **{counter: _blank(arm.counter(counter, i)) for counter in COUNTERS}, "source": arm.sources[i]})
    for i, score in enumerate(arm.reruns):
        rows.append({"arm": name, "seed": f"re-run {i + 1}", "score": score, "ci95_low": "", "ci95_high": "",
                     **dict.fromkeys(COUNTERS, ""),
                     "source": f"paper/published/talk_to_solve.json: noise.base_reruns_points[{i}]"})
    return rows


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _curve_rows(evidence: Evidence, key: str) -> list[dict]:
    return [{"arm": name, "seed": seed, "step": int(step["step"]), key: round(step[key], 6),
             "source": f"{source.split(': ')[0]}: history[{i}].{key}"}
            for name, arm in evidence.arms.items()
            for seed, run, source in zip(arm.seeds, arm.history, arm.sources, strict=False)
            for i, step in enumerate(run) if key in step]


def _cross_rows(evidence: Evidence) -> list[dict]:
    return [{"a_arm": row.a[0], "a_seed": row.a[1], "b_arm": row.b[0], "b_seed": row.b[1], "score": row.score,
             "ci95_low": row.ci95[0] if row.ci95 else "", "ci95_high": row.ci95[1] if row.ci95 else "",
             "source": row.source} for row in evidence.crossplay]


def _ceiling_rows(evidence: Evidence) -> list[dict]:
    return [{"label": label, "score": score, "ci95_low": ci95[0] if ci95 else "", "ci95_high": ci95[1] if ci95 else ""}
            for label, score, ci95, _ in ladder(evidence)]


def _cost_rows(evidence: Evidence) -> list[dict]:
    return [{"arm": name, "measure": measure, "mean": value, "source": "; ".join(arm.cost_sources[measure])}
            for name, arm in evidence.arms.items() if name in METHODS for measure, value in arm.cost.items()]


def to_csv(rows: list[dict]) -> str:
    """Rows as CSV text with one header line; empty text for no rows."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()
