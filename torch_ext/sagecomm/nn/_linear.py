"""Linear layers whose outputs or inputs are split among ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from sagecomm import autograd
from sagecomm._groups import member
from sagecomm._overlap import InFlight, all_gather_linear, linear_all_reduce, linear_reduce_scatter
from sagecomm._overlap._linear import linear_of_copy, start_linear_all_reduce
from sagecomm.nn._shards import GroupModule, part_of


class _ParallelLinear(GroupModule):
    """The parameters of both layers: the weight is split along a dimension, and the bias with the outputs."""

    _dim: int  # of the weight
    _split: str  # what is split, in errors

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        slices: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        pg = member(group, type(self).__name__)
        whole = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.group, self.sequence_parallel, self.slices = group, sequence_parallel, slices
        self.ranks = pg.size()
        self.weight = _parameter(part_of(whole.weight, self._dim, pg, self._split))
        own_bias = part_of(whole.bias, 0, pg, self._split) if bias and self._dim == 0 else whole.bias
        self.bias = _parameter(own_bias) if bias else None

    def extra_repr(self) -> str:
        """What the layer's repr says in its brackets."""
        here = f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}, bias={self.bias is not None}"
        return f"{here}, ranks={self.ranks}, sequence_parallel={self.sequence_parallel}"


class ColumnParallelLinear(_ParallelLinear):
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
        ValueError: The number of ranks does not divide `out_features`, or this rank is not in the group.
    """

    _dim, _split = 0, "outputs"

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
        super().__init__(in_features, out_features, bias, group, sequence_parallel, slices, device, dtype)
        self.gather_output = gather_output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's outputs; shapes as for the class."""
        if self.sequence_parallel:
            y = all_gather_linear(x, self.weight, self.bias, self.group, slices=self.slices)
        else:
            y = linear_of_copy(x, self.weight, self.bias, member(self.group, "ColumnParallelLinear"))
        return autograd.gather_from_group(y, group=self.group) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
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
        ValueError: The number of ranks does not divide `in_features`, or this rank is not in the group.
    """

    _dim, _split = 1, "inputs"

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
        super().__init__(in_features, out_features, bias, group, sequence_parallel, slices, device, dtype)
        self.input_is_parallel = input_is_parallel

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
        return x if self.input_is_parallel else autograd.scatter_to_group(x, group=self.group)


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format))
