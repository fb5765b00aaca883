"""vLLM as the voice of rollouts: TRL's own engine (`use_vllm`, colocated), asked turn by turn for whole chats.

TRL 0.19.1 builds the engine and would ask it inside the generation step that whole chats replace, so it is asked here.
The weights that it is given are the base's plus the adapter's, added anew each time (`MergedTwin`): TRL's own way folds
the adapter into the trained weights and takes it out again, and in bfloat16 something is lost at every step.

Nobody has run this on a GPU; tests put an engine in vLLM's place that loads weights and takes requests as it does.
Its limits: TRL 0.19.1 alone (TRL 1 builds its engine elsewhere); sampling is by vLLM's own generators, so its chats are
others than those of `dynamic` and `static`, and they may depend on their batch; the weights are rounded to the model's
type after the adapter is added, so that what samples is not to the last bit what is trained; TRL gives the engine a hub
model's name without its revision, so that its configuration and end tokens are the newest ones (the weights are the
run's); what is recorded as entropy is the sampled tokens' mean -log p before temperature. Evaluation is `dynamic`.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec

import torch
from trl import GRPOConfig

from . import TalkError
from .recipe import VLLM, Recipe, Sampling
from .speakers import MergedTwin, ModelSpeaker


def trl_settings(recipe: Recipe) -> dict:
    """TRL's arguments that make it build the engine. TalkError where there is no vLLM, GPU or fitting TRL."""
    if find_spec("vllm") is None:
        raise TalkError(f"Recipe.decoding is vllm, and vLLM is not installed: `python -m pip install vllm=={VLLM}`, "
                        "for a CUDA GPU and in an environment of its own, since it brings another torch and numpy; "
                        "dynamic and static need nothing more")
    if not at_hand(recipe):
        raise TalkError("Recipe.decoding is vllm, which needs a CUDA GPU and Recipe.use_cpu off")
    if "max_prompt_length" not in {field.name for field in fields(GRPOConfig)}:
        raise TalkError("Recipe.decoding is vllm, and this TRL builds its engine in another way; TRL 0.19.1 is the one "
                        "that is supported")
    # TRL sizes the engine by the sum of two limits that nothing else of it reads here
    longer = max(0, recipe.protocol.message_tokens - recipe.protocol.last_tokens)
    return {"use_vllm": True, "vllm_mode": "colocate", "max_prompt_length": recipe.max_prompt_tokens + longer}


def at_hand(recipe: Recipe) -> bool:
    """Whether there is a GPU, and the recipe may use it."""
    return torch.cuda.is_available() and not recipe.use_cpu


@contextmanager
def launched() -> Iterator[None]:
    """What vLLM's in-process engine reads of a launcher, while TRL builds it: it is the only process.

    Accelerate would take the same words for a distributed run and wrap the model, so its state, which the configuration
    sets up, has to be there before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    before = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Engine:
    """The engine that TRL built, with the weights of whoever speaks.

    Args:
        llm: vLLM's `LLM`, in this process.
        twin: a copy of the base model that is given the policy's weights."""

    def __init__(self, llm, twin: MergedTwin):
        kind, own = llm.llm_engine.model_config.dtype, twin.model.dtype
        if kind != own:  # left to itself it halves float32
            raise TalkError(f"vLLM would sample in {kind} from a model that trains in {own}: with decoding vllm, "
                            "Recipe.dtype must be bfloat16, on a GPU that has it")
        self.llm, self.twin, self._speaks = llm, twin, None

    def become(self, speaker: "VllmSpeaker") -> None:
        """Loads a speaker's weights, unless it was the last to speak, and forgets what others' weights had cached."""
        if self._speaks is not speaker:
            model = self.llm.llm_engine.model_executor.driver_worker.model_runner.model
            model.load_weights(self.twin.load(speaker.policy).named_parameters())
            self.llm.reset_prefix_cache()
            self._speaks = speaker

    def complete(self, prompts: Sequence[Sequence[int]], caps: Sequence[int], seeds: Sequence[int],
                 sampling: Sampling, end_ids: Sequence[int]) -> tuple[list[list[int]], float]:
        """One completion a prompt, its end token included, and the sum of their tokens' negative log-probabilities."""
        from vllm import SamplingParams

        asked = [SamplingParams(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
                                min_p=sampling.min_p, repetition_penalty=sampling.repetition_penalty, max_tokens=cap,
                                seed=seed, stop_token_ids=list(end_ids), logprobs=0)
                 for cap, seed in zip(caps, seeds, strict=True)]
        answers = self.llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], asked, use_tqdm=False)
        found = [answer.outputs[0] for answer in answers]
        return [list(one.token_ids) for one in found], -sum(one.cumulative_logprob for one in found)


@dataclass
class VllmSpeaker(ModelSpeaker):
    """A `ModelSpeaker` whose messages an engine writes. `model` is read for its end tokens alone."""

    engine: Engine | None = None
    policy: object = None
    """The PEFT model whose adapter it speaks with; None: the untrained model."""

    def _complete(self, prompts, requests) -> tuple[list[list[int]], float]:
        self.engine.become(self)
        return self.engine.complete(prompts, [r.max_new_tokens for r in requests], [r.seed for r in requests],
                                    self.sampling, self.end_ids)
