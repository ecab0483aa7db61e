"""The samples of the documents on overlap and fusion, corrected, each beside a local reference.

What was wrong in them stands beside each: side streams that did not wait for the producer, waits in the call that
issued, chunks counted instead of measured, baselines without the independent computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import sagecomm
from sagecomm.nn import ColumnParallelLinear, RowParallelLinear

WIDTH, HEADS, ROWS, BATCH = 16, 4, 6, 4


def seeded(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def own(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def fused_gradient() -> None:
    """Was: one collective for each parameter, and a division that AVG makes needless."""
    parameters = [nn.Parameter(torch.zeros(n)) for n in (3, 5)]
    for at, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, float(at + dist.get_rank()))
    assert sagecomm.fused_allreduce_gradients(parameters) == 1
    mean = (dist.get_world_size() - 1) / 2
    for at, parameter in enumerate(parameters):
        assert parameter.grad is not None
        near(parameter.grad, torch.full_like(parameter, at + mean))


def chunked() -> None:
    """Was: chunk_size as the number of chunks, each waited for before the next one."""
    mine = seeded(1000) * (dist.get_rank() + 1)
    average = sagecomm.chunked_all_reduce(mine, chunk_bytes=512, op=dist.ReduceOp.AVG)
    near(average, seeded(1000) * (dist.get_world_size() + 1) / 2)


def forward_with_overlap() -> None:
    """Was: an all_reduce on a side stream that does not wait for the product, and a host that waits for the stream."""
    x, weight = seeded(BATCH, ROWS, WIDTH), seeded(WIDTH, WIDTH, seed=2)
    partial = own(x, 2) @ own(weight, 0)
    work = dist.all_reduce(partial, async_op=True)
    prepared = x.clone()  # what the next layer needs
    assert work is not None
    work.wait()
    near(partial, x @ weight)
    near(prepared, x)


def several_operations() -> None:
    tensors = [seeded(100, seed=at) for at in range(4)]
    with sagecomm.overlap() as ov:
        for tensor in tensors:
            ov.all_reduce(tensor)
        independent = seeded(10, 10) @ seeded(10, 10)
    for at, tensor in enumerate(tensors):
        near(tensor, seeded(100, seed=at) * dist.get_world_size())
    near(independent, seeded(10, 10) @ seeded(10, 10))


class Block(nn.Module):
    """A block whose sums travel while residuals are prepared. Was: streams that race, one handle overwritten by the
    next layer's call."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (ColumnParallelLinear(WIDTH, WIDTH) for _ in range(3))
        self.o = RowParallelLinear(WIDTH, WIDTH)
        self.w1, self.w2 = ColumnParallelLinear(WIDTH, 4 * WIDTH), RowParallelLinear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.ln1(x)
        heads = (each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k, self.v))
        attended = self.o.start(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        residual = x.clone()  # while the sum travels
        x = residual + attended.wait()
        hidden = self.w2.start(F.gelu(self.w1(self.ln2(x))))
        residual = x.clone()
        return residual + hidden.wait()


class DenseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)
        self.w1, self.w2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.ln1(x)
        heads = (each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.w2(F.gelu(self.w1(self.ln2(x))))


def transformer_block() -> None:
    torch.manual_seed(0)
    dense = DenseBlock()
    torch.manual_seed(0)
    block = Block()
    inputs = [seeded(BATCH, ROWS, WIDTH).requires_grad_() for _ in range(2)]
    want, got = dense(inputs[0]), block(inputs[1])
    near(got, want)
    want.square().sum().backward()
    got.square().sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is not None
    near(inputs[1].grad, inputs[0].grad)


def layers_in_a_pipeline() -> None:
    """Was: a comment in the place of the second layer. Halves of a batch go through all layers."""
    weights = [seeded(WIDTH, WIDTH, seed=at) / WIDTH**0.5 for at in range(3)]
    x = seeded(BATCH, WIDTH)
    want = x
    for weight in weights:
        want = torch.tanh(want @ weight)

    def layer(weight: torch.Tensor, halves: Any) -> Any:
        sums = sagecomm.pipeline(
            halves, lambda half: own(half, 1) @ own(weight, 0), lambda part: dist.all_reduce(part, async_op=True)
        )
        return (torch.tanh(each) for each in sums)

    halves: Any = iter(x.chunk(2))
    for weight in weights:
        halves = layer(weight, halves)
    near(torch.cat(list(halves)), want)


def double_buffered_layer() -> None:
    """Was: a layer that waits in the call that has issued, so that its second buffer is never used meanwhile."""
    buffers = sagecomm.DoubleBuffer((BATCH, WIDTH))
    weight = seeded(WIDTH, WIDTH)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(own(x, 1), own(weight, 0), out=buffers.acquire())

    def communicate(buffer: torch.Tensor) -> dist.Work | None:
        work = dist.all_reduce(buffer, async_op=True)
        buffers.release(work)
        return work

    inputs = [seeded(BATCH, WIDTH, seed=at) for at in range(5)]
    for x, y in zip(inputs, sagecomm.pipeline(inputs, forward, communicate), strict=True):
        near(y, x @ weight)


def scheduled_layers() -> None:
    """Was: a handle that nobody waits for."""
    scheduler = sagecomm.OverlapScheduler()
    weight, x = seeded(WIDTH, WIDTH), seeded(BATCH, WIDTH)
    output = scheduler.schedule_layer(lambda part: part @ own(weight, 0), own(x, 1))
    prepared = x + 1
    near(output.wait(), x @ weight)
    near(prepared, x + 1)


def gradients_layer_by_layer() -> None:
    """Was: backward() called on gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    x = seeded(2 * BATCH, WIDTH)
    model(x).mean().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    scheduler = sagecomm.OverlapScheduler(model)
    model(own(x, 0)).mean().backward()
    scheduler.wait()
    for parameter, gradient in zip(model.parameters(), want, strict=True):
        assert parameter.grad is not None
        near(parameter.grad, gradient)


def measured() -> None:
    """Was: a baseline without the computation that overlaps."""
    x = seeded(32, 32)
    report = sagecomm.measure_overlap(
        lambda: x @ x, lambda y: dist.all_reduce(y, async_op=True), lambda: x @ x @ x, repetitions=3, warm_up=1
    )
    parts = (report.compute, report.overlappable, report.communicate)
    assert report.serial == pytest.approx(sum(each.median for each in parts))
    assert report.hidden_fraction == pytest.approx(
        (report.serial - report.overlapped.median) / report.communicate.median
    )


SAMPLES: list[Callable[[], None]] = [
    fused_gradient,
    chunked,
    forward_with_overlap,
    several_operations,
    transformer_block,
    layers_in_a_pipeline,
    double_buffered_layer,
    scheduled_layers,
    gradients_layer_by_layer,
    measured,
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.__name__)
def test_a_sample_equals_its_reference(world, sample):
    world(2).run(sample)
