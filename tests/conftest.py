"""A tiny random Qwen2, a byte tokenizer and a handful of tasks: enough to run the real code in seconds."""

from dataclasses import replace
from pathlib import Path

import pytest
from talklib.chat import Protocol
from talklib.recipe import Recipe, Sampling
from talklib.splitter import Problem, Task, split

ROOT = Path(__file__).resolve().parents[1]
GSM8K = ROOT.parent / "shared" / "gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_dir(), reason="GSM8K files are not beside the checkout")

QUESTIONS = (
    "Ann has 3 apples. Ben has 4 apples. How many apples do they have together?",
    "A pen costs 2 dollars. Mia buys 5 pens. How much does she pay?",
    "Tom reads 6 pages a day. He reads for 7 days. How many pages does he read?",
    "A box holds 8 eggs. There are 3 boxes. How many eggs are there?",
)
GOLDS = ("7", "10", "42", "24")


def make_tasks() -> list[Task]:
    return [Task(Problem(f"train-{i}", q, g), split(q)) for i, (q, g) in enumerate(zip(QUESTIONS, GOLDS, strict=True))]


def make_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                        additional_special_tokens=["<|im_start|>"])
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    tokenizer.padding_side = "left"
    return tokenizer


def make_model(tokenizer, seed: int = 0):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                         tie_word_embeddings=True, initializer_range=0.2, pad_token_id=tokenizer.pad_token_id,
                         eos_token_id=tokenizer.eos_token_id, bos_token_id=None)
    return Qwen2ForCausalLM(config).eval()


def tiny_recipe(**changes) -> Recipe:
    recipe = Recipe.desk(
        protocol=Protocol(message_tokens=6, last_tokens=8), max_prompt_tokens=600, steps=2, problems_per_step=2,
        chats_per_problem=4, micro_batches=2, lora_r=4, lora_alpha=8, learning_rate=1e-2, checkpoint_every=1,
        train_sampling=Sampling(temperature=0.9))
    return replace(recipe, **changes)


@pytest.fixture
def tasks():
    return make_tasks()


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory):
    """A model folder with a random Qwen2 and a byte tokenizer: the path that a user's own model takes."""
    path = tmp_path_factory.mktemp("model")
    make_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def model(tokenizer):
    return make_model(tokenizer)


@pytest.fixture(autouse=True)
def one_thread(request):
    """Sums depend on the number of threads; every test that uses torch uses one."""
    if "model" in request.fixturenames:
        import torch

        torch.set_num_threads(1)
