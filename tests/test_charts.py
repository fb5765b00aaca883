"""Charts show the numbers they are given, say whose they are, cope with what is missing, and repeat to the byte."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import matplotlib as mpl
import pytest
from matplotlib.colors import to_rgb
from talklib import TalkError, charts, figures, style
from talklib.captions import ORGANISM, alt_text, caption
from talklib.evidence import COUNTERS, from_post, from_runs
from talklib.numbers import collect
from talklib.recipe import ARMS
from talklib.runcharts import OWN, crossplay_table, ladder, series, smooth

from conftest import ROOT
from made_runs import made_run

DESK = ROOT / "results" / "desk"


@pytest.fixture(scope="module")
def sources():
    return {"post": from_post(), "desk": from_runs(DESK)}


@pytest.fixture(scope="module")
def numbers(sources):
    return collect(sources.values())


def words(figure):
    """All texts of a figure."""
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
        found += [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        found.append(axes.get_title(loc="left"))
    return " ".join(found).replace("\n", " ")


def heights(figure):
    return [patch.get_height() for patch in figure.axes[0].patches]


def dots(figure):
    """Heights of the seed dots, group by group."""
    return [[y for _, y in part.get_offsets()] for part in figure.axes[0].collections
            if type(part).__name__ == "PathCollection"]


@pytest.mark.parametrize("name", ["post", "desk"])
def test_conditions_show_first_seed_interval_and_every_seed(sources, name):
    source = sources[name]
    figure = charts.conditions(source)
    arms = [source.arms[arm] for arm in charts.CONDITIONS]
    assert heights(figure) == [100 * arm.scores[0] for arm in arms]
    assert dots(figure) == [pytest.approx([100 * s for s in arm.dots]) for arm in arms if len(arm.dots) > 1]
    whiskers = [part.get_segments()[0][:, 1] for part in figure.axes[0].collections
                if type(part).__name__ == "LineCollection"]
    for arm, (low, high) in zip(arms, whiskers, strict=True):
        assert (low, high) == pytest.approx((100 * arm.ci95[0], 100 * arm.ci95[1]))
    assert figure.axes[0].get_ylim()[0] == 0
    assert all(f"{100 * arm.scores[0]:.1f}" in words(figure) for arm in arms)


@pytest.mark.parametrize("name", ["post", "desk"])
def test_methods_show_means_seeds_and_the_untrained_line(sources, name):
    source = sources[name]
    figure = charts.methods(source)
    assert heights(figure) == [100 * source.arms[arm].mean for arm in charts.METHODS]
    assert dots(figure) == [pytest.approx([100 * s for s in source.arms[arm].scores]) for arm in charts.METHODS]
    lines = [line for line in figure.axes[0].lines if len(set(line.get_ydata())) == 1]
    assert [line.get_ydata()[0] for line in lines] == [pytest.approx(100 * source.arms["base"].mean)]
    assert figure.axes[0].get_ylim()[0] == 0


def test_the_posts_bars_are_the_posts():
    """By hand, from the post's text: 3, 11, 4, 40; and 67 to 96, 30 to 79, 16 to 30, 24 to 0."""
    assert [f"{h:.0f}" for h in heights(charts.conditions(from_post()))] == ["3", "11", "4", "40"]
    bars = [f"{h:.0f}" for h in heights(charts.behaviour(from_post()))]
    assert bars == ["67", "30", "16", "24", "96", "79", "30", "0"]
    assert [f"{h:.0f}" for h in heights(charts.methods(from_post()))] == ["30", "25", "31", "38"]


@pytest.mark.parametrize("name", ["post", "desk"])
def test_behaviour_pairs_before_and_after(sources, name):
    arms = [sources[name].arms[arm] for arm in ("base", "grpo")]
    figure = charts.behaviour(sources[name])
    assert heights(figure) == [100 * arm.counter(counter) for arm in arms for counter in COUNTERS]
    assert "before" in words(figure) and "after" in words(figure) and figure.axes[0].get_ylim()[0] == 0


def test_curves_are_running_means_of_the_history(sources):
    desk = sources["desk"]
    run = next(run for run in desk.runs if run.arm == "grpo")
    values = series(desk, "grpo", "reward")[0]
    assert values == [100 * step["reward"] for step in run.history]
    assert smooth([1, 2, 3, 4], 2).tolist() == [1.5, 2.5, 3.5] and smooth([4, 2], 8).tolist() == [3]
    panel = next(axes for axes in charts.learning(desk).axes if axes.get_title(loc="left") == "GRPO, chatting")
    drawn = [line.get_ydata() for line in panel.lines if line.get_alpha() == 0.65]
    assert len(drawn) == len(desk.arms["grpo"].history) and drawn[0] == pytest.approx(smooth(values))
    assert all(axes.get_ylim()[0] == 0 for axes in charts.flat_groups(desk).axes)


@pytest.mark.parametrize("kind", list(charts.DRAW))
@pytest.mark.parametrize("name", ["post", "desk"])
def test_every_figure_says_whose_it_is(sources, numbers, kind, name):
    source = sources[name]
    assert source.label in words(charts.DRAW[kind](source))
    text, alt = caption(kind, source, numbers), alt_text(kind, source, numbers)
    assert source.label in text and source.label in alt
    assert (ORGANISM in text) == (name == "desk")
    if kind in ("conditions", "ceilings"):
        assert "95% interval" in text and "bootstrap over the 300 held-out problems" in text


def test_every_number_of_captions_and_alt_texts_is_in_numbers_json(sources):
    """Names of things may hold digits; any other number must be the text of some entry."""
    known = {entry["text"].lstrip("$") for entry in json.loads((ROOT / "paper" / "numbers.json").read_text()).values()}
    found = json.loads((ROOT / "figures" / "captions.json").read_text())
    labels = [source.label for source in sources.values()]
    for name, entry in found.items():
        text = f"{entry['caption']} {entry['alt']}".replace("of 100", "").replace("Of 100", "")
        for label in labels:
            text = text.replace(label, "")
        bare = [number for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text) if number.rstrip(",") not in known]
        assert bare == [], name


def test_csv_beside_a_figure_holds_its_numbers_and_their_places(sources):
    rows = figures.data_rows("conditions", sources["desk"])
    assert {(r["arm"], r["seed"]): r["score"] for r in rows} == {
        (run.arm, run.seed): run.score for run in sources["desk"].runs if run.arm in charts.CONDITIONS}
    for name in json.loads((ROOT / "figures" / "captions.json").read_text()):
        kind, _, source = name.rpartition("-")
        stored = list(csv.DictReader(io.StringIO((ROOT / "figures" / f"{name}.csv").read_text())))
        made = figures.data_rows(kind, sources[source])
        assert stored == [{key: str(value) for key, value in row.items()} for row in made] and stored, name
        for row in stored:
            assert all((ROOT / part.split(": ")[0]).is_file() for part in row.get("source", "").split("; ") if part)


def test_bytes_repeat_whatever_the_users_settings(sources, tmp_path):
    first = {end: style.figure_bytes(charts.methods(sources["desk"]), end) for end in ("svg", "png")}
    with mpl.rc_context({"font.size": 22, "axes.facecolor": "pink", "svg.hashsalt": "x", "figure.dpi": 50}):
        second = {end: style.figure_bytes(charts.methods(sources["desk"]), end) for end in ("svg", "png")}
    assert first == second
    assert first["svg"] == (ROOT / "figures" / "methods-desk.svg").read_bytes()
    assert first["png"] == (ROOT / "figures" / "methods-desk.png").read_bytes()
    assert b"<dc:date>" not in first["svg"] and b"matplotlib" not in first["png"].lower()


def test_a_notebook_shows_a_figure_whatever_the_backend():
    code = ("from talklib import charts; from talklib.evidence import from_post;"
            "png, size = charts.methods(from_post())._repr_png_();"
            "import sys; sys.stdout.buffer.write(png)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True,
                          env={**os.environ, "MPLBACKEND": "agg"})
    assert done.stdout == (ROOT / "figures" / "methods-post.png").read_bytes(), done.stderr.decode()


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_are_one_an_arm_and_told_apart_in_grey_where_colour_is_all_there_is():
    assert list(style.COLOURS) == list(ARMS) and len(set(style.COLOURS.values())) == len(ARMS)
    light, dark = luminance(style.COLOURS["base"]), luminance(style.COLOURS["grpo"])
    assert (light + 0.05) / (dark + 0.05) > 2  # before and after stand side by side
    for colour in style.COLOURS.values():  # text inside a bar can be read: WCAG's 4.5
        pair = sorted((luminance(colour), luminance(style.text_on(colour))))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


def test_type_is_legible_at_half_width(sources):
    """At half of its width no text falls under 4 points, and no number that is read off under 5."""
    for kind in charts.kinds(sources["desk"]):
        figure = charts.DRAW[kind](sources["desk"])
        assert figure.get_size_inches()[0] == style.WIDTH
        sizes = [text.get_fontsize() for axes in figure.axes for text in axes.texts]
        assert all(size >= 9 for size in sizes) and all(text.get_fontsize() >= 8 for text in figure.texts)


# What is missing


def test_no_runs_at_all(tmp_path):
    nothing = from_runs(tmp_path / "results" / "desk")
    assert charts.kinds(nothing) == ["conditions", "behaviour", "methods"] and nothing.missing == ()
    for kind, draw in charts.DRAW.items():
        figure = draw(nothing)
        assert "no runs yet" in words(figure) or "yet" in words(figure), kind
        assert len(style.figure_bytes(figure, "svg")) > 1000
        assert figures.data_rows(kind, nothing) == []
        assert "yet" in alt_text(kind, nothing, collect([from_post(), nothing])) or kind == "behaviour"


def test_missing_arms_and_seeds_are_named(tmp_path):
    results = tmp_path / "results" / "desk"
    for arm, seed in (("base", 17), ("base", 18), ("grpo", 17), ("grpo", 18), ("raft", 18)):
        made_run(results, arm, seed, 0.3 + seed / 100)
    part = from_runs(results)
    assert set(part.missing) == {ARMS[a].label for a in ("base_blocked", "grpo_blocked", "mixed", "reinforce_ada")} | {
        "RAFT seed 17"}
    assert "Not run: untrained, blocked; trained, blocked." in words(charts.conditions(part))
    assert "RAFT seed 17" in words(charts.methods(part)) and "RAFT" not in words(charts.conditions(part))
    assert heights(charts.methods(part)) == pytest.approx([47.5, 48])
    assert "Not run:" in caption("methods", part, collect([from_post(), part]))
    assert ("raft", "grpo") in part.verdicts and ("mixed", "grpo") not in part.verdicts


def test_a_counter_that_is_not_defined_is_left_out(tmp_path):
    results = tmp_path / "results" / "desk"
    counted = {"sends": None, "uses": 0.2, "asks": 0.5, "agrees": 0.0, "message_chars": 5.0}
    for arm in ("base", "grpo"):
        made_run(results, arm, 17, counters=counted)
    part = from_runs(results)
    assert heights(charts.behaviour(part)) == pytest.approx([20, 0, 50, 20, 0, 50])
    assert "sends not counted" in alt_text("behaviour", part, collect([from_post(), part]))
    assert "desk.base.sends" not in collect([part])


# Cross-play and ceilings


def write_rows(results, name, rows):
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps({"format": 1, "scale": "desk", "rows": rows}))


def test_crossplay_keeps_a_copys_own_other_half_apart(tmp_path):
    results = tmp_path / "results" / "desk"
    scores = {(17, 17): 0.6, (18, 18): 0.5, (17, 18): 0.2, (18, 17): 0.3}
    write_rows(results, "crossplay", [
        {"a_arm": "grpo", "a_seed": a, "b_arm": "grpo", "b_seed": b, "score": s, "ci95": [s - 0.1, s + 0.1],
         "n_chats": 600} for (a, b), s in scores.items()] + [
        {"a_arm": "grpo", "a_seed": 17, "b_arm": "base", "b_seed": 17, "score": 0.1, "ci95": None, "n_chats": 600}])
    source = from_runs(results)
    rows, columns, cells = crossplay_table(source)
    assert rows == ["base", "grpo"] and columns == [OWN, "base", "grpo"]
    assert cells["grpo", OWN] == [0.6, 0.5] and cells["grpo", "grpo"] == [0.2, 0.3] and cells["grpo", "base"] == [0.1]
    text = words(charts.crossplay(source))
    assert "55" in text and "25" in text and "10" in text and "–" in text
    assert source.crossplay[2].source == "results/desk/crossplay.json: rows[2].score"
    assert "crossplay" in charts.kinds(source) and len(figures.data_rows("crossplay", source)) == 5
    assert "GRPO with its own copy 55, with untrained 10, with GRPO 25" in alt_text("crossplay", source, {})


def test_ceilings_are_drawn_in_order_with_the_conditions(tmp_path):
    results = tmp_path / "results" / "desk"
    made_run(results, "grpo", 17, 0.5)
    write_rows(results, "ceilings", [{"name": "all", "label": "all facts", "score": 0.9, "ci95": [0.88, 0.92]},
                                     {"name": "guess", "label": "a guess", "score": 0.01, "ci95": None}])
    source = from_runs(results)
    assert [row[0] for row in ladder(source)] == ["a guess", ARMS["grpo"].label, "all facts"]
    figure = charts.ceilings(source)
    assert [patch.get_width() for patch in figure.axes[0].patches] == pytest.approx([1, 50, 90])
    assert figure.axes[0].get_xlim()[0] == 0


@pytest.mark.parametrize("text", [
    "[", "{}", '{"rows": [3]}', '{"rows": [{"score": 1}]}', '{"rows": [{"a_arm": "grpo"}]}',
    '{"rows": [{"score": 1, "a_arm": "gpro", "a_seed": 1, "b_arm": "grpo", "b_seed": 1}]}'])
def test_a_broken_crossplay_file_is_named(tmp_path, text):
    (tmp_path / "crossplay.json").write_text(text)
    with pytest.raises(TalkError, match=r"crossplay\.json is not a crossplay file"):
        from_runs(tmp_path)


def test_cost_draws_each_sources_own_measures(sources):
    assert [axes.get_title(loc="left") for axes in charts.cost(sources["post"]).axes] == ["GPU minutes"]
    assert "208.6" in words(charts.cost(sources["post"]))
    desk = charts.cost(sources["desk"])
    assert [axes.get_title(loc="left") for axes in desk.axes][:2] == ["chats drawn", "tokens generated"]
    widths = [patch.get_width() for patch in desk.axes[0].patches]
    assert widths == [sources["desk"].arms[arm].cost["chats drawn"] for arm in charts.METHODS]
