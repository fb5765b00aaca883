"""The desk-scale world: word problems of our own writing, a tokenizer, and a base model that ships with the package.

A model organism: small enough to train on two CPU cores, its habits set near those of the untrained pair in the post.
Importing this loads no torch; `world` needs numpy alone.
"""

from pathlib import Path

from .. import TalkError


def model_path() -> Path:
    """The folder of the shipped base model. Raises TalkError, naming the rebuild command, where it is missing."""
    folder = Path(__file__).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise TalkError(f"the desk base model is missing from {folder}; "
                        "rebuild it with `python -m talklib.desk build` (about 6 minutes of one core)")
    return folder
