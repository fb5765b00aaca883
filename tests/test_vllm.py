"""Rollouts by vLLM, with an engine in its place that loads weights and takes requests as vLLM 0.10.0 does."""

import os
import sys
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch
import trl.trainer.grpo_trainer as grpo_trainer
from talklib import TalkError, speakers, vllm_speaker
from talklib.experiment import adapter_sha256, run_arm
from talklib.recipe import ARMS, Recipe, Sampling
from talklib.trainers import ChatTrainer
from talklib.vllm_speaker import at_hand

from conftest import make_model, tiny_recipe
from test_trainers import by_letters

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class SamplingParams:
    """Fields of vLLM's that are used, by their names there."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    seed: int
    logprobs: int
    stop_token_ids: list = field(default_factory=list)


class ScriptedLLM:
    """Draws a request's tokens as `speakers.generate` does, with whatever weights it was given."""

    made: list["ScriptedLLM"] = []
    dtype = torch.float32

    def __init__(self, model, tensor_parallel_size, gpu_memory_utilization, max_num_seqs, max_model_len,
                 distributed_executor_backend, seed, max_num_batched_tokens):
        assert distributed_executor_backend == "external_launcher" and tensor_parallel_size == 1
        assert all(name in os.environ for name in LAUNCHER), "vLLM reads its rank here"
        self.max_model_len, self.loads, self.resets = max_model_len, 0, 0
        self.net = make_model(self.tokenizer, seed=99)  # none of the run's weights until they are loaded
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=SimpleNamespace(model=self)))
        self.llm_engine = SimpleNamespace(model_executor=worker, model_config=SimpleNamespace(dtype=self.dtype))
        self.made.append(self)

    @torch.no_grad()
    def load_weights(self, weights):
        own = dict(self.net.named_parameters())
        given = dict(weights)
        assert set(given) == set(own), "names as in a checkpoint of the base model"
        for name, tensor in given.items():
            own[name].copy_(tensor)
        self.loads += 1

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, params, use_tqdm):
        assert not use_tqdm and len(prompts) == len(params)
        found = []
        for prompt, p in zip(prompts, params, strict=True):
            ids = prompt["prompt_token_ids"]
            assert len(ids) + p.max_tokens <= self.max_model_len
            sampling = Sampling(p.temperature, p.top_p, p.top_k, p.min_p, p.repetition_penalty)
            written, nats = speakers.generate(self.net, [ids], [p.max_tokens], [p.seed], sampling, p.stop_token_ids,
                                              self.tokenizer.pad_token_id)
            found.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=written[0], cumulative_logprob=-nats)]))
        return found


@pytest.fixture
def vllm(monkeypatch, tokenizer):
    module = ModuleType("vllm")
    module.__spec__, module.SamplingParams = ModuleSpec("vllm", None), SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(ScriptedLLM, "tokenizer", tokenizer, raising=False)
    monkeypatch.setattr(ScriptedLLM, "made", [])
    monkeypatch.setattr(vllm_speaker, "at_hand", lambda recipe: True)
    monkeypatch.setattr(grpo_trainer, "is_vllm_available", lambda: True)
    monkeypatch.setattr(grpo_trainer, "LLM", ScriptedLLM, raising=False)
    return ScriptedLLM.made


def trained(tokenizer, tasks, folder, arm, **changes):
    trainer = ChatTrainer(make_model(tokenizer), tokenizer, tasks, tiny_recipe(**changes), ARMS[arm], 17, folder,
                          judge=by_letters)
    trainer.train()
    return trainer


@pytest.mark.parametrize("arm", ["grpo", "mixed"])
def test_the_engine_speaks_with_the_weights_of_whoever_speaks(vllm, tokenizer, tasks, tmp_path, arm):
    """Weights, order, limits, seeds and end tokens reach the engine: the same adapter as without it, bit for bit.

    (Its log-probabilities are those of the draw; vLLM's are those before temperature.)"""
    plain = trained(tokenizer, tasks, tmp_path / "plain", arm)
    asked = trained(tokenizer, tasks, tmp_path / "vllm", arm, decoding="vllm")
    assert adapter_sha256(asked.model) == adapter_sha256(plain.model)
    assert [step["reward"] for step in asked.history] == [step["reward"] for step in plain.history]
    assert [step["entropy"] for step in asked.history] == pytest.approx([s["entropy"] for s in plain.history])
    (llm,) = vllm
    assert llm.resets == llm.loads >= 2  # anew at each of the two steps
    assert arm == "grpo" or llm.loads > 2  # and whenever the untrained partner takes over


def test_the_launchers_words_do_not_outlive_the_engines_making(vllm, tokenizer, tasks, tmp_path, monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1234")
    trainer = trained(tokenizer, tasks, tmp_path, "grpo", decoding="vllm", steps=1)
    assert {name: os.environ[name] for name in LAUNCHER if name in os.environ} == {"MASTER_PORT": "1234"}
    assert trainer.accelerator.num_processes == 1 and trainer.accelerator.distributed_type == "NO"


def test_long_messages_fit_the_engine(vllm, tokenizer, tasks, tmp_path):
    recipe = tiny_recipe(decoding="vllm")
    recipe = replace(recipe, protocol=replace(recipe.protocol, message_tokens=20, last_tokens=8), steps=1)
    ChatTrainer(make_model(tokenizer), tokenizer, tasks, recipe, ARMS["grpo"], 17, tmp_path, judge=by_letters)
    assert vllm[0].max_model_len == recipe.max_prompt_tokens + 20


def test_a_type_that_the_engine_would_halve_is_refused(vllm, tokenizer, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(ScriptedLLM, "dtype", torch.bfloat16)
    with pytest.raises(TalkError, match="would sample in torch.bfloat16 from a model that trains in torch.float32"):
        trained(tokenizer, tasks, tmp_path, "grpo", decoding="vllm")


def test_a_gpu_is_asked_for(vllm, tokenizer, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_speaker, "at_hand", at_hand)
    with pytest.raises(TalkError, match="needs a CUDA GPU"):
        trained(tokenizer, tasks, tmp_path, "grpo", decoding="vllm")


def test_another_trl_is_named(vllm, tokenizer, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_speaker, "fields", lambda kind: ())
    with pytest.raises(TalkError, match="TRL 0.19.1 is the one that is supported"):
        trained(tokenizer, tasks, tmp_path, "grpo", decoding="vllm")


def test_without_vllm_it_is_named(tokenizer, tasks, tmp_path):
    with pytest.raises(TalkError, match="vLLM is not installed: `python -m pip install vllm==0.10.0`"):
        trained(tokenizer, tasks, tmp_path, "grpo", decoding="vllm")
    with pytest.raises(TalkError, match="set by Recipe.decoding"):
        ChatTrainer(make_model(tokenizer), tokenizer, tasks, tiny_recipe(), ARMS["grpo"], 17, tmp_path, use_vllm=True)


def test_its_runs_are_others(tmp_path):
    """vLLM samples other chats, so its runs are never taken for those of the other two ways."""
    digests = {way: Recipe.paper(decoding=way).digest() for way in ("dynamic", "static", "vllm")}
    assert digests["dynamic"] == digests["static"] != digests["vllm"]


def test_a_whole_run(vllm, model_folder, tasks, tmp_path):
    import json

    rows = [{"question": task.problem.question, "answer": f"#### {task.problem.gold}"} for task in tasks]
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "test"):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tiny_recipe(model=str(model_folder), data=str(data), n_train=2, n_test=1, steps=1, decoding="vllm")
    run = run_arm(recipe, "grpo", 17, tmp_path / "out", say=lambda text: None)
    assert run.record["recipe"]["decoding"] == "vllm" and set(run.record["evaluations"]) == {"pair", "as_a", "as_b"}
    assert len(vllm) == 1 and vllm[0].loads == 1
