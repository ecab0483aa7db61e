"""What the layers of all kinds share: a group, and the part of a whole parameter that a rank has."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from sagecomm._overlap._in_flight import shared

Layer = TypeVar("Layer", bound="GroupModule")


class GroupModule(nn.Module):
    """A module of a process group. Its copies have the same group, because a group cannot be copied."""

    group: dist.ProcessGroup | None

    def __deepcopy__(self: Layer, memo: dict[int, Any]) -> Layer:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        memo[id(self.group)] = self.group
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


def part_of(tensor: torch.Tensor, dim: int, group: dist.ProcessGroup, what: str) -> torch.Tensor:
    """Returns this rank's part of a tensor along a dimension. Raises ValueError if the ranks do not divide it."""
    count = shared(tensor.shape[dim], group, what)
    return tensor.narrow(dim, group.rank() * count, count)
