"""A model's shape, and the GPU memory that training it takes: arithmetic, no torch and no network.

By it four chats a micro-batch with whole logits come to about 80 GiB, which is what ran the post's H100 out of memory.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import TalkError
from .recipe import Recipe

GIB = 2**30


def number_bytes(recipe: Recipe) -> int:
    """Bytes of one number in the recipe's type."""
    return 2 if recipe.dtype in ("bfloat16", "float16") else 4


@dataclass(frozen=True)
class Shape:
    """What memory depends on in a model. Sizes in numbers, not bytes."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool = True

    @property
    def kv(self) -> int:
        """Width of the keys (and of the values)."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def parameters(self) -> int:
        """All weights but biases and norms."""
        layer = self.hidden * (2 * self.hidden + 2 * self.kv + 3 * self.ffn)
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2)

    def lora(self, r: int, targets: Iterable[str]) -> int:
        """Weights of an adapter of rank r on these linear layers."""
        h, kv, f = self.hidden, self.kv, self.ffn
        sides = {"q_proj": (h, h), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (h, h), "gate_proj": (h, f),
                 "up_proj": (h, f), "down_proj": (f, h)}
        return self.layers * r * sum(sum(sides[name]) for name in targets if name in sides)


SHAPES = {
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(1536, 28, 12, 2, 8960, 151936),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(896, 24, 14, 2, 4864, 151936),
}
"""Models whose shape is known without a network; a folder's is read from its config.json."""


def shape_of(model: str) -> Shape | None:
    """A model's shape; None for a hub id that is not in `SHAPES`."""
    if model in SHAPES:
        return SHAPES[model]
    from .desk import model_path

    path = (model_path() if model == "desk" else Path(model)) / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    try:
        heads = config["num_attention_heads"]
        return Shape(config["hidden_size"], config["num_hidden_layers"], heads,
                     config.get("num_key_value_heads", heads), config["intermediate_size"], config["vocab_size"],
                     config.get("tie_word_embeddings", False))
    except KeyError as error:
        raise TalkError(f"{path} lacks {error}: not the configuration of a decoder-only model") from error


@dataclass(frozen=True)
class Memory:
    """Peak memory of training on one GPU, in bytes, part by part."""

    weights: int
    adapter: int
    """LoRA weights, gradients and AdamW's two moments, in float32."""
    activations: int
    """Kept for the backward pass of one micro-batch, without gradient checkpointing."""
    logits: int
    """With `Recipe.logit_chunk`."""
    logits_whole: int
    """If a micro-batch's logits were held at once."""
    cache: int
    """Keys and values while a turn is generated."""
    copies: int = 0
    """Of the weights, with the adapter added, for whatever generates."""

    @property
    def peak(self) -> int:
        """Rollout and training take turns: the larger of the two, and what is always there."""
        return self.weights + self.adapter + self.copies + max(self.activations + self.logits, self.cache)


def memory_of(recipe: Recipe, shape: Shape) -> Memory:
    """Arithmetic over the shape, at every message's cap: an upper bound, give or take the libraries' own buffers.

    Activations a token and layer: 7 hidden + 5 kv + 4 ffn + 7 r numbers in the model's type, and two hidden in float32
    (the norms). Logits: the type's own, a float32 copy, and its gradient."""
    size, r = number_bytes(recipe), recipe.lora_r
    protocol = recipe.protocol
    turns, caps = len(protocol.order), [protocol.cap(t) for t in range(len(protocol.order))]
    chats = recipe.problems_per_step * recipe.chats_per_problem
    rows = -(-chats // recipe.micro_batches) * turns
    length = recipe.max_prompt_tokens + max(caps)
    tokens = rows * length
    per_token = shape.layers * (size * (7 * shape.hidden + 5 * shape.kv + 4 * shape.ffn + 7 * r) + 8 * shape.hidden)
    wrote = rows * sum(caps) // turns
    held = min(recipe.logit_chunk, wrote) if recipe.logit_chunk else rows * max(caps)
    logits = shape.vocab * (size + 4 + 4)
    # a twin keeps the base beside it; evaluation and rollouts have two each, vLLM's rollouts one
    merged = 4 if recipe.merged_rollout else 0
    copies = merged + (2 if recipe.decoding == "vllm" else merged)
    return Memory(shape.parameters * size, shape.lora(r, recipe.lora_targets) * 16, tokens * per_token, held * logits,
                  rows * max(caps) * logits,
                  2 * shape.layers * shape.kv * size * min(recipe.generation_rows, max(chats, 1)) * length,
                  copies * shape.parameters * size)
