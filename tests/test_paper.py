"""Tables, numbers, claims, text and page come from stored results alone, without torch, the same bytes each time."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from statistics import fmean

import pytest
from talklib import TalkError, charts, claims, numbers, paper, stats, tables
from talklib.evidence import COSTS, from_post, from_runs
from talklib.published import load
from talklib.readings import codes
from talklib.recipe import ARMS, SEEDS, Recipe

from browser import CHROMIUM, Browser
from conftest import ROOT
from made_runs import made_run

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="headless Chromium (Debian's package chromium) is missing")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.fixture(scope="module")
def sources():
    return paper.sources(ROOT)


@pytest.fixture(scope="module")
def found(sources):
    return paper.all_numbers(sources, ROOT)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("artifact")
    for name in ("paper", "results", "figures"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("adapter", ".*"))
    (root / "figures" / "methods-gone.svg").write_text("of an earlier build")
    (root / "figures" / "mine.svg").write_text("a user's own")
    paper.build(root)
    return root


# The build


def test_rebuilding_changes_no_byte(copy):
    made = [*(ROOT / "figures").iterdir(), *((ROOT / "paper" / name) for name in
                                             ("post.md", "post.html", "chats.html", "numbers.json"))]
    for path in made:
        assert (copy / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path.name
    kept = {path.name for path in (copy / "figures").iterdir()}
    assert kept - {path.name for path in (ROOT / "figures").iterdir()} == {"mine.svg"}


def test_no_torch_is_needed():
    code = ("import sys, talklib, talklib.paper, talklib.stats, talklib.selftest, talklib.experiment, talklib.data;"
            "assert not {'torch', 'transformers', 'trl'} & set(sys.modules), 'torch came along'")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The paper of a checkout without a run, and of one with two arms."""
    roots = []
    for arms in ((), ("grpo", "raft")):
        root = tmp_path_factory.mktemp("bare")
        shutil.copytree(ROOT / "paper", root / "paper")
        for arm in arms:
            made_run(root / "results" / "desk", arm, 17)
        paper.build(root)
        roots.append(root)
    return roots


def test_nothing_is_rebuilt_unless_something_changed(bare):
    root = bare[1]
    text, chart, run = root / "paper" / "post.md", root / "figures" / "learning-desk.svg", next(root.rglob("run.json"))

    def rebuilt(**options) -> bool:
        before = text.stat().st_mtime_ns
        lines = paper.build(root, **options)
        assert lines[-1] == "paper: chats.html"
        return text.stat().st_mtime_ns != before

    drawn = chart.read_bytes()
    assert not rebuilt() and rebuilt(anew=True) and not rebuilt()
    chart.write_bytes(b"<svg/>")  # someone edits what came out
    assert rebuilt() and chart.read_bytes() == drawn
    run.write_text(run.read_text() + "\n")  # or what goes in
    assert rebuilt() and not rebuilt()


def test_what_is_wrong_with_the_chats_is_said(bare, tmp_path):
    shutil.copytree(bare[1], tmp_path / "copy")
    (tmp_path / "copy" / "paper" / "reader.css").unlink()
    with pytest.raises(TalkError, match="paper/chats.html: .*reader.css"):
        paper.build(tmp_path / "copy", anew=True)


def test_a_checkout_without_runs_builds_and_says_so(bare):
    none, some = [(root / "paper" / "post.md").read_text() for root in bare]
    assert "Not all four conditions have been run yet" in none and "not every method has been run" in none
    assert "Learning curves: not measured yet" in none and "desk.base.score" not in none
    assert "**Not run yet:** untrained, blocked; untrained, chatting" in some and "Learning curves" not in some
    assert not (bare[0] / "figures" / "learning-desk.svg").exists()
    assert (bare[1] / "figures" / "learning-desk.svg").exists()
    assert "No runs yet." in (bare[0] / "paper" / "chats.html").read_text()


# Numbers


def at(path, where):
    """The value of a JSON file at a dotted place such as arms.base.per_seed[0]."""
    value = json.loads((ROOT / path).read_text())
    for part in re.findall(r"[^.\[\]]+", where):
        value = value[int(part)] if part.isdigit() else value[part]
    return value


def test_every_number_leads_to_a_field_that_gives_it(found):
    """Stored values are read again, and means, lowest and highest are worked out again from the fields named."""
    ways = {"as stored": lambda v: v[0], "mean": fmean, "lowest": min, "highest": max, "count": len,
            "divided by 100": lambda v: v[0] / 100, "sample standard deviation": stats.sample_std}
    entries = json.loads((ROOT / "paper" / "numbers.json").read_text())
    assert entries == {key: number.as_dict() for key, number in found.items()}
    checked = 0
    for key, entry in entries.items():
        for source in entry["source"]:
            path = ROOT / source.split(": ")[0]
            assert path.exists(), (key, source)
        plain = all(s.startswith(("paper/published/", "results/")) and "*" not in s for s in entry["source"])
        if plain and entry["how"] in ways:
            values = [at(*source.split(": ")) for source in entry["source"]]
            expected = ways[entry["how"]](values)
            if ".cost.CPU_minutes" in key:
                expected /= COSTS["CPU minutes"][2]
            assert entry["value"] == pytest.approx(expected), key
            checked += 1
        assert entry["published"] == all(s.startswith("paper/published/") for s in entry["source"])
    assert checked > 500


def test_texts_round_their_values(found):
    for key, number in found.items():
        if number.unit == numbers.POINTS:
            assert float(number.text) == pytest.approx(100 * number.value, abs=0.5001), key
        if number.interval:
            assert number.interval[0] <= number.value <= number.interval[1], key
    assert found["post.grpo.score"].text == "40.2" and found["post.grpo.score.whole"].text == "40"
    assert found["post.grpo-grpo_blocked.delta"].text == "+36.5" and found["post.usd"].text == "$37.85"
    assert found["desk.parameters"].value == 688256


def test_where_finds_what_stands_behind_a_number():
    done = subprocess.run([sys.executable, "-m", "talklib", "where", "+36.5"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "paper/published/talk_to_solve.json: delta" in done.stdout
    done = subprocess.run([sys.executable, "-m", "talklib", "where", "77777"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "numbers.json" in done.stderr


# Text


def test_the_text_is_the_template_filled_in(sources, found):
    rows = paper.all_tables(sources, ROOT)
    assert paper.render(ROOT, sources, found, rows) == (ROOT / "paper" / "post.md").read_text()


def test_the_template_holds_no_bare_number():
    text = (ROOT / "paper" / "post.template.md").read_text()
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|@\w+", "", text, flags=re.S)
    assert re.findall(r"\d[\d.,%]*", prose.replace("GSM8K", "")) == []


def test_every_number_of_the_prose_is_in_numbers_json(found):
    """Claims carry their numbers as one text; names of things may hold digits; citations hold years."""
    text = (ROOT / "paper" / "post.md").read_text()
    prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "![", "*Pro", "**[")))
    for claim in claims.CLAIMS:
        prose = prose.replace(claim.text, "")
    for number in found.values():
        if number.unit == "claim" and number.text:
            prose = prose.replace(number.text, "")
    for name in ("GSM8K", "Qwen2.5-1.5B-Instruct", "Qwen2.5-1.5B", *tables.TITLES.values()):
        prose = prose.replace(name, "")
    prose = re.sub(r"@\w+|of 100|Of 100|table-\w+|remark: .*", "", prose)
    known = {number.text.lstrip("+-$") for number in found.values()}
    answers = " ".join(a.remark for by in claims.check(paper.sources(ROOT)).values() for a in by.values())
    bare = [n for n in NUMBER.findall(prose) if n.rstrip(",") not in known and n not in answers]
    assert bare == []


def test_an_unknown_number_is_refused_by_name(sources, found, tmp_path):
    shutil.copytree(ROOT / "paper", tmp_path / "paper")
    shutil.copytree(ROOT / "figures", tmp_path / "figures")
    (tmp_path / "paper" / "post.template.md").write_text("{{ n('desk.nobody.score') }}")
    with pytest.raises(TalkError, match="desk.nobody.score"):
        paper.render(tmp_path, sources, found, {})


def test_both_sources_are_labelled():
    text = (ROOT / "paper" / "post.md").read_text()
    assert from_post().label in text and from_runs(ROOT / "results" / "desk").label in text
    assert text.count(paper.ORGANISM) >= 6  # once on top, once under every desk figure


def test_no_sentence_is_the_posts():
    """The post's prose is not ours: no eight words in a row of it stand in our text."""
    path = ROOT.parent / "shared" / "published" / "000_686ee3ff449fe33d.txt"
    if not path.is_file():
        pytest.skip("the post's text is not beside the checkout")

    def runs(text):
        words = re.findall(r"[a-z']+", text.lower())
        return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}

    theirs = runs(path.read_text().split("References\n")[0])
    for name in ("post.template.md", "post.md"):
        assert theirs & runs((ROOT / "paper" / name).read_text()) == set(), name


def test_references_are_cited_and_there():
    text = (ROOT / "paper" / "post.template.md").read_text()
    bib = (ROOT / "paper" / "references.bib").read_text()
    keys = set(re.findall(r"^@\w+\{(\w+),", bib, re.M))
    assert set(re.findall(r"@(\w+)", text)) == keys
    page = (ROOT / "paper" / "post.html").read_text()
    for arxiv in ("2402.03300", "2502.18439", "2110.14168", "2510.04996", "2304.06767"):  # the post's five
        assert arxiv in bib and f'href="https://arxiv.org/abs/{arxiv}"' in page
    assert all(f'id="ref-{key}"' in page for key in keys)


# Tables


def test_tables_say_the_same_in_three_formats(sources):
    for name, rows in paper.all_tables(sources, ROOT).items():
        stem = ROOT / "figures" / f"table-{name}"
        assert list(csv.DictReader(io.StringIO(stem.with_suffix(".csv").read_text()))) == rows
        lines = stem.with_suffix(".md").read_text().splitlines()
        assert [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]] == [
            list(row.values()) for row in rows]
        tex = stem.with_suffix(".tex").read_text()
        assert tex.count(r" \\") == len(rows) + 1 and r"\toprule" in tex and tex.count("{tabular}") == 2
        assert not re.search(r"(?<!\\)[%#_$]", re.sub(r"\\label\{[^}]*\}", "", tex)), name


def test_special_characters_are_plain_in_latex_and_markdown():
    rows = [{"a_b": "50% & $3 #1 {x} ~ ^ \\", "c": "[1, 2]"}]
    tex = tables.latex(rows, "t", "n")
    assert r"50\% \& \$3 \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}" in tex and r"a\_b" in tex
    assert tables.markdown([{"a": "x|y"}]).splitlines()[2] == r"| x\|y |"
    assert tables.markdown([]) == "No runs yet.\n"


def test_tables_by_hand_from_the_post():
    post = from_post()
    chat = next(row for row in tables.conditions(post) if row["arm"] == "trained, chatting (GRPO)")
    assert chat["every seed"] == "40.2 / 14.5 / 34.8" and chat["95% interval"] == "[35.5, 44.7]"
    first = tables.verdicts(post)[0]
    assert (first["paired delta"], first["95% interval"], first["verdict"]) == ("+36.5", "[+32.1, +40.9]", "moved")
    partner = tables.new_partner(post)[0]
    assert partner["with an untrained B"] == "14.2 / 9.9 / 16.1"
    assert [row["mean"] for row in tables.methods(post)] == ["29.8", "25.1", "30.6", "38.3"]
    costs = {(row["arm"], row["measure"]): row for row in tables.costs(post)}
    assert costs["Reinforce-Ada", "GPU minutes"]["times GRPO's"] == "1.98"
    assert costs["four conditions, all seeds", "US dollars"]["in all"] == "37.85"


# Claims


def test_the_posts_verdicts_follow_from_its_figures():
    """All seven, each against the verdict that the post published beside the figures."""
    post, solve, methods = from_post(), load("talk_to_solve"), load("talk_methods")
    stated = {("grpo", "grpo_blocked"): solve["delta"]["verdict"]} | {
        (name, "grpo"): entry["verdict"] for name, entry in methods["deltas_vs_grpo"].items()}
    mixed = {(name, "grpo"): entry["verdict"] for name, entry in methods["deltas_vs_grpo_untrained_partner"].items()}
    assert {pair: found.verdict for pair, found in post.verdicts.items()} == stated
    assert {pair: found.verdict for pair, found in post.partner_verdicts.items()} == mixed
    assert len(stated) + len(mixed) == 7 and list(stated.values()).count("moved") == 1


def test_claims_by_the_posts_own_figures():
    answers = {key: by["post"] for key, by in claims.check([from_post()]).items()}
    assert {key for key, answer in answers.items() if answer.verdict == claims.FAILS} == {"raft_uses"}
    assert "mixed 54 (49)" in answers["raft_uses"].numbers and "RAFT 59 (50)" in answers["raft_uses"].numbers
    unknown = {key for key, answer in answers.items() if answer.verdict == claims.UNKNOWN}
    assert unknown == {"alone", "asks_why", "early", "general"}
    assert answers["trained"].verdict == claims.REMARK and "mean is 29.8" in answers["trained"].remark
    assert answers["asks"].verdict == claims.REMARK and "13 / 15" in answers["asks"].remark
    assert answers["price"].remark == "both come to $4.00 a GPU hour"
    assert len({claim.key for claim in claims.CLAIMS}) == len(claims.CLAIMS) == len(answers)


def test_claims_can_come_out_either_way(tmp_path):
    """A made-up world in which nothing happened: what the post reports differs there."""
    results = tmp_path / "results" / "desk"
    for arm in ARMS:
        for seed, score in ((17, 0.30), (18, 0.31)):
            made_run(results, arm, seed, score)
    answers = {key: by["desk"] for key, by in claims.check([from_runs(results)]).items()}
    for key in ("untrained", "trained", "blocked", "only_way", "delta", "sends", "uses", "asks", "means", "spread",
                "ada_seeds", "ada_cost", "one_seed"):
        assert answers[key].verdict == claims.DIFFERS, key
    assert answers["flat"].verdict == claims.HOLDS and answers["nothing"].verdict == claims.HOLDS


def test_claims_without_runs_are_not_run(tmp_path):
    answers = claims.check([from_runs(tmp_path)])
    assert {by["desk"].verdict for by in answers.values()} == {claims.ABSENT, claims.UNKNOWN, claims.HOLDS}
    assert [key for key, by in answers.items() if by["desk"].verdict == claims.HOLDS] == ["nothing"]  # arithmetic


def test_disagreements_stand_in_the_text(sources):
    text = (ROOT / "paper" / "post.md").read_text()
    parts = claims.disagreements(sources)
    assert parts and all(f"- **{claim.text}** The post: {theirs.verdict}" in text for claim, theirs, _ in parts)
    everything = claims.check(sources)
    for claim, theirs, ours in parts:
        assert everything[claim.key]["post"] == theirs and everything[claim.key]["desk"] == ours
    assert len(tables.markdown(claims.table(sources)).splitlines()) == len(claims.CLAIMS) + 2


# The page


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.loads, self.images = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if tag == "a" and "href" in attrs else []
        self.loads += [attrs[name] for name in ("src", "srcset", "poster") if name in attrs]
        self.loads += [attrs["href"]] if tag == "link" else []
        self.images += [attrs] if tag == "img" else []


@pytest.fixture(scope="module")
def page():
    return Elements((ROOT / "paper" / "post.html").read_text())


def test_the_page_needs_no_network_and_no_script(page):
    assert page.loads and all(value.startswith("data:") for value in page.loads)
    assert not {"script", "iframe", "object", "form"} & set(page.tags)
    assert "url(http" not in (ROOT / "paper" / "post.css").read_text()


def test_every_image_has_its_alt_text(page):
    captions = json.loads((ROOT / "figures" / "captions.json").read_text())
    alts = [entry["alt"].replace('"', "'") for entry in captions.values()]
    assert sorted(image["alt"] for image in page.images) == sorted(alts)


def test_links_inside_the_page_and_the_checkout_lead_somewhere(page):
    assert len(page.ids) == len(set(page.ids))
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids) and sum(name.startswith("n-") for name in inside) > 50
    for link in page.links:
        if not link.startswith(("#", "http")):
            assert (ROOT / "paper" / link).resolve().exists(), link


@needs_chromium
def test_the_page_in_a_browser(tmp_path):
    url = (ROOT / "paper" / "post.html").as_uri()
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (390, False), (390, True)):
            browser.resize(width, 900, dark)
            browser.open("about:blank")
            browser.open(url)
            assert browser.complaints == [], (width, browser.complaints)
            assert [r for r in browser.requests if not r.startswith(("data:", "about:"))] == [url] * len(
                [r for r in browser.requests if r == url])
            assert browser.ask("document.documentElement.scrollWidth") <= width
            assert browser.ask("[...document.images].every(i => i.complete && i.naturalWidth > 100)")
            paper_colour = browser.ask("getComputedStyle(document.documentElement).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", paper_colour)[:3])) < 200) == dark
            assert browser.screenshot(tmp_path / f"{width}.png").startswith(b"\x89PNG")
        assert browser.ask("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")
        pages = len(re.findall(rb"/Type\s*/Page\b", browser.pdf(tmp_path / "post.pdf")))
        assert 4 <= pages <= 40


# What the README and the stored runs promise


def test_stored_runs_hold_what_the_readme_promises():
    runs = from_runs(ROOT / "results" / "desk").runs
    scores = {(run.arm, run.seed): run.score for run in runs}
    for run in runs:
        steps = run.record["recipe"]["steps"] if ARMS[run.arm].trained else 0
        assert [entry["step"] for entry in run.history] == list(range(1, steps + 1))
        assert run.record["recipe_digest"] == Recipe.desk().digest()
    assert all(scores["grpo", seed] >= 0.40 and scores["grpo_blocked", seed] < 0.06 for seed in SEEDS["desk"])
    assert all(scores["base_blocked", seed] < 0.05 < scores["base", seed] < 0.15 for seed in SEEDS["desk"])
    assert set(scores) == {(arm, seed) for arm in ARMS for seed in SEEDS["desk"]}


def test_the_readme_repeats_the_results():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    post, ours = from_post(), from_runs(ROOT / "results" / "desk")
    for name in charts.CONDITIONS:
        first = [tables.points(source.arms[name].scores[0]) for source in (post, ours)]
        assert f"| {first[0]} | {first[1]} |" in text, name
    for name, label in (("grpo", "GRPO"), ("raft", "RAFT"), ("mixed", "mixed partners"),
                        ("reinforce_ada", "Reinforce-Ada")):
        assert f"{label} {tables.points(ours.arms[name].mean)}" in text, name
    assert {name: ours.verdicts[name, "grpo"].verdict for name in charts.METHODS[1:]} == {
        "raft": "flat", "mixed": "flat", "reinforce_ada": "moved"}  # as the text says
    found = codes(ours)
    assert f"it reaches {tables.points(ours.equal['reinforce_ada'].mean)}." in text
    assert f"solves {tables.points(found.own)} with its own other half, {tables.points(found.sibling)} with" in text
    assert found.premium.low < 0 < found.premium.high < 0.05  # a shared code
    rows = {row.name: tables.points(row.score) for row in ours.ceilings}
    assert f"a trained copy solve {rows['messenger_trained']}; one untrained copy with all the facts " \
           f"{rows['all_facts']}; the best guess from one half {rows['half_best']}." in text
    partners = [score for name in charts.METHODS for score in ours.arms[name].new_partner]
    assert f"{100 * min(partners):.0f} to {100 * max(partners):.0f}" in text
    base = [run.record["counters"] for run in ours.runs if run.arm == "base"]
    assert f"({100 * base[0]['uses']:.0f} against the post's 30)" in text
