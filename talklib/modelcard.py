"""A model card for a trained adapter, made from its run's record; and its way to the hub."""

from collections.abc import Mapping
from pathlib import Path

from . import TalkError
from .recipe import Arm
from .store import write_atomic


def card(record: Mapping, arm: Arm) -> str:
    """The card's text: what it is, the run's own numbers, how to load it. Every number is of this run."""
    recipe = record["recipe"]
    desk = recipe["model"] == "desk"
    base = "the desk base that ships with talklib" if desk else f"`{recipe['model']}`"
    named = [] if desk else [f"base_model: {recipe['model']}"]
    head = ["---", "library_name: peft", *named, "tags:", "- talklib", "---"]
    scores = "\n".join(f"| {name} | {100 * found['score']:.1f} | [{100 * found['ci95'][0]:.1f}, "
                       f"{100 * found['ci95'][1]:.1f}] | {found['n_chats']} |"
                       for name, found in record["evaluations"].items())
    counted = ", ".join(f"{name} {100 * value:.0f}" for name, value in record["counters"].items()
                        if value is not None and name in ("sends", "uses", "agrees", "asks"))
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "transformers", "trl", "peft"))
    return "\n".join([*head, f"""
# {arm.label}, seed {record['seed']}

A LoRA adapter for {base}: one of two copies that each see half of a word problem's facts and write to each other,
trained on one reward, whether the team got it right. Data: `{recipe['data']}`; {recipe['steps']} steps of
{recipe['problems_per_step']} problems x {recipe['chats_per_problem']} chats; learning rate {recipe['learning_rate']};
credit rule `{arm.credit}`; channel {arm.channel}.

## This run's numbers

Problems solved, of 100; interval: 95% percentile bootstrap over held-out problems.

| who plays | score | interval | chats |
|---|--:|--:|--:|
{scores}

What the copies do, of 100: {counted}. Versions: {versions}.
Sha256 of the adapter: `{record['adapter'].get('last_sha256', '-')}`.

## Use

```python
from peft import PeftModel
model = PeftModel.from_pretrained(base_model, "path/to/adapter")
```

It was trained on short chats about word problems and was not tested for anything else.
"""])


def write(adapter: str | Path, record: Mapping, arm: Arm) -> None:
    """Puts the card into an adapter's folder, where PEFT leaves an empty one."""
    write_atomic(Path(adapter) / "README.md", card(record, arm))


def push(run: str | Path, repo: str, private: bool = True) -> str:
    """Uploads a run's adapter with its card to the hub as REPO-ARM-seed-N; returns the address.

    The token is the hub client's own (HF_TOKEN, or its login); it is never read here. Raises TalkError where the run
    has no adapter or the hub refuses."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    folder = Path(run) / "adapter"
    if not (folder / "adapter_model.safetensors").is_file():
        raise TalkError(f"{folder} holds no adapter to push: untrained arms have none")
    name = f"{repo}-{Path(run).parent.name}-{Path(run).name}"
    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=name, commit_message="Adapter and model card")
    except (OSError, HfHubHTTPError, LocalTokenNotFoundError, ValueError) as error:
        raise TalkError(f"cannot push {name} to the hub ({type(error).__name__}); the run itself is done and kept in "
                        f"{run}. Log in with `huggingface-cli login` or set HF_TOKEN, then give the same command "
                        "again") from error
    return f"https://huggingface.co/{name}"
