"""What is run: a recipe (every setting, as data), the arms, and where each setting comes from.

Two scales share one path. `Recipe.paper()` holds the post's settings for Qwen2.5-1.5B-Instruct on
GSM8K; `Recipe.desk()` runs the same code on a model that trains on a laptop. No torch is imported here.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace

from . import TalkError
from .chat import Prompts, Protocol

PAPER_PROMPTS = Prompts(
    system="You and a partner are working on the same math problem. Each of you was given different facts, "
    "and neither set is enough alone. Your messages are the only way to share what you know. "
    "Keep each message short.",
    facts="Facts only you can see:",
    question="Problem to answer:",
    talk="Conversation so far:",
    silence="(nothing yet)",
    own="You said:",
    partner="Partner {copy} said:",
    next="Write your next message to your partner.",
    last="Write your last message now. Work out the answer from your facts and what your partner told you, "
    "and end with the answer in \\boxed{}.",
)

DESK_PROMPTS = Prompts(
    system="",
    facts="Facts:",
    question="Question:",
    talk="Talk:",
    silence="-",
    own="Me:",
    partner="You:",
    next="Next:",
    last="Answer:",
    blocked="(no message)",
)


@dataclass(frozen=True)
class Columns:
    """Where a data set keeps what is needed. The defaults are GSM8K's."""

    question: str = "question"
    answer: str = "answer"
    marker: str = "####"
    """The gold is the answer's text after the last one of these; "" takes the whole answer, number or text."""


@dataclass(frozen=True)
class Sampling:
    """Every sampling field, named, so that no library default or model file can step in."""

    temperature: float = 0.9
    top_p: float = 1.0
    """1.0 keeps all tokens."""
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Arm:
    """One condition of the experiment."""

    name: str
    label: str
    """How figures and tables call it."""
    trained: bool = True
    channel: str = "open"
    credit: str = "grpo"
    """Name of a rule in `credit.RULES`."""
    untrained_partners: int = 0
    """In how many of a problem's chats B is the untrained model, whose turns carry no gradient."""


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("base_blocked", "untrained, blocked", trained=False, channel="blocked"),
        Arm("base", "untrained, chatting", trained=False),
        Arm("grpo_blocked", "trained, blocked", channel="blocked"),
        Arm("grpo", "trained, chatting (GRPO)"),
        Arm("raft", "RAFT", credit="raft"),
        Arm("mixed", "mixed partners", untrained_partners=2),
        Arm("reinforce_ada", "Reinforce-Ada", credit="reinforce_ada"),
    )
}
"""Arms in the order in which every figure and table shows them."""


def get_arm(name: str) -> Arm:
    """The arm of that name; TalkError lists the names there are."""
    if name not in ARMS:
        raise TalkError(f"unknown arm {name!r}; arms: {', '.join(ARMS)}")
    return ARMS[name]


@dataclass(frozen=True)
class Recipe:
    """Every setting of the experiment. Defaults are the post's, from its settings table and its numbers."""

    scale: str
    """Name of the scale, for folders and labels; nothing branches on it."""
    model: str
    """A hub id, a folder, or `desk` for the model that ships with the package."""
    model_revision: str | None
    data: str
    """`hub` (GSM8K), `hub:OWNER/NAME:CONFIG`, a folder with train.jsonl and test.jsonl (or .parquet), a file, or `desk`
    for the desk world's problems."""
    prompts: Prompts
    columns: Columns = Columns()
    """Where `data` keeps its questions and answers."""
    split_rule: str = "post"
    data_seed: int = 0
    n_train: int = 1024
    n_test: int = 300
    protocol: Protocol = field(default_factory=Protocol)
    train_sampling: Sampling = Sampling(temperature=0.9)
    eval_sampling: Sampling = Sampling(temperature=0.9, top_p=0.95)
    eval_chats: int = 2
    """Chats a held-out problem; both answers of each are graded: 4 answers a problem."""
    steps: int = 80
    problems_per_step: int = 8
    chats_per_problem: int = 4
    micro_batches: int = 16
    """Micro-batches a step: 32 chats in 16 is 2 chats, 8 rows, each (4 ran an 80 GB H100 out of memory)."""
    learning_rate: float = 1e-4
    lr_schedule: str = "linear"
    """TRL's name; decays to 0 over `steps`, no warm-up."""
    max_grad_norm: float = 1.0
    lora_r: int = 32
    lora_alpha: int = 64
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    loss_type: str = "bnpo"
    """TRL 0.19.1's default, which the post left alone: token mean within a micro-batch."""
    beta: float = 0.0
    """No KL term, so no reference model."""
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    max_prompt_tokens: int = 1024
    """A longer prompt is refused by name, never cut."""
    dtype: str = "bfloat16"
    use_cpu: bool = False
    """Stay on the CPU even beside a GPU, so that the numbers are the same everywhere."""
    threads: int | None = None
    """Torch threads a run uses; None leaves torch's choice. Sums depend on it, so the desk scale fixes it."""
    merged_rollout: bool = False
    """Generate with the adapter folded into a copy of the weights: faster on a CPU; in bf16 it would round."""
    generation_rows: int = 256
    """Most messages generated side by side."""
    decoding: str = "dynamic"
    """`dynamic` lets finished rows leave the batch; `static` keeps every shape fixed, so that on CUDA a token step is
    compiled into one graph. The same tokens either way; `python -m bench.decoding` says which is faster on a GPU.
    `vllm` rolls out with vLLM, which samples other chats (`vllm_speaker` names its limits); evaluation is `dynamic`."""
    logit_chunk: int = 1024
    """Written tokens whose logits are held at a time while training; 0 holds a whole micro-batch's. With a vocabulary
    of 151,936 the logits of one row of 384 tokens are 0.2 GiB in float32, and training keeps several such copies."""
    checkpoint_every: int = 10
    """Steps between checkpoints of a run that can be resumed."""

    @staticmethod
    def paper(**changes) -> "Recipe":
        """The post's run: Qwen2.5-1.5B-Instruct on GSM8K, one H100 a run."""
        recipe = Recipe(scale="paper", model="Qwen/Qwen2.5-1.5B-Instruct",
                        model_revision="989aa7980e4cf806f80c7fef2b1adb7bc71aa306", data="hub", prompts=PAPER_PROMPTS)
        return replace(recipe, **changes)

    @staticmethod
    def desk(**changes) -> "Recipe":
        """The same experiment on two CPU cores: a 0.7M-parameter Qwen2 and problems of our own writing."""
        recipe = Recipe(
            scale="desk", model="desk", model_revision=None, data="desk", prompts=DESK_PROMPTS,
            protocol=Protocol(message_tokens=24, last_tokens=32), micro_batches=4, learning_rate=1e-3,
            max_prompt_tokens=224, dtype="float32", use_cpu=True, threads=1, merged_rollout=True, generation_rows=640,
            logit_chunk=0,
        )
        return replace(recipe, **changes)

    @staticmethod
    def small(**changes) -> "Recipe":
        """For a 16 GB GPU such as a T4: Qwen2.5-0.5B-Instruct, one chat a micro-batch, shorter messages.

        float32, because a T4 has no bfloat16 and TRL's mixing in float16 is not used here; slower, and it fits."""
        recipe = Recipe.paper(scale="small", model="Qwen/Qwen2.5-0.5B-Instruct", model_revision=None, dtype="float32",
                              protocol=Protocol(message_tokens=96, last_tokens=256), micro_batches=32, n_test=100,
                              max_prompt_tokens=640, logit_chunk=256, generation_rows=32)
        return replace(recipe, **changes)

    @staticmethod
    def from_dict(settings: dict) -> "Recipe":
        """The recipe that `as_dict` wrote. TalkError names settings that this version does not know."""
        parts = {"prompts": Prompts, "columns": Columns, "protocol": Protocol, "train_sampling": Sampling,
                 "eval_sampling": Sampling}
        try:
            return Recipe(**{name: parts[name](**value) if name in parts else tuple(value) if isinstance(value, list)
                             else value for name, value in settings.items()})
        except TypeError as error:
            raise TalkError(f"these settings are not a recipe of this version: {error}") from error

    def as_dict(self) -> dict:
        """Plain JSON types, for run files."""
        return json.loads(json.dumps(asdict(self)))

    def digest(self) -> str:
        """Changes whenever a setting that could change the result changes."""
        unseen = set(UNSEEN) - ({"decoding"} if self.decoding == "vllm" else set())
        settings = {name: value for name, value in self.as_dict().items()
                    if name not in unseen and not (name in LATER and getattr(self, name) == LATER[name])}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


UNSEEN = ("generation_rows", "decoding", "logit_chunk", "checkpoint_every")
"""Settings of speed and memory, left out of a recipe's digest; but vllm samples otherwise, so decoding counts there."""

VLLM = "0.10.0"
"""The vLLM that `decoding="vllm"` was written for: the one that pins torch 2.7.1, the full run's own."""

LATER = {"columns": Columns()}
"""Settings that came after the first stored runs, left out while they have the value that those runs had."""

SCALES = {"desk": Recipe.desk, "paper": Recipe.paper, "small": Recipe.small}


SEEDS = {"desk": (17, 18, 19, 20, 21), "paper": (17, 18, 19), "small": (17,)}
"""Training seeds of a scale; the paper's are the post's."""


def get_recipe(scale: str, **changes) -> Recipe:
    """The recipe of that scale; TalkError lists the scales there are."""
    if scale not in SCALES:
        raise TalkError(f"unknown scale {scale!r}; scales: {', '.join(SCALES)}")
    return SCALES[scale](**changes)
