"""What ranks of test_device_faults.py do where a device fails behind the issue of an operation, as by an assertion in a
kernel: the wait on the host ends with that error, and not with the timeout."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import fake_cuda
from device_calls import MINUTE
from device_failures import hurry, join, meet, warm
from device_nccl import join_group
from device_programs import N, accelerator, full, held, mine
from device_waits import copies_out, until

BREAKS = "breaks=aten::cosh_@1=#710"  # the kernel with the assertion
TEXT = r"(cannot go on as its peers do in {op}.* on a device: cuda:\d is out of order: CUDA error: device-side assert)"


def peer() -> int:
    return 1 - dist.get_rank()


def barrier(x: torch.Tensor) -> None:
    dist.barrier(device_ids=[accelerator().index])


def all_reduce(x: torch.Tensor) -> None:
    dist.all_reduce(x)


def waited(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True).wait(MINUTE)


def exchange(x: torch.Tensor, source: int | None, tag: int) -> None:
    works = [dist.irecv(x, source, tag=tag), dist.isend(KEPT[0], peer(), tag=tag)]
    for work in works:
        assert work is not None
        work.wait(MINUTE)


# torch's allocator ends a process that gives memory back to a device that has failed.
KEPT: list[torch.Tensor] = []


def recv_with_a_tag(x: torch.Tensor) -> None:
    exchange(x, peer(), 1)


def recv_from_any_source(x: torch.Tensor) -> None:
    exchange(x, None, 0)


def end(x: torch.Tensor) -> None:
    dist.all_reduce(x)
    dist.destroy_process_group()


CALLS: dict[str, tuple[Callable[[torch.Tensor], None], str]] = {
    "barrier": (barrier, "barrier"),
    "all_reduce": (all_reduce, "all_reduce"),
    "wait": (waited, "all_reduce"),
    "recv with a tag": (recv_with_a_tag, "(recv|send)"),
    "recv from any source": (recv_from_any_source, "(recv|send)"),
    "end": (end, "all_reduce"),
}


def a_device_fails(rank: int, size: int, store: str, call: str, ranks: int) -> None:
    """That of rank 0, or those of all ranks."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    x = full(mine())
    KEPT[:] = [full(0, N), x]
    exchange(full(0), peer(), 1)
    torch.cuda.synchronize()
    meet("warm")
    function, op = CALLS[call]
    if rank < ranks:
        x.cosh_()
    with pytest.raises(dist.DistBackendError, match=TEXT.format(op=op)):
        function(x)
    assert dist.is_initialized() == (call != "end")
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank >= ranks:
        torch.cuda.synchronize()
    else:
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.cuda.synchronize()


# ---- memory of operations whose tensors nobody has any more: what gives it back would end the process ----


def joined_and_dropped(group: Any, strided: bool) -> None:
    """The current stream waits for an operation whose input is there, and whose peer has not called it."""
    x = torch.full((N, 2), mine(), device=accelerator())
    torch.cuda.synchronize()
    before = copies_out()
    work = dist.all_reduce(x[:, ::2] if strided else x, group=group, async_op=True)
    assert work is not None
    work.wait()
    until(lambda: copies_out() > before)
    del x, work
    gc.collect()


def break_the_device() -> None:
    """In a stream that waits for no operation."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        KEPT.append(torch.ones(N, device=accelerator()).cosh_())
    with pytest.raises(RuntimeError, match="device-side assert"):
        side.synchronize()


def fails_behind_a_fault(rank: int, size: int, store: str, how: str, strided: bool) -> None:
    """The operation of rank 0 fails by a death or a timeout, and nobody has asked the device, which is out of order."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["broken"], MINUTE)
        if how == "death":
            os._exit(3)
        dist.distributed_c10d._get_default_store().wait(["told"], MINUTE)
        return
    if how == "timeout":
        hurry(None)
    joined_and_dropped(None, strided)
    break_the_device()
    shared = dist.distributed_c10d._get_default_store()
    shared.set("broken", b"")
    backend = dist.distributed_c10d._get_default_group()._get_backend(accelerator())
    until(lambda: backend.get_error() != ErrorType.SUCCESS)
    assert (backend.get_error() == ErrorType.TIMEOUT) == (how == "timeout")
    dist.destroy_process_group()
    if how == "timeout":
        shared.set("told", b"")


def other_group_goes_on(rank: int, size: int, store: str, strided: bool) -> None:
    """Rank 0 finds the fault by a wait in one group. An operation of another one succeeds behind that, since its input
    was there before."""
    join(rank, size, store, timeout=MINUTE)
    other = dist.new_group()
    warm()
    warm(other)
    meet("warm")
    x = full(mine())
    torch.cuda.synchronize()
    if rank == 0:
        joined_and_dropped(other, strided)
    side = torch.cuda.Stream()
    with side, held(side):  # the device breaks when the operation is issued
        if rank == 0:
            KEPT[:] = [x, full(1).cosh_()]
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
    if rank == 0:
        with pytest.raises(RuntimeError, match="device-side assert"):
            side.synchronize()
    with side, pytest.raises(dist.DistBackendError, match="is out of order"):
        work.wait(MINUTE)
    meet("found")
    if rank == 1:
        x = torch.full((N, 2), mine(), device=accelerator())
        dist.all_reduce(x[:, ::2] if strided else x, group=other)
        torch.cuda.synchronize()
    meet("over")
    dist.destroy_process_group(other)
    dist.destroy_process_group()


def an_event_fails(rank: int, size: int, store: str) -> str:
    """What the ranks raise when torch on rank 0 cannot record an event any more."""
    join_group(rank, size, store, 0)
    x = full(1.0)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 0:
        assert fake_cuda.emulator().emulator_plan(b"cuEventRecord@1+=invalid_value") == 0
    text = ""
    while not text:
        try:
            dist.all_reduce(x)
        except dist.DistBackendError as error:
            text = str(error)
    fake_cuda.emulator().emulator_plan(b"")
    with suppress(dist.DistBackendError):
        dist.destroy_process_group()
    return text
