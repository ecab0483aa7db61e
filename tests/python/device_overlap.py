"""What communicates while it computes, on any device: for test_overlap_devices.py.

Each function returns a digest of all results, which is that of the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sagecomm
from device_training import digest
from sagecomm._overlap._linear import start_linear_all_reduce

SLICES = 3


def seeded(device: str, *shape: int, seed: int) -> torch.Tensor:
    """Of this rank: the same values on all devices."""
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    return torch.randn(*shape, generator=generator).to(device).requires_grad_()


def operators(device: str) -> str:
    """The sliced linears, forwards and backwards, one after the other."""
    results: list[torch.Tensor] = []
    calls = (sagecomm.linear_all_reduce, sagecomm.linear_reduce_scatter, sagecomm.all_gather_linear)
    for seed, call in enumerate(calls):
        x, weight, bias = (seeded(device, *shape, seed=seed) for shape in ((12, 2, 8), (4, 8), (4,)))
        y = call(x, weight, bias, slices=SLICES)
        y.square().sum().backward()
        results += [y, *(t.grad for t in (x, weight, bias) if t.grad is not None)]
    return digest(results)


def read_too_early(device: str) -> str:
    """Mutant: uses a sum before wait()."""
    x, weight = seeded(device, 12, 8, seed=1).detach(), seeded(device, 4, 8, seed=2).detach()
    flight = start_linear_all_reduce(x, weight, slices=SLICES)
    early = flight._tensor * 2
    flight.wait()
    return digest([early])


def loops(device: str) -> str:
    """A pipeline over a double buffer, a scope, chunks and a ring."""
    buffers = sagecomm.DoubleBuffer((64,), device=device)

    def compute(at: int) -> torch.Tensor:
        return torch.mul(seeded(device, 64, seed=at).detach(), at, out=buffers.acquire())

    def communicate(buffer: torch.Tensor) -> Any:
        work = dist.all_reduce(buffer, async_op=True)
        buffers.release(work)
        return work

    results = [buffer.clone() for buffer in sagecomm.pipeline(range(5), compute, communicate)]
    buffers.wait()
    with sagecomm.overlap() as ov:
        results.append(ov.all_reduce(seeded(device, 100, seed=20).detach()))
        results.append(ov.reduce_scatter(seeded(device, 100, seed=21).detach()))
    results.append(sagecomm.chunked_all_reduce(seeded(device, 100, seed=22).detach(), chunk_bytes=64))
    for _, block in sagecomm.parallel.ring(seeded(device, 30, seed=23)):
        results.append(block * 2)
    return digest(results)


def scheduled(device: str) -> str:
    """Layers that are updated by hooks of their next forward."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)

    @torch.no_grad()
    def update(layer: nn.Module) -> None:
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

    scheduler = sagecomm.OverlapScheduler(model, update=update)
    for step in range(5):
        model(seeded(device, 6, 8, seed=step)).square().mean().backward()
    scheduler.wait()
    return digest(model.parameters())


def hooked(device: str) -> str:
    """DistributedDataParallel with each hook."""
    hooks = (sagecomm.ddp.chunked_hook(chunk_bytes=64), sagecomm.ddp.fused_hook(), sagecomm.ddp.bf16_hook)
    results: list[torch.Tensor] = []
    for hook in hooks:
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        model = DistributedDataParallel(module, bucket_cap_mb=0.0002)
        model.register_comm_hook(None, hook)
        for step in range(3):
            model.zero_grad()
            model(seeded(device, 6, 8, seed=step)).square().mean().backward()
            results += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return digest(results)


def waited_twice(device: str) -> str:
    """Each wait orders the stream that is current, behind the communication and what ends it."""
    x = seeded(device, 40, 8, seed=7).detach()
    strided = seeded(device, 8, 40, seed=8).detach().t()
    results = []
    for tensor in (x, strided):
        handle = sagecomm.chunked_all_reduce(tensor, chunk_bytes=256, async_op=True)
        if device != "cpu":
            beside = torch.Stream(device)
            with beside:
                handle.wait()
        results.append(handle.wait() * 2)
    return digest(results)


def measured(device: str) -> str:
    """The clock of a device: marks follow each other, and the events of a repetition are within it."""
    x = seeded(device, 32, 32, seed=1).detach()

    def report(communicate: Any, group: dist.ProcessGroup | None = None) -> sagecomm.OverlapReport:
        return sagecomm.measure_overlap(lambda: x @ x, communicate, lambda: x @ x, group, repetitions=2, warm_up=1)

    for told in (
        report(lambda y: dist.all_reduce(y, async_op=True)),
        report(lambda y: sagecomm.chunked_all_reduce(y, chunk_bytes=2048, async_op=True)),
    ):
        assert torch.device(told.device).type == device
        found = told.intervals["compute"], told.intervals["overlappable"], told.intervals["communicate"]
        (begin, computed), (issued, other), (sent, arrived) = (interval or (-1, -1) for interval in found)
        assert 0 == begin <= computed == sent <= issued <= other, told.intervals
        assert sent <= arrived, told.intervals
    if device != "cpu":  # there, a wait of gloo's blocks the host instead of ordering a stream
        told = report(lambda y: dist.all_reduce(y, async_op=True), dist.new_group(backend="gloo"))
        assert told.communicate_inside is None
    return digest([x @ x])
