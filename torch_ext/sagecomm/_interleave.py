"""Measures several things in turns, in one set of ranks: for tune and bench.

A machine's speed changes between minutes by more than most differences that are looked for. So blocks of calls
alternate, and what is compared are times of the same rounds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[], object]
Runner = Callable[[int], list[float]]
"""Makes so many calls, one after the other, and returns seconds whose mean is that of a call."""

_MOST_CALLS = 20000  # of a block
_PROBED_CALLS = 3


def in_a_loop(call: Call) -> Runner:
    """Returns a runner that reads the clock twice."""

    def run(count: int) -> list[float]:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return [(time.perf_counter() - begin) / count]

    return run


def one_by_one(call: Call, before: Call | None = None) -> Runner:
    """Returns a runner that reads the clock after each call, which takes some 50 ns, and returns seconds of each.

    `before` is called before each call, and its time is not counted.
    """

    def back_to_back(count: int) -> list[float]:
        at = [time.perf_counter()]
        for _ in range(count):
            call()
            at.append(time.perf_counter())
        return [end - begin for begin, end in itertools.pairwise(at)]

    def apart(count: int) -> list[float]:
        laps = []
        for _ in range(count):
            assert before is not None
            before()
            begin = time.perf_counter()
            call()
            laps.append(time.perf_counter() - begin)
        return laps

    return apart if before is not None else back_to_back


def block(run: Runner, count: int) -> tuple[float, list[float]]:
    """Runs one block on all ranks of the default group, from a barrier on.

    Returns:
        The mean time of a call on the slowest rank, so that all ranks decide alike, and for each time that the runner
        returned that of the rank where it was longest. Seconds.
    """
    dist.barrier()
    laps = run(count)
    taken = torch.tensor([sum(laps) / len(laps), *laps], dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    mean, *slowest = taken.tolist()
    return mean, slowest


def calls_in(seconds: float, run: Runner, least: int = 2) -> int:
    """Returns how many calls fill a block of so many seconds, alike on all ranks."""
    return max(least, min(_MOST_CALLS, int(seconds / block(run, _PROBED_CALLS)[0])))


def rounds(
    runners: Mapping[Any, Runner], counts: Mapping[Any, int], number: int
) -> Iterator[dict[Any, tuple[float, list[float]]]]:
    """Yields what block() returns for each runner, round by round. Each runner is the first in some of the rounds, and
    meets what another one has left in the caches in the others."""
    names = list(runners)
    for i in range(number):
        first = i % len(names)
        order = names[first:] + names[:first]
        yield {name: block(runners[name], counts[name]) for name in order}
