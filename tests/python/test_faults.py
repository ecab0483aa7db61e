"""A sample of the fault matrix through torch, with calls that the other tests of failures do not make. The matrix
itself is tests/faults, whose ranks have no torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from programs import await_calls, await_stop, in_background, report
from promises import kept
from worker import Outcome
from worlds import World

SIZE = 3
TIMEOUT = timedelta(seconds=2)  # the last survivor's, where a rank is stopped
BOUND_S = 2.0
COUNT = 40_000


# ---- calls: each checks what comes out ----


def reduce_scatter() -> None:
    out = torch.empty(COUNT)
    dist.reduce_scatter_tensor(out, torch.ones(SIZE * COUNT) * (dist.get_rank() + 1))
    assert bool((out == 6).all())


def all_to_all() -> None:
    """Rank r has r + 1 elements for everybody."""
    rank = dist.get_rank()
    out = torch.empty(6)
    dist.all_to_all_single(out, torch.full((SIZE * (rank + 1),), float(rank)), [1, 2, 3], [rank + 1] * SIZE)
    assert out.tolist() == [0, 1, 1, 2, 2, 2]


def gather() -> None:
    rank = dist.get_rank()
    out = [torch.empty(COUNT) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(torch.full((COUNT,), float(rank)), out, 0)
    assert out is None or [t[-1].item() for t in out] == [0, 1, 2]


def scatter() -> None:
    rank = dist.get_rank()
    out = torch.empty(COUNT)
    dist.scatter(out, [torch.full((COUNT,), float(r)) for r in range(SIZE)] if rank == 1 else None, 1)
    assert out[-1].item() == rank


def window() -> None:
    tensors = [torch.ones(n) for n in (10, 1000, COUNT)]
    with c10d._coalescing_manager(async_ops=True) as manager:
        for t in tensors:
            dist.all_reduce(t)
    manager.wait()
    assert all(t[-1].item() == SIZE for t in tensors)


def batch() -> None:
    rank = dist.get_rank()
    out = torch.empty(COUNT)
    to, source = (rank + 1) % SIZE, (rank - 1) % SIZE
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((COUNT,), float(rank)), to), dist.P2POp(dist.irecv, out, source)]
    )
    for work in works:
        work.wait()
    assert out[-1].item() == source


def objects() -> None:
    got: list[Any] = [None] * SIZE
    dist.all_gather_object(got, {"rank": dist.get_rank()})
    assert [each["rank"] for each in got] == [0, 1, 2]


def works() -> None:
    """Several operations in flight, waited for in another order."""
    a, b = torch.ones(COUNT), torch.ones(5)
    out = torch.empty(SIZE * 5)
    flying = [
        dist.all_reduce(a, async_op=True),
        dist.all_gather_into_tensor(out, b, async_op=True),
        dist.all_reduce(b, async_op=True),
    ]
    for work in reversed(flying):
        work.wait()
    assert (a[-1].item(), b[-1].item(), out[-1].item()) == (SIZE, SIZE, 1)


CALLS: dict[str, Callable[[], None]] = {
    call.__name__: call for call in (reduce_scatter, all_to_all, gather, scatter, window, batch, objects, works)
}


# ---- faults ----


class OfTheTest(Exception):
    """The error of a rank whose script fails."""


def strike(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit":
        os._exit(7)
    elif fault == "exception":
        raise OfTheTest
    elif fault == "abort":
        group: Any = c10d._get_default_group()
        group._get_backend(torch.device("cpu")).abort()
    elif fault == "mismatch":
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
    else:
        threading.Event().wait(0.3)  # late for the call


Told = tuple[str, int | None, int | None, str]


def told(error: dist.DistBackendError) -> Told:
    return type(error).__name__, getattr(error, "rank", None), getattr(error, "pid", None), str(error)


def last_survivor(culprit: int) -> int:
    return SIZE - 1 if culprit != SIZE - 1 else SIZE - 2


def meet(call: str, fault: str, culprit: int, path: str) -> tuple[Told, Told, float]:
    """The error of a rank, at once and later, and how long after its entry into the call the error came."""
    make = CALLS[call]
    make()
    dist.barrier()
    if fault == "stop" and dist.get_rank() == last_survivor(culprit):  # the other survivor has a long timeout
        await_calls(3, *{0, 1, 2} - {culprit, dist.get_rank()})
        group: Any = c10d._get_default_group()
        group._get_backend(torch.device("cpu"))._set_default_timeout(TIMEOUT)
    entered = time.monotonic()
    try:
        if dist.get_rank() == culprit:
            strike(fault)
        while True:  # a rank that needs no peer repeats the call until it does
            entered = time.monotonic()
            make()
    except dist.DistBackendError as error:
        first, took = told(error), time.monotonic() - entered
    report(path)
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        return first, told(error), took
    raise AssertionError("a later barrier succeeded")


def late(call: str, culprit: int) -> None:
    for _ in range(2):
        CALLS[call]()
        if dist.get_rank() == culprit:
            strike("slow")
    CALLS[call]()


# ---- cells ----

KINDS = {
    "kill": "PeerFailure",
    "exit": "PeerFailure",
    "exception": "PeerFailure",
    "stop": "CollectiveTimeout",
    "abort": "Aborted",
    "mismatch": "CollectiveMismatch",
}


def check_culprit(outcome: Outcome, fault: str, first: str) -> None:
    if fault in ("kill", "exit"):
        assert outcome.exitcode == (-signal.SIGKILL if fault == "kill" else 7)
    elif fault == "exception":
        assert isinstance(outcome.error, OfTheTest), outcome.trace
    else:
        assert outcome.ok, outcome.trace
        assert outcome.value[0][3] == outcome.value[1][3] == first


@pytest.mark.parametrize(
    ("fault", "call", "culprit"),
    [
        ("kill", "window", 0),
        ("kill", "batch", 1),
        ("kill", "all_to_all", 2),
        ("kill", "works", 1),
        ("exit", "scatter", 1),
        ("exit", "objects", 2),
        ("exception", "gather", 0),
        ("exception", "works", 2),
        pytest.param("stop", "reduce_scatter", 1, marks=pytest.mark.long),
        pytest.param("stop", "window", 2, marks=pytest.mark.long),
        ("abort", "all_to_all", 0),
        ("abort", "batch", 2),
        ("mismatch", "scatter", 2),
        ("mismatch", "works", 0),
    ],
)
def test_everybody_is_told_who(mortals, signals, fault, call, culprit):
    ranks: World = mortals.world(SIZE)
    pids = ranks.pids()
    outcomes = in_background(ranks, meet, call, fault, culprit, signals.path)
    if fault == "stop":
        signals.await_many(SIZE - 1)
        await_stop(pids[culprit])
        os.kill(pids[culprit], signal.SIGCONT)
    answers = outcomes.result(90)
    first = ""
    for outcome in answers:
        if outcome.rank == culprit:
            continue
        assert outcome.ok, outcome.trace
        at_once, later, took = outcome.value
        kind, rank, pid, text = at_once
        assert kind == KINDS[fault], text
        assert isinstance(getattr(sagecomm, kind), type)
        if fault == "mismatch":
            assert f"rank {culprit} called" in text
        else:
            assert (rank, pid) == (culprit, pids[culprit]), text
        assert later == at_once, "the first cause stands"
        first = first or text
        assert text == first, "and is the same on all ranks"
        if fault != "stop":
            kept(took, BOUND_S, "to raise")
        elif outcome.rank == last_survivor(culprit):
            kept(took - TIMEOUT.total_seconds(), BOUND_S, "to raise")
    check_culprit(answers[culprit], fault, first)
    assert mortals.world(SIZE).run(sum_of_ones) == [SIZE] * SIZE, "those that live make a new group"


def sum_of_ones() -> float:
    t = torch.ones(1000)
    dist.all_reduce(t)
    return t[-1].item()


@pytest.mark.parametrize(
    ("call", "culprit"),
    [("reduce_scatter", 0), *(pytest.param(*case, marks=pytest.mark.long) for case in (("batch", 1), ("works", 2)))],
)
def test_a_slow_rank_is_waited_for(world, call, culprit):
    assert world(SIZE).run(late, call, culprit) == [None] * SIZE
