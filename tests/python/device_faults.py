"""What ranks of test_device_faults.py do where a device fails behind the issue of an operation, as by an assertion in a
kernel: the wait on the host ends with that error, and not with the timeout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from device_calls import MINUTE
from device_failures import join, meet, warm
from device_programs import N, accelerator, full, mine

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
