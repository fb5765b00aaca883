"""`python -m bench.decoding`: which way of decoding is faster on the GPU at hand, with random weights.

On CUDA the model has the real one's shape (Qwen2.5-1.5B in bfloat16, the recipe's LoRA adapter on it) and a turn its
real size: 32 chats, prompts of 320 to 400 tokens that differ from turn to turn, messages of 160. On a CPU everything is
tiny, and only shows that the command works. Medians of a few turns; the first turn, in which the fixed shapes are
compiled, is shown apart, and so is the number of compiled steps: more than one a shape would mean that turns pay for
compilation again and again. Takes about five minutes on a GPU.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from peft import get_peft_model
from talklib.plan import SHAPES, Shape
from talklib.recipe import Recipe, Sampling
from talklib.speakers import Fixed, compiled, generate, generate_static
from talklib.trainers import lora_config
from transformers import Qwen2Config, Qwen2ForCausalLM

TINY = Shape(64, 2, 4, 2, 128, 1000)


def build(shape: Shape, device: str):
    """A randomly initialised Qwen2 of that shape with the paper recipe's adapter, as it is while it trains."""
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
                         num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
                         num_key_value_heads=shape.kv_heads, tie_word_embeddings=shape.tied,
                         max_position_embeddings=4096)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)
    return get_peft_model(model, lora_config(Recipe.paper())).eval()


def prompts_of(turn: int, rows: int, longest: int, vocab: int) -> list[list[int]]:
    """Prompts of 0.8 to 1 times `longest` tokens, the longest among them another in every turn."""
    generator = torch.Generator().manual_seed(turn)
    lengths = torch.randint(8 * longest // 10, longest - turn, (rows,), generator=generator).tolist()
    return [torch.randint(10, vocab, (length,), generator=generator).tolist() for length in lengths]


def measure(decode, model, rows: int, longest: int, tokens: int, repeats: int) -> tuple[float, float]:
    """(seconds of the first turn, median seconds of the others)."""
    times = []
    for turn in range(repeats + 1):
        prompts = prompts_of(turn, rows, longest, model.config.vocab_size)
        began = time.perf_counter()
        decode(model, prompts, [tokens] * rows, [1000 * turn + row for row in range(rows)],
               Sampling(temperature=0.9), [0], 0)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[0], statistics.median(times[1:])


def compiled_steps() -> int:
    """How many times the compiler has been at work in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def ways(model, longest: int, cuda: bool) -> dict:
    """Name -> a function that decodes one turn."""
    found = {"dynamic": generate, "static": partial(generate_static, fixed=Fixed(), longest_prompt=longest)}
    if cuda:
        found["static, compiled"] = partial(generate_static, fixed=compiled(model), longest_prompt=longest)
    return found


def main() -> None:
    """Prints the table; on CUDA also writes bench/decoding.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=Recipe.paper().model, choices=list(SHAPES), help="whose shape, on CUDA")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    model = build(SHAPES[options.model] if cuda else TINY, "cuda" if cuda else "cpu")
    rows, longest, tokens = (32, 400, 160) if cuda else (8, 40, 16)
    rows_of_table, base = [], None
    for way, decode in ways(model, longest, cuda).items():
        before = compiled_steps()
        first, later = measure(decode, model, rows, longest, tokens, options.repeats)
        base = base or later
        rows_of_table.append(f"| {way} | {first:.2f} | {later:.2f} | {1000 * later / tokens:.1f} | {base / later:.2f} "
                             f"| {compiled_steps() - before} |")
    name = torch.cuda.get_device_name(0) if cuda else "a CPU, tiny model: the ratio says nothing about a GPU"
    lines = [f"{name}; {rows} rows, prompts of up to {longest}, {tokens} tokens each; torch {torch.__version__}", "",
             "| decoding | first turn, s | a turn, s | ms a token step | times dynamic's speed | compiled |",
             "|---|--:|--:|--:|--:|--:|", *rows_of_table]
    print("\n".join(lines))
    if cuda:
        Path(__file__).with_name("decoding.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
