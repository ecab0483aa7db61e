"""Gradients that are communicated while others are computed: OverlapScheduler and the hooks of DistributedDataParallel,
beside training in one process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sagecomm
from sagecomm import OverlapScheduler

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


def used_under_no_sync_alone() -> list[float]:
    """A layer with no part in the last backward() of a step, and one of which only a part has one."""
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1), "c": Branches()})
    scheduler = OverlapScheduler(model)
    x = torch.full((1, 2), float(dist.get_rank()))
    with scheduler.no_sync():
        (model["b"](x).sum() + model["c"].used(torch.full((1, 3), float(dist.get_rank()))).sum()).backward()
    (model["a"](x).sum() + model["c"](torch.full((1, 3), float(dist.get_rank()))).sum()).backward()
    scheduler.wait()
    gradients = [model[name].weight.grad for name in ("a", "b")] + [model["c"].used.weight.grad]
    return [g[0, 0].item() for g in gradients if g is not None] + [model["c"].used.bias.grad[0].item()]


def test_gradients_under_no_sync_alone_are_reduced(world):
    assert world(2).run(used_under_no_sync_alone) == [[0.5, 0.5, 1.0, 1.0]] * 2


def partly_used_without_wait() -> None:
    model = Branches()
    scheduler = OverlapScheduler(model)
    model.used(torch.ones(1, 3))  # a forward of the layer itself has its hook
    (torch.ones(1, 3) @ model.used.weight).sum().backward()
    with pytest.raises(RuntimeError, match=r"call wait\(\) before the next forward"):
        model.used(torch.ones(1, 3))
    scheduler.wait()
    scheduler.remove()


def test_a_wait_that_is_forgotten_for_a_partly_used_layer_is_noticed(world):
    world(2).run(partly_used_without_wait)


def gradient_after(call: Callable[[], object], layer: nn.Linear) -> float:
    """Of the weight, when only its own gradients of this step count."""
    layer.zero_grad(set_to_none=True)
    call()
    assert layer.weight.grad is not None
    return layer.weight.grad[0, 0].item()


class StepFailedError(Exception):
    pass


def failed_steps() -> None:
    """The program catches what a step raises, and goes on."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    model = nn.Sequential(first, second)
    scheduler = OverlapScheduler(model)
    x = torch.full((1, 2), float(dist.get_rank() + 1))

    def step(fails: bool) -> None:
        hidden = first(x)
        if fails:
            hidden.register_hook(fail)  # the last layer is being reduced, and the first one has no gradient
        second(hidden).sum().backward()
        scheduler.wait()

    def fail(_: torch.Tensor) -> None:
        raise StepFailedError

    with torch.no_grad():
        second.weight.fill_(1)
    assert gradient_after(lambda: step(False), first) == 1.5
    with pytest.raises(StepFailedError):
        step(True)
    with pytest.raises(RuntimeError, match=r"call wait\(\) before the next forward"):
        step(False)
    scheduler.abandon()
    model.zero_grad(set_to_none=True)
    assert gradient_after(lambda: step(False), first) == 1.5
    with scheduler.no_sync(), pytest.raises(StepFailedError):
        step(True)
    scheduler.abandon()
    before = sagecomm.get_stats()["sequence"]
    scheduler.wait()
    assert sagecomm.get_stats()["sequence"] == before  # no gradient of the step is left to reduce

    # An update that raises leaves no hook behind.
    scheduler.remove()
    layer = nn.Linear(2, 1)
    failing = OverlapScheduler(layer, update=fail)  # type: ignore[arg-type]
    layer(x).sum().backward()
    with pytest.raises(StepFailedError):
        failing.remove()
    before = sagecomm.get_stats()["sequence"]
    assert gradient_after(lambda: layer(x).sum().backward(), layer) == dist.get_rank() + 1
    assert sagecomm.get_stats()["sequence"] == before


def test_a_step_that_failed_is_abandoned_and_hooks_are_removed(world):
    world(2).run(failed_steps)


def sparse_gradients() -> None:
    """They are refused before the layer is sent."""
    embedding = nn.Embedding(4, 2, sparse=True)
    OverlapScheduler(embedding)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"OverlapScheduler: a gradient has the layout torch\.sparse_coo"):
            embedding(torch.tensor([1])).sum().backward()
    hooks = {"chunked_hook": HOOKS["chunked"], "fused_hook": HOOKS["fused"], "bf16_hook": HOOKS["bf16"]}
    for name, hook in hooks.items():
        model = DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
        model.register_comm_hook(None, hook())
        before = sagecomm.get_stats()["sequence"]
        with pytest.raises((ValueError, RuntimeError), match=rf"ddp\.{name}: a gradient has the layout torch\.sparse"):
            model(torch.tensor([dist.get_rank()])).sum().backward()
        assert sagecomm.get_stats()["sequence"] == before


def test_sparse_gradients_are_refused_before_anything_is_sent(world):
    world(2).run(sparse_gradients)


def scheduled_on_gloo() -> list[float]:
    layer = nn.Linear(2, 1)
    scheduler = OverlapScheduler(layer)
    layer(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    scheduler.wait()
    assert layer.weight.grad is not None
    return layer.weight.grad[0].tolist()


def test_a_scheduler_averages_on_gloo(world):
    assert world(2).run(scheduled_on_gloo, backend="gloo") == [[0.5, 0.5]] * 2


def attention() -> nn.Module:
    """Never calls forward() of its out_proj."""
    torch.manual_seed(5)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


class Tied(nn.Module):
    """The head is the first one that has the parameter, and the embedding the first one that uses it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.head = nn.Linear(4, 10, bias=False)
        self.middle = nn.Linear(4, 4)
        self.embedding = nn.Embedding(10, 4)
        self.embedding.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(x.flatten().abs().long())).tanh())


def train_by_layers(make: Callable[[], nn.Module], scheduled: bool) -> list[torch.Tensor]:
    model = make()
    size, rank = (dist.get_world_size(), dist.get_rank()) if scheduled else (1, 0)
    optimizers: dict[nn.Module, torch.optim.SGD] = {}

    def update(layer: nn.Module) -> None:
        own = list(layer.parameters(recurse=False))
        optimizer = optimizers.setdefault(layer, torch.optim.SGD(own, lr=0.1))
        optimizer.step()
        optimizer.zero_grad()

    scheduler = OverlapScheduler(model, update=update) if scheduled else None
    for step in range(4):
        x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(step))
        model(x.chunk(size)[rank]).square().mean().backward()
        if scheduler is None:
            for layer in model.modules():
                if list(layer.parameters(recurse=False)):
                    update(layer)
    if scheduler is not None:
        scheduler.remove()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("make", [attention, Tied])
def test_each_layer_is_updated_before_the_first_module_that_uses_its_parameters(world, make):
    want = train_by_layers(make, False)
    for parameters in world(2).run(train_by_layers, make, True):
        for got, expected in zip(parameters, want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def forgotten_module() -> bool:
    model = net()
    scheduler = OverlapScheduler(model)
    model(batch(0, 0, 1)).square().mean().backward()
    scheduler.wait()
    gone = weakref.ref(model)
    del model, scheduler
    gc.collect()
    return gone() is None


def test_hooks_do_not_keep_a_module_that_nobody_has(world):
    assert world(1).run(forgotten_module) == [True]


def scheduled_layer() -> tuple[float, float]:
    """The scheduler of the specification: a layer's output is summed while the caller goes on."""
    layer = nn.Linear(4, 4, bias=False)
    nn.init.eye_(layer.weight)
    scheduler = OverlapScheduler()
    x = torch.full((2, 4), float(dist.get_rank() + 1), requires_grad=True)
    go = torch.ones(1)
    if dist.get_rank() == 1:
        dist.recv(go, 0)  # so the other rank has no sum without a wait
    output = scheduler.schedule_layer(lambda t: layer(t).tanh(), x)
    if dist.get_rank() == 0:
        dist.send(go, 1)
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


class Bucket:
    """The only bucket of a step. DistributedDataParallel of newer torch has real ones for complex parameters."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def complex_gradients(name: str) -> list[complex]:
    buffer = torch.tensor([1 + 2j, 3 - 1j, 2j] * 20) * (dist.get_rank() + 1)
    reduced = HOOKS[name]()(None, Bucket(buffer)).wait()
    assert reduced is buffer or reduced.data_ptr() == buffer.data_ptr()
    return reduced.tolist()[-3:]


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("backend", ["sagecomm", "gloo"])
def test_hooks_average_both_parts_of_complex_gradients(world, name, backend):
    """All numbers are exact in bfloat16."""
    assert world(2).run(complex_gradients, name, backend=backend) == [[1.5 + 3j, 4.5 - 1.5j, 3j]] * 2


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
