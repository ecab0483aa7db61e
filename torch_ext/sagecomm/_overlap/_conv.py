"""A convolution whose input channels are split among ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sagecomm._groups import member
from sagecomm._overlap._in_flight import issued
from sagecomm._overlap._linear import cast
from sagecomm._overlap._slices import checked, number_of_slices, spans

Pair = int | tuple[int, int]
Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation


def conv2d_all_reduce(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    group: dist.ProcessGroup | None = None,
    *,
    slices: int | None = None,
) -> torch.Tensor:
    """Returns the convolution summed over all ranks, plus the bias: one whose input channels are split.

    One slice of the images is reduced while the next one is convolved; of a single image, slices of the output
    channels. Every rank gets the whole result, and its gradient must be the same on all ranks. Then the gradients are
    those of the unsplit convolution.

    Args:
        x: (images, channels, height, width), this rank's part of the channels.
        weight: (outputs, channels, kernel height, kernel width), its part of the channels.
        bias: (outputs), the same on all ranks; it is added once.
        stride: A number, or one for each side, as in F.conv2d; so are `padding` and `dilation`.
        padding: Zeros at each side. It has no names such as "same".
        dilation: Distance of the kernel's points.
        group: The ranks that share the convolution; the default group if None.
        slices: None asks the cost model (docs/overlap.md), which needs the same shapes on all ranks.

    Returns:
        (images, outputs, height, width) of the result.

    Raises:
        ValueError: The shapes do not fit, there are no channels, the kernel is larger than the padded image, there is
            no such stride, padding or dilation, or this rank is not in the group.
    """
    pg = member(group, "conv2d_all_reduce")
    x, weight, bias = cast(x, weight, bias)
    geometry = (_pair(stride, "stride", 1), _pair(padding, "padding", 0), _pair(dilation, "dilation", 1))
    shape = _shape(x, weight, *geometry)
    predicted = 1
    if slices is None:
        count = math.prod(shape)
        predicted = number_of_slices(
            "all_reduce",
            count * x.element_size(),
            parts=shape[0] if shape[0] > 1 else shape[1],
            operations=2 * count * math.prod(weight.shape[1:]),
            like=x,
            group=pg,
        )
    out: torch.Tensor = _Conv2dAllReduce.apply(x, weight, geometry, shape, pg, checked(slices, predicted))
    return out if bias is None else out.add_(bias.view(-1, 1, 1))


class _Conv2dAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        geometry: Geometry,
        shape: tuple[int, ...],
        group: dist.ProcessGroup,
        slices: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        out = x.new_empty(shape)
        by_image = shape[0] > 1
        works = []
        for part in spans(shape[0] if by_image else shape[1], slices):
            if by_image:
                into = out[part]
                into.copy_(F.conv2d(x[part], weight, None, *geometry))
            else:
                into = out[:, part]
                into.copy_(F.conv2d(x, weight[part], None, *geometry))
            works.append(issued(dist.all_reduce(into, group=group, async_op=True)))
        for work in works:
            work.wait()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation = ctx.geometry
        wanted = [*ctx.needs_input_grad[:2], False]
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, stride, padding, dilation, False, (0, 0), 1, wanted
        )
        return of_x, of_weight, None, None, None, None


def _pair(value: Pair, name: str, least: int) -> tuple[int, int]:
    """Returns the number of each side. Raises ValueError for what is no whole number from `least`, or two."""
    given: Any = value
    pair = (given, given) if isinstance(given, int) else given
    match pair:
        case (int(height), int(width)) if min(height, width) >= least:
            return height, width
    raise ValueError(
        f"sagecomm: conv2d_all_reduce: {name}={value!r}: expected a whole number from {least}, or one for each side"
    )


def _shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[int, ...]:
    """Of the result, as in the documentation of torch.nn.Conv2d."""
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"sagecomm: conv2d_all_reduce: expected x (images, channels, height, width) and weight (outputs, channels, "
            f"height, width), but they have {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    sides = [
        (x.shape[2 + at] + 2 * padding[at] - dilation[at] * (weight.shape[2 + at] - 1) - 1) // stride[at] + 1
        for at in range(2)
    ]
    if 0 in (x.shape[1], weight.shape[0]) or min(sides) < 1:
        raise ValueError(
            f"sagecomm: conv2d_all_reduce: there is no result of x {tuple(x.shape)} and weight {tuple(weight.shape)} "
            f"with padding {padding} and dilation {dilation}"
        )
    return (x.shape[0], weight.shape[0], *sides)
