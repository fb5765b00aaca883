"""The desk world: problems, pools, audit, tokenizer, habits, and the shipped base model.

`test_short_rebuild_is_repeatable` (slow, under a minute) builds twice with a short schedule in every full test run. The
whole rebuild of the shipped file takes minutes: `make long` runs it (it sets TALKLIB_FULL=1)."""

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talklib import TalkError, desk
from talklib.chat import Protocol
from talklib.desk import habits, world
from talklib.desk.parts import LIMIT, Rng
from talklib.desk.stories import KINDS, draw, redraw
from talklib.recipe import Recipe
from talklib.splitter import split

NUMBER = re.compile(r"\d+")
FULL = pytest.mark.skipif(os.environ.get("TALKLIB_FULL") != "1", reason="minutes long: make long runs it")
PROMPTS = Recipe.desk().prompts


def rng(seed: int) -> Rng:
    return Rng(np.random.default_rng(seed))


@pytest.fixture(scope="module")
def some():
    return world.take("train", 1500, seed=3)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(desk.model_path())


# --- problems


def test_every_problem_splits_into_the_facts_it_was_told_in(some):
    for story in some:
        dealt = split(story.text)
        assert dealt.facts_a == story.facts[0::2] and dealt.facts_b == story.facts[1::2]
        assert dealt.question == story.question
        assert 2 <= len(story.facts) <= 4
        assert not NUMBER.search(story.question)
        for half in dealt.facts:
            assert NUMBER.search(" ".join(half))
            assert all(fact[0].isupper() and fact.endswith(".") for fact in half)


def test_answers_are_right_by_their_formula_and_by_their_steps(some):
    for story in some:
        assert eval(story.formula) == story.answer  # noqa: S307
        for step in story.steps:
            assert eval(f"{step.left} {step.op} {step.right}") == step.result
            assert all(0 <= n <= LIMIT for n in (step.left, step.right, step.result))


def test_the_formula_uses_every_number_of_the_facts(some):
    for story in some:
        told = set(NUMBER.findall(" ".join(story.facts)))
        used = set(NUMBER.findall(story.formula))
        assert told <= used and used <= told | {"2", "3"}  # "twice", "half" and "3 times" are told in words


def test_problems_are_varied(some):
    assert {story.kind for story in some} == set(KINDS)
    assert {len(story.facts) for story in some} == {2, 3, 4}
    assert {op for story in some for op in re.findall(r" ([-+*/]) ", story.formula)} == set("+-*/")
    assert len({story.answer for story in some}) > 120


def test_tasks_are_distinct_disjoint_numbered_and_repeatable():
    train, test = world.tasks(1024, 300, seed=0)
    assert (len(train), len(test)) == (1024, 300)
    assert [train[0].id, train[-1].id, test[7].id] == ["train-0", "train-1023", "test-7"]
    texts = [problem.question for problem in train + test]
    assert len(set(texts)) == len(texts)
    assert (train, test) == world.tasks(1024, 300, seed=0)
    assert train != world.tasks(1024, 300, seed=1)[0]


def test_thousands_of_distinct_problems_exist():
    assert len({story.key for story in world.take("train", 5000, seed=0)}) > 4000


def test_pools_share_no_problem_whatever_the_seed():
    pools = ("test", "train", "base")
    keys = {pool: {s.key for seed in (0, 1) for s in world.take(pool, 1500, seed)} for pool in pools}
    assert not keys["test"] & keys["base"] and not keys["test"] & keys["train"] and not keys["train"] & keys["base"]


def test_lists_grow_without_changing():
    assert world.take("test", 20, seed=0) == world.take("test", 50, seed=0)[:20]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_redrawing_keeps_one_copys_facts(seed):
    story = draw(rng(seed))
    assert story.sound
    for copy in (0, 1):
        other = redraw(story, copy, rng(seed))
        assert other.sound and other.question == story.question
        assert other.facts[copy::2] == story.facts[copy::2]


def test_no_half_is_enough_and_no_guess_pays():
    found = world.audit(n=100, seed=0, draws=100)
    assert found["half_alone"] < 0.06
    assert found["best_constant"] < 0.05 and found["by_question"] < 0.06
    assert found["distinct_answers"] > 120


def test_the_audit_can_tell_when_a_half_is_enough(monkeypatch):
    monkeypatch.setattr(world, "redraw", lambda story, copy, rng: story)
    assert world.audit(n=20, seed=0, draws=2)["half_alone"] == 1.0


# --- habits


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_habits_write_what_they_are_named_after(seed):
    story = draw(rng(seed))
    for copy in (0, 1):
        own, theirs = (set(habits.numbers(story.facts[c::2])) for c in (copy, 1 - copy))
        assert own <= set(habits.numbers([habits.first_message("restate", story.facts[copy::2], rng(seed))]))
        assert own == set(habits.numbers([habits.first_message("bare", story.facts[copy::2], rng(seed))]))
        assert habits.first_message("ask", story.facts, rng(seed)).endswith("?")
        assert not NUMBER.search(habits.first_message("vague", story.facts, rng(seed)))
        alone = habits.own_only(story, copy, rng(seed))
        assert set(habits.numbers([alone.split("=")[0].split("so")[0]])) <= own
        for text in (alone, habits.made_up(story, copy, rng(seed)), habits.sloppy(story, copy, rng(seed))):
            assert re.search(r"\\boxed\{\d+\}$", text)
        assert f"boxed{{{story.answer}}}" not in habits.made_up(story, copy, rng(seed)) or not theirs
    assert habits.solution(story.steps).endswith(f"\\boxed{{{story.answer}}}")


@pytest.mark.parametrize("channel", ["open", "blocked"])
def test_transcripts_show_a_copy_only_what_chat_lets_it_see(channel):
    generator = rng(0)
    for story in world.take("base", 100, seed=9):
        pairs = habits.transcript(story, habits.MIXED, Protocol(channel=channel), PROMPTS, generator)
        assert len(pairs) == 4
        for turn, (messages, _) in enumerate(pairs):
            seen = messages[-1]["content"]
            theirs = story.facts[1 - turn % 2 :: 2]
            told = [text for t, (_, text) in enumerate(pairs[:turn]) if t % 2 != turn % 2]
            if channel == "blocked":
                assert not any(fact in seen for fact in theirs)
                assert ("(no message)" in seen) == bool(told)
            else:
                assert all(text in seen for text in told)


def test_a_blocked_copy_never_writes_its_partners_numbers_on_purpose():
    """Blocked last messages combine nothing: they hit the truth no more often than chance."""
    generator, right = rng(1), 0
    stories = world.take("base", 400, seed=10)
    for story in stories:
        pairs = habits.transcript(story, habits.CAPABLE, Protocol(channel="blocked"), PROMPTS, generator)
        right += sum(f"boxed{{{story.answer}}}" in text for _, text in pairs[2:])
    assert right / (2 * len(stories)) < 0.06


def test_mixed_first_messages_come_in_their_shares():
    names = [field.name for field in fields(habits.Habits)[:4]]
    shares = {name: getattr(habits.MIXED, name) for name in names}
    assert sum(shares.values()) == pytest.approx(1.0)
    generator = rng(2)
    drawn = [habits.one_of(generator, shares) for _ in range(4000)]
    for name, share in shares.items():
        assert drawn.count(name) / 4000 == pytest.approx(share, abs=0.03)


# --- tokenizer


@pytest.mark.parametrize(
    "text", ["{}", " {}", "has {} apples", "${}", "{}, {}", "3 * {} = \\boxed{{{}}}", "({})", "\n{}\n"])
def test_numbers_to_199_are_one_token_wherever_they_stand(tokenizer, text):
    for n in range(200):
        ids = tokenizer(text.format(n, n), add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_tokens_to_ids(str(n)) in ids
        assert tokenizer.decode(ids) == text.format(n, n)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back_exactly(text):
    tokenizer = _loaded()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def _loaded(cache=[]):  # noqa: B006 - hypothesis refuses function-scoped fixtures; loaded once
    if not cache:
        from transformers import AutoTokenizer

        cache.append(AutoTokenizer.from_pretrained(desk.model_path()))
    return cache[0]


def test_world_text_costs_about_a_token_a_word(tokenizer, some):
    tokens = sum(len(tokenizer(story.text)["input_ids"]) for story in some[:300])
    words = sum(len(story.text.split()) for story in some[:300])
    assert tokens / words < 1.4


def test_chat_template_and_ends(tokenizer):
    from talklib.desk.base import chatml

    messages = [{"role": "user", "content": "Facts:\nTom has 3 pens."}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == chatml(messages)
    assert text == "<|im_start|>user\nFacts:\nTom has 3 pens.<|im_end|>\n<|im_start|>assistant\n"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert ids.count(tokenizer.eos_token_id) == 1


def test_no_message_of_the_world_passes_its_cap(tokenizer):
    recipe, generator = Recipe.desk(), rng(3)
    for story in world.take("base", 300, seed=11):
        pairs = habits.transcript(story, habits.CAPABLE, recipe.protocol, PROMPTS, generator)
        for turn, (messages, text) in enumerate(pairs):
            assert len(tokenizer(text)["input_ids"]) < recipe.protocol.cap(turn)
            assert len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)) <= recipe.max_prompt_tokens


# --- training rows


def test_packed_trees_train_as_separate_prompts_would(tokenizer):
    """Loss of two trees in one row equals the mean over their four transcripts one by one."""
    import torch
    from talklib.desk import base

    writer = base.Writer(tokenizer, Recipe.desk(), base.Schedule())
    model = base.new_model(tokenizer, 0).eval()
    story = world.take("base", 1, seed=12)[0]
    pairs = habits.transcript(story, habits.CAPABLE, Protocol(), PROMPTS, rng(4))
    packed = base.pack([[writer.tree(pairs[0::2]), writer.tree(pairs[1::2])]], 400)
    apart, count = 0.0, 0
    for messages, text in pairs:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        said = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        labels = torch.tensor([[-100] * len(prompt) + said])
        with torch.no_grad():
            apart += model(torch.tensor([prompt + said]), labels=labels).loss.item() * len(said)
        count += len(said)
    with torch.no_grad():
        together = base.loss_of(model, packed).item()
    assert together == pytest.approx(apart / count, rel=1e-5)


def test_muon_steps_are_nearly_orthogonal():
    import torch
    from talklib.desk.muon import orthogonal

    values = torch.linalg.svdvals(orthogonal(torch.randn(2, 48, 16, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.5 and values.max() < 1.3


# --- the shipped model


def test_shipped_files_are_those_that_were_built():
    folder = desk.model_path()
    record = json.loads((folder / "build.json").read_text())
    for name, digest in record["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_shipped_model_was_built_with_todays_settings():
    from dataclasses import asdict

    from talklib.desk.base import Schedule

    record = json.loads((desk.model_path() / "build.json").read_text())
    assert record["schedule"] == asdict(Schedule())
    assert record["habits"] == asdict(habits.MIXED)
    assert record["prompts"] == asdict(PROMPTS)


def test_shipped_model_is_small_and_float32():
    folder = desk.model_path()
    config = json.loads((folder / "config.json").read_text())
    assert config["torch_dtype"] == "float32" and config["model_type"] == "qwen2"
    assert (folder / "model.safetensors").stat().st_size < 4e6


def test_shipped_model_can_solve_with_all_facts_in_view():
    from talklib.desk.base import accuracy
    from talklib.speakers import load_model, load_tokenizer

    recipe = Recipe.desk()
    assert accuracy(load_model(recipe), load_tokenizer(recipe), recipe, world.take("test", 200, seed=0)) > 0.8


def test_a_missing_model_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(desk, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(TalkError, match="python -m talklib.desk build"):
        desk.model_path()


def test_importing_the_world_loads_no_torch():
    code = "import sys, talklib.desk.world; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_short_rebuild_is_repeatable(tmp_path):
    """Two processes, 12 steps each through both stages: equal to the byte; another seed: not."""
    from talklib.desk.base import Schedule

    short = replace(Schedule(), steps=12, rows=3)
    digests = [_build(tmp_path / str(i), replace(short, seed=seed)) for i, seed in enumerate((5, 5, 6))]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
@FULL
@pytest.mark.timeout(3600)
def test_the_shipped_file_is_what_the_command_makes(tmp_path):
    """Equal to the byte on a machine with the same arithmetic and versions; elsewhere the same capability."""
    subprocess.run([sys.executable, "-m", "talklib.desk", "build", "--out", str(tmp_path)], check=True)
    made, shipped = (json.loads((folder / "build.json").read_text()) for folder in (tmp_path, desk.model_path()))
    assert made["sha256"]["tokenizer.json"] == shipped["sha256"]["tokenizer.json"]
    if (made["versions"], made["machine"]) == (shipped["versions"], shipped["machine"]):
        assert made["sha256"] == shipped["sha256"]
    assert made["measured"]["all_facts"] == pytest.approx(shipped["measured"]["all_facts"], abs=0.05)


def _build(folder, schedule) -> str:
    code = ("import sys; from pathlib import Path; from talklib.desk.base import Schedule, build\n"
            f"build(Path(sys.argv[1]), {schedule!r}, measured=False)")
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, stdout=subprocess.DEVNULL)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
