"""Speakers without a model: scripts for tests, the selftest and the ceilings of what talking could win."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .chat import Request, Utterance, View


@dataclass(frozen=True)
class Scripted:
    """Writes what a function of the view says."""

    write: Callable[[View], str]
    trained: bool = False

    def speak(self, requests: Sequence[Request]) -> list[Utterance]:
        return [Utterance(self.write(request.view)) for request in requests]


def messenger(solve: Callable[[str], str] = lambda text: "") -> Scripted:
    """Sends exactly its own facts; its last message boxes what `solve` makes of all that it has seen."""

    def write(view: View) -> str:
        facts = " ".join(view.facts)
        if not view.last:
            return facts
        heard = " ".join(text for speaker, text in view.lines
                         if speaker != view.copy and "\\boxed" not in text)
        return f"\\boxed{{{solve(f'{facts} {heard} {view.question}')}}}"

    return Scripted(write)
