"""What one iteration calls."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from sagecomm._bench.arguments import Job
from sagecomm._bench.cases import REDUCTIONS, Case
from sagecomm._interleave import Call
from sagecomm._operations import make_buffers, make_call, room_of

_MOST_SETS = 4096  # of cold buffers
_FALLBACK_CACHE = 32 << 20
_SIDES = (16, 32, 64, 128, 256, 512)  # of the matrices that are multiplied beside communication

Buffers = list[torch.Tensor]


class Sets:
    """Buffers of one case: one set, which all iterations use, or cold ones.

    Cold buffers are so many sets that all of them are twice as large as the caches, but 4096 at most; iterations take
    them in turn. Each has padding beside it that makes up what short buffers lack. padding_touched() writes that of the
    next set, outside of the measured time, so that no cache has a set when its turn comes again.
    """

    def __init__(self, make: Callable[[], Any], nbytes: int, cache: int | None) -> None:
        """Calls `make`, whose buffers have `nbytes`, for each set. `cache` is None for hot buffers."""
        number = 1 if cache is None else min(_MOST_SETS, max(2, -(-2 * cache // max(1, nbytes))))
        self.sets = [make() for _ in range(number)]
        short = 0 if cache is None else max(0, 2 * cache // number - nbytes)
        padding = [torch.empty(short, dtype=torch.uint8).zero_() for _ in self.sets] if short else []
        self._next_padding = itertools.cycle(padding) if padding else None

    @staticmethod
    def room(nbytes: int, cache: int | None) -> int:
        """Returns the bytes of all sets and their padding."""
        return nbytes if cache is None else max(2 * nbytes, 2 * cache + nbytes)

    def padding_touched(self) -> Call | None:
        padding = self._next_padding
        return None if padding is None else lambda: next(padding).zero_()

    def in_turn(self, prepare: Callable[[Any], Call]) -> Call:
        """Returns a function that calls what `prepare` returns for each set, one after the other."""
        calls = [prepare(one) for one in self.sets]
        if len(calls) == 1:
            return calls[0]
        turns = itertools.cycle(calls)
        return lambda: next(turns)()


def buffers_of(case: Case, job: Job, ranks: int) -> list[Buffers]:
    """Returns the buffers of the operations of one iteration."""
    dtype = getattr(torch, case.type)
    return [make_buffers(case.op, case.block_bytes(), ranks, dtype) for _ in range(job.aggregate)]


def bytes_of(case: Case, job: Job, ranks: int) -> int:
    """Returns the bytes of buffers_of()."""
    return job.aggregate * room_of(case.op, case.block_bytes(), ranks)


def last_level_cache() -> int:
    """Returns the bytes of the largest cache of this processor."""
    names = ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")
    sizes = [os.sysconf(name) for name in names if name in os.sysconf_names]
    return max([size for size in sizes if size > 0], default=_FALLBACK_CACHE)


def iteration(
    case: Case, job: Job, buffers: Sequence[Buffers], group: dist.ProcessGroup, beside: Call | None = None
) -> Call:
    """Returns a function that carries out all operations of an iteration in a group. With `beside`, that is called
    between the issue of asynchronous operations and the wait for them."""
    redop = getattr(dist.ReduceOp, REDUCTIONS.get(case.redop, "SUM"))
    asynchronous = job.asynchronous and not job.coalesce
    calls = [make_call(case.op, one, group, redop, max(case.root, 0), asynchronous) for one in buffers]

    def coalesced() -> None:
        with c10d._coalescing_manager(group, None, job.asynchronous) as window:
            for call in calls:
                call()
        if beside is not None:
            beside()
        if job.asynchronous:
            window.wait()

    def issued_then_awaited() -> None:
        works = [call() for call in calls]
        if beside is not None:
            beside()
        for work in works:
            work.wait()

    def one_by_one() -> None:
        for call in calls:
            call()

    if job.coalesce:
        return coalesced
    if asynchronous:
        return issued_then_awaited
    return calls[0] if len(calls) == 1 else one_by_one


def copy(buffers: tuple[torch.Tensor, torch.Tensor]) -> Call:
    """Returns a function that copies as many bytes as the size column has: what memory alone would take."""
    source, target = buffers
    return lambda: target.copy_(source)


def copy_buffers(nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(nbytes, dtype=torch.uint8).zero_(), torch.empty(nbytes, dtype=torch.uint8).zero_()


def computation(seconds: float, timed: Callable[[Call], float]) -> Call:
    """Returns a function that multiplies matrices for about so many seconds. `timed` measures one call, alike on all
    ranks. The matrices are the largest ones of which a quarter of the time is enough for one product, so that neither
    Python's share nor the remainder is large."""

    def product(side: int) -> Call:
        left, right, into = torch.rand(side, side), torch.rand(side, side), torch.empty(side, side)
        return lambda: torch.mm(left, right, out=into)

    chosen, taken = product(_SIDES[0]), timed(product(_SIDES[0]))
    for side in _SIDES[1:]:
        one = product(side)
        needed = timed(one)
        if needed > seconds / 4:
            break
        chosen, taken = one, needed
    number = max(1, round(seconds / taken))

    def compute() -> None:
        for _ in range(number):
            chosen()

    return compute
