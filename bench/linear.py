"""`python -m bench.linear`: seconds a chat and peak memory while 32 to 4,096 chats are played in one batch.

The desk model, one thread, the recipe's evaluation sampling; every size in a process of its own, so that its peak
memory is its own. Writes bench/linear.csv, .md, .svg and .png.
"""

import csv
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
REPEATS = 3
PLACE = Path(__file__).with_name("linear")


def measure(size: int, repeats: int) -> dict:
    """Plays and grades `size` chats `repeats` times, after a warm-up. Medians; memory is the process's peak."""
    import torch
    from talklib.chat import play
    from talklib.data import load_tasks
    from talklib.grading import grade_chats
    from talklib.recipe import Recipe
    from talklib.speakers import ModelSpeaker, load_model, load_tokenizer

    torch.set_num_threads(1)
    recipe = Recipe.desk()
    _, tasks = load_tasks(recipe)
    speaker = ModelSpeaker(load_model(recipe), load_tokenizer(recipe), recipe.eval_sampling, recipe.max_prompt_tokens,
                           recipe.generation_rows)
    rows = [tasks[i % len(tasks)] for i in range(size)]

    def once(key: int, rows=rows) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        grade_chats(play(rows, {"A": speaker, "B": speaker}, recipe.protocol, recipe.prompts, ("linear", key)))
        return time.perf_counter() - wall, time.process_time() - cpu

    once(0, rows[:32])
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [once(key) for key in range(1, repeats + 1)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return {"chats": size, "seconds": statistics.median(t[0] for t in times),
            "cpu_seconds": statistics.median(t[1] for t in times), "peak_mib": peak / 1024, "start_mib": base / 1024,
            "repeats": repeats}


def growth(rows: list[dict]) -> float:
    """Exponent p of cpu_seconds ~ chats^p from 128 chats on, by least squares on logarithms; 1 is linear."""
    import numpy as np

    chats, seconds = (np.log([row[name] for row in rows if row["chats"] >= 128]) for name in ("chats", "cpu_seconds"))
    return float(np.polyfit(chats, seconds, 1)[0])


def as_csv(rows: list[dict]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def as_markdown(rows: list[dict]) -> str:
    lines = ["| chats in a batch | seconds | milliseconds a chat | of processor time | peak memory, MiB |",
             "|---|---|---|---|---|"]
    for row in rows:
        wall, cpu = (1000 * row[name] / row["chats"] for name in ("seconds", "cpu_seconds"))
        lines.append(f"| {row['chats']} | {row['seconds']:.2f} | {wall:.1f} | {cpu:.1f} | {row['peak_mib']:.0f} |")
    few, many = (limit(row["repeats"] for row in rows) for limit in (min, max))
    lines += ["", f"Processor time grows with the chats to the power {growth(rows):.2f} (from 128 chats on; 1 is "
              f"linear). Desk model, one thread, medians of {few} to {many} repeats."]
    return "\n".join(lines) + "\n"


def draw(rows: list[dict]):
    """Time and memory against chats, both axes logarithmic, with the straight line of linear cost."""
    from talklib.style import COLOURS, INK, PALE, QUIET, canvas

    chats = [row["chats"] for row in rows]
    figure, axes = canvas("Cost of playing many chats at once", "ours: desk scale, one thread, processor time", 3.4,
                          columns=2, note="One process a size, medians. The grey line is cost in proportion to the "
                          "number of chats.")
    time_axes, memory_axes = axes[0]
    last = rows[-1]["cpu_seconds"] / rows[-1]["chats"]
    time_axes.plot(chats, [last * n for n in chats], color=PALE, linewidth=5, solid_capstyle="butt")
    time_axes.plot(chats, [row["cpu_seconds"] for row in rows], "o-", color=COLOURS["grpo"], markersize=4)
    time_axes.set(xscale="log", yscale="log", xlabel="chats in a batch", ylabel="seconds")
    time_axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    memory_axes.plot(chats, [row["peak_mib"] for row in rows], "o-", color=COLOURS["raft"], markersize=4)
    memory_axes.set(xscale="log", xlabel="chats in a batch", ylabel="peak memory, MiB", ylim=(0, None))
    for part in (time_axes, memory_axes):
        part.set_xticks(chats[::2], [f"{n:,}" for n in chats[::2]], color=INK)
        part.minorticks_off()
        part.grid(axis="y", color=PALE, linewidth=0.5)
    start = rows[0]["start_mib"]
    memory_axes.text(chats[0], start / 2, f"{start:.0f} MiB before the first chat", size=8, color=QUIET)
    return figure


def main(words: list[str]) -> None:
    repeats, rows = int(words[0]) if words else REPEATS, []
    for size in SIZES:
        few = max(1, repeats if size <= 1024 else repeats // 2)
        words = [sys.executable, "-m", "bench.linear", "--one", str(size), str(few)]
        done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    write(rows)


def write(rows: list[dict]) -> None:
    from talklib.style import save

    PLACE.with_suffix(".csv").write_text(as_csv(rows))
    PLACE.with_suffix(".md").write_text(as_markdown(rows))
    save(draw(rows), PLACE)
    print(as_markdown(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(sys.argv[1:])
