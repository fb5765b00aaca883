"""Two copies of a small model, half of a problem's facts each, and one reward: did the team get it right.

The package is thin. `splitter` deals a problem's facts, `chat` plays the conversation, `grading` and
`counters` read it, `credit` turns rewards into advantages, `trainers` puts all of it on TRL's
GRPOTrainer, `experiment` runs an arm and `store` keeps what came out. Importing `talklib`, and
rebuilding figures from stored results, needs no torch.
"""

__version__ = "0.1.0"


class TalkError(ValueError):
    """Bad input. The message names the file, row or parameter and the remedy; the command line exits 2."""
