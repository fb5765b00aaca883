"""What trains is what was played: gradients, masks, seeds, learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from talklib import TalkError
from talklib.batching import LOSS_TYPES, plain_groups, rows_of
from talklib.chat import play
from talklib.experiment import adapter_sha256
from talklib.recipe import ARMS
from talklib.trainers import ChatTrainer
from trl import GRPOTrainer
from trl.trainer.utils import pad

from conftest import make_model, tiny_recipe

LETTERS = sorted(set("abcdefgh"))


def by_letters(chats):
    """A reward with spread on random text: does the copy's last message hold a letter of a..h?"""
    return [replace(c, outcomes=tuple(float(any(x in c.last_text(k) for x in LETTERS)) for k in "AB")) for c in chats]


def flat(chats):
    return [replace(chat, outcomes=(1.0, 1.0)) for chat in chats]


def make_trainer(model, tokenizer, tasks, folder, arm="grpo", seed=17, judge=by_letters, **changes):
    return ChatTrainer(model, tokenizer, tasks, tiny_recipe(**changes), ARMS[arm], seed, folder, judge=judge)


def gradient(trainer):
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.requires_grad])


def warm(trainer):
    """LoRA's B starts at zero, where half of the gradient vanishes: give it values."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in trainer.model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)


def left(trainer):
    """What the trainer still divides a micro-batch's loss by: TRL 1 divides in the loss itself."""
    trainer.current_gradient_accumulation_steps = steps = trainer.args.steps_per_generation
    return 1 if trainer.divides_itself else steps


def our_gradient(trainer, groups):
    trainer.model.zero_grad()
    for batch in trainer.micro_batches(groups):
        (trainer._compute_loss(trainer.model, batch) / left(trainer)).backward()
    return gradient(trainer)


def reference_gradient(trainer, groups):
    """By hand: one row at a time, unpadded, every row of the plain batch, log-softmax over the vocabulary."""
    rows, recipe = rows_of(groups), trainer.recipe
    plain = plain_groups(len(rows), recipe.micro_batches, trainer.run_seed, trainer.state.global_step)
    trainer.model.zero_grad()
    total = 0.0
    for group in plain:
        tokens = sum(len(rows[i].completion_ids) for i in group)
        for i in group:
            row = rows[i]
            ids = torch.tensor([row.prompt_ids + row.completion_ids])
            logits = trainer.model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
            logps = (logits / recipe.train_sampling.temperature).log_softmax(-1)
            wrote = logps.gather(1, torch.tensor(row.completion_ids)[:, None]).sum()
            divisor = {"bnpo": tokens, "grpo": len(row.completion_ids) * len(group),
                       "dr_grpo": len(group) * recipe.protocol.last_tokens}[recipe.loss_type]
            total = total - row.advantage * wrote / divisor / len(plain)
    total.backward()
    return gradient(trainer)


def trl_gradient(trainer, groups):
    """TRL's own loss on the padded plain micro-batches, rows without an advantage included."""
    rows, recipe, end = rows_of(groups), trainer.recipe, trainer.processing_class.pad_token_id
    trainer.model.zero_grad()
    plain = plain_groups(len(rows), recipe.micro_batches, trainer.run_seed, trainer.state.global_step)
    divisor = left(trainer)
    for group in plain:
        side = {}
        for name, where in (("prompt", "left"), ("completion", "right")):
            ids = [torch.tensor(getattr(rows[i], f"{name}_ids")) for i in group]
            side[f"{name}_ids"] = pad(ids, padding_value=end, padding_side=where)
            side[f"{name}_mask"] = pad([torch.ones_like(x) for x in ids], padding_value=0, padding_side=where)
        advantages = torch.tensor([rows[i].advantage for i in group])
        inputs = {**side, "advantages": advantages, "old_per_token_logps": None, "ref_per_token_logps": None}
        (GRPOTrainer._compute_loss(trainer, trainer.model, inputs) / divisor).backward()
    return gradient(trainer)


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("reference", [reference_gradient, trl_gradient])
def test_gradient_is_the_plain_batchs(model, tokenizer, tasks, tmp_path, loss_type, reference):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, loss_type=loss_type)
    warm(trainer)
    groups = trainer.rollout(tasks[:2])
    assert any(row.advantage == 0 for row in rows_of(groups)) or any(row.advantage for row in rows_of(groups))
    expected = reference(trainer, groups)
    assert expected.norm() > 0
    assert relative(our_gradient(trainer, groups), expected) < 1e-5


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_gradient_by_chunks_is_the_plain_batchs(model, tokenizer, tasks, tmp_path, loss_type, chunk):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, loss_type=loss_type, logit_chunk=chunk)
    warm(trainer)
    groups = trainer.rollout(tasks[:2])
    assert relative(our_gradient(trainer, groups), trl_gradient(trainer, groups)) < 1e-5
    assert trainer._plain_head is True


def test_a_head_that_does_more_is_left_to_the_model(model, tokenizer, tasks, tmp_path):
    """Some families cap or scale logits after the head: chunks would miss that, so they must not be used."""
    plain = type(model).forward

    def capped(self, *args, **options):
        out = plain(self, *args, **options)
        out.logits = 2.0 * torch.tanh(out.logits / 2.0)
        return out

    model.forward = capped.__get__(model)
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, logit_chunk=7, merged_rollout=False)
    warm(trainer)
    groups = trainer.rollout(tasks[:2])
    assert relative(our_gradient(trainer, groups), trl_gradient(trainer, groups)) < 1e-5
    assert trainer._plain_head is False


def test_rows_without_advantage_cost_nothing_but_count(model, tokenizer, tasks, tmp_path):
    def one_flat_problem(chats):
        return [flat([c])[0] if c.problem_id == "train-0" else by_letters([c])[0] for c in chats]

    trainer = make_trainer(model, tokenizer, tasks, tmp_path, judge=one_flat_problem)
    warm(trainer)
    groups = trainer.rollout(tasks[:2])
    assert groups[0].flat and not groups[1].flat
    computed = sum(len(batch["input_ids"]) for batch in trainer.micro_batches(groups) if batch)
    assert computed <= 16 < len(rows_of(groups)) == 32
    assert relative(our_gradient(trainer, groups), reference_gradient(trainer, groups)) < 1e-5


def test_tokens_in_are_tokens_trained(model, tokenizer, tasks, tmp_path):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path)
    groups = trainer.rollout(tasks[:2])
    rows = [row for row in rows_of(groups) if row.advantage]
    batches = [batch for batch in trainer.micro_batches(groups) if batch]
    wrote = []
    for batch in batches:
        k = batch["loss_mask"].shape[1]
        for ids, mask in zip(batch["input_ids"][:, -k:], batch["loss_mask"].bool(), strict=True):
            wrote.append(tuple(ids[mask].tolist()))
    assert sorted(wrote) == sorted(row.completion_ids for row in rows)


def test_end_token_is_trained(model, tokenizer, tasks, tmp_path):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, protocol=replace(
        tiny_recipe().protocol, message_tokens=60, last_tokens=60))
    with torch.no_grad():  # a bias towards the end token, so that some messages end
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 4
    groups = trainer.rollout(tasks)
    ended = [row for row in rows_of(groups) if row.completion_ids[-1] == tokenizer.eos_token_id]
    assert ended
    batch = trainer.tensors(ended[:1], [1.0])
    last = len(ended[0]) - 1 - (batch["input_ids"].shape[1] - batch["loss_mask"].shape[1])
    assert batch["loss_mask"][0, last] == 1
    assert batch["input_ids"][0, len(ended[0]) - 1] == tokenizer.eos_token_id


def test_long_prompt_is_refused_not_cut(model, tokenizer, tasks, tmp_path):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, max_prompt_tokens=20)
    with pytest.raises(TalkError, match="max_prompt_tokens"):
        trainer.rollout(tasks[:1])


def test_channels_differ_only_in_what_is_seen(model, tokenizer, tasks, tmp_path):
    seen = {}
    for channel in ("open", "blocked"):
        trainer = make_trainer(make_model(tokenizer), tokenizer, tasks, tmp_path / channel,
                               arm="grpo" if channel == "open" else "grpo_blocked")
        policy, _ = trainer.speakers()
        seen[channel] = play(tasks, {"A": policy, "B": policy}, trainer.protocol, trainer.recipe.prompts, ("x",))
        assert trainer.protocol == replace(trainer.recipe.protocol, channel=channel)
    for heard, cut in zip(seen["open"], seen["blocked"], strict=True):
        assert heard.turns[0] == cut.turns[0]  # nothing said yet: the same prompt, the same seed, the same message
        text = tokenizer.decode(cut.turns[1].prompt_ids)
        assert "(no message)" in text and heard.turns[0].text not in text.replace("(no message)", "")


def test_same_seed_same_adapter_and_another_seed_another(tokenizer, tasks, tmp_path):
    def trained(seed, name):
        trainer = make_trainer(make_model(tokenizer), tokenizer, tasks, tmp_path / name, seed=seed)
        trainer.train()
        return adapter_sha256(trainer.model)

    first = trained(17, "a")
    assert trained(17, "b") == first
    assert trained(18, "c") != first


def test_precision_is_the_recipes_and_not_the_last_runs(tokenizer, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # what a shell, or a bfloat16 run before, leaves behind

    def adapter_and_precision(dtype, name):
        trainer = make_trainer(make_model(tokenizer), tokenizer, tasks, tmp_path / name, dtype=dtype)
        trainer.train()
        return adapter_sha256(trainer.model), trainer.accelerator.mixed_precision

    before = adapter_and_precision("float32", "a")
    half = adapter_and_precision("bfloat16", "b")
    assert adapter_and_precision("float32", "c") == before
    assert (before[1], half[1]) == ("no", "bf16") and before[0] != half[0]


def test_no_signal_no_learning(model, tokenizer, tasks, tmp_path):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, judge=flat)
    before = adapter_sha256(trainer.model)
    trainer.train()
    assert adapter_sha256(trainer.model) == before
    assert [entry["flat_groups"] for entry in trainer.history] == [1.0, 1.0]


@pytest.mark.slow
def test_known_best_message_is_learned(model, tokenizer, tasks, tmp_path):
    """The reward asks for a letter of a..h in a last message; a random byte model writes one in about a quarter."""
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, steps=24, learning_rate=3e-2,
                           problems_per_step=4, checkpoint_every=100, lr_schedule="constant")
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.history]
    assert np.mean(rewards[:3]) < 0.45
    assert np.mean(rewards[-3:]) > 0.8


def test_untrained_partner_carries_no_gradient(model, tokenizer, tasks, tmp_path):
    trainer = make_trainer(model, tokenizer, tasks, tmp_path, arm="mixed")
    warm(trainer)
    groups = trainer.rollout(tasks[:2])
    mixed = [chat for group in groups for chat in group.pool if chat.partner == "untrained_b"]
    assert len(mixed) == 4 and all(t.trained == (t.speaker == "A") for chat in mixed for t in chat.turns)
    with torch.no_grad():  # what B wrote does not matter: other tokens in its turns, the same gradient
        changed = [replace(g, pool=tuple(
            replace(c, turns=tuple(t if t.trained else replace(t, completion_ids=(1, 2)) for t in c.turns))
            for c in g.pool)) for g in groups]
    assert torch.equal(our_gradient(trainer, groups), our_gradient(trainer, changed))


class Stop(Exception):
    pass


def test_interrupted_and_resumed_ends_the_same(tokenizer, tasks, tmp_path):
    from transformers import TrainerCallback

    class StopAt(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 3:
                raise Stop

    def fresh(folder):
        return make_trainer(make_model(tokenizer), tokenizer, tasks, folder, steps=5)

    whole = fresh(tmp_path / "whole")
    whole.train()
    broken = fresh(tmp_path / "broken")
    broken.add_callback(StopAt())
    with pytest.raises(Stop):
        broken.train()
    again = fresh(tmp_path / "broken")
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-3"))
    assert adapter_sha256(again.model) == adapter_sha256(whole.model)
    drop = {"seconds_rollout", "epoch", "step_time"}  # TRL 1 times its steps
    strip = [[{k: v for k, v in e.items() if k not in drop} for e in t.history] for t in (whole, again)]
    assert strip[0] == strip[1]
