"""Figures and text come from stored results alone, without torch, the same bytes each time."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from talklib import charts, paper, stats, tables
from talklib.evidence import from_post, from_runs
from talklib.recipe import ARMS, Recipe

from conftest import ROOT


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("artifact")
    for name in ("paper", "results", "figures"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("adapter", ".*"))
    paper.build(root)
    return root


def test_rebuilding_changes_no_byte(copy):
    for path in [*(ROOT / "figures").iterdir(), ROOT / "paper" / "post.md", ROOT / "paper" / "post.html",
                 ROOT / "paper" / "numbers.json"]:
        assert (copy / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path.name


def test_no_torch_is_needed():
    code = ("import sys, talklib, talklib.paper, talklib.stats, talklib.selftest, talklib.experiment, talklib.data;"
            "assert not {'torch', 'transformers', 'trl'} & set(sys.modules), 'torch came along'")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_posts_verdicts_follow_from_its_figures():
    verdicts = {pair: v.verdict for pair, v in from_post().verdicts.items()}
    assert verdicts.pop(("grpo", "grpo_blocked")) == "moved"
    assert set(verdicts.values()) == {"flat"} and len(verdicts) == 3
    derived = stats.post_verdicts()
    assert len(derived) == 7 and all(found.verdict == published for found, published in derived.values())


def test_every_number_has_a_source_that_holds_it():
    numbers = json.loads((ROOT / "paper" / "numbers.json").read_text())
    checked = 0
    for key, entry in numbers.items():
        source = entry["source"].split("; ")[0]
        path, _, where = source.partition(": ")
        if key.endswith(".score"):
            value = json.loads((ROOT / path).read_text())
            for part in re.findall(r"[^.\[\]]+", where):
                value = value[int(part)] if part.isdigit() else value[part]
            assert value == entry["value"], key
            checked += 1
    assert checked >= 11


def test_the_template_holds_no_bare_number():
    text = (ROOT / "paper" / "post.template.md").read_text()
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|@\w+", "", text)
    assert re.findall(r"\d[\d.,%]*", prose.replace("GSM8K", "")) == []


def test_both_sources_are_labelled(copy):
    text = (copy / "paper" / "post.md").read_text()
    assert from_post().label in text and from_runs(ROOT / "results" / "desk").label in text
    captions = json.loads((copy / "figures" / "captions.json").read_text())
    assert all(entry["alt"] and "Source:" in entry["caption"] for entry in captions.values())


def test_figures_are_drawn_from_what_there_is(tmp_path):
    nothing = from_runs(tmp_path, "desk")
    for kind, draw in charts.DRAW.items():
        charts.save(draw(nothing), tmp_path / kind)
        assert (tmp_path / f"{kind}.svg").stat().st_size > 1000
    assert tables.markdown(tables.scores(nothing)) == "No runs yet.\n"


def test_chart_data_are_the_runs_scores():
    ours = from_runs(ROOT / "results" / "desk")
    rows = charts.data_rows("conditions", ours)
    assert {(row["arm"], row["seed"]): row["score"] for row in rows} == {
        (run.arm, run.seed): run.score for run in ours.runs if run.arm in charts.CONDITIONS}
    axes = charts.conditions(ours).axes[0]
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == [100 * ours.arms[arm].scores[0] for arm in charts.CONDITIONS]
    assert axes.get_ylim()[0] == 0 and list(charts.COLOURS) == list(ARMS)


def test_the_page_needs_no_network():
    class Links(HTMLParser):
        found = []

        def handle_starttag(self, tag, attrs):
            wanted = ("src", "srcset", "href") if tag == "link" else ("src", "srcset")
            self.found += [value for name, value in attrs if name in wanted]

    parser = Links()
    parser.feed((ROOT / "paper" / "post.html").read_text())
    assert parser.found and all(value.startswith("data:") for value in parser.found)


CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="headless Chromium (Debian's package chromium) is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_in_a_browser_without_complaint(tmp_path, width):
    shot = tmp_path / "page.png"
    flags = ("--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
             "--disable-component-update --disable-sync --enable-logging=stderr --hide-scrollbars").split()
    done = subprocess.run([CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600",
                           f"--screenshot={shot}", (ROOT / "paper" / "post.html").as_uri()],
                          capture_output=True, text=True, timeout=120)
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 40_000  # text and a figure, not a blank
    assert "CONSOLE" not in done.stderr


def test_stored_runs_hold_what_the_readme_promises():
    runs = from_runs(ROOT / "results" / "desk").runs
    scores = {(run.arm, run.seed): run.score for run in runs}
    for run in runs:
        steps = run.record["recipe"]["steps"] if ARMS[run.arm].trained else 0
        assert [entry["step"] for entry in run.history] == list(range(1, steps + 1))
        assert run.record["recipe_digest"] == Recipe.desk().digest()
    assert all(scores["grpo", seed] >= 0.40 and scores["grpo_blocked", seed] < 0.06 for seed in (17, 18, 19))
    assert all(scores["base_blocked", seed] < 0.05 < scores["base", seed] < 0.15 for seed in (17, 18, 19))


def test_the_readme_repeats_the_results():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    post, ours = from_post(), from_runs(ROOT / "results" / "desk")
    for name in charts.CONDITIONS:
        first = [tables.points(source.arms[name].scores[0]) for source in (post, ours)]
        assert f"| {first[0]} | {first[1]} |" in text, name
    for name, label in (("grpo", "GRPO"), ("raft", "RAFT"), ("mixed", "mixed partners"),
                        ("reinforce_ada", "Reinforce-Ada")):
        assert f"{label} {tables.points(ours.arms[name].mean)}" in text, name
    partners = [score for name in charts.METHODS for score in ours.arms[name].new_partner]
    assert f"{100 * min(partners):.0f} to {100 * max(partners):.0f}" in text
    base = [run.record["counters"] for run in ours.runs if run.arm == "base"]
    assert f"({100 * base[0]['uses']:.0f} against the post's 30)" in text
