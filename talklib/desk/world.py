"""The desk world: disjoint pools of word problems, the lists an experiment uses, and an audit.

Problems read like GSM8K's and pass its splitter. Which pool a problem belongs to is decided by a hash of its
kind, layout and numbers, so the base model, the training list and the held-out list share no problem whatever
the seed, and not even one that differs in names alone.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..splitter import Problem, split
from .parts import Rng, Story
from .stories import draw, redraw

POOLS = ("test", "train", "train", "base", "base", "base", "base", "base")
"""Eighths of all problems: one held out, two to train a pair on, five for the base model."""


def pool_of(story: Story) -> str:
    """The pool a story belongs to, by a hash of its key."""
    digest = hashlib.blake2b(story.key.encode(), digest_size=4).digest()
    return POOLS[int.from_bytes(digest, "big") % len(POOLS)]


def stories(pool: str, seed: int, purpose: str = "tasks") -> Iterator[Story]:
    """An endless stream of different stories of one pool, all of which the splitter keeps."""
    key = [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") for word in (pool, purpose)]
    rng = Rng(np.random.default_rng([seed, *key]))
    seen: set[str] = set()
    while True:
        story = draw(rng)
        if pool_of(story) == pool and story.text not in seen and split(story.text) is not None:
            seen.add(story.text)
            yield story


def take(pool: str, n: int, seed: int, purpose: str = "tasks") -> list[Story]:
    """The first n stories of a pool's stream."""
    stream = stories(pool, seed, purpose)
    return [next(stream) for _ in range(n)]


def tasks(n_train: int, n_test: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Train and held-out problems (`train-I`, `test-I`), disjoint in numbers as well as in text."""
    return tuple(
        [Problem(f"{pool}-{i}", story.text, str(story.answer)) for i, story in enumerate(take(pool, n, seed))]
        for pool, n in (("train", n_train), ("test", n_test))
    )


def audit(n: int = 300, seed: int = 0, draws: int = 400) -> dict[str, float]:
    """What can be reached without talking, on held-out problems; shares of 1.

    `half_alone`: each copy knows the kind and layout of the problem and the distribution of its partner's
    numbers (more than a model can see), draws `draws` worlds that fit its own facts, and answers with the most
    frequent answer; the mean over both copies. `best_constant`: one answer for all problems, the most frequent
    of 4,000 training problems. `by_question`: the most frequent answer to the same question's wording."""
    held_out = take("test", n, seed)
    known = take("train", 4000, seed)
    return {
        "half_alone": _half_alone(held_out, seed, draws),
        "best_constant": _guess(held_out, known, lambda story: ""),
        "by_question": _guess(held_out, known, lambda story: f"{story.kind} {story.shape}"),
        "distinct_answers": float(len({story.answer for story in known})),
    }


def _half_alone(held_out: Sequence[Story], seed: int, draws: int) -> float:
    rng, right = Rng(np.random.default_rng([seed, 1])), 0
    for story in held_out:
        for copy in (0, 1):
            worlds = [redraw(story, copy, rng) for _ in range(draws)]
            counts = Counter(world.answer for world in worlds if world is not None)
            right += counts.most_common(1)[0][0] == story.answer if counts else 0
    return right / (2 * len(held_out))


def _guess(held_out: Sequence[Story], known: Sequence[Story], group) -> float:
    """Share of held-out stories answered right by the most frequent known answer of their group."""
    counts: dict[str, Counter] = {}
    for story in known:
        counts.setdefault(group(story), Counter())[story.answer] += 1
    best = {name: counter.most_common(1)[0][0] for name, counter in counts.items()}
    return sum(best.get(group(story)) == story.answer for story in held_out) / len(held_out)
