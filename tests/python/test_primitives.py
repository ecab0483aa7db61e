"""The functional primitives, with the calling conventions of torch.distributed, in the default group and in a part."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from sagecomm import primitives
from worlds import World


def collectives(async_op: bool) -> None:
    """Each against what every rank can compute by itself, in a group whose ranks are not those of the job."""
    part = dist.new_group([1, 2, 3])
    for group, members in (None, [0, 1, 2, 3]), (part, [1, 2, 3]):
        rank = dist.get_rank()
        if rank not in members:
            with pytest.raises(ValueError, match="all_reduce: this rank is not in the group"):
                sagecomm.all_reduce(torch.ones(1), group=group)
            with pytest.raises(ValueError, match="isend: this rank is not in the group"):
                sagecomm.isend(torch.ones(1), 1, group=group)
            continue

        def value(result: Any) -> Any:
            assert isinstance(result, torch.futures.Future) is async_op
            return result.wait() if async_op else result

        size, place = len(members), members.index(rank)
        tensor = torch.arange(6.0).reshape(2, 3) * rank
        result = value(sagecomm.all_reduce(tensor, group=group, async_op=async_op))
        assert result is tensor
        assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3) * sum(members))
        tensor = torch.tensor([float(rank)])
        assert value(sagecomm.all_reduce(tensor, dist.ReduceOp.MAX, group, async_op)).item() == 3

        gathered = value(sagecomm.all_gather(torch.full((2, 3), float(rank)).t(), group=group, async_op=async_op))
        assert isinstance(gathered, list)
        assert [t.shape for t in gathered] == [(3, 2)] * size
        assert all(t.eq(member).all() for t, member in zip(gathered, members, strict=True))
        assert [t.item() for t in value(sagecomm.all_gather(torch.tensor(rank), group, async_op))] == members

        output = torch.empty(2, 2)
        blocks = [torch.full((2, 2), float(10 * rank + r)) for r in range(size)]
        result = value(sagecomm.reduce_scatter(output, blocks, group=group, async_op=async_op))
        assert result is output
        assert output.eq(10 * sum(members) + size * place).all()
        value(sagecomm.reduce_scatter(output, blocks, "avg", group, async_op))
        torch.testing.assert_close(output, torch.full((2, 2), 10 * sum(members) / size + place))
        with pytest.raises(ValueError, match=f"reduce_scatter: input_list has 1 tensors for {size} ranks"):
            sagecomm.reduce_scatter(output, blocks[:1], group=group)
        with pytest.raises(ValueError, match=r"tensor 0 of input_list has shape \[3\], .*; output has \[2, 2\]"):
            sagecomm.reduce_scatter(output, [torch.empty(3)] * size, group=group)

        tensor = torch.full((3,), float(rank))
        assert value(sagecomm.broadcast(tensor, 2, group, async_op)) is tensor
        assert tensor.eq(2).all()

        sent = [torch.full((1 + place,), float(10 * rank + r)) for r in range(size)]
        received = [torch.empty(1 + r) for r in range(size)]
        assert value(sagecomm.all_to_all(sent, received, group, async_op))[0] is received[0]
        for r, tensor in enumerate(received):
            assert torch.equal(tensor, torch.full((1 + r,), float(10 * members[r] + place)))


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
@pytest.mark.parametrize("async_op", [False, True])
def test_collectives(world: Callable[[int], World], name: str, async_op: bool) -> None:
    world(4).run(collectives, async_op, backend=name)


def ring() -> None:
    """A tensor goes once around, with works and without; tags keep two messages apart."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    room = torch.empty(1000)
    sending = sagecomm.isend(torch.full((1000,), float(rank)), right)
    receiving = sagecomm.irecv(room, left)
    assert isinstance(sending, dist.Work)
    sending.wait()
    receiving.wait()
    assert room.eq(left).all()

    first, second = torch.empty(2), torch.empty(3)
    works = [sagecomm.irecv(second, left, tag=2), sagecomm.irecv(first, left, tag=1)]
    works += [sagecomm.isend(torch.full((2,), 1.0), right, tag=1), sagecomm.isend(torch.full((3,), 2.0), right, tag=2)]
    for work in works:
        work.wait()
    assert (first.tolist(), second.tolist()) == ([1.0] * 2, [2.0] * 3)

    # A pipeline: every stage but the first receives, every stage but the last sends on.
    activation = torch.zeros(4, 2)
    if rank > 0:
        sagecomm.recv(activation, src=rank - 1)
    activation += 1
    if rank < size - 1:
        sagecomm.send(activation, dst=rank + 1)
    assert activation.eq(rank + 1).all()


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
@pytest.mark.parametrize("size", [2, 3])
def test_p2p(world: Callable[[int], World], name: str, size: int) -> None:
    world(size).run(ring, backend=name)


def strided_and_refused(finishes: list[str]) -> None:
    """Tensors that are not contiguous are sent and received as others are; ranks are those of the job."""
    group = dist.new_group([1, 2])
    rank = dist.get_rank()
    if rank == 0:
        return
    other = 3 - rank
    calls: dict[str, Callable[[torch.Tensor, int], Any]] = {
        "send": lambda t, peer: sagecomm.send(t, peer, group),
        "recv": lambda t, peer: sagecomm.recv(t, peer, group),
        "isend": lambda t, peer: sagecomm.isend(t, peer, group),
        "irecv": lambda t, peer: sagecomm.irecv(t, peer, group),
        "broadcast": lambda t, peer: sagecomm.broadcast(t, peer, group),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"{name}: rank 0 of the job is not in the group of the ranks \[1, 2\]"):
            call(torch.ones(1), 0)
    for finish in finishes:
        wide = torch.zeros(3, 4)
        receiving = sagecomm.irecv(wide[:, 1], other, group)
        sending = sagecomm.isend(torch.arange(6.0).reshape(3, 2)[:, 1] + 10 * rank, other, group)
        sending.wait()
        if finish == "wait":
            receiving.wait()
        elif finish == "get_future":
            receiving.get_future().wait()
        else:
            dist.barrier(group)  # behind it the message has been sent
            deadline = time.monotonic() + 30
            while not receiving.is_completed():
                assert time.monotonic() < deadline
            assert receiving.is_success()
        assert torch.equal(wide[:, 1], torch.tensor([1.0, 3.0, 5.0]) + 10 * other), finish
        assert wide[:, [0, 2, 3]].eq(0).all()


# The works of gloo have no futures, and complete in wait().
FINISHES = {"sagecomm": ["wait", "is_completed", "get_future"], "gloo": ["wait"]}


@pytest.mark.parametrize("name", FINISHES)
def test_p2p_of_strided_tensors_in_a_part_of_the_job(world: Callable[[int], World], name: str) -> None:
    world(3).run(strided_and_refused, FINISHES[name], backend=name)


def patterns() -> None:
    """Uses that such primitives are made for: gradients, weights in shards, tokens of a sequence in shards."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(4, 3 * size, generator=generator)
    parts = sagecomm.all_gather(weight.chunk(size, dim=-1)[rank])
    assert torch.equal(torch.cat(parts, dim=-1), weight)

    sequence = torch.arange(8.0 * size) + 100 * rank
    received = [torch.empty(8) for _ in range(size)]
    sagecomm.all_to_all([sequence[i::size] for i in range(size)], received)
    for r, tensor in enumerate(received):
        assert torch.equal(tensor, (torch.arange(8.0 * size) + 100 * r)[rank::size])

    model = torch.nn.Linear(3, 2)
    for parameter in model.parameters():
        sagecomm.broadcast(parameter.data, src=0)
    x = torch.randn(4 * size, 3, generator=generator)
    model(x.chunk(size)[rank]).square().mean().backward()
    handles = [sagecomm.all_reduce(p.grad, op="avg", async_op=True) for p in model.parameters() if p.grad is not None]
    reduced = [handle.wait() for handle in handles]
    whole = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for mine, reference in zip(reduced, whole, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_patterns_of_use(world: Callable[[int], World], size: int) -> None:
    world(size).run(patterns)


def test_signatures() -> None:
    """Arguments and their order are promised."""
    promised = {
        "all_reduce": "tensor op group async_op",
        "all_gather": "tensor group async_op",
        "reduce_scatter": "output input_list op group async_op",
        "broadcast": "tensor src group async_op",
        "all_to_all": "send_list recv_list group async_op",
        "send": "tensor dst group tag",
        "recv": "tensor src group tag",
        "isend": "tensor dst group tag",
        "irecv": "tensor src group tag",
    }
    assert sorted(promised) == primitives.__all__
    for name, parameters in promised.items():
        assert list(inspect.signature(getattr(sagecomm, name)).parameters) == parameters.split(), name


def test_without_a_job() -> None:
    for call in (
        lambda: sagecomm.all_reduce(torch.ones(1)),
        lambda: sagecomm.all_gather(torch.ones(1)),
        lambda: sagecomm.send(torch.ones(1), 0),
        lambda: sagecomm.irecv(torch.ones(1), 0),
        lambda: sagecomm.autograd.all_reduce(torch.ones(1)),
    ):
        with pytest.raises(ValueError, match="call init_process_group first"):
            call()
