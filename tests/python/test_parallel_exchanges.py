"""Exchanges between neighbours: ring attention and pipelines, beside the same computation in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from sagecomm.parallel import PipelineStage, ProcessGroupManager, ring, ring_shift

HEADS, LENGTH, WIDTH = 2, 16, 8


def attention_inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(HEADS, LENGTH, WIDTH, generator=generator, requires_grad=True) for _ in range(3))


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Attention of the own queries to the keys of all ranks, with the running maximum of the online softmax."""
    most = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total, out = torch.zeros_like(most), torch.zeros_like(q)
    for _, (keys, values) in ring(torch.stack([k, v]), group):
        scores = q @ keys.transpose(-1, -2) / WIDTH**0.5
        highest = torch.maximum(most, scores.amax(-1, keepdim=True)).detach()
        weights = (scores - highest).exp()
        scale = (most - highest).exp()
        out, total, most = out * scale + weights @ values, total * scale + weights.sum(-1, keepdim=True), highest
    return out / total


def attention_over_ranks() -> tuple[torch.Tensor, list[torch.Tensor]]:
    manager = ProcessGroupManager(cp=dist.get_world_size())
    own = [t.detach().chunk(manager.cp_world_size, 1)[manager.cp_rank].requires_grad_() for t in attention_inputs()]
    out = ring_attention(*own, manager.cp_group)
    out.square().sum().backward()
    assert all(t.grad is not None for t in own)
    return out.detach(), [t.grad for t in own if t.grad is not None]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ring_attention_equals_attention_with_gradients(world, size):
    inputs = attention_inputs()
    want = F.scaled_dot_product_attention(*inputs)
    want.square().sum().backward()
    answers = world(size).run(attention_over_ranks)
    torch.testing.assert_close(torch.cat([out for out, _ in answers], 1), want.detach(), rtol=1e-5, atol=1e-5)
    for at, whole in enumerate(inputs):
        together = torch.cat([gradients[at] for _, gradients in answers], 1)
        torch.testing.assert_close(together, whole.grad, rtol=1e-5, atol=1e-5)


def blocks_of_all() -> tuple[list[int], list[float], float, float]:
    rank = dist.get_rank()
    mine = torch.full((3,), float(rank), requires_grad=True)
    seen = [(source, block[0].item()) for source, block in ring(mine)]
    moved = ring_shift(mine)
    (moved * (rank + 1)).sum().backward()
    assert mine.grad is not None
    return [source for source, _ in seen], [value for _, value in seen], moved[0].item(), mine.grad[0].item()


def test_a_ring_brings_each_block_once_and_a_shift_brings_gradients_back(world):
    for rank, (sources, values, moved, gradient) in enumerate(world(4).run(blocks_of_all)):
        assert sources == [(rank - step) % 4 for step in range(4)] == values
        assert moved == (rank - 1) % 4
        assert gradient == (rank + 1) % 4 + 1  # the factor of the rank that the tensor went to


STAGES, MICRO_BATCHES, ROWS = 4, 6, 3


def layers() -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(STAGES)]


def micro_batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(MICRO_BATCHES)]


def all_forward_all_backward(stage: PipelineStage, layer: nn.Module) -> None:
    """The schedule of GPipe."""
    kept = []
    for inputs in micro_batches():
        received = stage.recv_forward()
        y = layer(inputs if received is None else received)
        stage.send_forward(y)
        kept.append((received, y))
    for received, y in kept:
        gradient = stage.recv_backward()
        (y.square().sum() if gradient is None else (y * gradient).sum()).backward()
        stage.send_backward(None if received is None else received.grad)


def one_forward_one_backward(stage: PipelineStage, layer: nn.Module) -> None:
    """The schedule 1F1B: a stage holds as many activations as stages follow it."""
    inputs = iter(micro_batches())
    warm_up = min(STAGES - 1 - stage.manager.pp_rank, MICRO_BATCHES)
    kept: list[tuple[torch.Tensor | None, torch.Tensor]] = []

    def forward(received: torch.Tensor | None) -> torch.Tensor:
        first = next(inputs)
        y = layer(first if received is None else received)
        kept.append((received, y))
        return y

    def backward(gradient: torch.Tensor | None) -> torch.Tensor | None:
        received, y = kept.pop(0)
        (y.square().sum() if gradient is None else (y * gradient).sum()).backward()
        return None if received is None else received.grad

    for _ in range(warm_up):
        stage.send_forward(forward(stage.recv_forward()))
    steady = MICRO_BATCHES - warm_up
    received = stage.recv_forward() if steady else None
    for at in range(steady):
        gradient = backward(stage.send_forward_recv_backward(forward(received)))
        if at == steady - 1:
            stage.send_backward(gradient)
        else:
            received = stage.send_backward_recv_forward(gradient)
    for _ in range(warm_up):
        stage.send_backward(backward(stage.recv_backward()))


SCHEDULES = {"GPipe": all_forward_all_backward, "1F1B": one_forward_one_backward}


def gradients_of_a_stage(schedule: str) -> list[torch.Tensor]:
    manager = ProcessGroupManager(pp=STAGES)
    layer = layers()[manager.pp_rank]
    SCHEDULES[schedule](PipelineStage(manager, shape=(ROWS, WIDTH)), layer)
    return [p.grad for p in layer.parameters() if p.grad is not None]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_forwards_on_every_stage_and_equals_one_process(world, schedule):
    whole = layers()
    for inputs in micro_batches():
        nn.Sequential(*whole)(inputs).square().sum().backward()
    for layer, gradients in zip(whole, world(STAGES).run(gradients_of_a_stage, schedule), strict=True):
        for mine, parameter in zip(gradients, layer.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-5, atol=1e-5)


def what_a_stage_refuses() -> None:
    stage = PipelineStage(ProcessGroupManager(pp=2), shape=(ROWS, WIDTH))
    if stage.is_first:
        with pytest.raises(ValueError, match=r"exchange \(3, 8\) of torch.float32, but this tensor has \(3, 4\)"):
            stage.send_forward(torch.ones(ROWS, 4))
    else:
        with pytest.raises(ValueError, match=r"was backward\(\) called"):
            stage.send_backward(None)
    assert stage.recv_forward() is None if stage.is_first else stage.recv_backward() is None


def test_a_stage_refuses_what_its_neighbour_does_not_expect(world):
    world(2).run(what_a_stage_refuses)


def scalar_of_the_stage_before() -> float | None:
    stage = PipelineStage(ProcessGroupManager(pp=2), shape=())
    stage.send_forward(torch.tensor(3.0))
    activation = stage.recv_forward()
    return None if activation is None else activation.item()


def test_stages_exchange_scalars(world):
    assert world(2).run(scalar_of_the_stage_before) == [None, 3.0]
