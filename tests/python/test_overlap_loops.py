"""Loops, buffers, chunks and hooks that communicate while the program computes, beside what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sagecomm
from sagecomm import DoubleBuffer, OverlapScheduler, pipeline


def all_reduce(tensor: torch.Tensor) -> dist.Work:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work


# ---- overlap()


def scope() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2 * size,), float(rank + 1))
    with sagecomm.overlap() as ov:
        total = ov.all_reduce(mine.clone())
        most = ov.all_reduce(mine.clone(), dist.ReduceOp.MAX)
        first = ov.broadcast(mine.clone(), src=0)
        gathered = ov.all_gather(mine)
        part = ov.reduce_scatter(mine)
        exchanged = ov.all_to_all(mine)
    assert part.shape == (2,)
    assert gathered.shape == (2 * size * size,)
    with pytest.raises(ValueError, match="3 rows among 2 ranks"), sagecomm.overlap() as ov:
        ov.reduce_scatter(torch.ones(3))
    return [t.flatten()[-1].item() for t in (total, most, first, gathered, part, exchanged)]


def test_a_scope_waits_for_its_operations_at_the_end(world):
    assert world(2).run(scope) == [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0]] * 2


def scope_that_raises() -> str:
    def body() -> None:
        with sagecomm.overlap() as ov:
            ov.all_reduce(torch.ones(1 << 18))
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        body()
    later = torch.ones(3)
    dist.all_reduce(later)
    return str(later[0].item())


def test_an_exception_leaves_the_scope_at_once_and_the_group_usable(world):
    assert world(2).run(scope_that_raises) == ["2.0", "2.0"]


# ---- pipeline() and DoubleBuffer


def test_a_pipeline_computes_ahead_and_yields_in_order():
    """Without a group: the order of events is what counts."""
    events: list[str] = []

    class Handle:
        def __init__(self, at: int) -> None:
            self.at = at

        def wait(self) -> None:
            events.append(f"wait {self.at}")

    def compute(at: int) -> int:
        events.append(f"compute {at}")
        return at

    for value in pipeline(range(3), compute, Handle):
        events.append(f"use {value}")
    assert events == [
        *("compute 0", "compute 1", "wait 0", "use 0"),
        *("compute 2", "wait 1", "use 1", "wait 2", "use 2"),
    ]
    assert list(pipeline([4, 5], lambda x: x, lambda _: None, depth=1)) == [4, 5]
    with pytest.raises(ValueError, match="depth=0"):
        pipeline([], compute, Handle, depth=0)


def test_chained_pipelines_alternate():
    order: list[str] = []

    def stage(name: str) -> Callable[[int], int]:
        def compute(at: int) -> int:
            order.append(f"{name}{at}")
            return at

        return compute

    items = pipeline(pipeline(range(3), stage("a"), lambda _: None), stage("b"), lambda _: None)
    assert list(items) == [0, 1, 2]
    assert order == ["a0", "a1", "b0", "a2", "b1", "b2"]


def double_buffered() -> list[float]:
    buffers = DoubleBuffer((1000,), dtype=torch.float32)

    def compute(at: int) -> torch.Tensor:
        buffer = buffers.acquire()
        return buffer.fill_(at + dist.get_rank())

    def communicate(buffer: torch.Tensor) -> dist.Work:
        work = all_reduce(buffer)
        buffers.release(work)
        return work

    sums = [buffer[-1].item() for buffer in pipeline(range(6), compute, communicate, depth=2)]
    buffers.wait()
    return sums


def test_two_buffers_take_turns(world):
    assert world(2).run(double_buffered) == [[2.0 * at + 1 for at in range(6)]] * 2


def test_a_buffer_is_acquired_and_released_in_turns():
    buffers = DoubleBuffer((2,), n=3)
    taken = []
    for _ in range(4):
        taken.append(buffers.acquire().data_ptr())
        with pytest.raises(RuntimeError, match="release"):
            buffers.acquire()
        buffers.release(None)
    assert len(set(taken[:3])) == 3
    assert taken[3] == taken[0]
    with pytest.raises(RuntimeError, match="acquire"):
        buffers.release(None)
    with pytest.raises(ValueError, match="n=0"):
        DoubleBuffer((2,), n=0)


def documented_pipeline() -> list[float]:
    """The pipeline of the specification: tensors are doubled and summed, and nothing is returned half done."""
    tensors = [torch.full((100,), float(at)) for at in range(4)]
    return [t[0].item() for t in pipeline(tensors, lambda t: t * 2, all_reduce)]


def test_the_documented_pipeline_returns_complete_sums(world):
    assert world(2).run(documented_pipeline) == [[0.0, 4.0, 8.0, 12.0]] * 2


class Failing:
    def wait(self) -> None:
        raise ValueError("the peer has died")


def test_a_failed_communication_raises_at_each_wait():
    """It must not pass for a complete one when somebody waits again."""
    buffers = DoubleBuffer((2,), n=1)
    buffers.acquire()
    buffers.release(Failing())
    flight = sagecomm.InFlight(torch.ones(1), [Failing()])
    for wait in (flight.wait, flight.wait, buffers.wait, buffers.acquire):
        with pytest.raises(ValueError, match="the peer has died"):
            wait()


# ---- chunks and fused gradients


def chunks() -> list[Any]:
    rank = dist.get_rank()
    value = torch.arange(1000.0) * (rank + 1)
    summed = sagecomm.chunked_all_reduce(value.clone(), chunk_bytes=1200)
    assert torch.equal(summed, torch.arange(1000.0) * 3)
    strided = torch.zeros(2, 50)[:, ::2].copy_(torch.arange(25.0))
    assert sagecomm.chunked_all_reduce(strided, chunk_bytes=7) is strided
    assert torch.equal(strided[1], torch.arange(25.0) * 2)
    started = sagecomm.chunked_all_reduce(value, chunk_bytes=1 << 20, op=dist.ReduceOp.AVG, async_op=True)
    assert started.wait() is value
    assert torch.equal(value, torch.arange(1000.0) * 1.5)

    seen: list[tuple[int, int]] = []

    def produce(chunk: torch.Tensor, at: int) -> None:
        seen.append((at, chunk.numel()))
        chunk.fill_(at + rank)

    produced = sagecomm.chunked_all_reduce(torch.empty(10), chunk_bytes=16, produce=produce)
    with pytest.raises(ValueError, match="contiguous"):
        sagecomm.chunked_all_reduce(strided, chunk_bytes=8, produce=produce)
    with pytest.raises(ValueError, match="chunk_bytes=0"):
        sagecomm.chunked_all_reduce(value, chunk_bytes=0)
    return [seen, produced.tolist()]


def test_chunks_are_lengths_in_bytes_and_sums_are_exact(world):
    want = [[(0, 4), (4, 4), (8, 2)], [1.0] * 4 + [9.0] * 4 + [17.0] * 2]
    assert world(2).run(chunks) == [want, want]


def fused() -> tuple[int, int, list[float]]:
    rank = dist.get_rank()
    parameters = [
        nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (5, 7, 3) for dtype in (torch.float32, torch.float64)
    ]
    for at, parameter in enumerate(parameters[:-1]):  # the last one has no gradient
        parameter.grad = torch.full_like(parameter, at + rank)
    before = len(sagecomm.get_stats()["rows"])
    collectives = sagecomm.fused_allreduce_gradients(parameters)
    assert before == 0
    once = sum(row["count"] for row in sagecomm.get_stats()["rows"])
    averages = [p.grad[0].item() for p in parameters if p.grad is not None]
    assert sagecomm.fused_allreduce_gradients(parameters, average=False, bucket_bytes=24) == 4
    assert parameters[1].grad is not None
    assert parameters[1].grad[0].item() == 2 * averages[1]
    parameters[0].grad = torch.sparse_coo_tensor([[0]], [1.0], (5,))
    with pytest.raises(ValueError, match=r"torch\.sparse_coo"):
        sagecomm.fused_allreduce_gradients(parameters)
    return collectives, once, averages


def test_gradients_of_one_type_share_one_collective(world):
    assert world(2).run(fused) == [(2, 2, [0.5, 1.5, 2.5, 3.5, 4.5])] * 2


# ---- OverlapScheduler and hooks of DistributedDataParallel

STEPS = 6


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step: int, rank: int, size: int) -> torch.Tensor:
    whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    return whole.chunk(size)[rank]


def loss_of(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
    return model(batch(step, rank, size)).square().mean()


def train_alone() -> list[torch.Tensor]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, 0, 1).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def train_scheduled(kind: str) -> tuple[list[torch.Tensor], int]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = net()
    optimizers = {
        layer: torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5) for layer in (model[0], model[2], model[4])
    }

    def update(layer: nn.Module) -> None:
        optimizers[layer].step()
        optimizers[layer].zero_grad()

    scheduler = OverlapScheduler(model, update=update if kind == "update" else None)
    for step in range(STEPS):
        if kind == "accumulate":
            half = batch(step, rank, size).chunk(2)
            with scheduler.no_sync():
                (model(half[0]).square().mean() / 2).backward()
            (model(half[1]).square().mean() / 2).backward()
        else:
            loss_of(model, step, rank, size).backward()
        if kind != "update":
            scheduler.wait()
            for layer in optimizers:
                update(layer)
    scheduler.remove()
    loss_of(model, 0, rank, size).backward()  # without hooks: nothing is communicated
    return [p.detach() for p in model.parameters()], sum(row["count"] for row in sagecomm.get_stats()["rows"])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["wait", "update", "accumulate"])
def test_a_scheduler_reduces_each_layer_once_in_a_step(world, size, kind):
    want = train_alone()
    for parameters, collectives in world(size).run(train_scheduled, kind):
        assert collectives == 3 * STEPS
        for got, expected in zip(parameters, want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


class Branches(nn.Module):
    """One layer has no part in the loss, and one parameter of another has none."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.used.weight


def unused_and_misused() -> tuple[float, bool]:
    rank = dist.get_rank()
    model = Branches()
    scheduler = OverlapScheduler(model)
    model(torch.full((1, 3), float(rank))).sum().backward()
    scheduler.wait()
    assert model.used.weight.grad is not None
    gradient = model.used.weight.grad[0, 0].item()

    layer = nn.Linear(2, 1)
    misused = OverlapScheduler(layer)
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"call wait\(\) before the next forward"):
        layer(torch.ones(1, 2))
    misused.wait()
    y = layer(torch.ones(1, 2)).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="came to a layer again"):
        y.backward()
    misused.remove()
    return gradient, model.unused.weight.grad is None


def test_a_scheduler_takes_layers_without_gradients_and_refuses_two_backwards(world):
    assert world(2).run(unused_and_misused) == [(0.5, True)] * 2


def scheduled_layer() -> tuple[float, float]:
    """The scheduler of the specification: a layer's output is summed while the caller goes on."""
    layer = nn.Linear(4, 4, bias=False)
    nn.init.eye_(layer.weight)
    scheduler = OverlapScheduler(nn.Module())
    x = torch.full((2, 4), float(dist.get_rank() + 1), requires_grad=True)
    output = scheduler.schedule_layer(lambda t: layer(t).tanh(), x)
    y = output.wait()
    y.sum().backward()
    assert x.grad is not None
    return y[0, 0].item(), (x.grad[0, 0] / (1 - torch.tanh(x.detach()[0, 0]) ** 2)).item()


def test_a_scheduled_layer_is_summed_and_differentiable(world):
    want = sum(torch.tanh(torch.tensor([1.0, 2.0])).tolist())
    for total, gradient in world(2).run(scheduled_layer):
        assert total == pytest.approx(want, rel=1e-5)
        assert gradient == pytest.approx(1, rel=1e-4)


HOOKS: dict[str, Callable[[], Any]] = {
    "chunked": lambda: sagecomm.ddp.chunked_hook(chunk_bytes=200),
    "fused": lambda: sagecomm.ddp.fused_hook(bucket_bytes=1 << 20),
    "fused, several": lambda: sagecomm.ddp.fused_hook(bucket_bytes=500),
    "bf16": lambda: sagecomm.ddp.bf16_hook,
}


def train_hooked(name: str) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, HOOKS[name]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, rank, size).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_train_as_one_process(world, name):
    want = train_alone()
    tolerance = 2e-2 if name == "bf16" else 1e-5
    first, second = world(2).run(train_hooked, name)
    for got, other, expected in zip(first, second, want, strict=True):
        assert torch.equal(got, other)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def collectives_of_a_step(name: str) -> dict[str, int]:
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, HOOKS[name]())
    counts = []
    for step in range(3):
        before = sagecomm.get_stats()["sequence"]
        loss_of(model, step, dist.get_rank(), 2).backward()
        counts.append(sagecomm.get_stats()["sequence"] - before)
    return {"last": counts[-1]}


def test_the_fused_hook_needs_one_collective_for_all_buckets(world):
    fused = world(2).run(collectives_of_a_step, "fused")
    several = world(2).run(collectives_of_a_step, "fused, several")
    assert [each["last"] for each in fused] == [1, 1]
    assert all(1 < each["last"] < 6 for each in several)


def test_a_hook_refuses_chunks_without_bytes():
    with pytest.raises(ValueError, match="chunk_bytes=0"):
        sagecomm.ddp.chunked_hook(chunk_bytes=0)
