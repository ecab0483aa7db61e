"""Collectives and p2p operations as functions, with the calling conventions of `torch.distributed`.

They work with every backend. `op` is a `torch.distributed.ReduceOp` or a name such as "sum"; ranks (`src`, `dst`) are
those of the job, whatever the group; `group` is the default group if None. With `async_op=True` a collective returns a
`torch.futures.Future` whose `wait()` returns what the call returns otherwise. Autograd does not record them:
`sagecomm.autograd` has forms with gradients.

Every function raises ValueError if there is no group, or if this rank is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch.futures import Future

from sagecomm._groups import member, rank_in_group
from sagecomm._reductions import Reduction
from sagecomm.backends.group import GroupBackend
from sagecomm.backends.protocol import CommBackendProtocol

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "irecv",
    "isend",
    "recv",
    "reduce_scatter",
    "send",
]


@overload
def all_reduce(
    tensor: torch.Tensor,
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    async_op: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def all_reduce(
    tensor: torch.Tensor, op: Reduction = ..., group: dist.ProcessGroup | None = ..., *, async_op: Literal[True]
) -> Future[torch.Tensor]: ...
@overload
def all_reduce(
    tensor: torch.Tensor, op: Reduction = ..., group: dist.ProcessGroup | None = ..., async_op: bool = ...
) -> torch.Tensor | Future[torch.Tensor]: ...
def all_reduce(
    tensor: torch.Tensor,
    op: Reduction = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> torch.Tensor | Future[torch.Tensor]:
    """Combines the tensors of all ranks element by element.

    Args:
        tensor: Of the same shape and type on all ranks. Overwritten with the result.
        op: The reduction.
        group: The process group.
        async_op: Return a future.

    Returns:
        `tensor`.
    """
    return _on(member(group, "all_reduce")).all_reduce(tensor, op, async_op)


@overload
def all_gather(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = ..., async_op: Literal[False] = ...
) -> list[torch.Tensor]: ...
@overload
def all_gather(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = ..., *, async_op: Literal[True]
) -> Future[list[torch.Tensor]]: ...
@overload
def all_gather(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = ..., async_op: bool = ...
) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
def all_gather(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
    """Returns the tensors of all ranks.

    Args:
        tensor: Of the same shape and type on all ranks.
        group: The process group.
        async_op: Return a future.

    Returns:
        One tensor of the shape of `tensor` for each rank of the group, in their order. They are parts of one tensor.
    """
    tensors: list[torch.Tensor] | Future[list[torch.Tensor]]
    tensors = GroupBackend(member(group, "all_gather")).gather_list(tensor, async_op)
    return tensors


@overload
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    async_op: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    *,
    async_op: Literal[True],
) -> Future[torch.Tensor]: ...
@overload
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    async_op: bool = ...,
) -> torch.Tensor | Future[torch.Tensor]: ...
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Reduction = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> torch.Tensor | Future[torch.Tensor]:
    """Combines the lists of all ranks, tensor by tensor, and gives each rank one tensor of the result.

    Args:
        output: Where the combination of what all ranks have for this rank goes.
        input_list: One tensor of the shape and type of `output` for each rank of the group.
        op: The reduction.
        group: The process group.
        async_op: Return a future.

    Returns:
        `output`.

    Raises:
        ValueError: `input_list` has another length than the group has ranks, or a tensor of another shape.
    """
    reduced: torch.Tensor | Future[torch.Tensor]
    reduced = GroupBackend(member(group, "reduce_scatter")).reduce_scatter_list(output, input_list, op, async_op)
    return reduced


@overload
def broadcast(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = ..., async_op: Literal[False] = ...
) -> torch.Tensor: ...
@overload
def broadcast(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = ..., *, async_op: Literal[True]
) -> Future[torch.Tensor]: ...
@overload
def broadcast(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = ..., async_op: bool = ...
) -> torch.Tensor | Future[torch.Tensor]: ...
def broadcast(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> torch.Tensor | Future[torch.Tensor]:
    """Copies the tensor of one rank to all ranks.

    Args:
        tensor: Of the same shape and type on all ranks. Overwritten on all but `src`.
        src: The rank whose tensor is copied.
        group: The process group.
        async_op: Return a future.

    Returns:
        `tensor`.
    """
    pg = member(group, "broadcast")
    return _on(pg).broadcast(tensor, rank_in_group(pg, src, "broadcast"), async_op)


@overload
def all_to_all(
    send_list: Sequence[torch.Tensor],
    recv_list: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = ...,
    async_op: Literal[False] = ...,
) -> list[torch.Tensor]: ...
@overload
def all_to_all(
    send_list: Sequence[torch.Tensor],
    recv_list: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = ...,
    *,
    async_op: Literal[True],
) -> Future[list[torch.Tensor]]: ...
@overload
def all_to_all(
    send_list: Sequence[torch.Tensor],
    recv_list: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = ...,
    async_op: bool = ...,
) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
def all_to_all(
    send_list: Sequence[torch.Tensor],
    recv_list: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
    """Sends one tensor to each rank and receives one from each.

    `torch.distributed.all_to_all` has the lists in the other order.

    Args:
        send_list: Tensor r goes to rank r of the group.
        recv_list: Where the tensor of rank r goes, of the length that rank r sends. All tensors have one type.
        group: The process group.
        async_op: Return a future.

    Returns:
        `recv_list` as a list.

    Raises:
        ValueError: A list has another length than the group has ranks.
    """
    return _on(member(group, "all_to_all")).all_to_all(send_list, recv_list, async_op)


def send(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
    """Sends a tensor to rank `dst`. Returns when it may be changed again.

    Args:
        tensor: What is sent.
        dst: The rank that receives it.
        group: The process group.
        tag: What the receiver names too.
    """
    pg = member(group, "send")
    _on(pg).send(tensor, rank_in_group(pg, dst, "send"), tag)


def recv(tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
    """Receives a tensor from rank `src`.

    Args:
        tensor: Where it goes, of the length and type of what is sent.
        src: The rank that sends it.
        group: The process group.
        tag: What the sender names too.
    """
    pg = member(group, "recv")
    _on(pg).recv(tensor, rank_in_group(pg, src, "recv"), tag)


def isend(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> dist.Work:
    """Sends a tensor to rank `dst` and does not wait.

    Args:
        tensor: What is sent. It must not be changed until the work is complete.
        dst: The rank that receives it.
        group: The process group.
        tag: What the receiver names too.

    Returns:
        The work. Its `wait()` returns when the tensor may be changed again.
    """
    pg = member(group, "isend")
    return GroupBackend(pg).isend(tensor, rank_in_group(pg, dst, "isend"), tag)


def irecv(tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> dist.Work:
    """Receives a tensor from rank `src` and does not wait.

    Args:
        tensor: Where it goes, of the length and type of what is sent. It must not be used until the work is complete.
        src: The rank that sends it.
        group: The process group.
        tag: What the sender names too.

    Returns:
        The work. Its `wait()` returns when the tensor is there.
    """
    pg = member(group, "irecv")
    return GroupBackend(pg).irecv(tensor, rank_in_group(pg, src, "irecv"), tag)


def _on(group: dist.ProcessGroup) -> CommBackendProtocol:
    return GroupBackend(group)
