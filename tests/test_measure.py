"""Beyond runs: cross-play, floors and ceilings, the two simulations, and the tables and numbers made from them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from talklib import TalkError, crossplay, stats
from talklib.__main__ import main
from talklib.ceilings import Relay, guess, in_both_hands, in_one_hand, measure
from talklib.chat import play
from talklib.credit import RULES
from talklib.crossplay import play_row, seats_in
from talklib.evidence import from_post, from_runs
from talklib.experiment import run_arm
from talklib.notebook import Prose
from talklib.numbers import collect
from talklib.power import World, world_of
from talklib.readings import codes, settlings
from talklib.scripted import Scripted, messenger
from talklib.simulate import balance, simulate
from talklib.splitter import Problem, Task, split
from talklib.stattables import effort, equal_tokens, false_alarms, holm, seeds, settling
from talklib.store import run_folder, to_json

from conftest import make_tasks, tiny_recipe
from made_runs import made_run
from test_runs import TINY


@pytest.fixture(scope="module")
def trained(model_folder, tmp_path_factory):
    """Two tiny trained pairs with adapters that changed, and their recipe."""
    from talklib.__main__ import recipe_from

    recipe = replace(recipe_from("desk", [*TINY, f"model={model_folder}"]), steps=2, learning_rate=0.5)
    out = tmp_path_factory.mktemp("results")
    for arm, seed in (("grpo", 17), ("raft", 18)):
        run_arm(recipe, arm, seed, out, partners=False, say=lambda text: None)
        _move(run_folder(out, arm, seed) / "adapter", seed)
    return recipe, out


def _move(folder, seed):
    """A random model earns nothing, so nothing is learned: other weights stand in for a trained adapter's."""
    from safetensors.torch import load_file, save_file

    path, generator = folder / "adapter_model.safetensors", torch.Generator().manual_seed(seed)
    save_file({k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in load_file(path).items()}, path)


def test_each_seat_has_its_own_adapter(trained, monkeypatch):
    recipe, results = trained
    seen = []

    def look(tasks, seats, recipe, channel, seed, name):
        ids = torch.tensor([[5, 6, 7]])
        seen.append(tuple(seats[copy].model(ids).logits.detach().clone() for copy in "AB"))
        assert (channel, seed, name, recipe.eval_chats) == ("open", 0, "crossplay", 1)
        return play(tasks, {"A": messenger(), "B": messenger()}, recipe.protocol, recipe.prompts, ("x",))

    def no_grades(chats):
        return {"score": 0.0, "ci95": [0.0, 0.0], "counters": {}}

    monkeypatch.setattr(crossplay, "evaluate", lambda *a: [replace(c, outcomes=(0.0, 0.0)) for c in look(*a)])
    monkeypatch.setattr(crossplay, "summarise", no_grades)
    seats = list(seats_in(results))
    assert [str(seat) for seat in seats] == ["base-0", "grpo-17", "raft-18"]
    rows = play_row(recipe, results, seats[1], seats)
    (grpo, base), (_, itself), (_, raft) = seen
    assert torch.equal(grpo, itself) and all(torch.equal(grpo, pair[0]) for pair in seen)
    assert not torch.allclose(grpo, base) and not torch.allclose(grpo, raft) and not torch.allclose(base, raft)
    assert [(row["a_arm"], row["b_arm"], row["b_seed"]) for row in rows] == [
        ("grpo", "base", 0), ("grpo", "grpo", 17), ("grpo", "raft", 18)]
    assert all(len(row["rewards"]) == recipe.n_test == row["n_chats"] for row in rows)


def test_crossplay_command_writes_keeps_and_reads(trained, model_folder, tmp_path, capsys):
    recipe, results = trained
    out = tmp_path / "desk" / "crossplay.json"
    words = [w for change in (*TINY, f"model={model_folder}") for w in ("--set", change)]
    (results / ".crossplay.work").mkdir(exist_ok=True)
    assert main(["crossplay", "--results", str(results), "--out", str(out), "--row", "grpo-17", *words]) == 0
    assert main(["crossplay", "--results", str(results), "--out", str(out), "--row", "nobody-1", *words]) == 2
    assert "base-0, grpo-17, raft-18" in capsys.readouterr().err
    assert main(["crossplay", "--results", str(results), "--out", str(out), *words]) == 0
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 9 and len(found["problems"]) == recipe.n_test
    assert found["adapters"]["base-0"] == "none" and not (results / ".crossplay.work").exists()
    assert len(from_runs(tmp_path / "desk").crossplay) == 9


def test_crossplay_without_adapters_says_what_to_do(tmp_path):
    with pytest.raises(TalkError, match="holds no trained pair"):
        seats_in(tmp_path)
    made_run(tmp_path, "grpo", 17)
    with pytest.raises(TalkError, match="has no adapter/"):
        seats_in(tmp_path)


# Floors and ceilings


def test_facts_are_taken_up_in_the_order_of_the_text():
    text = "Ann has 3 figs. Ben has 4 figs. Cy has 5 figs. Di has 6 figs. How many figs are there?"
    task = Task(Problem("x-0", text, "18"), split(text))
    facts = tuple(f"{name} has {n} figs." for name, n in zip(("Ann", "Ben", "Cy", "Di"), range(3, 7), strict=True))
    assert in_one_hand(task).split.facts == (facts,)
    assert in_both_hands(task).split.facts == (facts, facts)
    assert in_one_hand(task).split.question == task.split.question


def test_relay_hands_only_last_messages_to_the_model():
    recipe, task = tiny_recipe(), make_tasks()[0]
    relay = Relay(messenger(), Scripted(lambda view: f"model saw {len(view.lines)}"))
    chat = play([task], {"A": relay, "B": relay}, recipe.protocol, recipe.prompts, ("x",))[0]
    assert [turn.text for turn in chat.turns] == [*(" ".join(held) for held in task.split.facts),
                                                  "model saw 2", "model saw 3"]


def test_guess_gives_every_problem_the_commonest_answer():
    tasks = make_tasks()
    train = [tasks[1], tasks[1], tasks[0]]
    assert guess(train, tasks) == [0.0, 1.0, 0.0, 0.0]


def test_ceilings_of_a_model(model_folder, trained):
    recipe, results = trained
    rows = measure(recipe, run_folder(results, "grpo", 17), say=lambda text: None)
    assert [row["name"] for row in rows] == ["guess", "half_best", "half", "all_facts", "both_hands", "messenger",
                                             "messenger_trained"]
    assert all(0 <= row["score"] <= 1 for row in rows)
    assert {row["name"]: row["n_chats"] for row in rows}["messenger"] == 2 * recipe.n_test


# Simulations


def test_balance_of_a_centred_rule_is_zero_and_of_the_balanced_one_is_not():
    assert balance(RULES["grpo"], 0.3, sims=500).mean_advantage == pytest.approx(0, abs=1e-12)
    low, high = (balance(RULES["reinforce_ada_balanced"], p, sims=2000) for p in (0.2, 0.8))
    assert low.mean_advantage > 0.05 and high.mean_advantage < -0.05
    assert low.predicted == pytest.approx(0.3) and low.chats > 4
    assert balance(RULES["reinforce_ada"], 0.2, sims=500) == balance(RULES["reinforce_ada"], 0.2, sims=500)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.01, 0.2), st.floats(0.05, 0.3), st.floats(0.05, 0.3))
def test_a_worlds_parts_are_found_again_from_its_scores(seed_std, problem_std, rest_std):
    world = World((seed_std, seed_std), problem_std, (rest_std, rest_std), problems=2000)
    a, b = (arm[0] for arm in world.scores(np.random.default_rng(1), 1, 200))
    found = world_of(a, b, [0.10, 0.11, 0.12])
    assert found.problem_std == pytest.approx(problem_std, rel=0.1)
    assert found.rest_stds == pytest.approx((rest_std, rest_std), rel=0.1)
    assert found.seed_stds == pytest.approx((seed_std, seed_std), rel=0.25)


def test_world_of_wants_the_same_shape():
    with pytest.raises(TalkError, match="same seeds and problems"):
        world_of(np.zeros((2, 5)), np.zeros((3, 5)), [0.1, 0.2])


def test_simulations_become_tables(tmp_path):
    assert false_alarms(tmp_path) == []
    found = simulate(tmp_path / "none", n_sims=20, seeds=(3,))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "simulations.json").write_text(to_json(found))
    rows = {row["rule"]: row for row in false_alarms(tmp_path)}
    assert {"the post's rule", "problem bootstrap, first seed", "crossed bootstrap"} <= set(rows)
    assert float(rows["problem bootstrap, first seed"]["both arms as GRPO, 3 seeds"]) > 50
    (tmp_path / "results" / "simulations.json").write_text("{")
    with pytest.raises(TalkError, match="is not a simulation file"):
        false_alarms(tmp_path)


# What is made from them


def cross(results, private: bool):
    """Three seeds of two methods and the untrained model; with a private code only one's own half understands."""
    seats = [("base", 0), *(("grpo", s) for s in (17, 18, 19)), *(("raft", s) for s in (17, 18, 19))]
    rows = []
    for i, a in enumerate(seats):
        for j, b in enumerate(seats):
            score = 0.1 if "base" in (a[0], b[0]) else 0.5 + 0.01 * i if a == b else 0.2 if private else 0.5 + 0.01 * j
            rows.append({"a_arm": a[0], "a_seed": a[1], "b_arm": b[0], "b_seed": b[1], "score": score, "ci95": None})
    results.mkdir(parents=True, exist_ok=True)
    (results / "crossplay.json").write_text(json.dumps({"format": 1, "rows": rows}))
    return from_runs(results)


def test_codes_tells_private_from_shared(tmp_path):
    private, shared = codes(cross(tmp_path / "a", True)), codes(cross(tmp_path / "b", False))
    assert private.premium.low > 0.25 and private.sibling == pytest.approx(0.2)
    assert shared.premium.low < 0 < shared.premium.high
    assert private.untrained == shared.untrained == pytest.approx(0.1)
    assert collect([cross(tmp_path / "a", True)])["desk.codes.premium"].text.startswith("+3")
    assert codes(from_runs(tmp_path / "none")) is None


def test_settlings_are_the_tests_they_name():
    post = from_post()
    found = settlings(post)
    assert set(found) == {(m, p) for m in ("raft", "mixed", "reinforce_ada") for p in ("own", "untrained")}
    ada, grpo = (post.arms[name].scores for name in ("reinforce_ada", "grpo"))
    assert found["reinforce_ada", "own"].delta == stats.welch(ada, grpo)[0]
    assert found["reinforce_ada", "own"].seeds == stats.seeds_needed(ada, grpo)
    rows = settling(post)
    assert rows[2]["seeds an arm to settle it"] == str(stats.seeds_needed(ada, grpo))
    numbers = collect([post])
    assert numbers["post.settle.mixed.own.seeds"].text == "more than 1,000"


def test_prose_takes_its_numbers_from_the_results(tmp_path):
    results = tmp_path / "desk"
    made_run(results, "grpo", 17, 0.5)
    prose = Prose(from_post(), from_runs(results))
    text = "{{ p('grpo.score') }}, {{ o('grpo.score') }}{% if has('raft.score') %}, RAFT{% endif %}"
    assert prose.fill(text + ", {{ n('method.draws') }}") == "40.2, 50.0, 2,000"
    assert prose.fill("{{ 'up' if value('grpo.score') > 0.4 else 'down' }}") == "up"
    with pytest.raises(TalkError, match=r"no number 'desk\.raft\.score'"):
        prose.fill("{{ o('raft.score') }}")


def test_tables_over_seeds(tmp_path):
    results = tmp_path / "desk"
    for arm, scores in (("grpo", (0.5, 0.6)), ("raft", (0.4, 0.45))):
        for seed, score in zip((17, 18), scores, strict=True):
            made_run(results, arm, seed, score)
    made_run(results / "equal_tokens", "raft", 17, 0.3)
    source = from_runs(results)
    t = stats.seed_interval((0.5, 0.6))
    assert seeds(source)[0]["t interval over seeds"] == f"[{100 * t.low:.1f}, {100 * t.high:.1f}]"
    assert seeds(source)[0]["crossed bootstrap"] != "-" and seeds(from_post())[0]["crossed bootstrap"] == "-"
    assert {row["comparison"] for row in holm(from_post())} == {
        f"{m} minus trained, chatting (GRPO)" for m in ("RAFT", "mixed partners", "Reinforce-Ada")}
    assert [row["steps"] for row in effort(source)] == ["10", "10"] and effort(source)[0]["entropy last"] == "-"
    assert [(row["compared at"], row["mean"]) for row in equal_tokens(source)] == [
        ("equal steps", "55.0"), ("equal steps", "42.5"), ("equal tokens", "30.0")]
    assert collect([source])["desk.equal.raft.mean"].value == pytest.approx(0.3)
    assert source.equal["raft"].sources[0].endswith("desk/equal_tokens/raft/seed-17/run.json: score")
