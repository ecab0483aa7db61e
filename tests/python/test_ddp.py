"""DistributedDataParallel trains on sagecomm as on gloo: bit for bit on two ranks, where both add in the same order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import reference as ref
from selection import quickly

STEPS = 20


class Net(nn.Module):
    """Convolution, batch normalisation and a perceptron; one branch is used by every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8 * 6 * 6, 300)
        self.second = nn.Linear(300, 10)
        self.sometimes = nn.Linear(300, 10)

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.first(x.flatten(1)))
        return self.second(x) + self.sometimes(x) if both else self.second(x)


def batch(rank: int, step: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def state(model: nn.Module) -> list[torch.Tensor]:
    return [t.detach().clone() for t in model.state_dict().values()]


def train(kind: str) -> tuple[list[float], list[torch.Tensor]]:
    """Returns the losses of this rank, and the parameters and buffers at the end."""
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)  # DDP must broadcast rank 0's parameters
    options: dict[str, Any] = {
        "plain": {},
        "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
        "static_graph": {"static_graph": True},
        "find_unused_parameters": {"find_unused_parameters": True},
        "small buckets": {"bucket_cap_mb": 0.05},
        "no_sync": {},
        "hook that chains": {"bucket_cap_mb": 0.05},
    }.get(kind, {})
    model = DistributedDataParallel(Net(), **options)
    if kind == "hook that chains":
        model.register_comm_hook([dist.new_group() for _ in range(12)], chaining_hook)
    if kind in TORCH_HOOKS:
        model.register_comm_hook(*TORCH_HOOKS[kind]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        if kind == "no_sync":
            with model.no_sync():
                x, y = batch(rank, 500 + step)
                F.cross_entropy(model(x), y).backward()
        x, y = batch(rank, step)
        loss = F.cross_entropy(model(x, both=kind != "find_unused_parameters" or step % 2 == 0), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model.module)


def low_rank() -> power_sgd.PowerSGDState:
    """Gradients whole for two steps, then products of narrow matrices, from one all_reduce and from another that its
    callback issues."""
    return power_sgd.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)


TORCH_HOOKS: dict[str, Callable[[], tuple[Any, Callable[..., Any]]]] = {
    "bf16 hook": lambda: (None, default_hooks.bf16_compress_hook),
    "fp16 hook": lambda: (None, default_hooks.fp16_compress_hook),
    "PowerSGD hook": lambda: (low_rank(), power_sgd.powerSGD_hook),
}


def chaining_hook(groups, bucket):  # torch takes no annotations that are text
    """A second collective from the callback of the first, on a thread that completes works. Each bucket has a group of
    its own: callbacks of two buckets may run at the same time."""
    scale = 1.0 / dist.get_world_size()
    first = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def then(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        total = future.value()[0]
        check = total.clone()
        dist.broadcast(check, 0, group=groups[bucket.index()])
        assert torch.equal(check, total), "ranks have different sums"
        return total.mul_(scale)

    return first.then(then)


KINDS = (
    "plain",
    "gradient_as_bucket_view",
    "static_graph",
    "find_unused_parameters",
    "small buckets",
    "no_sync",
    "hook that chains",
    *TORCH_HOOKS,
)


@pytest.mark.parametrize("kind", quickly(["plain", "hook that chains"], KINDS))
def test_two_ranks_train_to_the_same_bits_as_on_gloo(world, kind):
    ours = world(2).run(train, kind)
    theirs = world(2).run(train, kind, backend="gloo")
    for (losses, params), (their_losses, their_params) in zip(ours, theirs, strict=True):
        assert losses == their_losses
        for number, (mine, other) in enumerate(zip(params, their_params, strict=True)):
            ref.check_same(mine, other, f"{kind}: tensor {number}")


@pytest.mark.parametrize(
    "kind", quickly(["gradient_as_bucket_view"], ["plain", "gradient_as_bucket_view", "hook that chains"])
)
def test_four_ranks_train_as_on_gloo(world, kind):
    ours = world(4).run(train, kind)
    theirs = world(4).run(train, kind, backend="gloo")
    for rank, (losses, params) in enumerate(ours):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(theirs[rank][0]), rtol=1e-3, atol=1e-4)
        for number, mine in enumerate(params):
            torch.testing.assert_close(mine, theirs[rank][1][number], rtol=1e-3, atol=1e-3)
            is_buffer = mine.dtype != torch.float32 or 2 <= number < 7  # each rank has its own batch statistics
            assert is_buffer or torch.equal(mine, ours[0][1][number]), f"{kind}: rank {rank}, tensor {number}"


def train_uneven() -> tuple[int, list[torch.Tensor]]:
    """With join(), ranks with fewer batches take part in the collectives of the others."""
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    with Join([model]):
        for step in range(5 + 3 * rank):
            generator = torch.Generator().manual_seed(100 * step + rank)
            model(torch.randn(8, 20, generator=generator)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return done, state(model.module)


def test_uneven_inputs(world):
    ours, theirs = world(2).run(train_uneven), world(2).run(train_uneven, backend="gloo")
    assert [done for done, _ in ours] == [5, 8]
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        for number, (a, b) in enumerate(zip(mine, other, strict=True)):
            ref.check_same(a, b, f"tensor {number}")


def train_in_detail() -> tuple[list[float], list[torch.Tensor]]:
    assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    return train("plain")


def test_torch_distributed_debug_detail(fresh_world, world):
    """At debug level DETAIL torch wraps the backend and compares every call through a group of its own."""
    ranks = fresh_world(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    ours, plain = ranks.run(train_in_detail), world(2).run(train, "plain")
    for (losses, params), (their_losses, their_params) in zip(ours, plain, strict=True):
        assert losses == their_losses
        for number, (mine, other) in enumerate(zip(params, their_params, strict=True)):
            ref.check_same(mine, other, f"tensor {number}")


def profiled() -> tuple[int, list[str]]:
    """Each operation has one record_param_comms range, which torch's trace analysers look for."""
    t = torch.ones(100)
    with torch.profiler.profile() as profile:
        dist.all_reduce(t)
        dist.all_reduce(t, async_op=True).wait()
        dist.broadcast(t, 0)
        dist.barrier()
    names = [event.name for event in profile.events()]
    return names.count("record_param_comms"), [n for n in names if n.startswith("sagecomm:")]


def test_profiler_sees_every_operation(world):
    for count, names in world(2).run(profiled):
        assert count == 4
        assert sorted(set(names)) == ["sagecomm:all_reduce", "sagecomm:barrier", "sagecomm:broadcast"]
