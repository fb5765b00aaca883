"""The full run's settings, and what it would take: checked against what the post published."""

from dataclasses import asdict, fields, replace

import pytest
from talklib import TalkError
from talklib.__main__ import main
from talklib.plan import (
    GPUS,
    SHAPES,
    chars_per_token,
    flat,
    h100_minutes,
    lengths_of,
    memory_of,
    plan,
    shape_of,
    slower,
    step_seconds,
    text,
    tokens_of,
    work_of,
)
from talklib.published import load
from talklib.recipe import ARMS, SCALES, Recipe, Sampling, get_arm

POST = {  # the post's settings table and text, field by field
    "model": "Qwen/Qwen2.5-1.5B-Instruct", "data": "hub", "split_rule": "post", "data_seed": 0, "n_train": 1024,
    "n_test": 300, "eval_chats": 2, "steps": 80, "problems_per_step": 8, "chats_per_problem": 4, "micro_batches": 16,
    "learning_rate": 1e-4, "lr_schedule": "linear", "max_grad_norm": 1.0, "lora_r": 32, "lora_alpha": 64,
    "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), "loss_type": "bnpo",
    "beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.28, "max_prompt_tokens": 1024, "dtype": "bfloat16",
}
OURS = {"scale", "model_revision", "prompts", "protocol", "columns", "train_sampling", "eval_sampling", "use_cpu",
        "threads", "merged_rollout", "generation_rows", "decoding", "logit_chunk", "checkpoint_every"}
"""Settings that the post does not name (ours, of speed or place), or that are compared below."""


def test_the_paper_recipe_is_the_posts_field_by_field():
    recipe = Recipe.paper()
    for name, value in POST.items():
        assert getattr(recipe, name) == value, name
    assert {f.name for f in fields(recipe)} == set(POST) | OURS
    protocol = recipe.protocol
    assert (protocol.order, protocol.message_tokens, protocol.last_tokens) == ("ABAB", 160, 384)
    assert recipe.train_sampling == Sampling(temperature=0.9, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
    assert replace(recipe.eval_sampling, top_p=1.0) == recipe.train_sampling and recipe.eval_sampling.top_p == 0.95
    assert recipe.model == load("talk_to_solve")["base_model"] and not recipe.use_cpu and not recipe.merged_rollout


def test_trl_is_given_what_the_recipe_says(tmp_path):
    from talklib.trainers import grpo_config

    config = grpo_config(replace(Recipe.paper(), dtype="float32", use_cpu=True), 17, tmp_path)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (2, 16)
    assert (config.learning_rate, config.lr_scheduler_type.value, config.warmup_steps) == (1e-4, "linear", 0)
    assert (config.beta, config.num_iterations, config.scale_rewards, config.loss_type) == (0.0, 1, False, "bnpo")
    assert (config.epsilon, config.epsilon_high, config.temperature) == (0.2, 0.28, 0.9)
    assert config.max_prompt_length is None and not config.gradient_checkpointing and not config.use_vllm
    assert (config.bf16, config.fp16, config.seed, config.max_grad_norm) == (False, False, 17, 1.0)


@pytest.mark.parametrize("scale", SCALES)
def test_a_recipe_survives_being_sent(scale):
    recipe = SCALES[scale]()
    assert Recipe.from_dict(recipe.as_dict()) == recipe
    with pytest.raises(TalkError, match="not a recipe of this version"):
        Recipe.from_dict({**recipe.as_dict(), "colour": "red"})


def test_work_by_hand():
    work = work_of(Recipe.paper(), get_arm("grpo"))
    assert (work.chats, work.most_chats, work.seatings, work.turns) == (2560, 2560, 3, 2 * 160 + 2 * 384)
    assert work.messages == (2560 + 3 * 600) * 4
    assert work_of(Recipe.paper(), get_arm("reinforce_ada")).most_chats == 3 * 2560
    assert work_of(Recipe.paper(), get_arm("base")).chats == 0


def test_the_posts_own_minutes_come_out_again():
    """The post played two seatings a chat run; we play three."""
    methods, solve = load("talk_methods")["arms"], load("talk_to_solve")["arms"]
    seating = (105.6 - 77.1) / 2
    for name in ("grpo", "raft", "mixed", "reinforce_ada"):
        minutes, source = h100_minutes(Recipe.paper(), get_arm(name))
        assert minutes - seating == pytest.approx(methods[name]["gpu_minutes_per_seed"]) and source.startswith("post")
    assert h100_minutes(Recipe.paper(), get_arm("grpo_blocked"))[0] == pytest.approx(
        solve["trained_blocked"]["train_minutes_mean"] + seating)
    half = h100_minutes(Recipe.paper(steps=40, n_test=150), get_arm("grpo"))[0]
    assert half == pytest.approx(h100_minutes(Recipe.paper(), get_arm("grpo"))[0] / 2)


def test_a_token_is_as_long_as_the_longest_mean_message_says():
    assert chars_per_token() == 698 / 160
    before, after = lengths_of(get_arm("grpo"))
    assert before.message == pytest.approx(287 / chars_per_token())
    assert after.message == pytest.approx((570 + 698 + 486) / 3 / chars_per_token())
    assert after.last == pytest.approx(921 / chars_per_token())
    assert max(after.of(Recipe.paper())) <= 384
    short = Recipe.paper(protocol=replace(Recipe.paper().protocol, message_tokens=20, last_tokens=30))
    assert after.of(short) == [20, 20, 30, 30]  # never above the cap


def test_tokens_by_hand():
    recipe, (before, after) = Recipe.paper(), lengths_of(get_arm("grpo"))
    chat = {when: 2 * found.message + 2 * found.last for when, found in (("before", before), ("after", after))}
    found = tokens_of(recipe, get_arm("grpo"))
    assert found.drawn == 2560
    by_hand = 2560 * (chat["before"] + chat["after"]) / 2 + 1800 * chat["after"]
    assert found.generated == pytest.approx(by_hand, rel=1e-6)
    assert found.generated < work_of(recipe, get_arm("grpo")).most_tokens
    assert tokens_of(recipe, get_arm("reinforce_ada")).drawn == round(2560 * (1 + 0.39 + 0.39**2))
    assert tokens_of(recipe, get_arm("grpo_blocked")).read < found.read  # a blocked copy reads its own words alone
    wide = replace(recipe, chats_per_problem=8, problems_per_step=4)
    assert tokens_of(wide, get_arm("grpo")).read < found.read  # more chats share a first prompt


def test_another_gpu_is_slower_by_arithmetic():
    recipe, shape = Recipe.paper(), SHAPES[Recipe.paper().model]
    assert slower(recipe, shape, GPUS["H100"]) == pytest.approx(1)
    assert 1 < slower(recipe, shape, GPUS["A100-80GB"]) < slower(recipe, shape, GPUS["L4"])
    small = SHAPES[Recipe.small().model]
    assert slower(Recipe.small(), small, GPUS["T4"]) > slower(Recipe.small(), small, GPUS["H100"])
    # weights read once a token step, 4 operations a weight and trained token
    seconds = step_seconds(recipe, shape, GPUS["H100"], 0.0)
    by_hand = 1088 * 2 * shape.parameters / 3350e9 + 128 * 1408 * 4 * shape.parameters / (0.4 * 989e12)
    assert seconds == pytest.approx(by_hand)


def test_memory_agrees_with_what_the_post_saw():
    """Two chats a micro-batch fitted an 80 GB H100; four, with whole logits, ran out of memory."""
    shape = SHAPES[Recipe.paper().model]
    assert shape.parameters == pytest.approx(1.54e9, rel=0.01)
    assert SHAPES["Qwen/Qwen2.5-0.5B-Instruct"].parameters == pytest.approx(0.494e9, rel=0.01)
    two, four = (memory_of(Recipe.paper(micro_batches=m, logit_chunk=0), shape) for m in (16, 8))
    assert two.peak < 60 * 2**30 < 72 * 2**30 < four.peak
    chunked = memory_of(Recipe.paper(), shape)
    assert chunked.logits < two.logits / 2 and chunked.logits_whole == two.logits
    with_engine = memory_of(Recipe.paper(decoding="vllm"), shape)
    assert with_engine.peak - chunked.peak == 2 * shape.parameters * 2  # a copy to add the adapter to, and its base
    assert "0.3 of the GPU" in text(plan(Recipe.paper(decoding="vllm"), ["grpo"], [17]))
    longer = replace(Recipe.paper().protocol, last_tokens=2000)
    assert memory_of(Recipe.paper(protocol=longer), shape).logits == chunked.logits  # does not grow with the message


def test_lora_weights_by_hand():
    shape = SHAPES["Qwen/Qwen2.5-1.5B-Instruct"]
    one = 1536 + 1536 + 1536 + 256 + 1536 + 256 + 1536 + 1536 + 3 * (1536 + 8960)
    assert shape.lora(32, POST["lora_targets"]) == 28 * 32 * one == pytest.approx(36.9e6, rel=0.01)


def test_the_shape_of_a_folder_and_of_the_desk_model(tmp_path):
    assert shape_of("desk").parameters == pytest.approx(0.71e6, rel=0.05)
    assert shape_of("someone/unknown") is None
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(TalkError, match="num_attention_heads"):
        shape_of(str(tmp_path))


def test_plan_adds_up_and_says_what_is_a_guess():
    found = plan(Recipe.paper(), ARMS, (17, 18, 19))
    assert found.usd == pytest.approx(found.hours * GPUS["H100"].usd_hour) and not found.guess
    shown = text(found)
    for name, value in flat(found.recipe):
        assert f"  {name} = {value!r}" in shown
    assert "21 runs" in shown and "fits" in shown and "1,088" in shown
    for saved in ("rows without an advantage", "padding", "first prompts", "finished messages", "logits in chunks"):
        [line] = [line for line in shown.splitlines() if line.startswith(f"  {saved}  ")]
        assert any(char.isdigit() for char in line), line
    assert "nothing is trained" in text(plan(Recipe.paper(), ["base"], [17]))
    assert "no bfloat16 units" in text(plan(Recipe.paper(), ["base"], [17], "T4"))
    assert "shape is not known" in text(plan(Recipe.paper(model="someone/unknown"), ["grpo"], [17]))
    assert "a guess" in text(plan(Recipe.small(), ["grpo"], [17], "T4"))
    assert "does NOT fit" in text(plan(Recipe.paper(), ["grpo"], [17], "T4"))
    with pytest.raises(TalkError, match="unknown GPU 'H1000'"):
        plan(Recipe.paper(), ["grpo"], [17], "H1000")


def test_dry_run_starts_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", "--scale", "paper", "--where", "local", "--dry-run", "--arms", "all", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "GPU hours" in shown and "micro_batches = 16" in shown and not out.exists()
    assert main(["run", "--scale", "paper", "--dry-run", "--gpu", "H1000"]) == 2


def test_no_setting_is_hidden_from_the_plan():
    names = {name.split(".")[0] for name, _ in flat(Recipe.paper())}
    assert names == set(asdict(Recipe.paper()))
