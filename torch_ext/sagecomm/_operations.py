"""The operations that tune and bench measure: their buffers and their calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def make_buffers(op: str, nbytes: int, size: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Makes the buffers of one call. `nbytes` are those of one rank's tensor, or of one block. They hold zeros, which
    sums leave as they are, in memory that was touched."""
    counts = {
        "all_gather": [1, size],
        "reduce_scatter": [1, size],
        "all_to_all": [size, size],
        "gather": [1] * (1 + size),
        "scatter": [1] * (1 + size),
        "shift": [1, 1],
    }.get(op, [1])
    length = max(nbytes // dtype.itemsize, 1)
    return [torch.empty(count * length, dtype=dtype).zero_() for count in counts]


def room_of(op: str, nbytes: int, size: int) -> int:
    """Returns the bytes of a rank's buffers."""
    blocks = {
        "all_gather": 1 + size,
        "reduce_scatter": 1 + size,
        "all_to_all": 2 * size,
        "gather": 1 + size,
        "scatter": 1 + size,
        "shift": 2,
    }
    return nbytes * blocks.get(op, 1)


def make_call(
    op: str,
    buffers: list[torch.Tensor],
    group: dist.ProcessGroup | None,
    redop: Any = dist.ReduceOp.SUM,
    root: int = 0,
    asynchronous: bool = False,
) -> Callable[[], Any]:
    """Returns a function that makes one call with buffers of [make_buffers].

    send_recv is a round trip between ranks 0 and 1, and shift sends to the next rank and receives from the one before;
    both return when they are through. Of the others an asynchronous call returns torch's Work.
    """
    x, *others = buffers
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = others if rank == root else None
    how: dict[str, Any] = {"group": group, "async_op": asynchronous}

    def round_trip() -> None:
        if rank == 0:
            dist.send(x, 1, group=group)
            dist.recv(x, 1, group=group)
        elif rank == 1:
            dist.recv(x, 0, group=group)
            dist.send(x, 0, group=group)

    def shift() -> None:
        sent = dist.isend(x, (rank + 1) % size, group=group)
        received = dist.irecv(others[0], (rank - 1) % size, group=group)
        for work in (sent, received):
            assert work is not None  # this rank is in the group
            work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x, redop, **how),
        "broadcast": lambda: dist.broadcast(x, root, **how),
        "reduce": lambda: dist.reduce(x, root, redop, **how),
        "all_gather": lambda: dist.all_gather_into_tensor(others[0], x, **how),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, others[0], redop, **how),
        "all_to_all": lambda: dist.all_to_all_single(others[0], x, **how),
        "gather": lambda: dist.gather(x, blocks, root, **how),
        "scatter": lambda: dist.scatter(x, blocks, root, **how),
        "barrier": lambda: dist.barrier(**how),
        "send_recv": round_trip,
        "shift": shift,
    }
    return calls[op]


def free_memory() -> int:
    """Returns the bytes that processes of this host can still have, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def room_per_rank() -> int:
    """Returns the bytes that the buffers of each rank of the default group may take: half of what is free, shared by
    all ranks of a host. The least of all hosts counts."""
    free = torch.tensor([free_memory()], dtype=torch.int64)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    return int(free.item()) // 2 // dist.get_world_size()
