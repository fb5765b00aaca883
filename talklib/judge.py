"""The process that runs Math-Verify: JSON lines in (gold, text, seconds), JSON lines out (post, extracted).

Math-Verify's own clock needs the main thread and cannot stop sympy inside one long operation; a process of its
own can be ended, in threads and notebooks alike (see `clock`). It is started by its path, so it imports nothing of
this package. Three things end it: its input closes, a message uses up its seconds of processor time, or its parent
kills it. Processor time, not time on the wall: a busy machine must not turn a right answer into a wrong one.
"""

import json
import logging
import signal
import sys
from contextlib import suppress
from functools import lru_cache

MEMORY = 2 << 30
"""Bytes of address space: a hostile answer ends this process, not the machine."""


@lru_cache(maxsize=4096)
def _gold(gold: str) -> list:
    from math_verify import parse

    return parse(f"${gold}$", parsing_timeout=None)


def judge(gold: str, text: str) -> dict:
    """The post's rule: Math-Verify on the whole last message, gold first; a bare gold needs dollar signs."""
    from math_verify import parse, verify

    answer = parse(text, parsing_timeout=None)
    right = bool(verify(_gold(gold), answer, timeout_seconds=None))
    return {"post": right, "extracted": str(answer[-1])[:200] if answer else ""}


def main() -> None:
    """Answers lines until its input closes."""
    logging.disable(logging.WARNING)  # "no clock is set": the clock is this process's
    with suppress(ImportError, ValueError, OSError):  # not every system can limit memory
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        gold, text, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF, unhandled, ends the process even inside sympy
        try:
            verdict = judge(gold, text)
        except (Exception, RecursionError, MemoryError) as error:  # whatever sympy raises on hostile input is a no
            verdict = {"post": False, "extracted": "", "error": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
