"""What a set of runs would take, before anything starts: steps, chats, tokens, GPU hours, dollars, memory.

No torch and no network. GPU minutes are the post's own, measured on one H100 (`paper/published`), scaled by steps,
chats and held-out problems; for another GPU or model they are a guess that says so, and `python -m bench.decoding`
replaces it by a measurement. Memory is arithmetic over the model's shape; by it four chats a micro-batch with whole
logits come to about 80 GiB, which is what ran the post's H100 out of memory.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from . import TalkError
from .published import load
from .recipe import Arm, Recipe, get_arm

GIB = 2**30
PRICE_DATE = "September 2026"


@dataclass(frozen=True)
class Gpu:
    """A GPU kind that the remote service lends."""

    name: str
    gib: float
    """Memory."""
    usd_hour: float
    """Price, as of `PRICE_DATE`. The H100's is the one that the post paid; the others are to be checked."""
    checked: bool = False


GPUS = {gpu.name: gpu for gpu in (
    Gpu("H100", 80, 4.00, checked=True), Gpu("H200", 141, 4.54), Gpu("A100-80GB", 80, 2.50), Gpu("A100-40GB", 40, 2.10),
    Gpu("L40S", 48, 1.95), Gpu("A10G", 24, 1.10), Gpu("L4", 24, 0.80), Gpu("T4", 16, 0.59))}
"""Name -> kind. The names are the service's own; it does not check them before it is asked to start."""


def get_gpu(name: str) -> Gpu:
    """The GPU kind of that name (an exclamation mark, which forbids upgrades, is allowed after it)."""
    if name.rstrip("!") not in GPUS:
        raise TalkError(f"unknown GPU {name!r}; there are {', '.join(GPUS)}")
    return GPUS[name.rstrip("!")]


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


# Work


@dataclass(frozen=True)
class Work:
    """What one run plays and trains."""

    chats: int
    """Training chats, at least: Reinforce-Ada may draw up to `rounds` times as many."""
    most_chats: int
    messages: int
    """Messages generated in all, evaluation included."""
    most_tokens: int
    """If every message reached its cap."""
    seatings: int
    """Evaluations: the pair, and a trained copy with an untrained partner in either seat."""
    turns: int
    """Sequential token steps of a training step, at most: all chats of a turn are one batch."""


def work_of(recipe: Recipe, arm: Arm) -> Work:
    """Counts, from the recipe alone."""
    from .credit import get_rule

    protocol = recipe.protocol
    caps = [protocol.cap(turn) for turn in range(len(protocol.order))]
    seatings = 3 if arm.trained and arm.channel == "open" else 1
    chats = recipe.steps * recipe.problems_per_step * recipe.chats_per_problem if arm.trained else 0
    played = recipe.n_test * recipe.eval_chats * seatings
    most = chats * get_rule(arm.credit).rounds
    return Work(chats, most, (chats + played) * len(caps), (most + played) * sum(caps), seatings, sum(caps))


# Time and money


def h100_minutes(recipe: Recipe, arm: Arm) -> tuple[float, str]:
    """GPU minutes of a run on one H100, and where the figure is from.

    The post's arms: measured training minutes a seed times this recipe's share of the post's steps and chats, plus its
    evaluation minutes (105.6 - 77.1 for two seatings of 300 problems x 2 chats) times this recipe's share of those."""
    solve, methods = load("talk_to_solve"), load("talk_methods")["arms"]
    post = Recipe.paper()
    seating = (methods["grpo"]["gpu_minutes_per_seed"] - solve["arms"]["trained_chat"]["train_minutes_mean"]) / 2
    played = work_of(recipe, arm).seatings * recipe.n_test * recipe.eval_chats / (post.n_test * post.eval_chats)
    if not arm.trained:
        return seating * played, "post: evaluation minutes"
    share = (recipe.steps * recipe.problems_per_step * recipe.chats_per_problem
             / (post.steps * post.problems_per_step * post.chats_per_problem))
    if arm.name in methods:
        trained = methods[arm.name]["gpu_minutes_per_seed"] - 2 * seating
        source = f"post: gpu_minutes_per_seed of {arm.name}"
    elif arm.channel == "blocked":
        trained, source = solve["arms"]["trained_blocked"]["train_minutes_mean"], "post: train_minutes_mean, blocked"
    else:
        trained, source = solve["arms"]["trained_chat"]["train_minutes_mean"], "post: train_minutes_mean, a guess here"
    return trained * share + seating * played, source


@dataclass(frozen=True)
class Estimate:
    """One line of a plan: an arm, for every seed of it."""

    arm: str
    seeds: tuple[int, ...]
    work: Work
    minutes: float
    """GPU minutes a seed."""
    usd: float
    """All seeds."""
    source: str


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

    @property
    def peak(self) -> int:
        """Rollout and training take turns: the larger of the two, and what is always there."""
        return self.weights + self.adapter + max(self.activations + self.logits, self.cache)


def memory_of(recipe: Recipe, shape: Shape) -> Memory:
    """Arithmetic over the shape, at every message's cap: an upper bound, give or take the libraries' own buffers.

    Activations a token and layer: 7 hidden + 5 kv + 4 ffn + 7 r numbers in the model's type, and two hidden in float32
    (the norms). Logits: the type's own, a float32 copy, and its gradient."""
    size = 2 if recipe.dtype in ("bfloat16", "float16") else 4
    r = recipe.lora_r
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
    return Memory(shape.parameters * size, shape.lora(r, recipe.lora_targets) * 16, tokens * per_token, held * logits,
                  rows * max(caps) * logits,
                  2 * shape.layers * shape.kv * size * min(recipe.generation_rows, max(chats, 1)) * length)


@dataclass(frozen=True)
class Plan:
    """Everything that `--dry-run` prints."""

    recipe: Recipe
    gpu: Gpu
    rows: tuple[Estimate, ...]
    memory: Memory | None
    guess: str
    """Why the minutes are a guess; empty where they are the post's own."""

    @property
    def hours(self) -> float:
        return sum(row.minutes * len(row.seeds) for row in self.rows) / 60

    @property
    def usd(self) -> float:
        return sum(row.usd for row in self.rows)


def plan(recipe: Recipe, arms: Iterable[str], seeds: Iterable[int], gpu: str = "H100") -> Plan:
    """Estimates every arm at every seed. An untrained arm is listed for each seed too: its seeds are re-runs."""
    kind, seeds = get_gpu(gpu), tuple(seeds)
    shape = shape_of(recipe.model)
    reference = SHAPES[Recipe.paper().model]
    scale, why = 1.0, []
    if recipe.model != Recipe.paper().model:
        scale = shape.parameters / reference.parameters if shape else 1.0
        why.append("minutes scaled by the model's size" if shape else "the model's shape is not known")
    if kind.name != "H100":
        why.append(f"an H100's minutes stand for a {kind.name}'s: it is slower, so count on a multiple")
    rows = []
    for name in arms:
        arm = get_arm(name)
        minutes, source = h100_minutes(recipe, arm)
        minutes *= scale
        rows.append(Estimate(name, seeds, work_of(recipe, arm), minutes,
                             minutes * len(seeds) / 60 * kind.usd_hour, source))
    return Plan(recipe, kind, tuple(rows), memory_of(recipe, shape) if shape else None, "; ".join(why))


def text(found: Plan) -> str:
    """The plan as lines to read."""
    recipe = found.recipe
    runs = sum(len(row.seeds) for row in found.rows)
    lines = [f"{runs} run{'s' * (runs > 1)} of {recipe.model} on {recipe.data}, one {found.gpu.name} each "
             f"(${found.gpu.usd_hour:.2f} an hour, {PRICE_DATE}{'' if found.gpu.checked else ', not checked'})", "",
             f"{'arm':<15}{'seeds':<10}{'steps':>6}{'chats':>8}{'messages':>10}{'tokens, most':>14}"
             f"{'GPU min/seed':>14}{'dollars':>9}   minutes from"]
    for row in found.rows:
        arm = get_arm(row.arm)
        chats = f"{row.work.chats:,}" + ("+" if row.work.most_chats > row.work.chats else "")
        seeds, steps = ",".join(map(str, row.seeds)), recipe.steps if arm.trained else 0
        lines.append(f"{row.arm:<15}{seeds:<10}{steps:>6}{chats:>8}{row.work.messages:>10,}"
                     f"{row.work.most_tokens / 1e6:>12.1f} M{row.minutes:>14.0f}{row.usd:>9.2f}   {row.source}")
    lines += ["", f"in all {found.hours:.1f} GPU hours, ${found.usd:.2f}"
              + (f" (a guess: {found.guess})" if found.guess else " (the post's own minutes; ours save some of them)")]
    if found.memory:
        lines += ["", *_memory_lines(recipe, found.memory, found.gpu)]
    lines += ["", *_savings_lines(recipe), "", "settings", *(f"  {name} = {value!r}" for name, value in flat(recipe))]
    return "\n".join(lines)


def _memory_lines(recipe: Recipe, m: Memory, gpu: Gpu) -> list[str]:
    rows = (("weights", m.weights, recipe.dtype), ("adapter with AdamW", m.adapter, "float32"),
            ("activations", m.activations, f"one micro-batch of {recipe.micro_batches} a step, every row at its cap"),
            ("logits", m.logits, f"{recipe.logit_chunk or 'all'} written tokens at a time; whole they would take "
                                 f"{m.logits_whole / GIB:.1f} GiB"),
            ("keys and values", m.cache, "while a turn is generated; before training, not beside it"))
    lines = ["memory at the caps, GiB", *(f"  {name:<20}{value / GIB:>7.2f}   {why}" for name, value, why in rows)]
    verdict = "fits" if m.peak < 0.9 * gpu.gib * GIB else "does NOT fit: raise micro_batches, or lower the caps"
    return [*lines, f"  {'peak':<20}{m.peak / GIB:>7.2f}   {verdict} (a {gpu.name} has {gpu.gib:g})"]


def _savings_lines(recipe: Recipe) -> list[str]:
    flat_share = {when: f"{100 * share:.0f} of 100 {when}" for when, share in
                  load("talk_methods")["flat_groups"].items() if when != "what"}
    group, order = recipe.chats_per_problem, recipe.protocol.order
    steps = sum(recipe.protocol.cap(turn) for turn in range(len(order)))
    return ["what is saved against computing every row of the padded batch",
            f"  rows without an advantage   left out; flat groups were {flat_share['early']}, {flat_share['late']} in "
            "the post's Reinforce-Ada",
            "  padding                     rows are packed by length, micro-batch by micro-batch",
            f"  first prompts               read once a problem, not {group} times: 1 turn of {len(order)}",
            "  finished messages           leave the batch while a turn is generated",
            f"  sequential token steps      {steps:,} a training step at most: all chats of a turn are one batch"]


def flat(recipe: Recipe) -> list[tuple[str, object]]:
    """Every setting as (dotted name, value), prompts by their length alone."""
    rows: list[tuple[str, object]] = []
    for name, value in asdict(recipe).items():
        if name == "prompts":
            rows.append((name, f"{sum(len(part) for part in value.values())} characters"))
        elif isinstance(value, dict):
            rows += [(f"{name}.{key}", part) for key, part in value.items()]
        else:
            rows.append((name, value))
    return rows
