"""What tests of groups share: the backend of a group, and its members as they see one another."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

CPU = torch.device("cpu")
Ranks = list[int]


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(CPU)


def gathered(group: Any) -> list[int]:
    """Returns the global ranks of the members in the order of the group; each rank contributes its own."""
    mine = torch.tensor([dist.get_rank()])
    out = torch.empty(dist.get_world_size(group), dtype=torch.int64)
    dist.all_gather_into_tensor(out, mine, group=group)
    assert out[dist.get_rank(group)] == dist.get_rank()
    return out.tolist()
