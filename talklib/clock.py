"""Math-Verify at arm's length: processes that are kept, and replaced when a message overruns its time.

Works in any thread and in notebooks. A process that forks starts its own judges and leaves its parent's alone; at
exit all are ended, and a judge whose parent was killed ends when its input closes.
"""

import atexit
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

SECONDS = 5.0
"""Most seconds of processor time Math-Verify may take for one message; then the answer counts as wrong."""
PATIENCE = 4.0
"""A judge is killed from outside after this many times its seconds on the wall (it may share its core)."""
START_SECONDS = 120.0
"""Most seconds for a judge's first import of sympy, which is not the message's fault."""
JUDGES = min(4, os.cpu_count() or 1)
"""Most judges at work side by side."""


class Clock:
    """One judge: started when first asked, replaced after it was ended. Safe in threads."""

    def __init__(self):
        self._lock, self._process = threading.Lock(), None

    def ask(self, gold: str, text: str, seconds: float = SECONDS) -> dict | None:
        """The judge's reply, {"post": bool, "extracted": str}; None when its time was up or it died."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._process = self._start()
                self._exchange("1", "1", START_SECONDS)
            reply = self._exchange(gold, text, seconds)
            if reply is None:
                self._end()
            return reply

    def _start(self) -> subprocess.Popen:
        path = str(Path(__file__).with_name("judge.py"))
        # -P: neither this package's folder nor the current one may shadow a module that sympy imports
        return subprocess.Popen([sys.executable, "-P", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, encoding="utf-8")

    def _exchange(self, gold: str, text: str, seconds: float) -> dict | None:
        process = self._process
        try:
            process.stdin.write(json.dumps([gold, text, seconds]) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if selector.select(PATIENCE * seconds) else ""
            return json.loads(line) if line else None
        except (BrokenPipeError, ValueError):
            return None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()
            with suppress(BrokenPipeError):  # it died with a message half written
                process.stdin.close()

    def close(self) -> None:
        """Ends the judge, if there is one; the next question starts another."""
        with self._lock:
            self._end()


class Judges:
    """Several clocks; each question takes one that is free, the last one used first, so few are ever started."""

    def __init__(self, count: int = JUDGES):
        self.count = count
        self.forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """New clocks. After a fork the old ones are the parent's."""
        self._clocks = [Clock() for _ in range(self.count)]
        self._free = queue.LifoQueue()
        for clock in self._clocks:
            self._free.put(clock)

    def ask(self, gold: str, text: str, seconds: float = SECONDS) -> dict | None:
        """As `Clock.ask`; waits while all judges are at work."""
        clock, free = self._free.get(), self._free
        try:
            return clock.ask(gold, text, seconds)
        finally:
            free.put(clock)

    def close(self) -> None:
        """Ends every judge."""
        for clock in self._clocks:
            clock.close()
