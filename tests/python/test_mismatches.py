"""Mismatches: every rank gets both calls, soon, and again from every later call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from failing import caught, meet
from promises import kept

MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
    "elements": (
        lambda: dist.all_reduce(torch.ones(1001)),
        lambda: dist.all_reduce(torch.ones(1000)),
        "all_reduce (float32, SUM, 1001 elements)",
        "all_reduce (float32, SUM, 1000 elements)",
    ),
    "many elements": (
        lambda: dist.all_reduce(torch.ones(1_000_001), async_op=True),
        lambda: dist.all_reduce(torch.ones(1_000_000), async_op=True),
        "all_reduce (float32, SUM, 1000001 elements)",
        "all_reduce (float32, SUM, 1000000 elements)",
    ),
    "size classes": (
        lambda: dist.all_reduce(torch.ones(10)),
        lambda: dist.all_reduce(torch.ones(500_000)),
        "all_reduce (float32, SUM, 10 elements)",
        "all_reduce (float32, SUM, 500000 elements)",
    ),
    "kinds": (
        lambda: dist.broadcast(torch.ones(100), 0),
        lambda: dist.reduce(torch.ones(100), 0),
        "broadcast (float32, 100 elements, root 0)",
        "reduce (float32, SUM, 100 elements, root 0)",
    ),
    "barrier": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.barrier(),
        "all_reduce (float32, SUM, 100 elements)",
        "barrier",
    ),
    "sync and async": (
        lambda: dist.all_reduce(torch.ones(7), async_op=True),
        lambda: dist.all_reduce(torch.ones(8)),
        "all_reduce (float32, SUM, 7 elements)",
        "all_reduce (float32, SUM, 8 elements)",
    ),
    "types": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.all_reduce(torch.ones(100, dtype=torch.int32)),
        "all_reduce (float32, SUM, 100 elements)",
        "all_reduce (int32, SUM, 100 elements)",
    ),
    "formats of 8-bit floats": (
        lambda: dist.all_gather_into_tensor(
            torch.ones(dist.get_world_size() * 30).to(torch.float8_e5m2), torch.ones(30).to(torch.float8_e5m2)
        ),
        lambda: dist.all_gather_into_tensor(
            torch.ones(dist.get_world_size() * 30).to(torch.float8_e4m3fn), torch.ones(30).to(torch.float8_e4m3fn)
        ),
        "all_gather (float8_e5m2, 30 elements)",
        "all_gather (float8_e4m3fn, 30 elements)",
    ),
    "reductions": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.all_reduce(torch.ones(100), op=dist.ReduceOp.MAX),
        "all_reduce (float32, SUM, 100 elements)",
        "all_reduce (float32, MAX, 100 elements)",
    ),
    "roots": (
        lambda: dist.broadcast(torch.ones(100), 0),
        lambda: dist.broadcast(torch.ones(100), 1),
        "broadcast (float32, 100 elements, root 0)",
        "broadcast (float32, 100 elements, root 1)",
    ),
    "all_gather": (
        lambda: dist.all_gather_into_tensor(torch.empty(dist.get_world_size() * 30), torch.ones(30)),
        lambda: dist.all_gather_into_tensor(torch.empty(dist.get_world_size() * 31), torch.ones(31)),
        "all_gather (float32, 30 elements)",
        "all_gather (float32, 31 elements)",
    ),
}


def disagree(what: str, odd: int, before: int) -> tuple[Any, float, float, Any]:
    for _ in range(before):
        dist.all_reduce(torch.ones(10))
    dist.barrier()
    meet()
    call = MISMATCHES[what][0 if dist.get_rank() == odd else 1]
    began = time.monotonic()
    try:
        work = call()
        if work is not None:
            work.wait()
        # No data came to this rank: a root's broadcast, or a reduce to another rank. The next call in which data
        # moves between the ranks carries the difference.
        assert what in ("kinds", "roots"), "the call succeeded"
        error, _, ended = caught(lambda: dist.all_reduce(torch.ones(3)))
    except dist.DistBackendError as raised:
        error, ended = raised, time.monotonic()
    later = caught(lambda: dist.all_reduce(torch.ones(3)))[0]
    return error, began, ended, later


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_mismatch_names_both_calls_on_all_ranks(world, size, what):
    for odd, before in ((1, 0), (0, 3), (size - 1, 40)):
        answers = world(size).run(disagree, what, odd, before)
        last = max(began for _, began, _, _ in answers)
        for rank, (error, _, ended, later) in enumerate(answers):
            assert type(error) is sagecomm.CollectiveMismatch, f"rank {rank}: {error}"
            for call in MISMATCHES[what][2:]:
                assert call in str(error), f"rank {rank}: {call!r} is not in: {error}"
            assert f"#{before + 2}" in str(error), error
            assert f"rank {odd} called {MISMATCHES[what][2]}" in str(error), error
            kept(ended - last, 1, f"to know of the mismatch on rank {rank}")
            assert str(later) == str(error), later


def wrong_length() -> str:
    t = torch.ones(10 if dist.get_rank() == 0 else 12)
    meet()
    if dist.get_rank() == 0:
        dist.isend(t, 1)
        return str(caught(lambda: dist.barrier())[0])
    error, began, ended = caught(lambda: dist.irecv(t, 0))
    kept(ended - began, 1)
    assert type(error) is sagecomm.CollectiveMismatch, error
    return str(error)


def test_a_send_of_another_length_than_the_recv(world):
    for text in world(2).run(wrong_length):
        assert "recv" in text
        assert "12 elements" in text
        assert "40 bytes" in text
