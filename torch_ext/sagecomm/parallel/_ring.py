"""Exchanges around a ring of ranks, for context parallelism: each rank meets the block of every other one.

Ring attention (Liu et al. 2023, arXiv:2310.01889) computes on one block of keys and values while the next one is on its
way; `ring` is that loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from sagecomm._groups import member


def ring_shift(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Sends a tensor to the next rank of the group and returns that of the previous one, which has the same shape.

    It is differentiable: gradients go to the rank that the tensor came from.

    Args:
        tensor: Of the same shape and type on all ranks.
        group: The ring, in the order of its ranks; the default group if None.

    Raises:
        ValueError: There is no group, or this rank is not in it.
    """
    arriving, works = _start(tensor, member(group, "ring_shift"))
    _wait(works)
    return arriving


def ring(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields (source, block) for each rank of the group, the own block first, then that of the previous rank, and so
    on: `source` is the rank in the group whose tensor the block is.

        for source, (keys, values) in ring(torch.stack([keys, values]), manager.cp_group):
            ...                                          # the next block is on its way meanwhile

    The next block travels while the caller works on the one that it has. All ranks must take all blocks. It is
    differentiable, block by block, if every rank uses every block; gradients travel back around the ring. A block that
    does not enter the result (as under a causal mask) must be multiplied by zero rather than left out, or its rank
    would send no gradient for it.

    Args:
        tensor: Of the same shape and type on all ranks. It must not be changed before the last block was taken.
        group: The ring, in the order of its ranks; the default group if None.

    Raises:
        ValueError: There is no group, or this rank is not in it.
    """
    return _blocks(tensor, member(group, "ring"))


def _blocks(block: torch.Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, torch.Tensor]]:
    rank, size = group.rank(), group.size()
    for step in range(size):
        last = step == size - 1
        arriving, works = (block, []) if last else _start(block, group)
        yield (rank - step) % size, block
        _wait(works)
        block = arriving


class _Shift(torch.autograd.Function):
    """Returns the tensor that arrives, before it has arrived: the works are put into `works`."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, works: list[dist.Work]) -> torch.Tensor:
        ctx.group = group
        arriving, started = _exchange(tensor, group, 1)
        works += started
        return arriving

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        arriving, works = _exchange(gradient, ctx.group, -1)
        _wait(works)
        return arriving, None, None


def _start(tensor: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, list[dist.Work]]:
    works: list[dist.Work] = []
    arriving: torch.Tensor = _Shift.apply(tensor, group, works)
    return arriving, works


def _exchange(tensor: torch.Tensor, group: dist.ProcessGroup, direction: int) -> tuple[torch.Tensor, list[dist.Work]]:
    """Starts to send to the neighbour in a direction, and to receive from the other one, in one batch: whatever order
    ranks come in, none waits for another one's receive."""
    rank, size = group.rank(), group.size()
    arriving = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    to, source = (rank + direction) % size, (rank - direction) % size
    batch = [
        dist.P2POp(dist.isend, tensor.contiguous(), group=group, group_peer=to),
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=source),
    ]
    return arriving, dist.batch_isend_irecv(batch)


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
