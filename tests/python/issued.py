"""An operation that a rank has issued: its Work, its tensors, and what they must hold when it is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import own_order
import reference as ref

if TYPE_CHECKING:
    from operations import Call


@dataclass(frozen=True)
class Member:
    """A rank of a group. Ranks here and in a Call are group ranks."""

    group: Any
    rank: int
    size: int

    @property
    def backend(self) -> Any:
        return self.group._get_backend(torch.device("cpu"))


def member(group: Any = None) -> Member:
    group = group or c10d._get_default_group()
    return Member(group, dist.get_rank(group), dist.get_world_size(group))


@dataclass
class Expected:
    """A tensor and its expected values, or all inputs of the reduction that gives them."""

    placed: ref.Placed
    want: torch.Tensor | list[torch.Tensor]
    call: Call
    near: bool = False

    def check(self, what: str) -> None:
        got = self.placed.tensor
        if isinstance(self.want, torch.Tensor):
            ref.check_same(got, self.want, what)
        elif self.call.own_order:
            own_order.check(got, self.call.reduction, self.want, self.call.exact, what)
        else:
            reduced = ref.in_rank_order(self.call.reduction, self.want)
            if self.near:  # the expected value is computed in more precision
                ref.check_reduced(reduced, self.call.reduction, self.want, f"{what}: the reference")
            ref.check_reduced_bits(got, reduced, what)
        self.placed.check_surroundings(what)


@dataclass
class Issued:
    work: Any  # None after a synchronous call
    outputs: list[Expected]
    inputs: list[ref.Placed] = field(default_factory=list)  # the operation must not change them

    @property
    def direct(self) -> bool:
        """Whether the operation itself writes the outputs. Staged outputs are written later, and only the Work says
        when."""
        return all(out.placed.tensor.is_contiguous() and not out.call.in_place for out in self.outputs)

    def check(self, what: str) -> None:
        for number, output in enumerate(self.outputs):
            output.check(f"{what}: output {number}")
        for number, each in enumerate(self.inputs):
            assert torch.equal(ref.bits(each.base), ref.bits(each.before)), f"{what}: input {number} was written"

    def digest(self) -> str:
        """Returns a digest of the outputs' bits. In reduced outputs all NaN count as equal."""
        tensors = [(output.placed.tensor, isinstance(output.want, list)) for output in self.outputs]
        return ref.digest(ref.one_nan(t) if reduced else t for t, reduced in tensors)
