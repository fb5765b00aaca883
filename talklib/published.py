"""The post's own figures, as published: the only door through which they enter."""

import json
from functools import cache
from pathlib import Path

from . import TalkError

FOLDER = Path(__file__).resolve().parents[1] / "paper" / "published"
OURS = {"base": "base", "base_blocked": "base_blocked", "grpo_blocked": "trained_blocked", "grpo": "trained_chat"}
"""Our name of an arm -> its name in talk_to_solve.json."""


@cache
def load(name: str) -> dict:
    """`talk_to_solve` or `talk_methods`, whole."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise TalkError(f"{path} is missing: the post's figures come with the repository, not with the package")
    return json.loads(path.read_text(encoding="utf-8"))


def published() -> dict[str, float]:
    """Arm -> the post's score (first training seed), a fraction."""
    arms = load("talk_to_solve")["arms"]
    scores = {ours: arms[theirs]["score"] for ours, theirs in OURS.items()}
    return scores | {name: arm["score"] for name, arm in load("talk_methods")["arms"].items() if name != "grpo"}
