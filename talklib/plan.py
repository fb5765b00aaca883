"""What a set of runs would take, before anything starts: steps, chats, tokens, GPU hours, dollars, memory.

No torch and no network. Every figure comes from one of three places, which the text names:

- GPU minutes: the post's own, measured on one H100 (`paper/published`), scaled by steps, chats and held-out problems.
  Another GPU, model or message length is a guess: launches, memory traffic and multiplications, added up
  (`step_seconds`), times how much more that is than for the post. `python -m bench.decoding` replaces it by a
  measurement.
- tokens: the post's message lengths. It published characters; its longest mean message, 698 characters under a cap of
  160 tokens, says that a token is at least 4.36 of them, and that is what is taken here.
- memory: arithmetic over the model's shape (`shapes`), at every message's cap.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean

from . import TalkError
from .published import load
from .recipe import Arm, Recipe, get_arm
from .shapes import GIB, SHAPES, Memory, Shape, memory_of, number_bytes, shape_of

POST_PRICE = "as the post paid, September 2026"
LIST_PRICE = "as techbytes.app listed it in May 2026"
OLD_PRICE = "an older price, not checked: see modal.com/pricing"
VLLM_SHARE = 0.3
"""Share of a GPU that TRL 0.19.1 gives a colocated vLLM."""
EFFICIENCY = 0.4
"""Share of a GPU's peak that training reaches: usual for models of this size."""
PROBLEM_CHARS = 155
"""Characters of one half's facts and the question: mean over the 1,024 training problems of GSM8K."""
TEMPLATE_TOKENS = 20
"""Role names and marks of a chat template, per prompt."""


@dataclass(frozen=True)
class Gpu:
    """A GPU kind that the remote service lends. Speeds are the maker's data sheets', without sparsity."""

    name: str
    gib: float
    """Memory that programs see."""
    usd_hour: float
    tflops: float
    """Multiplications and additions in bfloat16, 10^12 a second; 0 where it has no such units."""
    tflops32: float
    """The same in float32."""
    gb_s: float
    """Memory traffic, 10^9 bytes a second."""
    priced: str = OLD_PRICE
    """Where and when the price is from."""


GPUS = {gpu.name: gpu for gpu in (
    Gpu("H100", 79.6, 4.00, 989, 67, 3350, POST_PRICE), Gpu("H200", 140, 4.54, 989, 67, 4800),
    Gpu("A100-80GB", 80, 2.50, 312, 19.5, 2039, LIST_PRICE), Gpu("A100-40GB", 40, 2.10, 312, 19.5, 1555),
    Gpu("L40S", 45, 1.95, 362, 91.6, 864, LIST_PRICE), Gpu("A10G", 22.5, 1.10, 70, 31.2, 600),
    Gpu("L4", 22.5, 0.80, 121, 30.3, 300, LIST_PRICE), Gpu("T4", 15, 0.59, 0, 8.1, 320, LIST_PRICE))}
"""Name -> kind. The names are the service's own; it does not check them before it is asked to start."""


def get_gpu(name: str) -> Gpu:
    """The GPU kind of that name (an exclamation mark, which forbids upgrades, is allowed after it)."""
    if name.rstrip("!") not in GPUS:
        raise TalkError(f"unknown GPU {name!r}; there are {', '.join(GPUS)}")
    return GPUS[name.rstrip("!")]


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


# Tokens


@cache
def chars_per_token() -> float:
    """Least characters a token of the post's: its longest mean message over the message cap."""
    arms = [*load("talk_to_solve")["arms"].values(), *load("talk_methods")["arms"].values()]
    means = [talk["msg_chars"] for arm in arms for talk in arm.get("talk_per_seed", [arm.get("talk")])]
    return max(means) / Recipe.paper().protocol.message_tokens


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of a message and of a last message."""

    message: float
    last: float

    def of(self, recipe: Recipe) -> list[float]:
        """A chat's messages, turn by turn, none above the recipe's caps."""
        protocol = recipe.protocol
        return [min(self.last if protocol.is_last(turn) else self.message, protocol.cap(turn))
                for turn in range(len(protocol.order))]


def lengths_of(arm: Arm) -> tuple[Lengths, Lengths]:
    """(untrained, trained): what the post measured before and after training, as tokens. An arm that the post did not
    train is taken as its plain one."""
    solve, methods = load("talk_to_solve")["arms"], load("talk_methods")["arms"]
    before = solve["base_blocked" if arm.channel == "blocked" else "base"]
    after = solve["trained_blocked"] if arm.channel == "blocked" else methods.get(arm.name, methods["grpo"])
    chars = chars_per_token()
    return (Lengths(before["talk"]["msg_chars"] / chars, before["final_chars"] / chars),
            Lengths(fmean(talk["msg_chars"] for talk in after["talk_per_seed"]) / chars, after["final_chars"] / chars))


@cache
def flat_share() -> float:
    """Share of problems whose chats all scored the same: the mean of the post's early and late figures."""
    found = load("talk_methods")["flat_groups"]
    return (found["early"] + found["late"]) / 2


@dataclass(frozen=True)
class Tokens:
    """What a run would generate and read at the post's message lengths."""

    drawn: int
    """Training chats: for Reinforce-Ada with the further rounds of the problems that stay flat."""
    generated: int
    """Evaluation included."""
    read: int
    """Prompt tokens, equal first prompts counted once."""


def tokens_of(recipe: Recipe, arm: Arm) -> Tokens:
    """Training is taken at the mean of untrained and trained lengths, evaluation at the trained ones."""
    from .credit import get_rule

    before, after = (lengths.of(recipe) for lengths in lengths_of(arm))
    work = work_of(recipe, arm)
    drawn = round(work.chats * sum(flat_share() ** round_ for round_ in range(get_rule(arm.credit).rounds)))
    half = [fmean(pair) for pair in zip(before, after, strict=True)]
    played = recipe.n_test * recipe.eval_chats * work.seatings
    done = after if arm.trained else before
    generated = drawn * sum(half) + played * sum(done)
    asked, replayed = prompts_of(recipe, half, arm.channel), prompts_of(recipe, done, arm.channel)
    read = drawn * (sum(asked) - asked[0] * (1 - 1 / recipe.chats_per_problem)) + played * sum(replayed)
    return Tokens(drawn, round(generated), round(read))


def prompts_of(recipe: Recipe, messages: list[float], channel: str = "open") -> list[float]:
    """Tokens of each turn's prompt, given the messages' tokens: wording, the problem, what has been said and heard."""
    wording = sum(len(part) for part in asdict(recipe.prompts).values()) - len(recipe.prompts.last)
    start = (wording + PROBLEM_CHARS) / chars_per_token() + TEMPLATE_TOKENS
    order = recipe.protocol.order
    return [start + sum(messages[i] for i in range(turn) if channel == "open" or order[i] == order[turn])
            for turn in range(len(messages))]


# Speed


def step_seconds(recipe: Recipe, shape: Shape, gpu: Gpu, launch: float) -> float:
    """Seconds of a training step of the post's 32 chats, at the caps. `launch`: seconds a layer and token step, however
    little there is to compute."""
    caps = [recipe.protocol.cap(turn) for turn in range(len(recipe.protocol.order))]
    size = number_bytes(recipe)
    token_step = launch * shape.layers + shape.parameters * size / (gpu.gb_s * 1e9)
    rows = 32 * len(caps)
    peak = (gpu.tflops if size == 2 and gpu.tflops else gpu.tflops32) * 1e12
    # forward, and backward through frozen weights: 2 operations a weight and token each
    train = rows * (recipe.max_prompt_tokens + max(caps)) * 4 * shape.parameters / (EFFICIENCY * peak)
    return sum(caps) * token_step + train


@cache
def launch_seconds() -> float:
    """Seconds a layer and token step on the post's machine: what is left of its 77.1 minutes of 80 steps."""
    post, shape = Recipe.paper(), SHAPES[Recipe.paper().model]
    measured = 60 * load("talk_to_solve")["arms"]["trained_chat"]["train_minutes_mean"] / post.steps
    caps = sum(post.protocol.cap(turn) for turn in range(len(post.protocol.order)))
    return (measured - step_seconds(post, shape, GPUS["H100"], 0.0)) / (caps * shape.layers)


def slower(recipe: Recipe, shape: Shape, gpu: Gpu) -> float:
    """How many times the post's time a chat takes; 1 for the post's own model, messages and GPU."""
    post = Recipe.paper()
    return (step_seconds(recipe, shape, gpu, launch_seconds())
            / step_seconds(post, SHAPES[post.model], GPUS["H100"], launch_seconds()))


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
    tokens: Tokens
    minutes: float
    """GPU minutes a seed."""
    usd: float
    """All seeds."""
    source: str


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
    kind, seeds, post = get_gpu(gpu), tuple(seeds), Recipe.paper()
    shape, scale, why = shape_of(recipe.model), 1.0, []
    if shape is None:
        why.append("the model's shape is not known, so the post's minutes stand as they are")
    else:
        scale = slower(recipe, shape, kind)
        why += [what for what, differs in (("model", recipe.model != post.model), ("GPU", kind.name != "H100"),
                                           ("caps of messages", recipe.protocol != post.protocol),
                                           ("type of numbers", recipe.dtype != post.dtype)) if differs]
        why = [f"its minutes times {scale:.2g}, since this is not the post's: {', '.join(why)}"] if why else []
    rows = []
    for name in arms:
        arm = get_arm(name)
        minutes, source = h100_minutes(recipe, arm)
        minutes *= scale
        rows.append(Estimate(name, seeds, work_of(recipe, arm), tokens_of(recipe, arm), minutes,
                             minutes * len(seeds) / 60 * kind.usd_hour, source))
    return Plan(recipe, kind, tuple(rows), memory_of(recipe, shape) if shape else None, "; ".join(why))


def text(found: Plan) -> str:
    """The plan as lines to read."""
    recipe = found.recipe
    runs = sum(len(row.seeds) for row in found.rows)
    lines = [f"{runs} run{'s' * (runs > 1)} of {recipe.model} on {recipe.data}, one {found.gpu.name} each "
             f"(${found.gpu.usd_hour:.2f} an hour, {found.gpu.priced})", "",
             f"{'arm':<15}{'seeds':<15}{'steps':>6}{'chats':>8}{'messages':>10}{'written':>9}{'read':>9}"
             f"{'GPU min/seed':>14}{'dollars':>9}   minutes from"]
    for row in found.rows:
        arm = get_arm(row.arm)
        seeds, steps = ",".join(map(str, row.seeds)), recipe.steps if arm.trained else 0
        messages = row.work.messages + (row.tokens.drawn - row.work.chats) * len(recipe.protocol.order)
        lines.append(f"{row.arm:<15}{seeds:<15}{steps:>6}{row.tokens.drawn:>8,}{messages:>10,}"
                     f"{row.tokens.generated / 1e6:>7.1f} M{row.tokens.read / 1e6:>7.1f} M"
                     f"{row.minutes:>14.0f}{row.usd:>9.2f}   {row.source}")
    lines += ["", f"in all {found.hours:.1f} GPU hours, ${found.usd:.2f}"
              + (f" (a guess: {found.guess})" if found.guess else " (the post's own minutes; ours save some of them)"),
              f"written, read: tokens at the post's message lengths, {chars_per_token():.2f} characters each or more"]
    if found.memory:
        lines += ["", *_memory_lines(recipe, found.memory, found.gpu)]
    lines += ["", *_savings_lines(found), "", "settings", *(f"  {name} = {value!r}" for name, value in flat(recipe))]
    return "\n".join(lines)


def _memory_lines(recipe: Recipe, m: Memory, gpu: Gpu) -> list[str]:
    rows = (("weights", m.weights, recipe.dtype), ("adapter with AdamW", m.adapter, "float32"),
            ("activations", m.activations, f"one micro-batch of {recipe.micro_batches} a step, every row at its cap"),
            ("logits", m.logits, f"{recipe.logit_chunk or 'all'} written tokens at a time; whole they would take "
                                 f"{m.logits_whole / GIB:.1f} GiB"),
            ("keys and values", m.cache, "while a turn is generated; before training, not beside it"),
            ("copies", m.copies, "of the weights, with the adapter added, for generation"))
    engine = VLLM_SHARE * gpu.gib * GIB if recipe.decoding == "vllm" else 0.0
    rows += (("vLLM", engine, f"{VLLM_SHARE:g} of the GPU, TRL's default: its own weights, keys and values"),)
    lines = ["memory at the caps, GiB",
             *(f"  {name:<20}{value / GIB:>7.2f}   {why}" for name, value, why in rows if value)]
    peak = m.peak + engine
    verdict = "fits" if peak < 0.9 * gpu.gib * GIB else "does NOT fit: raise micro_batches, or lower the caps"
    lines.append(f"  {'peak':<20}{peak / GIB:>7.2f}   {verdict} (a {gpu.name} has {gpu.gib:g})")
    if recipe.dtype == "bfloat16" and not gpu.tflops:
        lines.append(f"  a {gpu.name} has no bfloat16 units: set dtype=float32, or take --scale small")
    return lines


def _savings_lines(found: Plan) -> list[str]:
    """What each saving is worth, for a training step of the arm that writes most."""
    recipe = found.recipe
    row = max(found.rows, key=lambda row: row.work.chats and row.tokens.generated)
    if not row.work.chats:
        return ["nothing is trained: prompts are read and messages written once"]
    protocol, group = recipe.protocol, recipe.chats_per_problem
    turns, chats = len(protocol.order), recipe.problems_per_step * group
    caps = [protocol.cap(turn) for turn in range(turns)]
    mean = [fmean(pair) for pair in zip(*(lengths.of(recipe) for lengths in lengths_of(get_arm(row.arm))), strict=True)]
    asked = prompts_of(recipe, mean, get_arm(row.arm).channel)
    read = chats * sum(asked)
    trained = read + chats * sum(mean)
    padded = chats * turns * (recipe.max_prompt_tokens + max(caps))
    saved = chats * (1 - 1 / group) * asked[0]
    share = load("talk_methods")["flat_groups"]
    lines = [
        f"  rows without an advantage   {flat_share() * trained:,.0f} of {trained:,.0f} tokens are not trained on: "
        f"flat groups were {100 * share['early']:.0f} of 100 early, {100 * share['late']:.0f} late in the post's "
        "Reinforce-Ada",
        f"  padding                     {trained:,.0f} tokens where rows at the limits would be {padded:,.0f}: rows "
        "are packed by length",
        f"  first prompts               read once a problem, not {group} times: {saved:,.0f} of {read:,.0f} prompt "
        "tokens",
        f"  finished messages           leave the batch: {100 * (1 - sum(mean) / sum(caps)):.0f} of 100 of the "
        f"{chats * sum(caps):,} row steps of a full batch",
        f"  sequential token steps      {sum(caps):,} at most: all {chats} chats of a turn are one batch",
    ]
    if found.memory and recipe.logit_chunk:
        m = found.memory
        lines.append(f"  logits in chunks            {m.logits / GIB:.1f} GiB held, not {m.logits_whole / GIB:.1f}, "
                     "however long a message is")
    return [f"what is saved, by the post's message lengths, in a training step of {row.arm}", *lines]


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
