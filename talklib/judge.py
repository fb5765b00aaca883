"""The process that runs Math-Verify: JSON lines in (gold, text), JSON lines out (post, extracted).

Math-Verify's own clock needs the main thread and cannot stop sympy inside one long operation; a process of its
own can be killed from outside, in threads and notebooks alike (see `grading`). Started as `python -m talklib.judge`.
"""

import json
import resource
import sys

MEMORY = 2 << 30
"""Bytes of address space: a hostile answer ends this process, not the machine."""


def judge(gold: str, text: str) -> dict:
    """The post's rule: Math-Verify on the whole last message, gold first; a bare gold needs dollar signs."""
    from math_verify import parse, verify

    answer = parse(text, parsing_timeout=None)
    right = bool(verify(parse(f"${gold}$", parsing_timeout=None), answer, timeout_seconds=None))
    return {"post": right, "extracted": str(answer[-1])[:200] if answer else ""}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        gold, text = json.loads(line)
        try:
            verdict = judge(gold, text)
        except (Exception, RecursionError, MemoryError) as error:  # whatever sympy raises on hostile input is a no
            verdict = {"post": False, "extracted": "", "error": type(error).__name__}
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
