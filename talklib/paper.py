"""The paper: a text whose every number comes from a results file or from the post's figures, as Markdown and HTML.

`build` writes figures/ (`figures`, `tables`) and paper/ (numbers.json, post.md, post.html, chats.html): the same bytes
on every rebuild from the same results. In the page a number is a link to the row that says where it is from.
"""

import hashlib
import html
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import jinja2

from . import TalkError, claims, figures, reader, stattables, tables
from .captions import ORGANISM
from .charts import DRAW
from .evidence import Evidence, from_post, from_runs
from .grading import grader_stamp
from .numbers import Number, collect
from .recipe import ARMS
from .store import to_json, write_atomic


def sources(root: Path) -> list[Evidence]:
    """The post's figures, our desk runs, and a user's full-size runs where there are any."""
    found = [from_post(), from_runs(root / "results" / "desk", "desk")]
    full = from_runs(root / "results" / "paper", "paper")
    return [*found, full] if full.arms else found


def build(root: str | Path, chats: bool = True, anew: bool = False) -> list[str]:
    """Rebuilds all of it; returns a line a part. `chats=False` leaves paper/chats.html as it is.

    Where neither what goes in nor what came out has changed since the last build, nothing is done; `anew` does it all
    the same. The page of chats takes a third of the work and is made by a process of its own, side by side."""
    root = Path(root).resolve()
    stamp, before = root / "build" / "paper.json", _inputs(root)
    last = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() and not anew else {}
    if last.get("chats", -1) >= chats and (last.get("inputs"), last.get("outputs")) == (before, _outputs(root)):
        return last["lines"]
    reading = _in_its_own_process("write_chats", root) if chats else None
    try:
        lines = _build(root)
        if reading is not None:
            complaint = reading.communicate()[1].strip().splitlines()
            if reading.returncode:
                raise TalkError(f"paper/chats.html: {complaint[-1] if complaint else '?'}")
            lines.append("paper: chats.html")
    finally:
        if reading is not None and reading.poll() is None:
            reading.kill()
            reading.wait()
    if _inputs(root) == before:  # or a run came in meanwhile, and some of it may be in and some not
        write_atomic(stamp, to_json({"chats": chats, "inputs": before, "outputs": _outputs(root), "lines": lines}))
    return lines


def _build(root: Path) -> list[str]:
    evidence = sources(root)
    numbers = all_numbers(evidence, root)
    drawn, found = figures.write(root, evidence, numbers), all_tables(evidence, root)
    tables.write(root, found)
    prune(root / "figures", {*drawn, *(f"table-{name}" for name in found), "captions"})
    entries = {key: number.as_dict() for key, number in numbers.items()}
    write_atomic(root / "paper" / "numbers.json", to_json(entries))
    write_atomic(root / "paper" / "post.md", render(root, evidence, numbers, found))
    write_atomic(root / "paper" / "post.html", page(root, render(root, evidence, numbers, found, linked=True)))
    return [f"figures: {', '.join(drawn)}", f"tables: {', '.join(found)}",
            f"paper: {len(entries)} numbers, post.md, post.html"]


def write_chats(root: str | Path) -> None:
    """Writes paper/chats.html, every stored chat to read."""
    root = Path(root)
    ours = [source for source in sources(root) if source.runs]
    note = " ".join(f"{source.label[0].upper()}{source.label[1:]}." for source in ours)
    write_atomic(root / "paper" / "chats.html", reader.page(ours, root / "paper", note or "No runs yet."))


def _in_its_own_process(name: str, root: Path) -> subprocess.Popen:
    code = f"import sys\nfrom talklib import TalkError, paper\ntry: paper.{name}(sys.argv[1])\n" \
           "except TalkError as error: sys.exit(str(error))"
    return subprocess.Popen([sys.executable, "-c", code, str(root)], cwd=PACKAGE.parent, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


# What went in, what came out

PACKAGE = Path(__file__).resolve().parent
MADE = ("numbers.json", "post.md", "post.html", "chats.html")
"""Files of paper/ that the build writes; the others are written by hand."""
LIBRARIES = ("matplotlib", "kiwisolver", "pillow", "numpy", "scipy", "pyarrow", "jinja2", "pypandoc_binary")
"""Whose versions may move a byte of figures or pages."""


def _checksum(folder: Path, *patterns: str, but: Sequence[str] = ()) -> str:
    """Of the files that match, and their names. What is hidden is work under way, and no part of it."""
    paths = {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern)}
    found = hashlib.sha256()
    for path in sorted(paths):
        if not any(part.startswith(".") for part in path.parts) and path.name not in but and (folder / path).is_file():
            found.update(f"{path} {hashlib.sha256((folder / path).read_bytes()).hexdigest()}".encode())
    return found.hexdigest()


CODE = _checksum(PACKAGE, "**/*.py", "**/*.json")
"""Of the code as this process read it: a notebook's kernel may be older than the files."""


def _inputs(root: Path) -> list[str]:
    """Results, the text, the code, the grader and the libraries."""
    return [_checksum(root / "results", "**/*.json", "**/*.parquet"), _checksum(root / "paper", "**/*", but=MADE), CODE,
            json.dumps(grader_stamp()), *(f"{name} {version(name)}" for name in LIBRARIES)]


def _outputs(root: Path) -> list[str]:
    return [_checksum(root / "figures", "*"), _checksum(root / "paper", *MADE)]


def prune(folder: Path, written: set[str]) -> None:
    """Removes figures and tables of an earlier build whose numbers are no longer there; other files are left alone."""
    for path in folder.iterdir():
        kind = path.name.split("-")[0]
        ours = (kind in DRAW or kind == "table") and path.suffix in (".svg", ".png", ".csv", ".md", ".tex")
        if ours and path.stem not in written:
            path.unlink()


def all_numbers(evidence: Sequence[Evidence], root: str | Path = ".") -> dict[str, Number]:
    """`numbers.collect`, what the claims looked at, and the simulations under `root`."""
    found = collect(evidence)
    for key, answers in claims.check(evidence).items():
        for name, answer in answers.items():
            where = ("talklib/claims.py: " + key, "paper/published/talk_to_solve.json: arms",
                     "paper/published/talk_methods.json: arms") if name == "post" else (
                "talklib/claims.py: " + key, f"results/{name}: runs")
            found[f"claim.{key}.{name}"] = Number(answer.verdict, answer.numbers, "claim", where, "asked of")
    found |= _simulated(root)
    for name, counts in claims.tally(evidence).items():
        for verdict, count in counts.items():
            key = f"claims.{name}.{re.sub(r'[^a-z]+', '_', verdict)}"
            found[key] = Number(count, str(count), "count", ("figures/table-claims.csv: rows",), "count")
    return found


def _simulated(root: str | Path) -> dict[str, Number]:
    """False alarms of three rules where both arms spread as the post's GRPO does."""
    found = stattables.simulations(root)
    if found is None:
        return {}
    numbers = {"simulation.nominal": Number(found["nominal"], f"{100 * found['nominal']:.0f}", "of 100",
                                            (f"{stattables.SIMULATIONS}: nominal",))}
    names = {"problem bootstrap, first seed": "first_seed", "the post's rule": "post_rule",
             "Welch's t over seeds": "welch"}
    for i, rate in enumerate(found["false_alarms"]):
        if rate["world"] == "both arms as GRPO" and rate["rule"] in names:
            numbers[f"simulation.{names[rate['rule']]}.{rate['seeds']}"] = Number(
                rate["rate"], f"{100 * rate['rate']:.0f}", "of 100",
                (f"{stattables.SIMULATIONS}: false_alarms[{i}].rate",))
    return numbers


@dataclass
class _Text:
    """What the template may call. `linked`: for the HTML page, where a number links to its source."""

    root: Path
    evidence: Sequence[Evidence]
    numbers: dict[str, Number]
    rows: dict[str, list[tables.Row]]
    """Tables, by name."""
    linked: bool
    used: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.captions = json.loads((self.root / "figures" / "captions.json").read_text(encoding="utf-8"))

    def n(self, key: str) -> str:
        """A number's text, by its key; TalkError for a key that there is not."""
        if key not in self.numbers:
            raise TalkError(f"the template asks for a number {key!r} that the results do not give; "
                            "guard it with {% if has(...) %} or run the arm")
        if key not in self.used:
            self.used.append(key)
        number = self.numbers[key]
        return f"[{_escape(number.text)}](#{anchor(key)}){{.n}}" if self.linked else number.text

    def has(self, *keys: str) -> bool:
        """Whether the results give all of these numbers."""
        return all(key in self.numbers for key in keys)

    def figure(self, kind: str, *names: str) -> str:
        """A kind of figure for each source that has it, side by side where the page is wide."""
        wanted = [f"{kind}-{source.name}" for source in self.evidence if not names or source.name in names]
        found = [self._image(name) for name in wanted if name in self.captions]
        if not found:
            return f"*({NAMES[kind]}: not measured yet.)*"
        text = "\n\n".join(found)
        return f"::: {{.figures .of{min(len(found), 2)}}}\n{text}\n:::" if self.linked else text

    def _image(self, name: str) -> str:
        entry = self.captions[name]
        path = f"../figures/{name}.svg"
        if self.linked:
            alt = entry["alt"].replace('"', "'")
            return f'![{_escape(entry["caption"])}]({path}){{alt="{alt}"}}'
        return f"![{_escape(entry['alt'])}]({path})\n\n*{_escape(entry['caption'])}*"

    def table(self, name: str) -> str:
        """A table with its title; a sentence where no source can fill it."""
        if name not in self.rows:
            return ""  # the figure of the same numbers says that they are not there
        rows = tables.markdown(self.rows[name])
        title = f"**{tables.TITLES[name]}** [CSV](../figures/table-{name}.csv), [LaTeX](../figures/table-{name}.tex)"
        return f"{title}\n\n{_scroll(rows, tables.TITLES[name])}" if self.linked else f"{title}\n\n{rows}"

    def sources(self) -> str:
        """A row for every number used so far: its text, its key, and the file and field it is from."""
        rows = []
        for key in self.used:
            number = self.numbers[key]
            text = f"[{_escape(number.text)}]{{#{anchor(key)}}}" if self.linked else number.text
            more = f" and {len(number.sources) - 1} more" if len(number.sources) > 1 else ""
            how = "" if number.how == "as stored" else f"{number.how} of "
            rows.append({"number": text, "name": f"`{key}`", "from": f"{how}{_link(number.sources[0])}{more}"})
        return _scroll(tables.markdown(rows), "Where the numbers are from") if self.linked else tables.markdown(rows)


NAMES = {"conditions": "Problems solved", "behaviour": "What the copies do", "methods": "Training methods",
         "learning": "Learning curves", "flat_groups": "Flat groups by step", "crossplay": "Cross-play",
         "crossplay_seeds": "Cross-play, run by run",
         "ceilings": "Ceilings and floors", "cost": "Cost"}


def anchor(key: str) -> str:
    """The id of a number's row in the page."""
    return "n-" + re.sub(r"[^A-Za-z0-9]+", "-", key)


def _escape(text: str) -> str:
    """Text for Markdown: characters that would be markup are escaped."""
    return re.sub(r"([\\`*_\[\]<>$@^~|])", r"\\\1", text)


def _link(source: str) -> str:
    """"file: field" with the file as a link from paper/."""
    path, _, where = source.partition(": ")
    return f"[{path}](../{path}) `{where}`" if where else f"[{path}](../{path})"


def _scroll(rows: str, title: str) -> str:
    """A table that scrolls sideways by itself where the page is narrow, by keyboard too."""
    return (f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(title)}">\n\n{rows}\n</div>')


def all_tables(evidence: Sequence[Evidence], root: Path) -> dict[str, list[tables.Row]]:
    """`tables.gather`, and the claims."""
    return {**tables.gather(evidence, root), "claims": claims.table(evidence)}


def render(root: Path, evidence: Sequence[Evidence], numbers: dict[str, Number], rows: dict[str, list[tables.Row]],
           linked: bool = False) -> str:
    """paper/post.template.md filled in: plain Markdown, or with links and anchors for the page."""
    text = _Text(root, evidence, numbers, rows, linked)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False,
                                     trim_blocks=True, lstrip_blocks=True)
    template = (root / "paper" / "post.template.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        n=text.n, has=text.has, figure=text.figure, table=text.table, sources=text.sources, arms=ARMS,
        organism=ORGANISM, differences=claims.disagreements(evidence),
        holds=lambda key, source: numbers[f"claim.{key}.{source}"].value in (claims.HOLDS, claims.REMARK),
        value=lambda key: numbers[key].value, missing={source.name: source.missing for source in evidence})


def page(root: Path, text: str) -> str:
    """The text as one self-contained HTML page: pandoc, citations from references.bib, figures and style inside."""
    import pypandoc

    folder = root / "paper"
    return pypandoc.convert_text(text, "html5", format="markdown+raw_html+link_attributes-implicit_header_references",
                                 extra_args=[
        "--standalone", f"--template={folder / 'post.template.html'}", "--embed-resources", "--citeproc",
        f"--bibliography={folder / 'references.bib'}", f"--css={folder / 'post.css'}", f"--resource-path={folder}",
        "--toc", "--toc-depth=3", "--shift-heading-level-by=1", "--metadata=link-citations:true", "--metadata=lang:en",
        "--wrap=none", "--columns=100000"])
