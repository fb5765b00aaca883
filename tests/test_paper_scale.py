"""The full-size path, dry: a small random Qwen2 whose tokenizer has the real one's chat template, special tokens and
two end tokens goes through `run_arm` with the post's recipe, every arm, in float32 and in bfloat16 autocast."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from talklib import TalkError
from talklib.chat import Protocol, Turn, play, see
from talklib.experiment import adapter_sha256, run_arm
from talklib.recipe import ARMS, Recipe, Sampling
from talklib.speakers import ModelSpeaker, generate, load_model, load_tokenizer
from talklib.store import load_run, run_folder
from talklib.trainers import ChatTrainer

from conftest import GSM8K, make_tasks, make_tokenizer, needs_gsm8k

TEMPLATE = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
"""Of the shape of Qwen2.5's: a default system message, and no end of text."""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    path = tmp_path_factory.mktemp("qwen")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                         tie_word_embeddings=True, initializer_range=0.2, bos_token_id=None)
    model = Qwen2ForCausalLM(config)
    both = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = GenerationConfig(eos_token_id=both, pad_token_id=both[1], do_sample=True, top_k=20,
                                               top_p=0.8, temperature=0.7, repetition_penalty=1.1)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    for name, start in (("train", 0), ("test", 100)):
        rows = [{"question": f"Ann has {i} figs. Ben has {i + 3} figs. How many figs do they have?",
                 "answer": f"{i} + {i + 3}\n#### {2 * i + 3}"} for i in range(start, start + 12)]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def paper(model_folder, data_folder, **changes) -> Recipe:
    """The post's recipe, but for sizes."""
    recipe = Recipe.paper(model=str(model_folder), model_revision=None, data=str(data_folder), n_train=8, n_test=2,
                          steps=2, problems_per_step=2, micro_batches=4, eval_chats=1, max_prompt_tokens=2600,
                          protocol=Protocol(message_tokens=5, last_tokens=7), logit_chunk=16, checkpoint_every=1,
                          use_cpu=True, threads=1)
    return replace(recipe, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_end_to_end(model_folder, data_folder, tmp_path, arm, dtype):
    recipe = paper(model_folder, data_folder, dtype=dtype)
    run = run_arm(recipe, arm, 17, tmp_path, say=lambda text: None)
    partners = ARMS[arm].trained and ARMS[arm].channel == "open"
    assert set(run.evaluations) == ({"pair", "as_a", "as_b"} if partners else {"pair"})
    assert len(run.history) == (2 if ARMS[arm].trained else 0)
    assert len(run.record["sampling"]["end_ids"]) == 2
    if ARMS[arm].trained:
        config = json.loads((run.folder / "adapter" / "adapter_config.json").read_text())
        assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 32, 64)
        card = (run.folder / "adapter" / "README.md").read_text()
        assert f"{100 * run.score:.1f}" in card and f"base_model: {model_folder}" in card
        lines = (tmp_path / "metrics" / f"{arm}-seed-17.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_fixed_shapes_train_and_evaluate_to_the_same_run(model_folder, data_folder, tmp_path):
    recipe = paper(model_folder, data_folder, dtype="float32")
    runs = [run_arm(replace(recipe, decoding=decoding), "mixed", 17, tmp_path / decoding, say=lambda text: None)
            for decoding in ("dynamic", "static")]
    assert runs[0].record["adapter"] == runs[1].record["adapter"]
    for name in runs[0].evaluations:
        assert runs[0].chats(name) == runs[1].chats(name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")
@pytest.mark.parametrize("decoding", ["dynamic", "static"])
@pytest.mark.parametrize("arm", ["grpo", "mixed"])
def test_on_a_gpu(model_folder, data_folder, tmp_path, arm, decoding):
    recipe = paper(model_folder, data_folder, use_cpu=False, threads=None, decoding=decoding)
    run = run_arm(recipe, arm, 17, tmp_path, say=lambda text: None)
    assert run.record["hardware"]["gpu"] == torch.cuda.get_device_name() and len(run.history) == 2
    assert set(run.evaluations) == {"pair", "as_a", "as_b"}
    assert all(turn.completion_ids for chat in run.chats() for turn in chat.turns)


def test_another_models_folder_and_another_data_set_from_the_command_line(model_folder, tmp_path):
    from talklib.__main__ import main

    rows = [{"problem": f"Ann has {i} figs. Ben has {i + 3} figs. How many figs do they have?", "solution": 2 * i + 3}
            for i in range(1, 21)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = ["columns.question=problem", "columns.answer=solution", 'columns.marker=""', "n_train=8", "n_test=2",
               "eval_chats=1", "max_prompt_tokens=2600", "protocol.message_tokens=5", "protocol.last_tokens=7",
               "dtype=float32", "use_cpu=true"]
    words = ["run", "--scale", "paper", "--arms", "base", "--seeds", "17", "--jobs", "1", "--model", str(model_folder),
             "--data", str(tmp_path / "sums.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*words, *(word for change in changes for word in ("--set", change))]) == 0
    run = load_run(run_folder(tmp_path / "out", "base", 17))
    assert {chat.task.problem.gold for chat in run.chats()} <= {str(row["solution"]) for row in rows}
    assert run.record["recipe"]["model_revision"] is None  # the recipe's is a commit of another model


def test_an_adapter_goes_to_the_hub_with_its_card(model_folder, data_folder, tmp_path, monkeypatch):
    """The hub's client is asked as it will be; what it would send is looked at here."""
    import huggingface_hub
    from talklib.modelcard import push

    recipe = paper(model_folder, data_folder, dtype="float32", steps=1)
    run = run_arm(recipe, "grpo", 17, tmp_path, partners=False, say=lambda text: None)
    asked = []
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, name, **more: asked.append((name, more)))
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", lambda self, **more: asked.append(more))
    assert push(run.folder, "someone/talk").endswith("someone/talk-grpo-seed-17")
    assert asked[0] == ("someone/talk-grpo-seed-17", {"private": True, "exist_ok": True})
    sent = {path.name for path in Path(asked[1]["folder_path"]).iterdir()}
    assert sent == {"adapter_model.safetensors", "adapter_config.json", "README.md"}

    def refuses(self, name, **more):
        raise OSError("401")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuses)
    with pytest.raises(TalkError, match="huggingface-cli login"):
        push(run.folder, "someone/talk")
    base = run_arm(recipe, "base", 17, tmp_path, say=lambda text: None)
    with pytest.raises(TalkError, match="untrained arms have none"):
        push(base.folder, "someone/talk")


def test_the_models_own_sampling_does_not_step_in(model_folder, data_folder):
    """Its generation config asks for top_k 20 and a penalty; the recipe names every field and none of that applies."""
    recipe = paper(model_folder, data_folder, dtype="float32")
    model, tokenizer = load_model(recipe), load_tokenizer(recipe)
    assert model.generation_config.top_k == 20
    speaker = ModelSpeaker(model, tokenizer, Sampling(temperature=5.0), 2600)
    chats = play(make_tasks() * 8, {"A": speaker, "B": speaker}, recipe.protocol, recipe.prompts, ("x",))
    firsts = {turn.completion_ids[0] for chat in chats for turn in chat.turns[:1]}
    assert len(firsts) > 15  # 32 draws at a high temperature from the top 20 would rarely be so many


def test_a_message_ends_at_either_end_token(model_folder, data_folder):
    recipe = paper(model_folder, data_folder, dtype="float32")
    model, tokenizer = load_model(recipe), load_tokenizer(recipe)
    speaker = ModelSpeaker(model, tokenizer, Sampling(), 2600)
    both = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert speaker.end_ids == sorted(both) and tokenizer.pad_token_id in both
    with torch.no_grad():
        model.get_input_embeddings().weight[both] *= 6
    rows, _ = generate(model, [[50, 51]] * 64, [40] * 64, list(range(64)), Sampling(), speaker.end_ids,
                       tokenizer.pad_token_id)
    assert {row[-1] for row in rows if len(row) < 40} == set(both)
    assert all(token not in both for row in rows for token in row[:-1])


def test_the_template_frames_the_prompt(model_folder, data_folder):
    recipe = paper(model_folder, data_folder)
    tokenizer = load_tokenizer(recipe)
    view = see(make_tasks()[0], recipe.protocol, [Turn("A", "hello")], recipe.prompts.blocked)
    text = tokenizer.apply_chat_template(recipe.prompts.render(view), add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\nYou and a partner") and text.endswith("<|im_start|>assistant\n")
    assert text.count("<|im_start|>") == 3 and "helpful assistant" not in text and "Partner A said: hello" in text


@pytest.mark.slow
def test_interrupted_in_bfloat16_and_resumed_ends_the_same(model_folder, data_folder, tmp_path, monkeypatch):
    recipe = paper(model_folder, data_folder, steps=3)
    whole = run_arm(recipe, "grpo", 17, tmp_path / "whole", partners=False, say=lambda text: None)
    plain = ChatTrainer.rollout

    def stopped(self, tasks):
        if self.state.global_step == 2:
            raise KeyboardInterrupt
        return plain(self, tasks)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ChatTrainer, "rollout", stopped)
        run_arm(recipe, "grpo", 17, tmp_path / "broken", partners=False, say=lambda text: None)
    said = []
    again = run_arm(recipe, "grpo", 17, tmp_path / "broken", partners=False, say=said.append)
    assert any("going on from checkpoint-2" in text for text in said)
    assert again.record["adapter"] == whole.record["adapter"]
    lines = (tmp_path / "broken" / "metrics" / "grpo-seed-17.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def by_letters(chats):
    """A reward with spread on random text."""
    return [replace(chat, outcomes=tuple(float(any(x in chat.last_text(copy) for x in "abcdefgh")) for copy in "AB"))
            for chat in chats]


def test_bfloat16_trains_and_keeps_the_adapter_in_float32(model_folder, data_folder, tmp_path):
    recipe = paper(model_folder, data_folder, learning_rate=1e-2)
    trainer = ChatTrainer(load_model(recipe), load_tokenizer(recipe), make_tasks(), recipe, ARMS["grpo"], 17, tmp_path,
                          judge=by_letters)
    before = adapter_sha256(trainer.model)
    types = {p.dtype for p in trainer.model.parameters() if p.requires_grad}
    assert types == {torch.float32} and trainer.model.base_model.model.dtype == torch.bfloat16
    trainer.train()
    assert adapter_sha256(trainer.model) != before and trainer.history[0]["grad_norm"] > 0


@needs_gsm8k
def test_every_prompt_of_the_full_run_is_below_its_limit():
    """All 1,024 + 300 problems, at the last turn, after messages at their caps. Qwen2.5's tokenizer is not at hand: a
    token is taken as 2.5 characters, fewer than the 3 to 4 of English with numbers; messages count at their caps."""
    from talklib.data import load_tasks

    recipe = replace(Recipe.paper(), data=str(GSM8K))
    train, held_out = load_tasks(recipe)
    assert len(train) == 1024 and len(held_out) == 300
    long = "x" * (4 * recipe.protocol.message_tokens)
    worst = 0
    for task in [*train, *held_out]:
        view = see(task, recipe.protocol, [Turn("A", long), Turn("B", long), Turn("A", long)], recipe.prompts.blocked)
        said = recipe.prompts.render(view)
        worst = max(worst, sum(len(m["content"]) for m in said) - 3 * len(long))
    assert worst / 2.5 + 3 * recipe.protocol.message_tokens + 40 < recipe.max_prompt_tokens


def test_a_second_look_at_a_stored_run(model_folder, data_folder, tmp_path):
    recipe = paper(model_folder, data_folder, dtype="float32", n_train=8)
    run_arm(recipe, "base", 17, tmp_path, say=lambda text: None)
    assert load_run(run_folder(tmp_path, "base", 17)).record["recipe"]["logit_chunk"] == 16
