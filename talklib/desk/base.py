"""Builds the base model: two stages of supervised training on transcripts written by habit.

Each prompt is what `chat.see` and the recipe's prompts make of it, in the chat template. A copy's two turns begin alike
(its facts, the question), so they are trained as one tree: the common prefix once, then a branch a turn, kept
apart by the attention mask. Several trees share a row. One thread and one seed: the same file every time on
machines with the same arithmetic.
"""

import hashlib
import json
import math
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from ..chat import CHANNELS, Request, View, play
from ..recipe import Recipe
from ..speakers import ModelSpeaker
from ..splitter import Problem, Task, split
from . import tokenizer as bpe
from .habits import CAPABLE, MIXED, Habits, solution, transcript
from .muon import Muon
from .parts import Rng, Story
from .world import stories, take


@dataclass(frozen=True)
class Schedule:
    """The whole recipe of the base."""

    seed: int = 5
    steps: int = 900
    capable_share: float = 0.7
    """Share of the steps that teach the capability; the rest teach the habits."""
    rows: int = 12
    """Rows a step."""
    width: int = 256
    """Tokens a row; trees are packed into it."""
    muon_lr: float = 0.015
    adam_lr: float = 3e-3
    """Embeddings, norms and biases."""
    blocked_share: float = 0.15
    """Chats whose channel is blocked, so that a blocked pair is not out of distribution."""


@dataclass(frozen=True)
class Tree:
    """A common prefix and its branches; only a branch's message carries loss."""

    prefix: list[int]
    branches: list[tuple[list[int], int]]
    """(tokens after the prefix, number of them at the end that are the message)."""

    def __len__(self) -> int:
        return len(self.prefix) + sum(len(ids) for ids, _ in self.branches)


def chatml(messages: list[dict[str, str]]) -> str:
    """The chat template by hand, ten times as fast; `build` checks that it is the same."""
    body = "".join(f"{bpe.START}{m['role']}\n{m['content']}{bpe.END}\n" for m in messages)
    return f"{body}{bpe.START}assistant\n"


class Writer:
    """Draws training trees. Every story is used once."""

    def __init__(self, tokenizer, recipe: Recipe, schedule: Schedule):
        self.encode = tokenizer.backend_tokenizer.encode
        self.recipe, self.schedule = recipe, schedule
        self.end = tokenizer.eos_token_id
        self.rng = Rng(np.random.default_rng([schedule.seed, 2]))
        self.stories = stories("base", schedule.seed, "chats")

    def ids(self, text: str) -> list[int]:
        return self.encode(text, add_special_tokens=False).ids

    def tree(self, pairs) -> Tree:
        """One tree from [(chat messages, text)] that begin alike."""
        prompts = [self.ids(chatml(messages)) for messages, _ in pairs]
        shared = len(prompts[0]) - 1
        for prompt in prompts[1:]:
            alike = [a == b for a, b in zip(prompts[0], prompt, strict=False)]
            shared = min(shared, alike.index(False) if False in alike else len(alike), len(prompt) - 1)
        branches = []
        for prompt, (_, text) in zip(prompts, pairs, strict=True):
            said = [*self.ids(text), self.end]
            branches.append((prompt[shared:] + said, len(said)))
        return Tree(prompts[0][:shared], branches)

    def chat(self, habits: Habits) -> list[Tree]:
        """A chat: one tree a copy."""
        blocked = self.rng.generator.random() < self.schedule.blocked_share
        protocol = replace(self.recipe.protocol, channel="blocked" if blocked else "open")
        a_errs = habits is CAPABLE and self.rng.generator.random() < 0.3
        pairs = transcript(next(self.stories), habits, protocol, self.recipe.prompts, self.rng, a_errs)
        return [self.tree(pairs[0::2]), self.tree(pairs[1::2])]

    def all_facts(self) -> list[Tree]:
        """One copy that holds all facts solves the problem."""
        story = next(self.stories)
        return [self.tree([(all_facts_prompt(story, self.recipe.prompts), solution(story.steps))])]

    def drill(self) -> list[Tree]:
        """Sixteen single steps of as many stories, a branch each; only the results carry loss."""
        steps = [self.rng.one(next(self.stories).steps) for _ in range(16)]
        lines = [self.ids(f"{s.left} {s.op} {s.right} = {s.result}") for s in steps]
        return [Tree(self.ids(f"{bpe.START}assistant\n"), [(ids, 1) for ids in lines])]

    def draw(self, habits: Habits) -> list[Tree]:
        """Chats for the most part; the rest keeps the capability alive."""
        point = self.rng.generator.random()
        chats, facts = (0.35, 0.93) if habits is CAPABLE else (0.75, 0.98)
        return self.chat(habits) if point < chats else self.all_facts() if point < facts else self.drill()

    def batch(self, habits: Habits) -> tuple[torch.Tensor, ...]:
        """Rows packed with trees, as `pack` returns them."""
        rows: list[list[Tree]] = [[] for _ in range(self.schedule.rows)]
        room = [self.schedule.width] * len(rows)
        while True:
            for tree in self.draw(habits):
                row = next((i for i, free in enumerate(room) if free >= len(tree)), None)
                if row is None:
                    return pack(rows, self.schedule.width)
                rows[row].append(tree)
                room[row] -= len(tree)


def all_facts_prompt(story: Story, prompts) -> list[dict[str, str]]:
    """What a copy would see that held every fact and had to answer at once."""
    return prompts.render(View("A", story.facts, story.question, (), True))


def pack(rows: list[list[Tree]], width: int) -> tuple[torch.Tensor, ...]:
    """Trees -> ids (B, W), positions (B, W), attention mask (B, 1, W, W; True may look), targets (B, W; -100 none)."""
    shape = (len(rows), width)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    targets = np.full(shape, -100, np.int64)
    tree_of, branch_of = np.full(shape, -1), np.zeros(shape, np.int64)
    for b, row in enumerate(rows):
        at = 0
        for number, tree in enumerate(row):
            start, head = at, len(tree.prefix)
            ids[b, at : at + head] = tree.prefix
            positions[b, at : at + head] = range(head)
            at += head
            for branch, (tokens, said) in enumerate(tree.branches, 1):
                end = at + len(tokens)
                ids[b, at:end], branch_of[b, at:end] = tokens, branch
                positions[b, at:end] = range(head, head + len(tokens))
                targets[b, end - said - 1 : end - 1] = tokens[len(tokens) - said :]
                at = end
            tree_of[b, start:at] = number
    same_tree = tree_of[:, :, None] == tree_of[:, None, :]
    visible = (branch_of[:, None, :] == 0) | (branch_of[:, :, None] == branch_of[:, None, :])
    mask = same_tree & visible & np.tri(width, dtype=bool)
    return (torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(mask)[:, None],
            torch.from_numpy(targets))


def new_model(tokenizer, seed: int) -> Qwen2ForCausalLM:
    """An untrained model. Number tokens start on circles of several periods, so that sums are rotations."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=384, max_position_embeddings=512, tie_word_embeddings=True, rope_theta=10000.0,
        initializer_range=0.05, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, torch_dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id,
                                               pad_token_id=tokenizer.pad_token_id)
    values = torch.arange(200, dtype=torch.float32)[:, None]
    periods = torch.tensor([2.0, 5.0, 10.0, 20.0, 40.0, 100.0, 200.0, 400.0])
    angles = 2 * math.pi * values / periods
    features = torch.cat([angles.cos(), angles.sin()], 1)  # (200, 16)
    circles = features @ torch.randn(features.shape[1], 128) * (0.1 / math.sqrt(len(periods)))
    numbers = tokenizer.convert_tokens_to_ids([str(n) for n in range(200)])
    with torch.no_grad():
        model.model.embed_tokens.weight[numbers] += circles  # the random part keeps neighbours apart
    return model


def loss_of(model, batch) -> torch.Tensor:
    """Mean cross-entropy, in nats, over the message tokens; logits only where they are needed."""
    ids, positions, mask, targets = batch
    hidden = model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)[0]
    said = targets >= 0
    return functional.cross_entropy(model.lm_head(hidden[said]), targets[said])


def rate(step: int, steps: int) -> float:
    """Factor of both learning rates: warm up over 20 steps, hold, then fall linearly over the last 60% to 5%."""
    left = 1 - step / steps
    return min(1.0, (step + 1) / 20) * min(1.0, left / 0.6 * 0.95 + 0.05)


def train(model, writer: Writer, schedule: Schedule, say=print) -> None:
    """Both stages."""
    optimizer = Muon(model, schedule.muon_lr, schedule.adam_lr)
    change, begun = int(schedule.steps * schedule.capable_share), time.perf_counter()
    for step in range(schedule.steps):
        optimizer.scale = rate(step, schedule.steps)
        loss = loss_of(model, writer.batch(CAPABLE if step < change else MIXED))
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == schedule.steps:
            say(f"step {step + 1} of {schedule.steps}  loss {loss.item():.3f}  {time.perf_counter() - begun:.0f} s")


def texts(recipe: Recipe, n: int, seed: int):
    """Sample text for the tokenizer's word list: prompts and messages of base-pool chats."""
    rng, source = Rng(np.random.default_rng([seed, 3])), stories("base", seed, "words")
    for i in range(n):
        protocol = replace(recipe.protocol, channel="blocked" if i % 8 == 0 else "open")
        for messages, said in transcript(next(source), MIXED, protocol, recipe.prompts, rng):
            yield from chatml(messages).replace(bpe.START, bpe.END).split(bpe.END)
            yield said


def accuracy(model, tokenizer, recipe: Recipe, held_out: list[Story]) -> float:
    """Share of stories that one copy with every fact in view answers right, at the evaluation's sampling."""
    speaker = ModelSpeaker(model.eval(), tokenizer, recipe.eval_sampling, rows=recipe.generation_rows)
    said = speaker.speak([Request(View("A", story.facts, story.question, (), True),
                                  all_facts_prompt(story, recipe.prompts), recipe.protocol.last_tokens, i)
                          for i, story in enumerate(held_out)])
    return sum(f"boxed{{{story.answer}}}" in u.text for story, u in zip(held_out, said, strict=True)) / len(held_out)


def measure(model, tokenizer, recipe: Recipe, n: int = 300) -> dict:
    """The base's capability and habits on held-out problems, two chats a problem; shares of 1."""
    from .. import counters

    held_out = take("test", n, recipe.data_seed)
    tasks = [Task(Problem(f"test-{i}", s.text, str(s.answer)), split(s.text)) for i, s in enumerate(held_out)]
    speaker = ModelSpeaker(model.eval(), tokenizer, recipe.eval_sampling, rows=recipe.generation_rows)
    found: dict = {"all_facts": accuracy(model, tokenizer, recipe, held_out)}
    for channel in CHANNELS:
        protocol = replace(recipe.protocol, channel=channel)
        chats = play([t for t in tasks for _ in range(recipe.eval_chats)], {"A": speaker, "B": speaker}, protocol,
                     recipe.prompts, ("build", channel))
        right = [counters.boxed(c.last_text(copy)) == c.task.problem.gold for c in chats for copy in "AB"]
        found[channel] = {"score": sum(right) / len(right), **counters.count(chats)}
    return found


def build(out: Path, schedule: Schedule = Schedule(), say=print, measured: bool = True) -> dict:
    """Trains the base and writes it, its tokenizer and build.json into `out`; returns what build.json holds.

    `measured`: also play and count the result, which takes half a minute."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    begun, recipe = time.perf_counter(), Recipe.desk()
    tokenizer = bpe.build(texts(recipe, 1500, schedule.seed))
    probe = [{"role": "user", "content": "Facts:\nTom has 3 pens."}]
    if tokenizer.apply_chat_template(probe, add_generation_prompt=True, tokenize=False) != chatml(probe):
        raise AssertionError("chatml() and CHAT_TEMPLATE differ")
    model = new_model(tokenizer, schedule.seed)
    train(model, Writer(tokenizer, recipe, schedule), schedule, say)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, safe_serialization=True)
    bpe.save(tokenizer, out)
    record = stamp(out, schedule, time.perf_counter() - begun)
    record["measured"] = measure(model, tokenizer, recipe) if measured else None
    (out / "build.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def stamp(out: Path, schedule: Schedule, seconds: float) -> dict:
    """What made the model: command, settings, versions, machine arithmetic, checksums."""
    import tokenizers
    import transformers

    files = ("model.safetensors", "tokenizer.json", "config.json")
    return {
        "command": "python -m talklib.desk build",
        "schedule": asdict(schedule),
        "habits": asdict(MIXED),
        "prompts": asdict(Recipe.desk().prompts),
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                     "numpy": np.__version__},
        "machine": {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "system": sys.platform,
                    "processor": platform.machine()},
        "minutes": round(seconds / 60, 1),
        "sha256": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files},
    }
