"""A transformers model that writes messages.

Sampling is by inverse transform: each message has its own stream of uniforms, drawn from its request's seed
on the CPU, and the next token is the first whose cumulative probability passes the next uniform. A message
therefore depends on its prompt and seed alone (up to rounding in the logits), not on its batch, and any
back end that yields the same logits yields the same tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StaticCache,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from . import TalkError
from .chat import Request, Utterance
from .recipe import Sampling


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """The library's own logits processors for every field that is not at its neutral value, in its order."""
    if not sampling.temperature > 0:
        raise TalkError(f"Sampling.temperature is {sampling.temperature}; it must be above 0")
    stack = []
    if sampling.repetition_penalty != 1.0:
        stack.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature != 1.0:
        stack.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        stack.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        stack.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        stack.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(stack)


def uniforms(seeds: Sequence[int], length: int) -> torch.Tensor:
    """One row of uniforms in [0, 1) a seed, float64. Shape (B, length)."""
    return torch.from_numpy(np.stack([np.random.Generator(np.random.PCG64(s)).random(length) for s in seeds]))


def pick(scores: torch.Tensor, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse-transform sampling. scores (B, V) logits, draw (B,) uniforms -> token ids (B,), their log-probs (B,)."""
    probs = scores.float().softmax(-1)
    cumulative = probs.double().cumsum(-1)  # (B, V); in float32 the sum of a large vocabulary would drift
    target = draw.to(cumulative.device)[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, target, right=True).clamp_max(scores.shape[-1] - 1)  # (B, 1)
    return token[:, 0], probs.gather(1, token)[:, 0].log()


class InverseTransform(LogitsProcessor):
    """Makes the library's `generate`, run greedily after `warpers`, take the tokens that `pick` would: the plain way,
    for comparison and for back ends that only offer `generate`. start: width of the padded prompt."""

    def __init__(self, seeds: Sequence[int], cap: int, start: int):
        self.draws, self.start = uniforms(seeds, cap), start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token, _ = pick(scores, self.draws[:, input_ids.shape[1] - self.start])
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows -> (ids, mask), padded on the left; the mask is made from lengths, never from the pad id."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row):] = torch.tensor(row, dtype=torch.long)
        mask[i, width - len(row):] = 1
    return ids, mask


@torch.no_grad()
def generate(model, prompts: Sequence[Sequence[int]], caps: Sequence[int], seeds: Sequence[int],
             sampling: Sampling, end_ids: Sequence[int], pad: int) -> tuple[list[list[int]], float]:
    """Samples one completion a prompt, its end token included, finished rows leaving the batch.

    Returns the completions and the sum of their tokens' negative log-probabilities, in nats.

    Args:
        prompts: token ids, one row a message. caps: most new tokens of each. seeds: each message's own.
        end_ids: tokens that end a message (a model may have several).
    """
    device = model.device
    unique = list(dict.fromkeys(map(tuple, prompts)))  # a group's first messages share one prompt: read it once
    place = {prompt: i for i, prompt in enumerate(unique)}
    rows = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=device)
    ids, mask = (t.to(device) for t in left_pad(unique, pad))
    draws = uniforms(seeds, max(caps))
    stack, alive = warpers(sampling), torch.arange(len(prompts))
    done: list[list[int]] = [[] for _ in prompts]
    limit, ends = torch.tensor(caps), torch.tensor(sorted(end_ids))
    cache, nats = DynamicCache(), 0.0
    logits = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0),
                   past_key_values=cache, use_cache=True, logits_to_keep=1).logits[rows, -1]  # (rows, V)
    if len(unique) < len(prompts):
        cache.batch_select_indices(rows)
    mask, seen = mask[rows], ids[rows]
    for now in range(max(caps)):
        token, logps = pick(stack(seen, logits.float()), draws[alive, now])  # (rows alive,)
        nats -= float(logps.sum())
        on_cpu = token.cpu()
        for row, value in zip(alive.tolist(), on_cpu.tolist(), strict=True):
            done[row].append(value)
        stays = ~torch.isin(on_cpu, ends) & (limit[alive] > now + 1)
        if not stays.any():
            break
        step_ids, ones = token[:, None], torch.ones_like(token[:, None])
        mask = torch.cat([mask, ones], 1)
        seen = torch.cat([seen, step_ids], 1) if sampling.repetition_penalty != 1.0 else seen
        if not stays.all():
            index = stays.nonzero()[:, 0].to(device)
            cache.batch_select_indices(index)
            step_ids, mask, alive = step_ids[index], mask[index], alive[stays]
            seen = seen[index] if sampling.repetition_penalty != 1.0 else seen
        logits = model(input_ids=step_ids, attention_mask=step_mask(model, mask),
                       position_ids=mask.sum(-1, keepdim=True) - 1, past_key_values=cache, use_cache=True).logits[:, -1]
    return done, nats


CACHES = 4
"""Most fixed-shape caches that are kept: one of 256 rows of the post's takes 11 GB."""


@dataclass
class Fixed:
    """Shapes that token steps are compiled for, few enough to meet again.

    A compiled step is tied to its cache's very memory: a new cache would be compiled for anew. So rows and lengths are
    rounded up and caches are kept, one a shape, for the next turn to use."""

    forward: Callable | None = None
    """A compiled `model.forward` for token steps; None takes the model as it is."""
    rows: int = 1
    """Rows are rounded up to a multiple of this."""
    length: int = 1
    """So are a cache's tokens."""
    caches: dict[tuple[int, int], StaticCache] = field(default_factory=dict)

    def cache(self, model, rows: int, length: int) -> StaticCache:
        """An empty cache of that shape."""
        if (rows, length) not in self.caches:
            while len(self.caches) >= CACHES:
                del self.caches[next(iter(self.caches))]
            self.caches[rows, length] = StaticCache(config=model.config, max_batch_size=rows, max_cache_len=length,
                                                    device=model.device, dtype=model.dtype)
        self.caches[rows, length].reset()
        return self.caches[rows, length]


def compiled(model, rows: int = 32, length: int = 512, **options) -> Fixed:
    """Token steps as one CUDA graph a shape. 32 rows are a training turn of the post's; up to 1,536 tokens hold its
    longest prompt and message, and looking at all of them costs an H100 under half a millisecond a step."""
    options = {"mode": "reduce-overhead", **options}
    return Fixed(torch.compile(model.forward, dynamic=False, **options), rows, length)


def up(number: int, step: int) -> int:
    """The number rounded up to a multiple of `step`."""
    return -(-number // step) * step


@torch.no_grad()
def generate_static(model, prompts: Sequence[Sequence[int]], caps: Sequence[int], seeds: Sequence[int],
                    sampling: Sampling, end_ids: Sequence[int], pad: int, fixed: Fixed | None = None,
                    longest_prompt: int = 0) -> tuple[list[list[int]], float]:
    """As `generate`, with a cache and inputs of fixed shape: every row stays until all have ended.

    `longest_prompt` makes room for prompts of later turns, so that all turns share one shape. Prompts are read by the
    model as it is, token steps by `fixed.forward`."""
    device, fixed = model.device, fixed or Fixed()
    forward, count, longest = fixed.forward or model, len(prompts), max(caps)
    filled = [*prompts, *[prompts[0]] * (up(count, fixed.rows) - count)]  # rows that nobody reads
    ids, mask = (t.to(device) for t in left_pad(filled, pad))
    width = ids.shape[1]
    length = up(max(width, longest_prompt) + longest, fixed.length)
    cache, draws, stack = fixed.cache(model, len(filled), length), uniforms(seeds, longest), warpers(sampling)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                   cache_position=torch.arange(width, device=device), logits_to_keep=1).logits[:, -1]
    room = torch.cat([mask, mask.new_zeros(len(filled), length - width)], 1)  # (rows, length): what may be looked at
    lengths, seen, nats = mask.sum(-1, keepdim=True), ids[:count], 0.0
    done: list[list[int]] = [[] for _ in prompts]
    limit, ends, alive = torch.tensor(caps), torch.tensor(sorted(end_ids)), torch.ones(count, dtype=torch.bool)
    step_ids = ids[:, -1:].clone()
    for now in range(longest):
        token, logps = pick(stack(seen, logits[:count].float()), draws[:, now])
        on_cpu = token.cpu()
        nats -= float(logps.cpu()[alive].sum())
        for row in alive.nonzero()[:, 0].tolist():
            done[row].append(int(on_cpu[row]))
        alive &= ~torch.isin(on_cpu, ends) & (limit > now + 1)
        if not alive.any():
            break
        room[:, width + now] = 1
        step_ids[:count, 0] = token
        seen = torch.cat([seen, token[:, None]], 1) if sampling.repetition_penalty != 1.0 else seen
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # the last step's logits have been read
        logits = forward(input_ids=step_ids, attention_mask=step_mask(model, room), position_ids=lengths + now,
                         past_key_values=cache, use_cache=True,
                         cache_position=torch.tensor([width + now], device=device)).logits[:, -1]
    return done, nats


def step_mask(model, mask: torch.Tensor) -> torch.Tensor:
    """The mask (B, L) of one new token a row, in the shape (B, 1, 1, L) that attention adds to its scores.

    Made here since transformers 4.54 builds it by nested vmaps, half of a small model's time a token. Models with
    another attention (sliding windows, flash kernels) get the mask as it is and build their own."""
    layers = getattr(model.config, "layer_types", None) or ["full_attention"]
    windowed = set(layers) != {"full_attention"} or getattr(model.config, "sliding_window", None)
    if windowed or model.config._attn_implementation not in ("sdpa", "eager"):
        return mask
    shut = torch.finfo(model.dtype).min
    return torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill_(mask == 0, shut)[:, None, None]


class MergedTwin:
    """A copy of the base model whose linear weights can be set to base + adapter, for fast generation.

    The adapter is added to the base weights anew each time, so nothing drifts, as it would by merging into
    and subtracting from one and the same tensor step after step."""

    def __init__(self, base):
        import copy

        self.model = copy.deepcopy(base).eval().requires_grad_(False)
        self._base = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def load(self, peft_model=None):
        """Sets the weights to the base's plus `peft_model`'s active adapter (None: the base alone)."""
        targets = dict(self.model.named_parameters())
        for name, weight in self._base.items():
            targets[name].copy_(weight)
        if peft_model is not None:
            for name, module in peft_model.base_model.model.named_modules():
                if hasattr(module, "lora_A"):
                    for adapter in module.active_adapters:
                        targets[name + ".weight"].add_(module.get_delta_weight(adapter))
        return self.model


@dataclass
class ModelSpeaker:
    """Writes messages with a causal language model and its chat template.

    `trained` marks its turns as carrying gradient. `adapter_off` plays the untrained model."""

    model: torch.nn.Module
    tokenizer: object
    sampling: Sampling
    max_prompt_tokens: int = 1024
    rows: int = 256
    """Most messages side by side."""
    trained: bool = False
    adapter_off: bool = False
    decoding: str = "dynamic"
    tokens_generated: int = field(default=0, init=False)
    nats: float = field(default=0.0, init=False)
    """Sum of the sampled tokens' -log p: divided by their number, an estimate of the policy's entropy."""

    def speak(self, requests: Sequence[Request]) -> list[Utterance]:
        """One utterance a request. Raises TalkError for a prompt longer than `max_prompt_tokens`."""
        prompts = [self.encode(request) for request in requests]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        said: dict[int, Utterance] = {}
        for start in range(0, len(order), self.rows):
            chunk = order[start : start + self.rows]
            written, nats = self._complete([prompts[i] for i in chunk], [requests[i] for i in chunk])
            self.nats += nats
            for i, ids in zip(chunk, written, strict=True):
                said[i] = Utterance(self.decode(ids), tuple(prompts[i]), tuple(ids))
                self.tokens_generated += len(ids)
        return [said[i] for i in range(len(prompts))]

    def encode(self, request: Request) -> list[int]:
        """A request's prompt as token ids, refused by name when it is too long (never cut)."""
        text = self.tokenizer.apply_chat_template(request.messages, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) > self.max_prompt_tokens:
            raise TalkError(f"the prompt of copy {request.view.copy} has {len(ids)} tokens, more than the "
                            f"{self.max_prompt_tokens} of Recipe.max_prompt_tokens; question: "
                            f"{request.view.question[:80]!r}. Raise the limit or leave the problem out.")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a completion: special tokens left out, nothing else changed."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _complete(self, prompts, requests) -> tuple[list[list[int]], float]:
        off = self.model.disable_adapter() if self.adapter_off else nullcontext()
        was_training = self.model.training
        self.model.eval()
        try:
            with off:
                return self._decode()(self.model, prompts, [r.max_new_tokens for r in requests],
                                      [r.seed for r in requests], self.sampling, self.end_ids,
                                      self.tokenizer.pad_token_id)
        finally:
            self.model.train(was_training)

    def _decode(self):
        """`generate`, or `generate_static` with, on CUDA, a token step that is compiled once a shape."""
        if self.decoding == "dynamic":
            return generate
        if self.decoding != "static":
            raise TalkError(f"Recipe.decoding is {self.decoding!r}; it must be dynamic, static or vllm")
        if not hasattr(self.model, "_fixed"):
            self.model._fixed = compiled(self.model) if self.model.device.type == "cuda" else Fixed()
        return partial(generate_static, fixed=self.model._fixed, longest_prompt=self.max_prompt_tokens)

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a message: the tokenizer's, and all that the model's generation config names."""
        named = self.model.generation_config.eos_token_id
        named = [] if named is None else [named] if isinstance(named, int) else list(named)
        return sorted({self.tokenizer.eos_token_id, *named})


def load_tokenizer(recipe):
    """The recipe's tokenizer, padding on the left."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # transformers 5 would take any Qwen2 model's tokenizer for Qwen2's own, which cuts the desk's words into letters
    kind = PreTrainedTokenizerFast if recipe.model == "desk" else AutoTokenizer
    tokenizer = _fetch(kind.from_pretrained, recipe)
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(recipe):
    """The recipe's base model in its dtype, dropout off.

    Raises TalkError, naming the offline way, where the hub cannot be reached."""
    from transformers import AutoModelForCausalLM

    return _fetch(AutoModelForCausalLM.from_pretrained, recipe, torch_dtype=getattr(torch, recipe.dtype))


def _fetch(loader, recipe, **options):
    from .desk import model_path

    source = str(model_path()) if recipe.model == "desk" else recipe.model
    revision = {} if recipe.model_revision is None else {"revision": recipe.model_revision}
    try:
        return loader(source, **revision, trust_remote_code=False, **options)
    except OSError as error:
        raise TalkError(f"cannot load the model {recipe.model!r}: {str(error).splitlines()[0]}. Without a network, "
                        "give a folder that holds the model with --model FOLDER, or use --scale desk.") from error
