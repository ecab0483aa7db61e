"""Groups with SAGECOMM_FUSION=static: short all_reduces share collectives, and a program sees no other difference."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import sagecomm
from older_torch import exception_of
from programs import in_background, report
from promises import kept
from test_ddp import train

FUSED = sagecomm.Options(settings={"fusion": "static"})
BOUND_S = 2.0


def gradients_of(steps: int, width: int) -> dict[str, Any]:
    """Trains a deep perceptron: a hook issues an all_reduce for each gradient as soon as it is there, and the step
    waits for all of them. Each rank looks at a loss at moments of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(width, width), nn.Tanh())])
    works: list[Any] = []

    def average(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        works.append(dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.full((4, width), float(step + rank))).square().mean()
        loss.backward()
        if step % size == rank:
            works[0].wait()
            shown = loss.detach().clone()
            mean = dist.all_reduce(shown, async_op=True)
        else:
            mean = dist.all_reduce(loss.detach().clone(), async_op=True)
        for work in works:
            work.wait()
        works.clear()
        mean.wait()
        optimizer.step()
    stats = sagecomm.get_stats()
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "all_reduces": stats["all_reduce_count"],
        "sequence": sagecomm_number(),
    }


def sagecomm_number() -> int:
    return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_one_by_one(world, size):
    plain = world(size).run(gradients_of, 6, 24)
    fused = world(size).run(gradients_of, 6, 24, options=FUSED)
    for a, b in zip(plain, fused, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a["parameters"], b["parameters"], strict=True))
        assert (b["all_reduces"], b["sequence"]) == (a["all_reduces"], a["sequence"]) == (6 * 17, 6 * 17)


@pytest.mark.parametrize("kind", ["plain", "small buckets", "hook that chains"])
def test_training_with_ddp(world, kind):
    plain = world(2).run(train, kind)
    fused = world(2).run(train, kind, options=FUSED)
    for (losses, state), (losses_fused, state_fused) in zip(plain, fused, strict=True):
        assert losses == losses_fused
        assert all(torch.equal(a, b) for a, b in zip(state, state_fused, strict=True))


def by_any_means() -> None:
    """Each rank finishes the works of each round in another way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(20):
        tensors = [torch.full((n,), float(rank + n)) for n in range(1, 9)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        way = (step + rank) % 4
        if way == 0:
            for work in reversed(works):
                work.wait()
        elif way == 1:
            while not all(work.is_completed() for work in works):
                time.sleep(0.0005)
        elif way == 2:
            torch.futures.wait_all([work.get_future() for work in works])
        if step % 3 == 0:
            dist.barrier()
        for work, t in zip(works, tensors, strict=True):
            work.wait()
            assert t[0].item() == size * t.numel() + size * (size - 1) / 2


@pytest.mark.parametrize("size", [2, 4])
def test_works_of_a_bucket(world, size):
    world(size).run(by_any_means, options=FUSED)


def shares() -> int:
    beside = dist.new_group(pg_options=sagecomm.Options(settings={"fusion": "off"}))
    tensors = [torch.ones(512) for _ in range(10)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    dist.barrier(group=beside)  # all ranks have issued all
    for work in works:
        work.wait()
    rows = [row for row in sagecomm.get_stats()["rows"] if row["op"] == "all_reduce"]
    assert sum(row["count"] for row in rows) == 10
    return int(sum(row["fused"] for row in rows))


def test_statistics_say_what_was_fused(world):
    assert world(2).run(shares) == [0, 0]
    fused = world(2).run(shares, options=FUSED)
    assert fused[0] == fused[1] > 0


def in_slices() -> tuple[torch.Tensor, int]:
    """A linear layer whose slices, of 1 KiB each, are short enough to join."""
    x, weight = torch.arange(32.0 * 8).view(32, 8) + dist.get_rank(), torch.arange(32.0 * 8).view(32, 8)
    y = sagecomm.linear_all_reduce(x, weight, slices=4)
    return y, sagecomm.get_stats()["all_reduce_count"]


def test_slices_of_an_operator(world):
    plain, fused = world(2).run(in_slices), world(2).run(in_slices, options=FUSED)
    for (want, collectives), (y, operations) in zip(plain, fused, strict=True):
        assert want.abs().min() > 0
        assert torch.equal(y, want)
        assert operations == collectives == 4


def wait_for_the_dead(path: str, mode: str) -> tuple[tuple[str, int | None], float]:
    dist.all_reduce(torch.ones(4))
    report(path)
    if dist.get_rank() == 2:
        signal.pause()
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(5)]
    try:
        if mode == "polling":
            while not works[2].is_completed():
                time.sleep(0.001)
            assert isinstance(exception_of(works[2]), sagecomm.PeerFailure)
        elif mode == "future":
            works[2].get_future().wait()
        works[0].wait()
    except dist.DistBackendError as error:
        for work in works[1:]:
            with pytest.raises(sagecomm.PeerFailure):
                work.wait()
        return (type(error).__name__, getattr(error, "rank", None)), time.monotonic()
    raise AssertionError("an operation with a dead rank succeeded")


@pytest.mark.parametrize("mode", ["waiting", "polling", "future"])
def test_death_while_a_bucket_is_open(mortals, signals, mode):
    ranks = mortals.world(3)
    outcomes = in_background(ranks, wait_for_the_dead, signals.path, mode, options=FUSED)
    signals.await_many(3)
    killed_at = time.monotonic()
    os.kill(ranks.pids()[2], signal.SIGKILL)
    for outcome in outcomes.result(60)[:2]:
        assert outcome.ok, outcome.trace
        failure, raised = outcome.value
        assert failure == ("PeerFailure", 2)
        kept(raised - killed_at, BOUND_S)
