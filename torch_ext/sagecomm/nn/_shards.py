"""Moves between tensors that every rank has and parts of them, forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from sagecomm._overlap._in_flight import shared


def part_of(tensor: torch.Tensor, dim: int, group: dist.ProcessGroup | None, what: str) -> torch.Tensor:
    """Returns this rank's part of a tensor along a dimension. Raises ValueError if the ranks do not divide it."""
    count = shared(tensor.shape[dim], group, what)
    return tensor.narrow(dim, dist.get_rank(group) * count, count)


class Gather(torch.autograd.Function):
    """From parts along the last dimension to the whole. Backwards, each rank takes its part of the gradient, which is
    the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return part_of(gradient, -1, ctx.group, "features").contiguous(), None


class Scatter(torch.autograd.Function):
    """From the whole, which every rank has, to parts along the last dimension. Backwards, gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return part_of(x, -1, group, "features").contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _gathered(gradient, ctx.group), None


class Sum(torch.autograd.Function):
    """The sum over all ranks, which every rank has. Backwards, the gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class SumOfRows(torch.autograd.Function):
    """This rank's rows of the sum over all ranks. Backwards, gradients of all rows are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        y = x.new_empty((shared(x.shape[0], group, "rows"), *x.shape[1:]))
        dist.reduce_scatter_tensor(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        size = dist.get_world_size(ctx.group)
        whole = gradient.new_empty((size * gradient.shape[0], *gradient.shape[1:]))
        dist.all_gather_into_tensor(whole, gradient.contiguous(), ctx.group)
        return whole, None


def _gathered(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenates along the last dimension."""
    size = dist.get_world_size(group)
    parts = x.new_empty((size, *x.shape))
    dist.all_gather_into_tensor(parts.flatten(0, 1), x.contiguous(), group)
    return parts.movedim(0, -2).flatten(-2)
