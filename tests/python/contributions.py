"""What tests of coalesced operations share: tensors whose sums each rank can compute, and the count of collectives."""

from __future__ import annotations

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


def group() -> dist.ProcessGroup:
    pg = dist.group.WORLD
    assert pg is not None
    return pg


def sequence() -> int:
    return group()._get_backend(CPU)._get_sequence_number_for_group()


def contribution(rank: int, i: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank * 1000 + i)
    return torch.randint(-8, 8, (n,), generator=generator).to(dtype)


def summed(i: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([contribution(r, i, n, dtype) for r in range(dist.get_world_size())]).sum(0).to(dtype)
