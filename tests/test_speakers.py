"""Our decoding loop against the library's `generate`, and the seeds that make a message its own."""

import pytest
import torch
import transformers
from talklib import TalkError
from talklib.chat import Protocol, play
from talklib.recipe import Sampling
from talklib.speakers import (
    Fixed,
    InverseTransform,
    MergedTwin,
    ModelSpeaker,
    compiled,
    generate,
    generate_static,
    left_pad,
    pick,
    uniforms,
    warpers,
)
from transformers import GenerationConfig, LogitsProcessorList

from conftest import make_tasks, tiny_recipe


def by_library(model, prompts, cap, seeds, sampling, ends, pad):
    ids, mask = left_pad(prompts, pad)
    stack = LogitsProcessorList([*warpers(sampling), InverseTransform(seeds, cap, ids.shape[1])])
    config = GenerationConfig(do_sample=False, max_new_tokens=cap, eos_token_id=ends, pad_token_id=pad)
    old = {"use_model_defaults": False} if int(transformers.__version__.split(".")[0]) < 5 else {}  # 5 has no such word
    out = model.generate(ids, attention_mask=mask, logits_processor=stack, generation_config=config, **old)
    rows = []
    for row in out[:, ids.shape[1]:].tolist():
        stop = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        rows.append(row[: stop + 1])
    return rows


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.9), Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.3, top_k=20, repetition_penalty=1.1), Sampling(temperature=1.0, min_p=0.05)])
def test_equal_to_generate_token_for_token(model, tokenizer, sampling):
    prompts = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [3]]
    prompts, seeds = prompts * 4, list(range(100, 112))
    ends = [tokenizer.eos_token_id, 40, 41, 42]  # several end tokens, some of which do come up
    ours, nats = generate(model, prompts, [24] * 12, seeds, sampling, ends, tokenizer.pad_token_id)
    assert ours == by_library(model, prompts, 24, seeds, sampling, ends, tokenizer.pad_token_id)
    assert len({len(row) for row in ours}) > 2 and nats > 0


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.9), Sampling(temperature=1.3, top_k=20, repetition_penalty=1.1)])
def test_fixed_shapes_give_the_same_tokens(model, tokenizer, sampling):
    prompts, seeds = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [3]] * 4, list(range(100, 112))
    ends, caps = [tokenizer.eos_token_id, 40, 41, 42], [24] * 6 + [7] * 6
    moving = generate(model, prompts, caps, seeds, sampling, ends, tokenizer.pad_token_id)
    fixed = generate_static(model, prompts, caps, seeds, sampling, ends, tokenizer.pad_token_id)
    assert fixed[0] == moving[0] and fixed[1] == pytest.approx(moving[1], rel=1e-4)
    assert len({len(row) for row in fixed[0]}) > 2


def test_rounded_up_shapes_give_the_same_tokens(model, tokenizer):
    """Rows that nobody reads and a longer cache change nothing, nor does what an earlier turn left in the cache."""
    fixed, ends = Fixed(rows=8, length=32), [tokenizer.eos_token_id, 40, 41, 42]
    for turn, count in enumerate((12, 9, 12)):
        prompts, seeds = [[5, 6, 7 + turn] * (1 + turn), [3]] * count, range(turn, turn + 2 * count)
        words = (prompts[:count], [24] * count, list(seeds)[:count], Sampling(top_p=0.9), ends, tokenizer.pad_token_id)
        assert generate_static(model, *words, fixed)[0] == generate(model, *words)[0]
    assert set(fixed.caches) == {(16, 32), (16, 64)}  # 12 and 9 rows; prompts of 3 and 6, then of 9, and 24 more


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "length"), [(4, 64), (1, 1)])
def test_a_token_step_is_compiled_once_a_shape(model, tokenizer, rows, length):
    """On CUDA compilation takes a minute: turns of other prompts must not compile anew, as they do where shapes are not
    rounded up. Counted with a back end that compiles nothing."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    fixed = compiled(model, rows, length, mode=None, backend=count)
    for turn, size in enumerate((3, 4, 3)):
        words = ([[5, 6, 7] * (turn + 1)] * size, [6] * size, range(size), Sampling(), [tokenizer.eos_token_id],
                 tokenizer.pad_token_id)
        assert generate_static(model, *words, fixed)[0] == generate(model, *words)[0]
    assert len(graphs) == (1 if rows == 4 else 3)
    torch._dynamo.reset()


def test_few_caches_are_kept(model):
    fixed = Fixed()
    first = fixed.cache(model, 1, 8)
    assert fixed.cache(model, 1, 8) is first
    for length in range(9, 15):
        fixed.cache(model, 1, length)
    assert len(fixed.caches) == 4 and (1, 8) not in fixed.caches


def test_decoding_is_a_setting(model, tokenizer):
    recipe, tasks = tiny_recipe(), make_tasks()
    chats = [play(tasks, dict.fromkeys("AB", ModelSpeaker(model, tokenizer, Sampling(), 600, decoding=decoding)),
                  recipe.protocol, recipe.prompts, ("x",)) for decoding in ("dynamic", "static")]
    assert chats[0] == chats[1]
    with pytest.raises(TalkError, match="must be dynamic, static or vllm"):
        play(tasks, dict.fromkeys("AB", ModelSpeaker(model, tokenizer, Sampling(), 600, decoding="fast")),
             recipe.protocol, recipe.prompts, ("x",))


def test_a_message_does_not_depend_on_its_batch(model, tokenizer):
    speaker = ModelSpeaker(model, tokenizer, Sampling(), max_prompt_tokens=600)
    tasks, recipe = make_tasks(), tiny_recipe()
    seats = {"A": speaker, "B": speaker}
    together = play(tasks, seats, recipe.protocol, recipe.prompts, ("eval", 1))
    alone = [play([task], seats, recipe.protocol, recipe.prompts, ("eval", 1))[0] for task in tasks]
    assert together == alone


def test_equal_prompts_are_read_once(model, tokenizer):
    """A group's chats begin with one prompt: the model sees it once, and each message is what it would be alone."""
    seen = []
    model.register_forward_pre_hook(lambda _, args, kw: seen.append(tuple(kw["input_ids"].shape)), with_kwargs=True)
    prompts = [[5, 6, 7, 8]] * 5 + [[9, 10]] * 3
    rows, _ = generate(model, prompts, [6] * 8, list(range(8)), Sampling(), [tokenizer.eos_token_id], 0)
    assert seen[0] == (2, 4) and seen[1] == (8, 1)
    alone = [generate(model, [p], [6], [s], Sampling(), [tokenizer.eos_token_id], 0)[0][0]
             for s, p in enumerate(prompts)]
    assert rows == alone and len(set(map(tuple, rows[:5]))) > 1


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(4000, 1)
    token, logps = pick(logits, uniforms([1], 4000)[0])
    shares = torch.bincount(token, minlength=3) / 4000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.03)
    assert torch.allclose(logps.exp(), torch.tensor([0.5, 0.3, 0.2])[token])


def test_caps_are_kept_and_the_end_token_stays(model, tokenizer):
    ends = [tokenizer.eos_token_id, *range(0, 40)]
    rows, _ = generate(model, [[50, 51]] * 8, [3] * 4 + [9] * 4, list(range(8)), Sampling(), ends, 0)
    assert all(len(row) <= cap for row, cap in zip(rows, [3] * 4 + [9] * 4, strict=True))
    assert all(token not in ends for row in rows for token in row[:-1])


def test_temperature_must_be_positive():
    with pytest.raises(TalkError, match="temperature"):
        warpers(Sampling(temperature=0.0))


def test_merged_twin_equals_the_adapter_and_does_not_drift(model, tokenizer):
    from peft import get_peft_model
    from talklib.trainers import lora_config

    twin = MergedTwin(model)
    base = model(torch.tensor([[5, 6, 7]])).logits
    peft = get_peft_model(model, lora_config(tiny_recipe()))
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.1)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.allclose(twin.load(peft)(ids).logits, peft(ids).logits, atol=1e-5)
    assert not torch.allclose(peft(ids).logits, base, atol=1e-3)
    for _ in range(50):
        twin.load(peft)
    assert torch.equal(twin.load()(ids).logits, base)


def test_two_copies_is_not_wired_in(model, tokenizer):
    """Three copies, any order: data, not code."""
    from talklib.splitter import Problem, Task, split

    text = "Ann has 3 figs. Ben has 4 figs. Cy has 5 figs. How many figs are there?"
    task = Task(Problem("x-0", text, "12"), split(text, copies=3))
    speaker = ModelSpeaker(model, tokenizer, Sampling(), max_prompt_tokens=600)
    protocol = Protocol(order="CABCAB", message_tokens=4, last_tokens=5)
    chat = play([task], dict.fromkeys("ABC", speaker), protocol, tiny_recipe().prompts, ("x",))[0]
    assert [turn.speaker for turn in chat.turns] == list("CABCAB")
    assert "Cy has 5 figs." in tokenizer.decode(chat.turns[0].prompt_ids)
    assert "Ann has" not in tokenizer.decode(chat.turns[0].prompt_ids)
