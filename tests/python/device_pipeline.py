"""A pipeline of torch over tensors of an accelerator, as device_programs.py describes its programs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules

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


# Schedules of torch by the stages of a rank: one, two that are as far apart as there are ranks, or two in a V.
KINDS = {
    "ScheduleGPipe": "one",
    "Schedule1F1B": "one",
    "ScheduleInterleaved1F1B": "apart",
    "ScheduleLoopedBFS": "apart",
    "ScheduleInterleavedZeroBubble": "apart",
    "ScheduleZBVZeroBubble": "V",
    "ScheduleDualPipeV": "V",
}


def trained(name: str, on: torch.device) -> list[torch.Tensor]:
    """Trains the stages of this rank on a device. Returns their parameters."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    placed = {"one": [rank], "apart": [rank, rank + ranks], "V": [rank, 2 * ranks - 1 - rank]}[KINDS[name]]
    count, parts = len(placed) * ranks, 2 * ranks
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(count)]
    data, target = torch.randn(2 * parts, 8), torch.randn(2 * parts, 8)
    mine = [layers[i].to(on) for i in placed]
    stages = [PipelineStage(layer, i, count, on) for layer, i in zip(mine, placed, strict=True)]
    kind = getattr(schedules, name)
    schedule = kind(stages[0] if len(stages) == 1 else stages, parts, loss_fn=loss_of)
    parameters = [parameter for layer in mine for parameter in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)
    for _ in range(FEW):
        optimizer.zero_grad()
        last = {"target": target.to(on)} if count - 1 in placed else {}
        schedule.step(*([data.to(on)] if 0 in placed else []), **last)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in parameters]


def as_on_the_cpu(rank: int, size: int, store: str, name: str) -> None:
    """A pipeline over tensors of the device learns, bit for bit, what it learns over tensors of the CPU."""

    def learns() -> None:
        got, expected = (trained(name, device) for device in (accelerator(), torch.device("cpu")))
        assert len(got) == len(expected) > 0
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b), (a, b)

    run_under_fake_cuda(rank, size, store, [learns])
