"""Linear layers that are split among ranks: one slice of the rows is communicated while the next one is computed.

The conjugate pairs of operations forwards and backwards are those of Megatron-LM (Shoeybi et al. 2019,
arXiv:1909.08053, and Korthikanti et al. 2022, arXiv:2205.05198, for sequences that are split as well).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from sagecomm._groups import member
from sagecomm._overlap._in_flight import InFlight, issued, shared
from sagecomm._overlap._slices import checked, number_of_slices, spans


def linear_all_reduce(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    slices: int | None = None,
) -> torch.Tensor:
    """Returns `x @ weight.T` summed over all ranks, plus the bias: a linear layer whose inputs are split.

    Every rank gets the whole result, and its gradient must be the same on all ranks, as it is if they go on with the
    same computation. Then the gradients of `x`, `weight` and `bias` are those of the unsplit layer.

    Args:
        x: (..., k), this rank's part of the inputs.
        weight: (n, k), its part of the columns.
        bias: (n), the same on all ranks; it is added once.
        group: The ranks that share the layer; the default group if None.
        slices: Of the rows of `x`. None asks the cost model (docs/overlap.md), which needs the same shapes on all
            ranks.

    Returns:
        (..., n).
    """
    return start_linear_all_reduce(x, weight, bias, group, slices=slices).wait()


def start_linear_all_reduce(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    slices: int | None = None,
) -> InFlight:
    """linear_all_reduce() whose last slices are still being communicated."""
    pg = member(group, "linear_all_reduce")
    x, weight, bias = cast(x, weight, bias)
    rows, outputs = x.shape[:-1].numel(), weight.shape[0]
    predicted = 1
    if slices is None:
        nbytes = rows * outputs * x.element_size()
        predicted = number_of_slices(
            "all_reduce", nbytes, parts=rows, operations=_operations(rows, weight), like=x, group=pg
        )
    works: list[dist.Work] = []
    y = _LinearAllReduce.apply(x, weight, pg, checked(slices, predicted), works)
    if bias is None:
        return InFlight(y, works)
    recording = torch.is_grad_enabled()

    def finish(total: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(recording):  # as if the bias had been added here, wherever the wait() is
            return total.add_(bias)

    return InFlight(y, works, finish)


class _LinearAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        group: dist.ProcessGroup,
        slices: int,
        works: list[dist.Work],
    ) -> torch.Tensor:
        """Returns the sum before it is complete: the works are put into `works`."""
        ctx.save_for_backward(x, weight)
        rows = _flat(x)
        result = x.new_empty((*x.shape[:-1], weight.shape[0]))  # no view: users may change it in place
        out = result.view(rows.shape[0], weight.shape[0])
        for part in spans(rows.shape[0], slices):
            torch.mm(rows[part], weight.t(), out=out[part])
            works.append(issued(dist.all_reduce(out[part], group=group, async_op=True)))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight.conj() if ctx.needs_input_grad[0] else None
        of_weight, _ = _of_parameters(ctx, gradient, x)
        return of_x, of_weight, None, None, None


def linear_of_copy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup
) -> torch.Tensor:
    """Returns `x @ weight.T + bias` for an x that is the same on all ranks and a part of the outputs on each.

    Backwards, the gradient of `x` is summed over the ranks while that of the weight is computed.
    """
    x, weight, bias = cast(x, weight, bias)
    y: torch.Tensor = _LinearOfCopy.apply(x, weight, bias, group)
    return y


class _LinearOfCopy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = work = None
        if ctx.needs_input_grad[0]:
            of_x = (gradient @ weight.conj()).contiguous()
            work = dist.all_reduce(of_x, group=ctx.group, async_op=True)
        of_weight, of_bias = _of_parameters(ctx, gradient, x)
        if work is not None:
            work.wait()
        return of_x, of_weight, of_bias, None


def all_gather_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    slices: int | None = None,
) -> torch.Tensor:
    """Returns `all_gather(x) @ weight.T + bias`: a linear layer whose rows and outputs are split.

    One slice of each rank's rows is multiplied while the next one is gathered. Backwards, the gradient of `x` is
    reduced and scattered slice by slice, and `x` is gathered once more for the gradient of the weight.

    Args:
        x: (s, ..., k), this rank's part of the first dimension, of the same shape on all ranks.
        weight: (n, k), its part of the outputs.
        bias: (n), its part of the bias.
        group: The ranks that share the layer; the default group if None.
        slices: Of the first dimension of `x`. None asks the cost model (docs/overlap.md).

    Returns:
        (ranks * s, ..., n), the rows of all ranks in their order.
    """
    pg = member(group, "all_gather_linear")
    x, weight, bias = cast(x, weight, bias)
    predict = partial(
        number_of_slices,
        nbytes=x.numel() * x.element_size(),
        parts=x.shape[0],
        operations=_operations(x.shape[:-1].numel() * pg.size(), weight),
        like=x,
        group=pg,
    )
    counts = [_counted(slices, predict, op) for op in ("all_gather", "reduce_scatter")]
    y: torch.Tensor = _AllGatherLinear.apply(x, weight, bias, pg, *counts)
    return y


class _AllGatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup,
        slices: int,
        backward_slices: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.slices = group, backward_slices
        return _multiply_gathered(x, weight.t(), bias, group, slices)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, gathered = None, x
        gathering: list[dist.Work] = []
        reduced: list[dist.Work] = []
        if ctx.needs_input_grad[1]:
            gathered, started = _gather(x, ctx.group)
            gathering.append(started)
        if ctx.needs_input_grad[0]:
            of_x, reduced = _multiply_and_scatter(gradient, weight.conj(), ctx.group, ctx.slices)
        for work in gathering:
            work.wait()
        of_weight, of_bias = _of_parameters(ctx, gradient, gathered)
        for work in reduced:
            work.wait()
        return of_x, of_weight, of_bias, None, None, None


def linear_reduce_scatter(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    slices: int | None = None,
) -> torch.Tensor:
    """Returns this rank's rows of `x @ weight.T` summed over all ranks, plus the bias: a linear layer whose inputs and
    rows are split.

    One slice of every rank's rows is reduced and scattered while the next one is multiplied. Backwards, gradients are
    gathered slice by slice, each while the one before it is multiplied. The gradient of the bias is that of all rows,
    the same on all ranks.

    Args:
        x: (s, ..., k), this rank's part of the inputs. The number of ranks must divide s.
        weight: (n, k), its part of the columns.
        bias: (n), the same on all ranks; it is added once.
        group: The ranks that share the layer; the default group if None.
        slices: Of the first dimension of the result. None asks the cost model (docs/overlap.md).

    Returns:
        (s / ranks, ..., n).

    Raises:
        ValueError: The number of ranks does not divide s.
    """
    pg = member(group, "linear_reduce_scatter")
    x, weight, bias = cast(x, weight, bias)
    rows = x.shape[:-1].numel()
    predict = partial(
        number_of_slices,
        nbytes=rows // pg.size() * weight.shape[0] * x.element_size(),
        parts=shared(x.shape[0], pg, "rows"),
        operations=_operations(rows, weight),
        like=x,
        group=pg,
    )
    counts = [_counted(slices, predict, op) for op in ("reduce_scatter", "all_gather")]
    y: torch.Tensor = _LinearReduceScatter.apply(x, weight, bias, pg, *counts)
    return y


class _LinearReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup,
        slices: int,
        backward_slices: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.slices = group, backward_slices
        out, works = _multiply_and_scatter(x, weight.t(), group, slices)
        for work in works:
            work.wait()
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, gathered = _multiply_gathered(gradient, weight.conj(), None, ctx.group, ctx.slices)
        of_weight, of_bias = _of_parameters(ctx, gathered, x)
        return of_x, of_weight, of_bias, None, None, None


def _of_parameters(
    ctx: Any, gradient: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns the gradients of the weight and the bias of a layer whose input was `x`, each if it is needed."""
    of_weight = _flat(gradient).t() @ _flat(x).conj() if ctx.needs_input_grad[1] else None
    of_bias = _flat(gradient).sum(0) if ctx.needs_input_grad[2] else None
    return of_weight, of_bias


def _gather(x: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, dist.Work]:
    """Starts to gather the rows of all ranks: (ranks * s, ..., k)."""
    out = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    return out, issued(dist.all_gather_into_tensor(out, x.contiguous(), group, async_op=True))


def _multiply_gathered(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup, slices: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `all_gather(x) @ matrix + bias` and what was gathered. Each slice is multiplied while later ones are
    gathered."""
    size = group.size()
    parts = spans(x.shape[0], slices)
    if len(parts) == 1:
        gathered, work = _gather(x, group)
        work.wait()
        y = gathered @ matrix
        return (y if bias is None else y.add_(bias)), gathered
    started = [(part, *_gather(x[part], group)) for part in parts]
    y = x.new_empty((size * x.shape[0], *x.shape[1:-1], matrix.shape[1]))
    everything = x.new_empty((size * x.shape[0], *x.shape[1:]))
    blocks, rows = _blocks(y, size), _blocks(everything, size)
    for part, gathered, work in started:
        work.wait()
        product = gathered @ matrix
        blocks[:, part] = _blocks(product if bias is None else product.add_(bias), size)
        rows[:, part] = _blocks(gathered, size)
    return y, everything


def _multiply_and_scatter(
    x: torch.Tensor, matrix: torch.Tensor, group: dist.ProcessGroup, slices: int
) -> tuple[torch.Tensor, list[dist.Work]]:
    """Starts to reduce and scatter `x @ matrix` along the first dimension. Each slice is multiplied while earlier ones
    are communicated."""
    size = group.size()
    blocks = _blocks(x.contiguous(), size)
    out = x.new_empty((*blocks.shape[1:-1], matrix.shape[1]))
    works = []
    for part in spans(blocks.shape[1], slices):
        product = (blocks[:, part] @ matrix).flatten(0, 1).contiguous()
        works.append(issued(dist.reduce_scatter_tensor(out[part], product, group=group, async_op=True)))
    return out, works


def cast(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Any, Any, Any]:
    """Returns the tensors in the type that autocast asks for, as F.linear would use them: float64 and what is no
    floating-point number stays. Raises ValueError if x has no dimension."""
    if x.dim() == 0:
        raise ValueError("sagecomm: expected an input of at least one dimension, got a tensor of shape []")
    if not torch.is_autocast_enabled(x.device.type):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(x.device.type)

    def of(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
            return tensor
        return tensor.to(dtype)

    return of(x), of(weight), of(bias)


def _counted(slices: int | None, predict: Callable[[str], int], op: str) -> int:
    """Returns the caller's number of slices, or the predicted one of a collective if it is None."""
    return checked(slices, 1) if slices is not None else predict(op)


def _blocks(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """Views the rows of each rank: (ranks, rows, ...)."""
    return x.view(ranks, x.shape[0] // ranks, *x.shape[1:])


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])  # -1 would be ambiguous where there are no elements


def _operations(rows: int, weight: torch.Tensor) -> int:
    return 2 * rows * math.prod(weight.shape)
