"""The paper: figures, tables and a text whose every number comes from a results file or from the post's figures.

`build` writes figures/ (SVG, PNG, CSV, Markdown) and paper/ (numbers.json, post.md, post.html), the same bytes on
every rebuild from the same results.
"""

import json
from pathlib import Path

import jinja2

from . import charts, tables
from .evidence import COUNTERS, Evidence, from_post, from_runs
from .recipe import ARMS
from .store import to_json, write_atomic


def sources(root: Path) -> list[Evidence]:
    """The post's figures, our desk runs, and a user's paper-scale runs where there are any."""
    found = [from_post(), from_runs(root / "results" / "desk", "desk")]
    paper = from_runs(root / "results" / "paper", "paper")
    return [*found, paper] if paper.arms else found


def build(root: str | Path) -> list[str]:
    """Rebuilds all of it; returns a line a part."""
    root = Path(root)
    evidence = sources(root)
    lines = [*write_figures(root, evidence), *write_tables(root, evidence)]
    write_numbers(root, evidence)
    write_text(root, evidence)
    return [*lines, "paper: numbers.json, post.md, post.html"]


def write_figures(root: Path, evidence: list[Evidence]) -> list[str]:
    """figures/KIND-SOURCE.svg, .png, .csv, and captions.json with caption and alt text of each."""
    captions = {}
    for source in evidence:
        for kind, draw in charts.DRAW.items():
            if kind == "learning" and not source.runs:
                continue
            stem = root / "figures" / f"{kind}-{source.name}"
            charts.save(draw(source), stem)
            write_atomic(stem.with_suffix(".csv"), charts.to_csv(charts.data_rows(kind, source)))
            captions[stem.name] = {"caption": f"{charts.CAPTIONS[kind]} Source: {source.label}.",
                                   "alt": charts.alt_text(kind, source)}
    write_atomic(root / "figures" / "captions.json", to_json(captions))
    return [f"figures: {', '.join(captions)}"]


def write_tables(root: Path, evidence: list[Evidence]) -> list[str]:
    """figures/table-NAME.md and .csv, the post's rows first, then ours."""
    found = {name: [row for source in evidence for row in make(source)] for name, make in tables.TABLES.items()}
    found["settings"] = tables.settings()
    for name, rows in found.items():
        write_atomic(root / "figures" / f"table-{name}.md", tables.markdown(rows))
        write_atomic(root / "figures" / f"table-{name}.csv", charts.to_csv(rows))
    return [f"tables: {', '.join(found)}"]


def numbers(evidence: list[Evidence]) -> dict[str, dict]:
    """Every number that prose may use: value, unit, text, source, and an interval where it has one."""
    found = {}

    def add(key: str, value: float, text: str, source: str, unit: str = "points of 100", interval=None):
        found[key] = {"value": value, "unit": unit, "text": text, "source": source, "interval": interval}

    for source in evidence:
        for name, arm in source.arms.items():
            key = f"{source.name}.{name}"
            add(f"{key}.score", arm.scores[0], tables.points(arm.scores[0]), arm.sources[0], interval=list(arm.ci95))
            add(f"{key}.mean", arm.mean, tables.points(arm.mean), "; ".join(arm.sources))
            add(f"{key}.low", min(arm.scores), tables.points(min(arm.scores)), "; ".join(arm.sources))
            add(f"{key}.high", max(arm.scores), tables.points(max(arm.scores)), "; ".join(arm.sources))
            for counter in COUNTERS if arm.counters else ():
                value = arm.counters[0][counter]
                add(f"{key}.{counter}", value, tables.points(value, 0), arm.sources[0].split(":")[0] + ": counters")
        for (a, b), v in source.verdicts.items():
            where = f"stats.verdict over {source.label}"
            add(f"{source.name}.{a}-{b}.delta", v.paired.value, tables.signed(v.paired.value), where,
                interval=[v.paired.low, v.paired.high])
            add(f"{source.name}.{a}-{b}.verdict", v.centre, v.verdict, where, unit="verdict")
    return found


def write_numbers(root: Path, evidence: list[Evidence]) -> None:
    write_atomic(root / "paper" / "numbers.json", to_json(numbers(evidence)))


def render(root: Path, evidence: list[Evidence]) -> str:
    """paper/post.template.md with its numbers, figures and tables filled in. An unknown number is an error."""
    found = numbers(evidence)
    captions = json.loads((root / "figures" / "captions.json").read_text(encoding="utf-8"))

    def n(key: str) -> str:
        return found[key]["text"]

    def figure(name: str) -> str:
        entry = captions[name]
        alt = entry["alt"].replace('"', "'")
        return f'![{entry["caption"]}](../figures/{name}.svg){{alt="{alt}"}}'

    def table(name: str) -> str:
        return (root / "figures" / f"table-{name}.md").read_text(encoding="utf-8")

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
                                     autoescape=False)
    template = (root / "paper" / "post.template.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        n=n, figure=figure, table=table, has=lambda key: key in found, arms=ARMS,
        seeds=lambda source, arm: len(next(e for e in evidence if e.name == source).arms[arm].scores))


def write_text(root: Path, evidence: list[Evidence]) -> None:
    """paper/post.md and the self-contained paper/post.html (pandoc; citations from references.bib)."""
    import pypandoc

    text = render(root, evidence)
    write_atomic(root / "paper" / "post.md", text)
    folder = root / "paper"
    html = pypandoc.convert_text(
        text, "html5", format="markdown+implicit_figures+link_attributes", extra_args=[
            "--standalone", "--embed-resources", "--citeproc", f"--bibliography={folder / 'references.bib'}",
            f"--css={folder / 'post.css'}", f"--resource-path={folder}", "--metadata=link-citations:true",
            "--metadata=lang:en", "--wrap=none"])
    write_atomic(folder / "post.html", html.replace("<table", '<div class="scroll"><table').replace(
        "</table>", "</table></div>"))
