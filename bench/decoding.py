"""`python -m bench.decoding`: which way of decoding is faster on the GPU at hand, with random weights.

On CUDA the model has the real one's shape (Qwen2.5-1.5B in bfloat16) and a turn its real size: 32 chats, prompts of 400
tokens, messages of 160. On a CPU everything is tiny, and only shows that the command works. Medians of a few turns;
the fixed-shape way's first turn, in which it compiles, is shown apart. Takes about five minutes on a GPU.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from talklib.plan import SHAPES, Shape
from talklib.recipe import Recipe, Sampling
from talklib.speakers import generate, generate_static
from transformers import Qwen2Config, Qwen2ForCausalLM

TINY = Shape(64, 2, 4, 2, 128, 1000)


def build(shape: Shape, device: str):
    """A randomly initialised Qwen2 of that shape."""
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
                         num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
                         num_key_value_heads=shape.kv_heads, tie_word_embeddings=shape.tied,
                         max_position_embeddings=4096)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32).eval()


def measure(decode, model, rows: int, prompt: int, tokens: int, repeats: int) -> tuple[float, float]:
    """(seconds of the first turn, median seconds of the others)."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(10, model.config.vocab_size, (rows, prompt), generator=generator).tolist()
    times = []
    for turn in range(repeats + 1):
        began = time.perf_counter()
        seeds = [1000 * turn + row for row in range(rows)]
        decode(model, prompts, [tokens] * rows, seeds, Sampling(temperature=0.9), [0], 0)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[0], statistics.median(times[1:])


def main() -> None:
    """Prints the table and writes bench/decoding.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=Recipe.paper().model, choices=list(SHAPES), help="whose shape, on CUDA")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    model = build(SHAPES[options.model] if cuda else TINY, "cuda" if cuda else "cpu")
    rows, prompt, tokens = (32, 400, 160) if cuda else (8, 40, 16)
    ways = {"dynamic": generate, "static": generate_static}
    if cuda:
        step = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
        ways["static, compiled"] = lambda *words: generate_static(*words, forward=step)
    name = torch.cuda.get_device_name(0) if cuda else "a CPU, tiny model: the ratio says nothing about a GPU"
    found = {way: measure(decode, model, rows, prompt, tokens, options.repeats) for way, decode in ways.items()}
    base = found["dynamic"][1]
    lines = [f"{name}; {rows} rows, prompts of {prompt}, {tokens} tokens each; torch {torch.__version__}", "",
             "| decoding | first turn, s | a turn, s | ms a token step | times dynamic's speed |",
             "|---|--:|--:|--:|--:|",
             *(f"| {way} | {first:.2f} | {later:.2f} | {1000 * later / tokens:.1f} | {base / later:.2f} |"
               for way, (first, later) in found.items())]
    print("\n".join(lines))
    if cuda:
        Path(__file__).with_name("decoding.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
