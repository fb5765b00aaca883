"""`python -m tests.faults`: deliberate faults, one at a time, each of which the named tests must catch.

Every fault is put into a copy of the repository, never into this one; the tests run there. A fault that no test
catches means that the tests do not say what they seem to say. The exit status is 1 if one is missed. Words on the
command line choose faults by their names.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("talklib", "tests", "paper/published", "pyproject.toml", "constraints.txt", "README.md")
JOBS = max(1, min(4, (os.cpu_count() or 1)))


@dataclass(frozen=True)
class Fault:
    """One change that makes the code wrong, and the tests that must see it."""

    name: str
    path: str
    old: str
    """Occurs exactly once in the file (a test sees to it)."""
    new: str
    tests: tuple[str, ...]


def fault(name: str, path: str, old: str, new: str, *tests: str) -> Fault:
    return Fault(name, f"talklib/{path}", old, new, tuple(f"tests/{test}" for test in tests))


_SEE = "test_chat.py::test_no_partner_fact_and_no_blocked_word_reaches_a_copy"
_GRADIENT = "test_trainers.py::test_gradient_is_the_plain_batchs"
_CREDIT = "test_credit.py::test_by_hand"

FAULTS = (
    # what a copy sees
    fault("a fact of the partner's leaks", "chat.py", "View(copy, task.split.of(copy), task",
          "View(copy, task.split.of(copy) + task.split.facts[-1][:1], task", _SEE),
    fault("the blocked channel leaks", "chat.py",
          'turn.text if turn.speaker == copy or protocol.channel == "open" else blocked', "turn.text", _SEE),
    fault("the blocked channel hides a copy's own words", "chat.py",
          'turn.text if turn.speaker == copy or protocol.channel == "open" else blocked',
          'turn.text if protocol.channel == "open" else blocked',
          "test_chat.py::test_view_keeps_own_words_when_blocked"),
    fault("swapped speaker: own words shown as the partner's", "chat.py", "(self.own if speaker == copy else",
          "(self.own if speaker != copy else",
          "test_properties.py::test_own_lines_are_marked_as_own_and_the_partners_as_the_partners"),
    fault("two messages of a chat share a seed", "chat.py", "derive_seed(*seed_key, task.id, number, now)",
          "derive_seed(*seed_key, task.id, number)", "test_chat.py::test_a_message_does_not_depend_on_its_batch"),
    fault("chats of a problem share their seeds", "chat.py", "derive_seed(*seed_key, task.id, number, now)",
          "derive_seed(*seed_key, task.id, now)", "test_chat.py::test_a_message_does_not_depend_on_its_batch"),
    fault("the evaluation ignores a blocked channel", "evaluate.py", "replace(recipe.protocol, channel=channel)",
          "recipe.protocol", "test_properties.py::test_the_evaluation_plays_on_the_arms_channel"),
    fault("every second fact is lost", "splitter.py", "facts[start::copies]", "facts[start::copies + 1]",
          "test_splitter.py::test_facts_are_dealt_like_cards"),
    # grading
    fault("a copy's last message is graded for its partner", "grading.py",
          "for chat, own in zip(chats, copies, strict=True) for copy in own]",
          "for chat, own in zip(chats, copies, strict=True) for copy in own[::-1]]",
          "test_grading.py::test_chats_get_an_outcome_a_copy"),
    fault("the strict rule takes a number after the box", "grading.py",
          'return None if re.search(r"\\d", after) else held[0]', "return held[0]",
          "test_grading.py::test_what_strict_takes_and_refuses"),
    fault("the fast path compares text, not numbers", "grading.py", "Decimal(found[1]) == Decimal(gold)",
          "found[1] == gold", "test_grading.py::test_verdicts"),
    fault("commas of the gold are kept", "data.py", 'gold.strip().replace(",", "")', "gold.strip()",
          "test_data.py::test_gold"),
    fault("chats of another grader are trusted", "store.py",
          'return chats if self.record["grader"] == grader_stamp() else grade_chats(chats)', "return chats",
          "test_properties.py::test_chats_of_another_grader_are_graded_again"),
    # counters
    fault("numbers that both copies hold count as private", "splitter.py",
          'numbers(" ".join([*others, parts.question]))', "numbers(parts.question)",
          "test_splitter.py::test_private_numbers_leave_out_what_others_hold_and_what_all_see"),
    fault("numbers of the question count as private", "splitter.py",
          'numbers(" ".join([*others, parts.question]))', 'numbers(" ".join(others))',
          "test_splitter.py::test_private_numbers_leave_out_what_others_hold_and_what_all_see"),
    fault("a last message counts as sent", "chat.py", "if turn.speaker == copy][:-1]", "if turn.speaker == copy]",
          "test_counters.py::test_last_messages_do_not_send_and_earlier_ones_do_not_use"),
    fault("a partner's number counts as used in an earlier message", "counters.py", "& numbers(chat.last_text(copy))",
          '& numbers(" ".join([*chat.earlier_texts(copy), chat.last_text(copy)]))',
          "test_counters.py::test_last_messages_do_not_send_and_earlier_ones_do_not_use"),
    # credit
    fault("the advantage has the wrong sign", "credit.py", "[reward - baseline for", "[baseline - reward for", _CREDIT),
    fault("the baseline is the kept chats', not the pool's", "credit.py", "baseline = fmean(pool)",
          "baseline = fmean(kept)", _CREDIT),
    fault("half a success counts as a win", "credit.py", "1.0 if reward == 1.0 else 0.0",
          "1.0 if reward >= 0.5 else 0.0", _CREDIT),
    fault("the worst chats are dropped", "credit.py", "if i not in high), key=lambda i: (pool[i], i))",
          "if i not in high), key=lambda i: (-pool[i], i))",
          "test_credit.py::test_kept_chats_have_spread_whenever_the_pool_has"),
    fault("a second round plays the first one's chats again", "rollout.py", "number * size, play_round)",
          "0, play_round)", "test_credit.py::test_only_stuck_problems_are_played_again"),
    fault("every step plays the same problems", "batching.py", "np.arange(step * size, (step + 1) * size)",
          "np.arange(size)", "test_properties.py::test_every_problem_is_played_once_an_epoch"),
    # what trains
    fault("the divisor is the step's tokens, not the micro-batch's", "batching.py", "max(tokens[group].sum(), 1.0)",
          "max(tokens.sum(), 1.0)", _GRADIENT),
    fault("losers teach nothing", "batching.py", "if row.advantage != 0.0)", "if row.advantage > 0.0)", _GRADIENT),
    fault("the untrained partner's turns train", "batching.py", "if turn.trained and turn.completion_ids]",
          "if turn.completion_ids]", "test_trainers.py::test_untrained_partner_carries_no_gradient"),
    fault("the mask is shifted by one", "trainers.py", "wrote[i, len(row.prompt_ids) : len(row)] = 1",
          "wrote[i, len(row.prompt_ids) + 1 : len(row)] = 1", "test_trainers.py::test_tokens_in_are_tokens_trained"),
    fault("the end token is lost", "trainers.py", "wrote[i, len(row.prompt_ids) : len(row)] = 1",
          "wrote[i, len(row.prompt_ids) : len(row) - 1] = 1", "test_trainers.py::test_end_token_is_trained"),
    fault("the loss forgets the temperature", "trainers.py", "temperature=recipe.train_sampling.temperature",
          "temperature=1.0", _GRADIENT + "[reference_gradient-bnpo]"),
    fault("the chunked loss forgets the temperature", "trainers.py", "head(read).float() / self.temperature",
          "head(read).float()", "test_trainers.py::test_gradient_by_chunks_is_the_plain_batchs"),
    fault("the loss climbs down", "trainers.py", '-((surrogate * inputs["loss_mask"])',
          '((surrogate * inputs["loss_mask"])', _GRADIENT),
    fault("the adapter's first weights ignore the seed", "trainers.py", "set_seed(seed)  # LoRA", "set_seed(0)  # LoRA",
          "test_properties.py::test_first_weights_of_the_adapter_follow_the_runs_seed"),
    fault("a float32 run after a bfloat16 one trains in bfloat16", "trainers.py",
          'os.environ["ACCELERATE_MIXED_PRECISION"] = "no"', "pass",
          "test_trainers.py::test_precision_is_the_recipes_and_not_the_last_runs"),
    fault("the untrained partner has the adapter on", "trainers.py", "ModelSpeaker(model, adapter_off=True, **common)",
          "ModelSpeaker(model, **common)",
          "test_properties.py::test_the_untrained_partner_is_the_base_whatever_the_adapter_is"),
    fault("the untrained twin is the policy", "trainers.py", "self._twins[1].model, **common)",
          "self._twins[1].load(model), **common)",
          "test_properties.py::test_the_untrained_partner_is_the_base_whatever_the_adapter_is"),
    fault("vLLM speaks for the untrained partner with the policy's weights", "vllm_speaker.py",
          "if self._speaks is not speaker:", "if self._speaks is None:",
          "test_vllm.py::test_the_engine_speaks_with_the_weights_of_whoever_speaks"),
    # sampling
    fault("the temperature is not applied in sampling", "speakers.py", "if sampling.temperature != 1.0:",
          "if sampling.temperature > 9.0:", "test_properties.py::test_sampling_is_by_the_named_temperature_and_top_p"),
    fault("all messages of a batch share one stream", "speakers.py", "np.random.PCG64(s)", "np.random.PCG64(seeds[0])",
          "test_speakers.py::test_a_message_does_not_depend_on_its_batch"),
    fault("a prompt that is too long is cut silently", "speakers.py", "if len(ids) > self.max_prompt_tokens:",
          "ids = ids[-self.max_prompt_tokens :]\n        if len(ids) > self.max_prompt_tokens:",
          "test_trainers.py::test_long_prompt_is_refused_not_cut"),
    fault("padding counts as position", "speakers.py", "position_ids=(mask.cumsum(-1) - 1).clamp_min(0)",
          "position_ids=torch.arange(mask.shape[1])[None].expand_as(mask)",
          "test_speakers.py::test_a_message_does_not_depend_on_its_batch"),
    fault("the model's other end tokens are forgotten", "speakers.py",
          "sorted({self.tokenizer.eos_token_id, *named})", "[self.tokenizer.eos_token_id]",
          "test_properties.py::test_every_end_token_of_the_model_ends_a_message"),
    fault("the evaluation samples as training does", "experiment.py",
          "tokenizer, recipe.eval_sampling, recipe.max", "tokenizer, recipe.train_sampling, recipe.max",
          "test_properties.py::test_a_run_evaluates_by_its_evaluation_sampling"),
    # numbers and files
    fault("the bootstrap has no seed", "stats.py", "default_rng(seed).integers(0, len(values), (draws",
          "default_rng().integers(0, len(values), (draws",
          "test_properties.py::test_the_interval_is_the_same_every_time"),
    fault("an older run is deleted before the new one is in place", "store.py", "os.rename(folder, aside)",
          "shutil.rmtree(folder)", "test_kill.py::test_a_run_that_replaces_an_older_one_leaves_one_of_the_two"),
    fault("a file is written in place", "store.py", "with open(temporary, \"xb\") as file:",
          "with open(path, \"wb\") as file:", "test_kill.py::test_a_file_is_written_whole_or_not_at_all"),
    fault("a file is not flushed", "store.py", "os.fsync(file.fileno())", "pass",
          "test_kill.py::test_a_file_is_written_whole_or_not_at_all"),
    fault("the checksum of the chats is not checked", "store.py",
          'if hashlib.sha256(data).hexdigest() != self.record["chats_sha256"]:', "if not data:",
          "test_properties.py::test_chats_of_another_run_are_not_taken_for_this_ones"),
    fault("a checkpoint that was cut off is used", "experiment.py",
          "(folder / name).is_file() and (folder / name).stat().st_size == size", "(folder / name).is_file()",
          "test_runs.py::test_a_checkpoint_without_its_seal_is_not_used"),
    fault("old checkpoints are dropped by date", "experiment.py", "**overrides, save_total_limit=None)", "**overrides)",
          "test_kill.py::test_checkpoints_go_by_their_number_when_the_clock_was_set_back"),
    fault("a checkpoint of another recipe is used", "experiment.py",
          "if not digest.is_file() or digest.read_text() != recipe.digest():", "if not digest.is_file():",
          "test_runs.py::test_a_checkpoint_without_its_seal_is_not_used"),
    fault("the same run is computed twice at a time", "experiment.py", "fcntl.LOCK_EX | fcntl.LOCK_NB",
          "fcntl.LOCK_SH | fcntl.LOCK_NB", "test_runs.py::test_two_at_once_are_refused"),
    fault("links in results are followed", "store.py", "if part.is_symlink():", "if part is None:",
          "test_safety.py::test_links_in_results_are_refused"),
    fault("an arm's name leads out of the results", "store.py", 'if not re.fullmatch(r"[A-Za-z0-9_]+", arm) or',
          "if not arm or", "test_safety.py::test_names_of_runs_lead_nowhere_else"),
    # the full run
    fault("a budget is not kept", "remote.py", "if budget is not None and cost > budget:", "if budget is None:",
          "test_remote.py::test_a_budget_is_kept"),
    fault("a run under way is paid twice", "remote.py", "for call in calls_in(out) if call.state in LIVE}",
          "for call in ()}", "test_remote.py::test_launch_spawns_what_is_missing_and_keeps_ids"),
    fault("the last call's id is not kept", "remote.py", 'state="running")]\n        keep(out, calls)',
          'state="running")]', "test_remote.py::test_launch_spawns_what_is_missing_and_keeps_ids"),
    fault("a call whose start broke is forgotten", "remote.py", "keep(out, [*others, call])", "keep(out, others)",
          "test_remote.py::test_an_id_is_on_disk_before_the_next_call"),
    fault("a result of another recipe is taken", "remote.py", 'if run.record["recipe_digest"] != call.digest:',
          "if not run.record:", "test_remote.py::test_a_result_of_another_recipe_is_refused"),
    fault("a result's file leaves its folder", "remote.py",
          'if PurePosixPath(name).name != name or name.startswith(".") or not re', "if not name and not re",
          "test_remote.py::test_a_result_cannot_leave_its_folder"),
    fault("checkpoints are not put on the volume", "modal_app.py", "seed, out, after_checkpoint=kept)", "seed, out)",
          "test_remote.py::test_checkpoints_are_committed_and_every_attempt_is_paid"),
    fault("a preempted attempt is not paid", "modal_app.py", '{"seconds": sum(self.before) + time', '{"seconds": time',
          "test_remote.py::test_checkpoints_are_committed_and_every_attempt_is_paid"),
    fault("the plan forgets seeds", "plan.py", "minutes * len(seeds) / 60 * kind.usd_hour",
          "minutes / 60 * kind.usd_hour",
          "test_plan.py::test_plan_adds_up_and_says_what_is_a_guess"),
    fault("numpy stays pinned beside vLLM", "modal_app.py", 'if not (vllm and name == "numpy")', "if name",
          "test_remote.py::test_the_image_is_asked_for_the_pins"),
)


def copy_to(folder: Path) -> None:
    """The parts of the repository that tests of the code need."""
    for name in COPIED:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(place, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit code (0 passed, 1 failed, above: could not run) and the last lines it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, "\n".join(done.stdout.splitlines()[-4:])


def is_the_copy(folder: Path) -> bool:
    """Whether tests there would import the copied package and not the installed one."""
    done = subprocess.run([sys.executable, "-c", "import talklib; print(talklib.__file__)"], cwd=folder,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder)})
    return done.stdout.startswith(str(folder))


def try_fault(one: Fault) -> tuple[str, str, float]:
    """("caught" | "missed" | "could not run", pytest's last lines, seconds)."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_to(folder)
        path = folder / one.path
        text = path.read_text(encoding="utf-8")
        if text.count(one.old) != 1:
            return "could not run", f"{one.path} holds the old text {text.count(one.old)} times", 0.0
        path.write_text(text.replace(one.old, one.new), encoding="utf-8")
        code, said = run_tests(folder, one.tests)
    return {0: "missed", 1: "caught"}.get(code, "could not run"), said, time.monotonic() - began


def main(words: list[str]) -> int:
    chosen = [one for one in FAULTS if not words or any(word in one.name for word in words)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_to(folder)
        if not is_the_copy(folder):
            print("tests of a copy would import the installed package; nothing was tried")
            return 1
        every = tuple(dict.fromkeys(test for one in chosen for test in one.tests))
        code, said = run_tests(folder, every)
        if code:
            print(f"the tests do not pass without a fault, so catching one would mean nothing:\n{said}")
            return 1
    print(f"without a fault: {said.splitlines()[-1]}", flush=True)
    with ThreadPoolExecutor(JOBS) as pool:
        found = []
        for one, (verdict, said, seconds) in zip(chosen, pool.map(try_fault, chosen), strict=True):
            found.append(verdict)
            print(f"{verdict:<13} {one.name}  ({one.path}, {seconds:.0f} s)", flush=True)
            if verdict != "caught":
                print(said, flush=True)
    print(", ".join(f"{found.count(verdict)} {verdict}" for verdict in ("caught", "missed", "could not run")))
    return int(found.count("caught") != len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
