"""Collectives with gradients, for layers.

They return new tensors and record themselves for autograd; so does each gradient, which can be differentiated again.
The gradient of a rank's input is that of the sum of the losses of all ranks. All ranks take part in the collective of
the backward pass as well: if one rank uses the output for its loss, all must, and if one rank's input requires a
gradient, those of all ranks must. The tensor that broadcast() replaces needs `requires_grad_()` too.

`copy_to_group`, `reduce_from_group`, `gather_from_group` and `scatter_to_group` are for layers whose ranks go on with
one and the same tensor and the same loss, as in tensor parallelism (Shoeybi et al., "Megatron-LM: Training
Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3). There each rank's gradient already
is the whole one, so it must not be added up again.

As in `torch.distributed`, ranks in arguments (`src`) are those of the job, whatever the group; `op` is a name or a
`torch.distributed.ReduceOp`; `group` is the default group if None. Every function raises ValueError if there is no
group, or if this rank is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sagecomm._groups import member, rank_in_group
from sagecomm._reductions import Reduction, reduce_op
from sagecomm.backends.group import GroupBackend
from sagecomm.backends.protocol import CommBackendProtocol

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_uneven",
    "broadcast",
    "copy_to_group",
    "gather_from_group",
    "reduce_from_group",
    "reduce_scatter",
    "scatter_to_group",
]


def all_reduce(tensor: torch.Tensor, op: Reduction = "sum", group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the sum or the mean of the tensors of all ranks. The gradient is that of all ranks' outputs, likewise.

    Args:
        tensor: Of the same shape and type on all ranks.
        op: "sum" or "avg", or ReduceOp.SUM or ReduceOp.AVG.
        group: The process group.

    Raises:
        ValueError: Another reduction.
    """
    return _apply(_AllReduce, tensor, _linear(op, "all_reduce"), _of(group, "all_reduce"))


def all_gather(tensor: torch.Tensor, dim: int = 0, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the tensors of all ranks, one behind the other. Its gradient is summed over all ranks.

    Args:
        tensor: Of the same shape and type on all ranks, with one dimension or more.
        dim: Along which they are put together.
        group: The process group.
    """
    return _apply(_AllGather, tensor, _dimension(tensor, dim, "all_gather"), _of(group, "all_gather"))


def reduce_scatter(
    tensor: torch.Tensor, op: Reduction = "sum", dim: int = 0, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Returns this rank's part of the sum or the mean. The gradient is put together from those of all ranks.

    Args:
        tensor: Of the same shape and type on all ranks.
        op: "sum" or "avg", or ReduceOp.SUM or ReduceOp.AVG.
        dim: Along which it is parted; its length is a multiple of the number of ranks.
        group: The process group.

    Raises:
        ValueError: Another reduction, or another length.
    """
    reduction = _linear(op, "reduce_scatter")
    backend = _of(group, "reduce_scatter")
    dim = _divisible(tensor, dim, backend, "reduce_scatter")
    return _apply(_ReduceScatter, tensor, reduction, dim, backend)


def broadcast(tensor: torch.Tensor, src: int = 0, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the tensor of rank `src`. Its gradient is the sum of all ranks'; that of other ranks' tensors is 0.

    Args:
        tensor: Of the same shape and type on all ranks.
        src: The rank of the job whose tensor is returned.
        group: The process group.

    Raises:
        ValueError: `src` is not in the group.
    """
    backend = _of(group, "broadcast")
    return _apply(_Broadcast, tensor, rank_in_group(backend.group, src, "autograd.broadcast"), backend)


def all_to_all(
    tensor: torch.Tensor, scatter_dim: int = 0, gather_dim: int = 0, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Parts a tensor along one dimension, sends a part to each rank, and puts what it receives together along another.

    With different dimensions a tensor that was parted by one is parted by the other afterwards, as sequence parallelism
    exchanges sequence and heads (Jacobs et al., "DeepSpeed Ulysses", 2023). The gradient goes back the same way.

    Args:
        tensor: Of the same shape and type on all ranks.
        scatter_dim: Parted; its length is a multiple of the number of ranks.
        gather_dim: Along which the parts are put together.
        group: The process group.

    Raises:
        ValueError: Another length.
    """
    backend = _of(group, "all_to_all")
    scatter_dim = _divisible(tensor, scatter_dim, backend, "all_to_all")
    return _apply(_AllToAll, tensor, scatter_dim, _dimension(tensor, gather_dim, "all_to_all"), backend)


def all_to_all_uneven(
    tensor: torch.Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sends a number of rows to each rank, as mixtures of experts do. The gradient goes back the same way.

    Args:
        tensor: Of shape `[sum(input_splits), ...]`; the rest is the same on all ranks.
        output_splits: Rows from each rank.
        input_splits: Rows to each rank.
        group: The process group.

    Returns:
        The rows from all ranks in their order, of shape `[sum(output_splits), ...]`.

    Raises:
        ValueError: The splits do not have one number for each rank, or not as many rows as the tensor.
    """
    backend = _of(group, "all_to_all_uneven")
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(input_splits) != backend.world_size or len(output_splits) != backend.world_size or sum(input_splits) != rows:
        raise ValueError(
            f"sagecomm: autograd.all_to_all_uneven: splits {list(input_splits)} to {list(output_splits)} of {rows} "
            f"rows for {backend.world_size} ranks"
        )
    return _apply(_AllToAllUneven, tensor, tuple(output_splits), tuple(input_splits), backend)


def copy_to_group(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns a copy of the tensor, which is the same on all ranks. The gradient is the sum of all ranks'."""
    # _CopyTo returns a view, for backward passes.
    return _apply(_CopyTo, tensor, _of(group, "copy_to_group")).clone()


def reduce_from_group(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the sum of all ranks' tensors. The gradient is passed on as it is."""
    return _apply(_ReduceFrom, tensor, _of(group, "reduce_from_group"))


def gather_from_group(tensor: torch.Tensor, dim: int = -1, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the tensors of all ranks, put together along `dim`. The gradient is this rank's part."""
    backend = _of(group, "gather_from_group")
    return _apply(_GatherFrom, tensor, _dimension(tensor, dim, "gather_from_group"), backend)


def scatter_to_group(tensor: torch.Tensor, dim: int = -1, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns this rank's part along `dim` of a tensor that is the same on all ranks. The gradient is put together from
    those of all ranks.

    Raises:
        ValueError: The length of `dim` is no multiple of the number of ranks.
    """
    backend = _of(group, "scatter_to_group")
    return _apply(_ScatterTo, tensor, _divisible(tensor, dim, backend, "scatter_to_group"), backend)


# Outputs are no views: autograd forbids to change a view that such a function returns in place.
# Each backward pass calls another function of this module, and so is recorded itself.


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.op, ctx.backend = op, backend
        return backend.all_reduce(_copy(tensor), op)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_AllReduce, grads[0], ctx.op, ctx.backend), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.dim, ctx.backend = dim, backend
        return _gathered(tensor, dim, backend)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_ReduceScatter, grads[0], "sum", ctx.dim, ctx.backend), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, dim: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.op, ctx.dim, ctx.backend = op, dim, backend
        return backend.reduce_scatter(_parts(tensor, dim, backend.world_size).flatten(0, 1), op)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        grad = _apply(_AllGather, grads[0], ctx.dim, ctx.backend)
        return grad / ctx.backend.world_size if ctx.op == "avg" else grad, None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, src: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.src, ctx.backend = src, backend
        return backend.broadcast(_copy(tensor), src)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_ReduceTo, grads[0], ctx.src, ctx.backend), None, None


class _ReduceTo(torch.autograd.Function):
    """The sum of all ranks on one, 0 on the others."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dst: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.dst, ctx.backend = dst, backend
        total: torch.Tensor = backend.reduce(_copy(tensor), dst)
        return total if backend.rank == dst else total.zero_()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_Broadcast, grads[0], ctx.dst, ctx.backend), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, scatter: int, gather: int, backend: CommBackendProtocol
    ) -> torch.Tensor:
        ctx.dims, ctx.backend = (gather, scatter), backend
        sent = list(_parts(tensor, scatter, backend.world_size).contiguous().unbind(0))
        return torch.cat(backend.all_to_all(sent), gather)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_AllToAll, grads[0], *ctx.dims, ctx.backend), None, None, None


class _AllToAllUneven(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, out: tuple[int, ...], sent: tuple[int, ...], backend: CommBackendProtocol
    ) -> torch.Tensor:
        ctx.splits, ctx.backend = (sent, out), backend
        output = tensor.new_empty((sum(out), *tensor.shape[1:]))
        backend.all_to_all(torch.split(tensor.detach().contiguous(), list(sent)), torch.split(output, list(out)))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_AllToAllUneven, grads[0], *ctx.splits, ctx.backend), None, None, None


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.backend = backend
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_ReduceFrom, grads[0], ctx.backend), None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.backend = backend
        return backend.all_reduce(_copy(tensor))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_CopyTo, grads[0], ctx.backend), None


class _GatherFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.dim, ctx.backend = dim, backend
        return _gathered(tensor, dim, backend)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_ScatterTo, grads[0], ctx.dim, ctx.backend), None, None


class _ScatterTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, backend: CommBackendProtocol) -> torch.Tensor:
        ctx.dim, ctx.backend = dim, backend
        return _copy(_parts(tensor, dim, backend.world_size)[backend.rank])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _apply(_GatherFrom, grads[0], ctx.dim, ctx.backend), None, None


def _apply(function: Any, *arguments: Any) -> torch.Tensor:
    output: torch.Tensor = function.apply(*arguments)
    return output


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _parts(tensor: torch.Tensor, dim: int, ranks: int) -> torch.Tensor:
    """Returns the parts along a dimension, of shape [ranks, ...]."""
    shape = tensor.shape
    return tensor.detach().reshape(*shape[:dim], ranks, shape[dim] // ranks, *shape[dim + 1 :]).movedim(dim, 0)


def _gathered(tensor: torch.Tensor, dim: int, backend: CommBackendProtocol) -> torch.Tensor:
    output = backend.all_gather(tensor)
    return output if dim == 0 else torch.cat(output.chunk(backend.world_size), dim)


def _of(group: dist.ProcessGroup | None, call: str) -> CommBackendProtocol:
    return GroupBackend(member(group, f"autograd.{call}"))


def _linear(op: Reduction, call: str) -> str:
    """Returns the name of a reduction that has a gradient here."""
    reduction = reduce_op(op, f"autograd.{call}")
    for name in ("sum", "avg"):
        if reduction == reduce_op(name, call):
            return name
    raise ValueError(f"sagecomm: autograd.{call}: there is no gradient of {op!r} here, only of 'sum' and 'avg'")


def _dimension(tensor: torch.Tensor, dim: int, call: str) -> int:
    """Returns the dimension, counted from the front."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"sagecomm: autograd.{call}: there is no dimension {dim} in shape {list(tensor.shape)}")
    return dim % tensor.dim()


def _divisible(tensor: torch.Tensor, dim: int, backend: CommBackendProtocol, call: str) -> int:
    dim = _dimension(tensor, dim, call)
    if tensor.shape[dim] % backend.world_size:
        raise ValueError(
            f"sagecomm: autograd.{call}: dimension {dim} of shape {list(tensor.shape)} is no multiple of "
            f"{backend.world_size}, the number of ranks"
        )
    return dim
