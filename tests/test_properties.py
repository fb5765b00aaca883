"""What must hold of any problem, chat, group and run: properties that the tests of the single modules do not state."""

import hashlib
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from talklib import TalkError, counters, store
from talklib.batching import LOSS_TYPES, Row, pack, plain_groups, problems_at, row_weights
from talklib.chat import Chat, Protocol, Turn, play, see
from talklib.credit import RULES, keep_extremes
from talklib.evaluate import evaluate
from talklib.grading import Verdict
from talklib.recipe import DESK_PROMPTS, PAPER_PROMPTS, Sampling
from talklib.scripted import Scripted
from talklib.splitter import COPIES, Problem, Split, Task, numbers, private_numbers, sentences, split
from talklib.stats import bootstrap_interval
from talklib.store import chat_rows, chats_of, load_run, load_runs, save_run, to_json

from conftest import make_model, make_tasks, make_tokenizer, tiny_recipe
from made_runs import made_chat, made_run, made_task

names = st.sampled_from("Ann Ben Cy Dee Eve Flo".split())
amounts = st.one_of(st.integers(0, 99).map(str), st.integers(1000, 9999).map(lambda n: f"{n:,}"),
                    st.sampled_from(["3.50", "$4", "0.5", "1.25"]))
fact = st.tuples(names, amounts, st.sampled_from(["figs", "cups", "pens"])).map("{0[0]} has {0[1]} {0[2]}.".format)
question = st.tuples(names, st.one_of(st.just(""), amounts.map(" in {} days".format))).map(
    "How many has {0[0]}{0[1]}?".format)
texts = st.lists(fact, min_size=2, max_size=8).flatmap(lambda facts: question.map(lambda q: " ".join([*facts, q])))


# -- splitter and view -------------------------------------------------------------------------------


@given(texts, st.integers(2, 3), st.sampled_from(["post", "careful"]))
def test_every_sentence_goes_to_exactly_one_place(text, copies, rule):
    parts = split(text, copies, rule)
    if parts is not None:
        assert sorted([*sum(parts.facts, ()), parts.question]) == sorted(sentences(text, rule))
        assert max(map(len, parts.facts)) - min(map(len, parts.facts)) <= 1
        for copy in COPIES[:copies]:
            others = [fact for c in COPIES[:copies] if c != copy for fact in parts.of(c)]
            assert not private_numbers(parts, copy) & numbers(" ".join([*others, parts.question]))


@given(texts, st.sampled_from([PAPER_PROMPTS, DESK_PROMPTS]), st.sampled_from(["open", "blocked"]))
def test_what_a_copy_reads_holds_no_fact_that_only_its_partner_has(text, prompts, channel):
    parts = split(text)
    if parts is None:
        return
    seen = []

    class Spy(Scripted):
        def speak(self, requests):
            seen.extend(requests)
            return super().speak(requests)

    play([Task(Problem("p", text, "1"), parts)], dict.fromkeys("AB", Spy(lambda view: "well")),
         Protocol(channel=channel), prompts, ("t",))
    for request in seen:
        read = "\n".join(message["content"] for message in request.messages)
        mine = parts.of(request.view.copy)
        assert all(fact in read for fact in (*mine, parts.question))
        theirs = set(sum(parts.facts, ())) - set(mine)
        assert not [fact for fact in theirs if fact in read]


@given(st.permutations("ABAB"), st.lists(st.text("xyz", min_size=1, max_size=5), min_size=4, max_size=4))
def test_own_lines_are_marked_as_own_and_the_partners_as_the_partners(order, words):
    protocol = Protocol(order="".join(order) + "AB")
    task = Task(Problem("p", "", "1"), Split((("1.",), ("2.",)), "?"))
    turns = [Turn(speaker, f"<{word}>") for speaker, word in zip(order, words, strict=True)]
    view = see(task, protocol, turns)
    lines = PAPER_PROMPTS.render(view)[-1]["content"].split("Conversation so far:\n")[1].split("\n")
    for line, turn in zip(lines, turns, strict=False):
        own = turn.speaker == view.copy
        assert line == f"{'You' if own else f'Partner {turn.speaker}'} said: {turn.text}"


# -- counters ----------------------------------------------------------------------------------------

said = st.lists(st.sampled_from(["3", "14", "1,200", "5", "?", "\\boxed{7}", "17", "have"]), max_size=5).map(" ".join)
SPLIT = Split((("Ann has 3 and 1,200.",), ("Ben has 14 and 5.",)), "Of 5, how many?")


def chat_of(words, parts=SPLIT, order="ABAB"):
    return Chat(Task(Problem("p", "", "7"), parts), tuple(Turn(s, w) for s, w in zip(order, words, strict=True)))


@given(st.tuples(said, said, said, said), said)
def test_sends_reads_earlier_messages_alone_and_uses_last_ones_alone(words, other):
    chat, last, first = chat_of(words), chat_of((*words[:2], other, words[3])), chat_of((other, *words[1:]))
    assert counters.sends([chat]) == counters.sends([last])
    assert counters.uses([chat]) == counters.uses([first])
    assert counters.asks([chat]) == counters.asks([last])
    assert counters.agrees([chat]) == counters.agrees([first])


@given(st.tuples(said, said, said, said), st.sampled_from(["3", "1,200", "14"]))
def test_saying_more_never_counts_as_less(words, more):
    richer = chat_of(tuple(f"{word} {more}" for word in words))
    assert counters.sends([richer]) >= counters.sends([chat_of(words)])
    assert counters.uses([richer]) >= counters.uses([chat_of(words)])


@given(st.tuples(said, said, said, said))
def test_counters_do_not_care_which_copy_is_called_a(words):
    swapped = chat_of((words[1], words[0], words[3], words[2]), Split(SPLIT.facts[::-1], SPLIT.question))
    assert counters.count([swapped]) == pytest.approx(counters.count([chat_of(words)]))


# -- credit and batching -------------------------------------------------------------------------------

rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=12)


@given(rewards, st.sampled_from(sorted(RULES)), st.randoms())
def test_advantages_go_with_their_chats(pool, name, shuffle):
    """Whoever comes first is paid the same; a better chat is never paid less; the sign is the reward's side."""
    paid = dict(enumerate(RULES[name].advantages(pool, pool)))
    order = list(range(len(pool)))
    shuffle.shuffle(order)
    again = RULES[name].advantages([pool[i] for i in order], [pool[i] for i in order])
    assert again == pytest.approx([paid[i] for i in order])
    assert all(paid[i] <= paid[j] + 1e-12 for i in paid for j in paid if pool[i] < pool[j])
    if max(pool) == 1.0 and min(pool) < 1.0:
        assert max(paid.values()) > 0 and paid[pool.index(1.0)] == max(paid.values())


@given(rewards, st.integers(2, 4))
def test_the_extremes_that_are_kept_are_extreme(pool, size):
    kept = keep_extremes(pool, size)
    left = [pool[i] for i in range(len(pool)) if i not in kept]
    assert kept == sorted(set(kept)) and len(kept) == size
    high = sorted((pool[i] for i in kept), reverse=True)[: size // 2]
    low = sorted(pool[i] for i in kept)[: size - size // 2]
    assert not left or (min(high) >= max(left) and max(low) <= min(left))


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 3))
def test_every_problem_is_played_once_an_epoch(problems, size, seed):
    steps = [problems_at(step, problems, size, seed) for step in range(-(-3 * problems // size))]
    played = sum(steps, [])
    assert all(sorted(played[at * problems : (at + 1) * problems]) == list(range(problems)) for at in range(3))
    assert all(len(step) == size for step in steps)


@given(st.lists(st.integers(1, 40), min_size=4, max_size=40), st.integers(1, 4), st.sampled_from(LOSS_TYPES))
def test_weights_sum_to_what_the_loss_divides_by(lengths, batches, loss_type):
    groups = plain_groups(len(lengths), batches, 17, 3)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    weights = row_weights(lengths, groups, loss_type, cap=40)
    for group in groups:
        tokens = np.asarray(lengths)[group]
        total = {"bnpo": 1.0, "grpo": 1.0, "dr_grpo": tokens.sum() / (40 * len(group))}[loss_type]
        assert (weights[group] * tokens).sum() == pytest.approx(total)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.5, -0.5])), min_size=1,
                max_size=30), st.integers(1, 5))
def test_packing_takes_each_row_with_an_advantage_once(found, batches):
    rows = [Row((1,) * p, (2,) * c, advantage) for p, c, advantage in found]
    runs = pack(rows, batches)
    assert len(runs) == batches
    assert sorted(sum(runs, [])) == [i for i, row in enumerate(rows) if row.advantage != 0]


# -- store ---------------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
chats = st.builds(
    lambda text, words, flags, index, partner: Chat(
        Task(Problem("p-é\n", f"{text[0]} {text[1]} {text[2]}", text[3]), Split(((text[0],), (text[1],)), text[2])),
        tuple(Turn(s, w, trained=f) for s, w, f in zip("ABAB", words, flags, strict=True)), "open", partner, index),
    st.tuples(anything, anything, anything, anything), st.tuples(anything, anything, anything, anything),
    st.tuples(*[st.booleans()] * 4), st.integers(0, 9), st.sampled_from(["self", "as_a"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(chats, min_size=1, max_size=4))
def test_any_chat_survives_being_stored(tmp_path, played):
    def judge(pairs):  # Math-Verify on noise is slow, and not what is looked at here
        return [Verdict(len(text) % 2 == 0, False, text[:3]) for text, _ in pairs]

    folder = tmp_path / "base" / f"seed-{random.randrange(10**9)}"
    record = {**load_made(), "seed": int(folder.name[5:])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "grade_many", judge)
        save_run(folder, record, {"pair": played, "as_a": played[:1]})
    run = load_run(folder)
    expected = [replace(c, outcomes=tuple(float(len(c.last_text(k)) % 2 == 0) for k in "AB")) for c in played]
    assert run.chats() == expected and run.chats("as_a") == expected[:1]
    assert {key: run.record[key] for key in record} == record


MADE = {}


def load_made() -> dict:
    """A run's record to copy, without what the store adds."""
    if not MADE:
        import tempfile

        with tempfile.TemporaryDirectory() as place:
            MADE.update(json.loads((made_run(place, "base", 17) / "run.json").read_text()))
        del MADE["chats_sha256"], MADE["format"]
    return MADE


def test_rows_are_chats_and_chats_are_rows():
    chat = made_chat(made_task(), ("I have 3", "4?", "3 + 4 = \\boxed{7}", "\\boxed{8}"))
    rows = chat_rows("pair", [chat])
    assert chats_of(rows) == [replace(chat, outcomes=(1.0, 0.0))] and rows[0]["reward"] == 0.5


def test_chats_of_another_run_are_not_taken_for_this_ones(tmp_path):
    """A whole, valid file, but not the one that was written: only the checksum tells."""
    run = made_run(tmp_path, "base", 17)
    other = made_run(tmp_path / "other", "base", 17, words=("", "", "\\boxed{7}", "\\boxed{7}"))
    (run / "chats.parquet").write_bytes((other / "chats.parquet").read_bytes())
    with pytest.raises(TalkError, match="chats.parquet is not the file that run.json describes"):
        load_run(run).chats()
    told = json.loads((run / "run.json").read_text())
    digest = hashlib.sha256((run / "chats.parquet").read_bytes()).hexdigest()
    (run / "run.json").write_text(to_json({**told, "chats_sha256": digest}))
    assert load_run(run).chats()[0].outcomes == (1.0, 1.0)


def test_chats_of_another_grader_are_graded_again(tmp_path):
    wrong = [replace(made_chat(made_task(), ("", "", "\\boxed{7}", "\\boxed{8}")), outcomes=(0.0, 0.0))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "grade_many", lambda pairs: [Verdict(False, False, "")] * len(pairs))
        made_run(tmp_path, "base", 17, chats=wrong)
        made_run(tmp_path, "base", 18, chats=wrong, grader={"name": "an older one"})
    assert [run.chats()[0].outcomes for run in load_runs(tmp_path)] == [(0.0, 0.0), (1.0, 0.0)]


def test_numbers_that_json_has_not_are_refused():
    with pytest.raises(ValueError, match="(?i)out of range|not JSON"):
        to_json({"score": float("nan")})


def test_the_interval_is_the_same_every_time():
    values = np.random.default_rng(3).random(45).tolist()  # fine values: on coarse ones two seeds may agree by chance
    assert bootstrap_interval(values) == bootstrap_interval(values) != bootstrap_interval(values, seed=1)


# -- grading --------------------------------------------------------------------------------------------


def test_ten_thousand_answers_of_stored_runs_are_graded_in_seconds():
    import time

    from talklib.grading import _grade, grade_many

    from conftest import ROOT

    pairs = []
    for run in load_runs(ROOT / "results" / "desk"):
        for name in run.evaluations:
            pairs += [(chat.last_text(copy), chat.task.problem.gold) for chat in run.chats(name) for copy in "AB"]
        if len(pairs) >= 10_000:
            break
    if len(pairs) < 10_000:
        pytest.skip("fewer than 10,000 stored answers")
    _grade.cache_clear()
    began = time.perf_counter()
    verdicts = grade_many(pairs[:10_000])
    took = time.perf_counter() - began
    assert 0 < sum(verdict.post for verdict in verdicts) < 10_000
    assert took < 20, f"{took:.1f} s; 0.5 where nothing else runs"


def test_our_own_rules_take_no_long_on_the_longest_hostile_text():
    """Backtracking would show on text at the limit: 20,000 characters of what the patterns are made of."""
    import time

    from talklib.grading import LONGEST, boxes, fast, strict
    from talklib.panel import exact, last_number

    rng, slowest = random.Random(1), 0.0
    atoms = [*"\\{}$^_%0123456789.,+-*/= abx\n", "\\boxed{", "\\boxed", "\\text{", "1,000", "18", "\\frac{1}{",
             " answer is "]
    texts = [rng.choice(atoms) * LONGEST for _ in range(40)]
    texts += [(rng.choice(atoms) + rng.choice(atoms)) * LONGEST for _ in range(60)]
    texts += ["".join(rng.choices(atoms, k=LONGEST)) for _ in range(40)]
    texts += [f"{text[: LONGEST - 30]}\\boxed{{18{'.' * 20}" for text in texts[:60]]
    for text in texts:
        text = text[-LONGEST:]
        began = time.process_time()
        boxes(text), strict(text, "18"), fast(text, "18"), last_number(text, "18"), exact(text, "18")
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 0.5, f"{slowest:.2f} s"


# -- what a run is made of ------------------------------------------------------------------------------


def test_sampling_is_by_the_named_temperature_and_top_p():
    import torch
    from talklib.speakers import pick, uniforms, warpers

    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(6000, 1)
    for temperature, top_p in ((0.5, 1.0), (2.0, 1.0), (1.0, 0.7)):
        wanted = torch.tensor([0.6, 0.3, 0.1]) ** (1 / temperature)
        if top_p < 1.0:
            wanted[2] = 0.0
        token, _ = pick(warpers(Sampling(temperature=temperature, top_p=top_p))(None, logits), uniforms([5], 6000)[0])
        assert torch.allclose(torch.bincount(token, minlength=3) / 6000, wanted / wanted.sum(), atol=0.03)


def test_every_end_token_of_the_model_ends_a_message(model, tokenizer):
    from talklib.speakers import ModelSpeaker

    model.generation_config.eos_token_id = [7, tokenizer.eos_token_id]
    speaker = ModelSpeaker(model, tokenizer, Sampling(), max_prompt_tokens=600)
    assert speaker.end_ids == sorted({7, tokenizer.eos_token_id})
    model.generation_config.eos_token_id = 9
    assert set(speaker.end_ids) == {9, tokenizer.eos_token_id}


def test_the_evaluation_plays_on_the_arms_channel():
    heard = []
    speaker = Scripted(lambda view: heard.append(view) or "SECRET 5")
    for channel in ("open", "blocked"):
        heard.clear()
        found = evaluate(make_tasks()[:1], dict.fromkeys("AB", speaker), tiny_recipe(eval_chats=1), channel, 17)
        texts = {text for view in heard for who, text in view.lines if who != view.copy}
        assert texts == ({"SECRET 5"} if channel == "open" else {"(no message)"}) and found[0].channel == channel


@pytest.mark.parametrize("merged", [True, False])
def test_the_untrained_partner_is_the_base_whatever_the_adapter_is(tmp_path, merged):
    """Both ways of playing it: a twin without the adapter, and the adapter switched off."""
    import torch
    from talklib.recipe import ARMS
    from talklib.trainers import ChatTrainer

    tokenizer, tasks = make_tokenizer(), make_tasks()
    recipe = tiny_recipe(merged_rollout=merged, use_cpu=True)

    def told(change: float, which: int):
        trainer = ChatTrainer(make_model(tokenizer), tokenizer, tasks, recipe, ARMS["mixed"], 17, tmp_path)
        with torch.no_grad():
            for name, weight in trainer.model.named_parameters():
                if "lora_B" in name:
                    weight += change
        speaker = trainer.speakers()[which]
        seats = {"A": speaker, "B": speaker}
        return [t.text for c in play(tasks, seats, recipe.protocol, recipe.prompts, ("t",)) for t in c.turns]

    assert told(0.0, 1) == told(0.5, 1) == told(0.0, 0)
    assert told(0.5, 0) != told(0.0, 0)


def test_first_weights_of_the_adapter_follow_the_runs_seed(tmp_path):
    from talklib.experiment import adapter_sha256
    from talklib.recipe import ARMS
    from talklib.trainers import ChatTrainer

    tokenizer, tasks = make_tokenizer(), make_tasks()
    first = [adapter_sha256(ChatTrainer(make_model(tokenizer), tokenizer, tasks, tiny_recipe(), ARMS["grpo"], seed,
                                        tmp_path).model) for seed in (17, 17, 18)]
    assert first[0] == first[1] != first[2]


def test_a_run_evaluates_by_its_evaluation_sampling(tmp_path, monkeypatch):
    """The record names both samplings; this looks at what the speakers were given."""
    from talklib import evaluate as module
    from talklib.experiment import run_arm

    used = []

    def noted(tasks, seats, *rest):
        used.extend(speaker.sampling for speaker in seats.values())
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "evaluate", noted)
    recipe = tiny_recipe(n_train=8, n_test=2, max_prompt_tokens=400, eval_sampling=Sampling(temperature=0.6, top_p=0.8))
    with pytest.raises(KeyboardInterrupt):
        run_arm(recipe, "base", 17, tmp_path, say=lambda text: None)
    assert used == [recipe.eval_sampling] * 2


# -- the list of faults ----------------------------------------------------------------------------------


def test_the_list_of_deliberate_faults_fits_the_code():
    """`python -m tests.faults` puts each into a copy; here only: does each still stand where it says?"""
    import ast

    from conftest import ROOT
    from faults import FAULTS

    assert len(FAULTS) >= 20 and len({one.name for one in FAULTS}) == len(FAULTS)
    for one in FAULTS:
        text = (ROOT / one.path).read_text(encoding="utf-8")
        assert text.count(one.old) == 1, f"{one.name}: {one.path} holds its text {text.count(one.old)} times"
        ast.parse(text.replace(one.old, one.new))
        for test in one.tests:
            path, name = test.split("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), test
