"""The chat reader: marks are the counters', text stays text, the page works by keyboard and touch without a network."""

import json
import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talklib import reader
from talklib.counters import agree, count, partner_numbers, sent, used
from talklib.evidence import from_runs
from talklib.splitter import numbers, private_numbers

from browser import CHROMIUM, Browser
from conftest import ROOT
from made_runs import WORDS, made_chat, made_run, made_task

PAPER = ROOT / "paper"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="headless Chromium (Debian's package chromium) is missing")
SIGNS = f"[{reader.SENT}{reader.USED}{reader.PRIVATE}{reader.END}]"


@pytest.fixture(scope="module")
def desk():
    return from_runs(ROOT / "results" / "desk")


# Marks


@given(st.text(alphabet="0123456789.,$ab \n", max_size=40), st.sets(st.sampled_from(["1", "12", "1.5", "3", "1200"])))
@settings(max_examples=300, deadline=None)
def test_marks_are_the_numbers_that_counters_see(text, wanted):
    places = reader.spans(text, wanted)
    assert {text[a:b].replace(",", "") for a, b in places} == numbers(text) & wanted
    assert all(a < b for a, b in places) and places == sorted(places)
    marked = reader.mark(text, wanted, reader.SENT)
    assert re.sub(SIGNS, "", marked) == text and marked.count(reader.SENT) == marked.count(reader.END) == len(places)


def test_a_number_with_commas_is_marked_whole():
    assert reader.mark("pay 1,200, then 12", {"1200"}, reader.SENT) == f"pay {reader.SENT}1,200{reader.END}, then 12"


def test_control_characters_of_a_message_cannot_be_taken_for_marks():
    text = reader.mark(f"a{reader.SENT}3{reader.END}\x00\ud800", {"3"}, reader.SENT)
    assert text == f"a\ufffd{reader.SENT}3{reader.END}\ufffd\ufffd\ufffd"


def test_turns_are_marked_by_whose_number_it_is():
    chat = made_chat(made_task(), ("I have 3 and 4", "mine is 4", "3 + 4", "3 + 4"))
    s, u, e = reader.SENT, reader.USED, reader.END
    assert reader.marked_turns(chat) == [f"I have {s}3{e} and 4", f"mine is {s}4{e}", f"3 + {u}4{e}", f"{u}3{e} + 4"]
    facts = reader.marked_facts(chat.task.split)
    assert facts == [[f"Ann has {reader.PRIVATE}3{e} apples."], [f"Ben has {reader.PRIVATE}4{e} apples."]]


def test_marks_and_shares_agree_with_the_counters_on_stored_chats(desk):
    run = next(run for run in desk.runs if run.arm == "grpo")
    chats = run.chats()
    for chat in chats[:100]:
        split, texts = chat.task.split, reader.marked_turns(chat)
        for copy in "AB":
            mine = [text for turn, text in zip(chat.turns, texts, strict=True) if turn.speaker == copy]
            inside = re.compile(f"[{reader.SENT}{reader.USED}]([^{reader.END}]*){reader.END}")
            assert set(inside.findall(" ".join(mine[:-1]).replace(",", ""))) == sent(chat, copy)
            assert set(inside.findall(mine[-1].replace(",", ""))) == used(chat, copy)
            assert reader._own(split, copy) == private_numbers(split, copy)
            assert reader._partners(split, copy) == partner_numbers(split, copy)
    shares, counted = [reader.shares(chat) for chat in chats], count(chats)
    assert sum(row[2] for row in shares) / (2 * len(chats)) == pytest.approx(counted["asks"])
    assert sum(row[3] for row in shares) / len(chats) == pytest.approx(counted["agrees"])
    assert [bool(row[3]) for row in shares] == [agree(chat) for chat in chats]
    both = [all(private_numbers(chat.task.split, copy) for copy in "AB") for chat in chats]
    assert sum(both) > 500
    counted = count([chat for chat, whole in zip(chats, both, strict=True) if whole])
    for place, name in enumerate(("sends", "uses")):  # where both copies count, a chat's share is the mean of two
        rows = [row[place] for row, whole in zip(shares, both, strict=True) if whole]
        assert sum(rows) / len(rows) == pytest.approx(100 * counted[name], abs=0.3)


def test_a_chat_without_private_numbers_has_no_share():
    task = made_task(text="Ann has 3 apples. Ben has 3 apples. How many apples?", gold="6")
    assert reader.shares(made_chat(task, WORDS))[:2] == (-1, -1)


# Data in the page


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=2'><!-- \u2028 & \\u003c 3"


def test_data_in_a_script_element_can_not_close_it():
    text = reader.embed({"a": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text) and json.loads(text) == {"a": HOSTILE}


def test_a_page_over_its_limit_says_what_it_left_out(tmp_path):
    results = tmp_path / "results" / "desk"
    for arm, seed in (("grpo", 17), ("grpo", 18), ("base", 17)):
        made_run(results, arm, seed)
    source = from_runs(results)
    data, left = reader.chat_sets([source], limit=10**6)
    assert left == [] and [part["key"] for part in data["sets"]] == [
        "desk-base-17-pair", "desk-grpo-17-pair", "desk-grpo-18-pair", "desk-grpo-17-as_a", "desk-grpo-18-as_a"]
    data, left = reader.chat_sets([source], limit=500)
    assert [part["key"] for part in data["sets"]] == ["desk-base-17-pair", "desk-grpo-17-pair"] and len(left) == 3
    text = reader.page([source], PAPER, "note", limit=500)
    assert "3 sets of chats left out" in text and "seed 18, with an untrained B" in text and "8 chats" in text


def test_the_stored_page_holds_every_pair_of_every_run(desk):
    data = json.loads(re.search(r'id="data">(.*?)</script>', (PAPER / "chats.html").read_text(), re.S)[1])
    sets = {part["key"]: part for part in data["sets"]}
    for run in desk.runs:
        stored = sets[f"desk-{run.arm}-{run.seed}-pair"]
        assert len(stored["chats"]) == run.record["evaluations"]["pair"]["n_chats"]
        right = sum(row[2].count("1") for row in stored["chats"]) / sum(len(row[2]) for row in stored["chats"])
        assert right == pytest.approx(run.score)


def test_the_page_asks_for_nothing():
    class Elements(HTMLParser):
        found, policy = [], ""

        def handle_starttag(self, tag, attrs):
            attrs = dict(attrs)
            self.found += [attrs[name] for name in ("src", "srcset") if name in attrs]
            if tag == "link":
                self.found.append(attrs["href"])
            if attrs.get("http-equiv") == "Content-Security-Policy":
                self.policy = attrs["content"]

    parser = Elements()
    parser.feed((PAPER / "chats.html").read_text())
    assert parser.found == ["data:,"] and "default-src 'none'" in parser.policy and "sha256-" in parser.policy


# Inline


def test_inline_view_escapes_and_marks():
    bad = made_chat(made_task(), (HOSTILE, "<b>4</b>", "3+4", "\\boxed{7}"))
    shown = reader.show([bad]).data
    assert "<script" not in shown and "<img" not in shown and "&lt;script&gt;" in shown
    assert "<b>4</b>" not in shown.replace("<mark title='sent: a private number'><b>4</b></mark>", "")
    assert "<mark title='sent: a private number'><b>3</b></mark>" in shown
    assert "<mark title='used: a number from the partner'><u>4</u></mark>" in shown
    assert "A right ✓, B wrong ✗" in shown


def test_inline_view_puts_the_same_problem_side_by_side():
    before = [made_chat(made_task(i), WORDS) for i in range(4)]
    after = [made_chat(made_task(i), WORDS, outcomes=(1.0, 1.0)) for i in (1, 3)]
    shown = reader.show(before, after, limit=5).data
    assert shown.count("<table>") == 2 and "test-1" in shown and "test-0" not in shown
    assert shown.count("before") == 2 and shown.count("after") == 2 and "B right ✓" in shown
    assert reader.show(before, limit=3).data.count("<table>") == 3
    assert "No such chats" in reader.show([]).data
    blocked = made_chat(made_task(), WORDS, channel="blocked")
    assert "neither copy saw" in reader.show([blocked]).data


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def visit(browser, url, width=1280, height=900, dark=False):
    browser.complaints.clear(), browser.requests.clear()
    browser.resize(width, height, dark)
    browser.open("about:blank")
    browser.open(url)
    return int(browser.ask("document.documentElement.dataset.ready"))


@needs_chromium
def test_thousands_of_chats_open_in_under_two_seconds(browser):
    tries = []
    while len(tries) < 4 and (not tries or min(tries) >= 2000):  # other work on this machine may slow one
        tries.append(visit(browser, (PAPER / "chats.html").as_uri()))
        time.sleep(0.1)
    assert min(tries) < 2000, tries
    assert browser.complaints == [] and set(browser.requests) <= {"about:blank", (PAPER / "chats.html").as_uri()}
    chats = "JSON.parse(document.getElementById('data').textContent).sets.flatMap(set => set.chats).length"
    assert browser.ask(chats) > 3000


@needs_chromium
def test_what_a_model_writes_is_shown_as_text(tmp_path, browser):
    results = tmp_path / "results" / "desk"
    words = (HOSTILE, "<b>bold</b>", "3 + 4 = \\boxed{7}</p>", "\\boxed{4}")
    for arm in ("base", "grpo"):
        made_run(results, arm, 17, words=words)
    path = tmp_path / "chats.html"
    path.write_text(reader.page([from_runs(results)], PAPER, "<i>note</i>"), encoding="utf-8")
    visit(browser, path.as_uri())
    texts = browser.ask("[...document.querySelectorAll('.side:first-child .turn')].map(p => p.textContent)")
    assert texts == [f"{copy}: {text}" for copy, text in zip("ABAB", words, strict=True)]
    assert browser.ask("typeof window.hacked") == "undefined" and browser.complaints == []
    assert browser.ask("document.querySelectorAll('article img, article script, article i, header i').length") == 0
    assert browser.ask("[...document.querySelectorAll('article mark.sent')].map(m => m.textContent)") == ["3", "3"]


@needs_chromium
def test_keys_filters_search_and_links(browser, desk):
    url = (PAPER / "chats.html").as_uri()
    visit(browser, url)
    before, after = (next(r for r in desk.runs if r.arm == arm).chats() for arm in ("base", "grpo"))

    def shown():
        return browser.ask("document.getElementById('found').textContent")

    def choose(menu, value):
        browser.ask(f"(() => {{ const m = document.getElementById('{menu}'); m.value = '{value}';"
                    "m.dispatchEvent(new Event('change')); })()")

    pairs = list(zip(before, after, strict=True))
    assert all((a.problem_id, a.index) == (b.problem_id, b.index) for a, b in pairs)
    assert shown() == f"{len(pairs)} of {len(pairs)} chats"
    for menu, value, test in (
            ("f-right", "all", lambda b, a: a.reward == 1), ("f-left", "none", lambda b, a: b.reward == 0),
            ("f-change", "worse", lambda b, a: a.reward < b.reward), ("f-agrees", "yes", lambda b, a: agree(a)),
            ("f-asks", "yes", lambda b, a: reader.shares(a)[2] > 0),
            ("f-sends", "some", lambda b, a: 0 < reader.shares(a)[0] < 100),
            ("f-uses", "none", lambda b, a: reader.shares(a)[1] == 0)):
        choose(menu, value)
        assert shown() == f"{sum(test(*pair) for pair in pairs)} of {len(pairs)} chats", menu
        choose(menu, "any")

    browser.press("ArrowRight"), browser.press("j"), browser.press("ArrowLeft")
    assert browser.ask("document.getElementById('list').selectedIndex") == 1
    assert f"chat={before[1].problem_id}%2F{before[1].index}" in browser.ask("location.hash")
    browser.press("/")
    assert browser.ask("document.activeElement.id") == "search"
    for letter in "bus":
        browser.press(letter)
    found = [b for b, a in pairs if any("bus" in text.lower() for text in (
        b.task.problem.question, *(t.text for t in (*b.turns, *a.turns))))]
    assert 0 < len(found) < len(pairs) and shown() == f"{len(found)} of {len(pairs)} chats"
    browser.ask("document.getElementById('reset').click()")
    assert shown() == f"{len(pairs)} of {len(pairs)} chats"

    last = before[-1]
    visit(browser, f"{url}#left=desk-base-17-pair&right=desk-raft-17-pair&chat={last.problem_id}/{last.index}")
    assert last.task.split.question in browser.ask("document.querySelector('article h2').textContent")
    assert "RAFT" in browser.ask("document.querySelector('.side:last-child h3').textContent")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_reads_it_without_scrolling_sideways(browser, tmp_path, dark):
    visit(browser, (PAPER / "chats.html").as_uri(), 390, 844, dark)
    assert browser.ask("document.documentElement.scrollWidth") <= 390
    assert browser.screenshot(tmp_path / "phone.png").startswith(b"\x89PNG")
    for way, to in (((300, 100), 1), ((100, 300), 0)):  # a swipe to the left, then one to the right
        y = browser.ask("document.getElementById('chat').getBoundingClientRect().top + 20")
        for kind, x in (("touchStart", way[0]), ("touchMove", sum(way) / 2), ("touchEnd", way[1])):
            points = [] if kind == "touchEnd" else [{"x": x, "y": y}]
            if kind == "touchEnd":
                browser.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": y}])
            browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        assert browser.ask("document.getElementById('list').selectedIndex") == to
    assert browser.complaints == []


@needs_chromium
def test_a_page_without_runs_says_so(browser, tmp_path):
    path = tmp_path / "chats.html"
    path.write_text(reader.page([], PAPER, "No runs yet."), encoding="utf-8")
    visit(browser, path.as_uri())
    assert browser.complaints == [] and "No chat" in browser.ask("document.getElementById('chat').textContent")
