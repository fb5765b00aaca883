"""ChatTrainer: whole chats as rollouts on TRL 0.19.1's GRPOTrainer.

TRL keeps the loop, the optimizer, the schedule, LoRA and checkpoints. Replaced are the two steps that know
about completions: `_prepare_inputs` plays a step's chats and hands back micro-batches of their trained turns,
and `_compute_loss` is TRL's clipped surrogate with each row's divisor fixed beforehand (see `batching`).
Left out, because the post does not use them: the KL term, division by the spread, reward models.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.utils.checkpoint import checkpoint
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from . import TalkError, counters
from .batching import Row, pack, plain_groups, problems_at, row_weights, rows_of
from .chat import Chat, play
from .credit import get_rule
from .grading import grade_chats
from .recipe import Arm, Recipe
from .rollout import Group, collect
from .speakers import MergedTwin, ModelSpeaker
from .splitter import Task
from .vllm_speaker import Engine, VllmSpeaker, launched, trl_settings

Judge = Callable[[list[Chat]], list[Chat]]


def grpo_config(recipe: Recipe, seed: int, out_dir: str | Path, **overrides) -> GRPOConfig:
    """TRL's arguments for a recipe. A "sample" of TRL's is one chat here; its turns are the rows."""
    chats = recipe.problems_per_step * recipe.chats_per_problem
    if chats % recipe.micro_batches:
        raise TalkError(f"Recipe.micro_batches is {recipe.micro_batches}; it must divide the {chats} chats of a step")
    half = recipe.dtype == "bfloat16"
    settings = dict(
        output_dir=str(out_dir), seed=seed, data_seed=seed, max_steps=recipe.steps,
        per_device_train_batch_size=chats // recipe.micro_batches,
        gradient_accumulation_steps=recipe.micro_batches, num_generations=recipe.chats_per_problem,
        learning_rate=recipe.learning_rate, lr_scheduler_type=recipe.lr_schedule, warmup_steps=0,
        max_grad_norm=recipe.max_grad_norm, loss_type=recipe.loss_type, beta=recipe.beta, num_iterations=1,
        epsilon=recipe.epsilon, epsilon_high=recipe.epsilon_high, scale_rewards=False,
        temperature=recipe.train_sampling.temperature, max_prompt_length=None,
        max_completion_length=recipe.protocol.last_tokens, gradient_checkpointing=False,
        bf16=half, fp16=False,  # by name: TRL turns bf16 on where it is left None
        use_cpu=recipe.use_cpu, logging_steps=1, save_strategy="steps", save_steps=recipe.checkpoint_every,
        save_total_limit=2, report_to="none", disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False, ignore_data_skip=True,
    )
    if "max_prompt_length" not in {field.name for field in fields(GRPOConfig)}:
        del settings["max_prompt_length"]  # TRL 1 no longer cuts prompts and has no such setting
    return GRPOConfig(**{**settings, **overrides})


def lora_config(recipe: Recipe) -> LoraConfig:
    """Dropout 0: the log-probabilities that train must be those that sampled."""
    return LoraConfig(r=recipe.lora_r, lora_alpha=recipe.lora_alpha, lora_dropout=0.0, bias="none",
                      target_modules=list(recipe.lora_targets), task_type="CAUSAL_LM")


def _no_reward(completions, **_):
    """TRL wants a reward function; chats are graded whole, after their last turn, so it is never called."""
    raise AssertionError("TRL's per-completion reward must not be called: chats are graded whole")


class ChatTrainer(GRPOTrainer):
    """GRPO and its relatives on whole chats.

    Args:
        model: the base model; LoRA is put round it here.
        tasks: the training problems, dealt.
        judge: grades finished chats; the default is the post's rule.
        overrides: arguments of TRL's GRPOConfig to change (`report_to`, ...).

    Raises:
        TalkError: a recipe that TRL would read differently from what it says.
    """

    def __init__(self, model, tokenizer, tasks: Sequence[Task], recipe: Recipe, arm: Arm, seed: int,
                 out_dir: str | Path, judge: Judge = grade_chats, **overrides):
        if recipe.beta:
            raise TalkError("Recipe.beta must be 0: there is no reference model here")
        if overrides.get("use_vllm"):
            raise TalkError("use_vllm is set by Recipe.decoding: give it the value vllm (--set decoding=vllm)")
        self.tasks, self.recipe, self.arm, self.run_seed, self.judge = list(tasks), recipe, arm, seed, judge
        self.rule = get_rule(arm.credit)
        set_seed(seed)  # LoRA's first weights are drawn in TRL's constructor, before TRL sets its own seed
        # transformers tells accelerate its precision by this variable and never clears it: after a bfloat16 run in the
        # same process, or from a shell that has it set, a float32 recipe would train under autocast and not say so
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
        vllm = recipe.decoding == "vllm"
        self._twins = [MergedTwin(model) for _ in range(1 if vllm else 2)] if vllm or recipe.merged_rollout else None
        settings = trl_settings(recipe) if vllm else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TRL warns about a bare `prompt` column; it is never read
            config = grpo_config(recipe, seed, out_dir, **{**settings, **overrides})
            with launched() if vllm else nullcontext():
                super().__init__(model=model, reward_funcs=_no_reward, processing_class=tokenizer, args=config,
                                 train_dataset=Dataset.from_list([{"prompt": ""}] * len(tasks)),
                                 peft_config=lora_config(recipe))
        self.engine = Engine(self.llm, self._twins[0]) if vllm else None
        self.remove_callback(PrinterCallback)
        self._plain_head: bool | None = None
        self._served = 0  # micro-batches handed out; TRL's own count is kept in another place in each version
        self.last_groups: list[Group] = []

    # -- rollout ---------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        """Once a step: play, grade, credit, pack. Then one micro-batch a call."""
        place = self._served % self.args.steps_per_generation
        if place == 0 or self._buffered_inputs is None:
            # TRL's batch is left alone: its sampler does not replay earlier epochs when a run is resumed
            places = problems_at(self.state.global_step, len(self.tasks), self.recipe.problems_per_step, self.run_seed)
            self._buffered_inputs = self.micro_batches(self.rollout([self.tasks[i] for i in places]))
        self._served += 1
        return self._buffered_inputs[place]

    def rollout(self, tasks: Sequence[Task]) -> list[Group]:
        """Plays the step's problems with the policy as it stands."""
        began = time.perf_counter()
        policy, untrained = self.speakers()

        def play_round(tasks, numbers, untrained_b):
            seats = {copy: policy for copy in self.protocol.copies}
            if untrained_b:
                seats["B"] = untrained
            key = ("train", self.run_seed, self.state.global_step)
            partner = "untrained_b" if untrained_b else "self"
            return self.judge(play(tasks, seats, self.protocol, self.recipe.prompts, key, numbers, partner))

        self.last_groups = collect(tasks, self.arm, self.rule, self.recipe.chats_per_problem, play_round)
        self._record(self.last_groups, policy, untrained, time.perf_counter() - began)
        return self.last_groups

    @property
    def protocol(self):
        """The recipe's protocol on this arm's channel."""
        return replace(self.recipe.protocol, channel=self.arm.channel)

    def speakers(self) -> tuple[ModelSpeaker, ModelSpeaker]:
        """The policy as it stands, and the untrained model."""
        common = dict(tokenizer=self.processing_class, sampling=self.recipe.train_sampling,
                      max_prompt_tokens=self.recipe.max_prompt_tokens, rows=self.recipe.generation_rows,
                      decoding=self.recipe.decoding)
        model = self.accelerator.unwrap_model(self.model)
        if self.engine is not None:
            common |= dict(model=self.engine.twin.model, engine=self.engine)
            return VllmSpeaker(policy=model, trained=True, **common), VllmSpeaker(**common)
        if self._twins is None:
            return ModelSpeaker(model, trained=True, **common), ModelSpeaker(model, adapter_off=True, **common)
        return ModelSpeaker(self._twins[0].load(model), trained=True, **common), ModelSpeaker(
            self._twins[1].model, **common)

    # -- what trains -----------------------------------------------------------------------------

    def micro_batches(self, groups: Sequence[Group]) -> list[dict]:
        """The step's trained rows as micro-batches, rows without an advantage left out, divisors kept."""
        rows = rows_of(groups)
        plain = plain_groups(len(rows), self.args.steps_per_generation, self.run_seed, self.state.global_step)
        lengths = [len(row.completion_ids) for row in rows]
        weights = row_weights(lengths, plain, self.loss_type, self.max_completion_length)
        runs = pack(rows, self.args.steps_per_generation)
        self._metrics["train"]["rows_trained"].append(sum(map(len, runs)))
        self._metrics["train"]["tokens_trained"].append(sum(lengths[i] for run in runs for i in run))
        return [self.tensors([rows[i] for i in run], [weights[i] for i in run]) for run in runs]

    def tensors(self, rows: Sequence[Row], weights: Sequence[float]) -> dict:
        """Rows -> input_ids, attention_mask (B, L), and loss_mask, padded on the right; coefficients (B,).

        `loss_mask` (B, K) covers the last K = L - shortest prompt positions and is 1 on the tokens that the
        copy wrote, its end token included."""
        if not rows:
            return {}
        width, skip = max(map(len, rows)), min(len(row.prompt_ids) for row in rows)
        ids = torch.full((len(rows), width), self.processing_class.pad_token_id)
        mask, wrote = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row.prompt_ids + row.completion_ids)
            mask[i, : len(row)] = 1
            wrote[i, len(row.prompt_ids) : len(row)] = 1
        coefficients = torch.tensor([row.advantage for row in rows]), torch.tensor(list(weights))
        batch = {"input_ids": ids, "attention_mask": mask, "loss_mask": wrote[:, skip:],
                 "advantages": coefficients[0].float(), "weights": coefficients[1].float()}
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    def _compute_loss(self, model, inputs) -> torch.Tensor:
        """Sum over rows of weight_i * sum over tokens of TRL's clipped surrogate (ratio 1 on-policy)."""
        if not inputs:  # no row of this micro-batch has an advantage: a zero that reaches every weight
            return sum(p.sum() * 0.0 for p in model.parameters() if p.requires_grad)
        logps = self.log_probs(model, inputs)  # (B, K)
        ratio = torch.exp(logps - logps.detach())
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"][:, None]
        surrogate = torch.min(ratio * advantages, clipped * advantages)  # (B, K)
        loss = -((surrogate * inputs["loss_mask"]).sum(-1) * inputs["weights"]).sum()
        return loss / self.args.steps_per_generation if self.divides_itself else loss

    @property
    def divides_itself(self) -> bool:
        """Whether the loss has to be divided by the micro-batches here (TRL 1), and not by the trainer (TRL 0.19)."""
        return bool(getattr(self, "loss_is_scaled_for_ga", False))

    def log_probs(self, model, inputs) -> torch.Tensor:
        """Log-probabilities of the last K tokens, shape (B, K), 0 where the copy wrote nothing if they come in chunks.

        With `Recipe.logit_chunk` set, logits are held for that many written tokens at a time and worked out again in
        the backward pass: memory does not grow with message length times vocabulary."""
        chunk, wrote = self.recipe.logit_chunk, inputs["loss_mask"].bool()
        if not chunk or not self._head_is_plain(model, inputs):
            return self._whole_log_probs(model, inputs["input_ids"], inputs["attention_mask"], wrote.shape[1])
        with self.accelerator.autocast():
            # no mask: rows are padded on the right, where no token that counts looks
            hidden = self._body(model)(input_ids=inputs["input_ids"]).last_hidden_state
            read = hidden[:, -wrote.shape[1] - 1 : -1][wrote]  # (written tokens, H): what each was predicted from
            targets = inputs["input_ids"][:, -wrote.shape[1] :][wrote]
            parts = [checkpoint(self._chunk_log_probs, model, *part, use_reentrant=False)
                     for part in zip(read.split(chunk), targets.split(chunk), strict=True)]
        return torch.zeros(wrote.shape, device=hidden.device).masked_scatter(wrote, torch.cat(parts))

    def _whole_log_probs(self, *words) -> torch.Tensor:
        """TRL's own, by its name in 0.19 or in 1."""
        if hasattr(self, "_get_per_token_logps"):
            return self._get_per_token_logps(*words)
        return self._get_per_token_logps_and_entropies(*words)[0]

    def _chunk_log_probs(self, model, read: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        head = self.accelerator.unwrap_model(model).get_output_embeddings()
        return -torch.nn.functional.cross_entropy(head(read).float() / self.temperature, targets, reduction="none")

    def _body(self, model):
        """The model under its head, LoRA layers in it."""
        causal = self.accelerator.unwrap_model(model).get_base_model()
        return getattr(causal, causal.base_model_prefix)

    def _head_is_plain(self, model, inputs) -> bool:
        """Whether logits are the head's output and nothing more; some families scale or cap them after it, and then
        the model's own forward is used. Found once, by comparing the two on a few tokens."""
        if self._plain_head is None:
            few = {name: inputs[name][:1, :8] for name in ("input_ids", "attention_mask")}
            with torch.no_grad(), self.accelerator.autocast():
                own = model(**few).logits.float()
                head = self.accelerator.unwrap_model(model).get_output_embeddings()
                ours = head(self._body(model)(**few).last_hidden_state).float()
            self._plain_head = bool(torch.allclose(own, ours, rtol=1e-2, atol=1e-2))
        return self._plain_head

    # -- what is recorded ------------------------------------------------------------------------

    def _record(self, groups: Sequence[Group], policy: ModelSpeaker, untrained: ModelSpeaker, seconds: float):
        drawn = [chat for group in groups for chat in group.pool]
        values = {
            "reward": sum(chat.reward for chat in drawn) / len(drawn),
            "flat_groups": sum(group.flat for group in groups) / len(groups),
            "chats_drawn": len(drawn),
            "tokens_generated": policy.tokens_generated + untrained.tokens_generated,
            "entropy": policy.nats / max(policy.tokens_generated, 1),
            "distance": adapter_distance(self.accelerator.unwrap_model(self.model)),
            "seconds_rollout": seconds,
        }
        values |= {name: value for name, value in counters.count(drawn).items() if value is not None}
        for name, value in values.items():
            self._metrics["train"][name].append(float(value))

    @property
    def history(self) -> list[dict]:
        """One entry a step: rewards, counters, tokens, loss, gradient norm."""
        return [entry for entry in self.state.log_history if "reward" in entry]


@torch.no_grad()
def adapter_distance(peft_model) -> float:
    """Frobenius norm of all LoRA updates over that of the weights they change."""
    moved = base = 0.0
    for module in peft_model.modules():
        if hasattr(module, "lora_A") and hasattr(module, "get_delta_weight"):
            for adapter in module.active_adapters:
                a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
                # |BA|^2 = trace((B'B)(AA')): two r x r products instead of the full update
                moved += float(((b.T @ b) * (a @ a.T)).sum()) * module.scaling[adapter] ** 2
            base += float(module.get_base_layer().weight.float().pow(2).sum())
    return (max(moved, 0.0) / base) ** 0.5 if base else 0.0


class MetricsFile(TrainerCallback):
    """Streams each step's log to a JSON-lines file, for `tail -f` and plotting while a run goes on.

    A resumed run writes the steps before its checkpoint again, so that the file holds each step once."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def on_train_begin(self, args, state, control, **_):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)  # never through a link that someone left there
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in state.log_history if "reward" in entry)

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({**logs, "step": state.global_step}) + "\n")


class ProgressCallback(TrainerCallback):
    """Hands each step's log to `report(step, steps, log)`; plain text fits notebooks and CI alike."""

    def __init__(self, report: Callable[[int, int, dict], None]):
        self.report = report

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            self.report(state.global_step, state.max_steps, logs)
