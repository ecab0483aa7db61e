"""Linear layers whose outputs or inputs are split among ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from sagecomm._overlap import InFlight, all_gather_linear, linear_all_reduce, linear_reduce_scatter
from sagecomm._overlap._linear import linear_of_copy, start_linear_all_reduce
from sagecomm.nn._shards import Gather, Scatter, part_of


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank has a part of the outputs.

    Parameters are a part of those that nn.Linear would make from the same state of the random generator, so ranks that
    are seeded alike make the same layer for any number of ranks.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer; the number of ranks must divide it.
        bias: Whether there is one; each rank has its part.
        group: The ranks that share the layer; the default group if None.
        gather_output: Return the outputs of all ranks, on every rank.
        sequence_parallel: The input has a part of the rows (its first dimension) on each rank; they are gathered slice
            by slice while they are multiplied.
        slices: The number of slices; None asks the cost model.
        device: Of the parameters.
        dtype: Of the parameters.

    Shapes: with n ranks, (..., in_features) -> (..., out_features / n), or (..., out_features) with `gather_output`;
    with `sequence_parallel`, (rows / n, ..., in_features) -> (rows, ..., out_features / n). An input that is not split
    must be the same on all ranks.

    Raises:
        ValueError: The number of ranks does not divide `out_features`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: dist.ProcessGroup | None = None,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        slices: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        whole = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.group, self.gather_output, self.sequence_parallel, self.slices = (
            group,
            gather_output,
            sequence_parallel,
            slices,
        )
        self.weight = _parameter(part_of(whole.weight, 0, group, "outputs"))
        self.bias = _parameter(part_of(whole.bias, 0, group, "outputs")) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's outputs; shapes as for the class."""
        if self.sequence_parallel:
            y = all_gather_linear(x, self.weight, self.bias, self.group, slices=self.slices)
        else:
            y = linear_of_copy(x, self.weight, self.bias, self.group)
        if self.gather_output:
            y = Gather.apply(y, self.group)
        return y

    def extra_repr(self) -> str:
        """What the layer's repr says in its brackets."""
        return _described(self.weight, self.bias, self.group, self.sequence_parallel)


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank has a part of the inputs. The products are summed over the ranks slice by
    slice, each while the next one is computed.

    Parameters are a part of those that nn.Linear would make from the same state of the random generator.

    Args:
        in_features: Of the whole layer; the number of ranks must divide it.
        out_features: Of the whole layer.
        bias: Whether there is one. It is the same on all ranks, and added once.
        group: The ranks that share the layer; the default group if None.
        input_is_parallel: The input is this rank's part of the features, as ColumnParallelLinear returns it. Otherwise
            it is the whole, the same on all ranks.
        sequence_parallel: The output has a part of the rows (its first dimension) on each rank.
        slices: The number of slices; None asks the cost model.
        device: Of the parameters.
        dtype: Of the parameters.

    Shapes: with n ranks, (..., in_features / n) -> (..., out_features); with `sequence_parallel`,
    (rows, ..., in_features / n) -> (rows / n, ..., out_features).

    Raises:
        ValueError: The number of ranks does not divide `in_features`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: dist.ProcessGroup | None = None,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        slices: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        whole = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.group, self.input_is_parallel, self.sequence_parallel, self.slices = (
            group,
            input_is_parallel,
            sequence_parallel,
            slices,
        )
        self.weight = _parameter(part_of(whole.weight, 1, group, "inputs"))
        self.bias = _parameter(whole.bias) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's outputs; shapes as for the class."""
        x = self._own_part(x)
        if self.sequence_parallel:
            return linear_reduce_scatter(x, self.weight, self.bias, self.group, slices=self.slices)
        return linear_all_reduce(x, self.weight, self.bias, self.group, slices=self.slices)

    def start(self, x: torch.Tensor) -> InFlight:
        """Computes this rank's part and starts to sum over the ranks: wait() of the result returns what forward()
        does. Raises ValueError with `sequence_parallel`, whose slices are the only overlap."""
        if self.sequence_parallel:
            raise ValueError("sagecomm: RowParallelLinear: start() is for layers without sequence_parallel")
        return start_linear_all_reduce(self._own_part(x), self.weight, self.bias, self.group, slices=self.slices)

    def _own_part(self, x: torch.Tensor) -> torch.Tensor:
        if self.input_is_parallel:
            return x
        part: torch.Tensor = Scatter.apply(x, self.group)
        return part

    def extra_repr(self) -> str:
        """What the layer's repr says in its brackets."""
        return _described(self.weight, self.bias, self.group, self.sequence_parallel)


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format))


def _described(
    weight: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup | None, sequence_parallel: bool
) -> str:
    here = f"in_features={weight.shape[1]}, out_features={weight.shape[0]}, bias={bias is not None}"
    return f"{here}, ranks={dist.get_world_size(group)}, sequence_parallel={sequence_parallel}"
