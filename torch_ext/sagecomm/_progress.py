"""How far the command has come, on standard error."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from sagecomm._format import about

_EVERY_S = 10.0  # between two lines where nobody looks at a terminal
_WIDTH = 24


def say(verb: str, what: str) -> None:
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}sagecomm: {verb}: {what}", file=sys.stderr, flush=True)


@dataclass
class Progress:
    """A bar with the time that is left: in place on a terminal, else a line now and then.

    It may be copied into other processes, which go on from `done`: all of them have the same clock.
    """

    verb: str
    total: int
    done: int = 0
    begun: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)

    def step(self, what: str) -> None:
        """Another piece of the work is done."""
        self.done += 1
        now = time.monotonic()
        if sys.stderr.isatty():
            print(f"\r\x1b[K{self.line(what, now)}", end="", file=sys.stderr, flush=True)
        elif now - self._shown >= _EVERY_S:
            self._shown = now
            print(f"sagecomm: {self.verb}: {self.line(what, now)}", file=sys.stderr, flush=True)

    def line(self, what: str, now: float) -> str:
        full = _WIDTH * self.done // self.total
        left = (now - self.begun) / self.done * (self.total - self.done)
        bar = "#" * full + "." * (_WIDTH - full)
        return f"[{bar}] {100 * self.done // self.total} %, about {about(left)} left: {what}"

    def end(self) -> None:
        """Takes the bar off the terminal."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
