"""Floors and ceilings on the held-out problems, so that a score can be read as a share of what talking could win.

Each is the untrained model, or no model, in an easier or a harder place than the chat: all facts in one hand, facts
in both prompts, a messenger that sends exactly its facts, one guess for all problems.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from .chat import Request, Speaker, Utterance
from .evaluate import evaluate, summarise
from .experiment import git_state, hardware, versions
from .grading import grade_many, grader_stamp
from .parallel import Say
from .recipe import Recipe
from .scripted import messenger
from .splitter import Split, Task
from .stats import bootstrap_interval
from .store import to_json, write_atomic

FORMAT = 1


@dataclass(frozen=True)
class Relay:
    """Its messages are the messenger's, its last message the model's."""

    messenger: Speaker
    model: Speaker
    trained: bool = False

    def speak(self, requests: Sequence[Request]) -> list[Utterance]:
        """One utterance a request, in order."""
        said: dict[int, Utterance] = {}
        for last, speaker in ((False, self.messenger), (True, self.model)):
            places = [i for i, request in enumerate(requests) if request.view.last == last]
            said |= dict(zip(places, speaker.speak([requests[i] for i in places]) if places else [], strict=True))
        return [said[i] for i in range(len(requests))]


def in_one_hand(task: Task) -> Task:
    """All facts to A, in the order of the text."""
    return Task(task.problem, Split((_all_facts(task),), task.split.question))


def in_both_hands(task: Task) -> Task:
    """All facts to every copy."""
    return Task(task.problem, Split((_all_facts(task),) * len(task.split.facts), task.split.question))


def _all_facts(task: Task) -> tuple[str, ...]:
    """Facts go round by turns when they are dealt, so they are taken up by turns again."""
    hands = task.split.facts
    return tuple(hand[i] for i in range(max(map(len, hands))) for hand in hands if i < len(hand))


def guess(train: Sequence[Task], held_out: Sequence[Task]) -> list[float]:
    """Outcome a held-out problem of answering it with the most frequent training answer."""
    common = Counter(task.problem.gold for task in train).most_common(1)[0][0]
    return [float(verdict.post) for verdict in grade_many([(f"\\boxed{{{common}}}", t.problem.gold) for t in held_out])]


def measure(recipe: Recipe, run: str | Path | None = None, seed: int = 0, say: Say = print) -> list[dict]:
    """Rows for ceilings.json: name, label, score, ci95 (over problems), n_chats, what. Loads the base model.

    `run`, the folder of a trained run with its adapter, adds what a trained copy makes of perfect messages."""
    import torch

    from .crossplay import with_adapter
    from .data import load_tasks
    from .speakers import MergedTwin, ModelSpeaker, load_model, load_tokenizer

    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    train, held_out = load_tasks(recipe)
    model = load_model(recipe)
    model.to("cuda" if torch.cuda.is_available() and not recipe.use_cpu else "cpu")
    common = (load_tokenizer(recipe), recipe.eval_sampling, recipe.max_prompt_tokens, recipe.generation_rows)
    base = ModelSpeaker(model, *common)
    guessed = guess(train, held_out)
    rows = [{"name": "guess", "label": "one guess for all", "score": fmean(guessed),
             "ci95": list(bootstrap_interval(guessed)), "n_chats": 0,
             "what": "the most frequent training answer, given to every held-out problem"}]
    if recipe.data == "desk":
        from .desk.world import audit

        rows.append({"name": "half_best", "label": "best guess from one half", "n_chats": 0, "ci95": None,
                     "score": audit(recipe.n_test, recipe.data_seed)["half_alone"],
                     "what": "a guesser that is told how problems are made and sees one half's facts"})
    alone = replace(recipe, protocol=replace(recipe.protocol, order="A"))

    def played(name: str, label: str, what: str, tasks: Sequence[Task], speakers: Mapping[str, Speaker],
               with_recipe: Recipe = recipe) -> None:
        found = summarise(evaluate(tasks, speakers, with_recipe, "open", seed, name))
        rows.append({"name": name, "label": label, **{key: found[key] for key in ("score", "ci95", "n_chats")},
                     "what": what})
        say(f"ceilings: {label} {found['score']:.3f}")

    pair = {"A": base, "B": base}
    played("half", "one copy, its half alone", "the untrained model answers at once, from A's facts alone",
           [Task(t.problem, Split(t.split.facts[:1], t.split.question)) for t in held_out], {"A": base}, alone)
    played("all_facts", "one copy, all facts", "the untrained model answers at once, all facts in its hand",
           [in_one_hand(task) for task in held_out], {"A": base}, alone)
    played("both_hands", "chat, all facts in both hands", "the untrained pair chats; each copy holds all facts",
           [in_both_hands(task) for task in held_out], pair)
    relay = Relay(messenger(), base)
    played("messenger", "facts sent by a script", "messages are a copy's own facts, word for word; the untrained "
           "model writes the answers", held_out, {"A": relay, "B": relay})
    if run is not None:
        trained = Relay(messenger(), ModelSpeaker(MergedTwin(model).load(with_adapter(model, run)), *common))
        played("messenger_trained", "facts sent by a script, trained answers", "messages are a copy's own facts, word "
               f"for word; the model of {'/'.join(Path(run).parts[-2:])} writes the answers", held_out,
               {"A": trained, "B": trained})
    return rows


def write(recipe: Recipe, out: str | Path, run: str | Path | None = None, say: Say = print) -> list[dict]:
    """Measures, writes `out`, returns the rows."""
    rows = measure(recipe, run, say=say)
    write_atomic(out, to_json({
        "format": FORMAT, "scale": recipe.scale, "recipe_digest": recipe.digest(), "grader": grader_stamp(),
        "versions": versions(), "hardware": hardware(recipe), "git": git_state(),
        "sampling": asdict(recipe.eval_sampling), "rows": rows}))
    return rows
