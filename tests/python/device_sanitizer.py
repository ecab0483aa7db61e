"""What ranks of test_device_waits.py do under torch's CUDA sanitizer, which raises where it knows of no order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.cuda._sanitizer as sanitizer
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import cuda_holds
from device_calls import training
from device_p2p import peer
from device_programs import SUM, N, accelerator, expect, full, mine


def waits_in_the_stream_of_the_call() -> None:
    x, out = full(0), full(0, 2 * N)
    x += mine()
    dist.all_gather_into_tensor(out, x, async_op=True).wait()
    dist.all_reduce(x)
    expect(x, SUM)
    expect(out[N:], 2)
    expect(functional.all_reduce(x, "sum", dist.group.WORLD), 2 * SUM)
    rows = torch.full((N, 4), mine(), device=accelerator())
    dist.all_reduce(rows[:, ::2], async_op=True).wait()
    expect(rows[:, ::2] + 1, SUM + 1)


def futures() -> None:
    """Without callbacks, which run in streams of their own."""
    future = dist.all_reduce(full(mine()), async_op=True).get_future()
    expect(future.wait()[0] / 2, SUM / 2)


def batch() -> None:
    x, y = full(mine()), full(0)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer()), dist.P2POp(dist.irecv, y, peer())]):
        work.wait()
    expect(y + 1, 4 - mine())


def another_stream_that_waits_for_both() -> None:
    x, side = full(mine()), torch.cuda.Stream()
    work = dist.all_reduce(x, async_op=True)
    side.wait_stream(torch.cuda.current_stream())
    with side:
        work.wait()
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    expect(y, 2 * SUM)


def another_stream() -> None:
    """The sanitizer does not know of the order that the operation has."""
    x, side = full(mine()), torch.cuda.Stream()
    work = dist.all_reduce(x, async_op=True)
    with side:
        work.wait()
        with pytest.raises(sanitizer.CUDASanitizerErrors):
            x.mul_(2)
    torch.cuda.synchronize()
    expect(x, 2 * SUM)


PROGRAMS: list[Callable[[], Any]] = [
    waits_in_the_stream_of_the_call,
    futures,
    batch,
    another_stream_that_waits_for_both,
    another_stream,
    training,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    with sanitizer.CUDASanitizerDispatchMode():
        for program in PROGRAMS:
            program()
    cuda_holds.check()
    dist.destroy_process_group()
