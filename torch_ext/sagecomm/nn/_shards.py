"""The part of a whole parameter that a rank has."""

from __future__ import annotations

import torch
import torch.distributed as dist

from sagecomm._overlap._in_flight import shared


def part_of(tensor: torch.Tensor, dim: int, group: dist.ProcessGroup, what: str) -> torch.Tensor:
    """Returns this rank's part of a tensor along a dimension. Raises ValueError if the ranks do not divide it."""
    count = shared(tensor.shape[dim], group, what)
    return tensor.narrow(dim, group.rank() * count, count)
