"""A pipeline of torch over tensors of an accelerator, as device_programs.py describes its programs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from device_calls import run_under_fake_cuda
from device_programs import FEW, accelerator

PARTS = 4  # of a batch


def stages() -> list[torch.nn.Module]:
    torch.manual_seed(1)
    first = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    return [first, torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def pipeline() -> None:
    """Two stages on two ranks learn what one process learns."""
    for kind in (ScheduleGPipe, Schedule1F1B):
        rank, on = dist.get_rank(), accelerator()
        whole, mine = torch.nn.Sequential(*stages()), stages()[rank].to(on)
        generator = torch.Generator().manual_seed(2)
        data, target = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
        stage = PipelineStage(mine, rank, 2, on)
        schedule = kind(stage, PARTS, loss_of)
        plain = torch.optim.SGD(whole.parameters(), lr=0.1, foreach=False)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, foreach=False)
        for _ in range(FEW):
            plain.zero_grad()
            loss_of(whole(data), target).backward()
            plain.step()
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(data.to(on))
            else:
                schedule.step(target=target.to(on))
            optimizer.step()
        for a, b in zip(whole[rank].parameters(), mine.parameters(), strict=True):
            torch.testing.assert_close(a, b.cpu())


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, [pipeline])
