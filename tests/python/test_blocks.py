"""Collectives whose buffers are a block for each rank: tensors that share memory, objects, and what is refused. All
else about reduce_scatter, all_to_all, gather and scatter is in test_matrix.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import reference as ref
from operations import single

SIZES = (1, pytest.param(2, marks=pytest.mark.smoke), 3, 4, 8)


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


def shared_memory() -> None:
    """Outputs may be pieces of one buffer, and an input may be one of the outputs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (5, 30_000):
        one = torch.empty(count)
        dist.all_gather([one] * size, torch.full((count,), float(rank)))
        ref.check_same(one, torch.full((count,), float(size - 1)), "the last rank's has the last word")
        x = torch.arange(size * count, dtype=torch.float64).view(size, count) + rank
        want = sum(torch.arange(size * count, dtype=torch.float64).view(size, count)[rank] + r for r in range(size))
        for place in (rank, (rank + 1) % size):  # in place, and in the place of another rank's block
            y = x.clone()
            single("reduce_scatter_single")(y[place], y)
            ref.check_same(y[place], want, f"block {place}")
            y = x.clone()
            dist.reduce_scatter(y[place], list(y))
            ref.check_same(y[place], want, f"list, block {place}")
        y = x.clone().view(-1)
        dist.all_to_all_single(y, y)
        come = [torch.arange(size * count, dtype=torch.float64).view(size, count)[rank] + r for r in range(size)]
        ref.check_same(y, torch.cat(come), "all_to_all into its input")
        y = x.clone()
        dist.all_to_all(list(y), list(y))
        ref.check_same(y.view(-1), torch.cat(come), "lists")
        y = x.clone()
        dist.gather(y[0], list(y) if rank == 0 else None, dst=0)
        if rank == 0:
            want = torch.cat([torch.arange(count, dtype=torch.float64) + r for r in range(size)])
            ref.check_same(y.view(-1), want, "gather")
        y = x.clone()
        dist.scatter(y[1 % size], list(y) if rank == 0 else None, src=0)
        ref.check_same(y[1 % size], torch.arange(size * count, dtype=torch.float64).view(size, count)[rank], "scatter")


def channels_last() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [(torch.arange(size * 12.0) + 100 * r).view(size, 3, 2, 2) for r in range(size)]
    mine = inputs[rank].to(memory_format=torch.channels_last)
    for out in (torch.empty_like(mine), torch.empty(size, 3, 2, 2)):
        dist.all_to_all_single(out, mine)
        ref.check_same(out, torch.stack([inputs[r][rank] for r in range(size)]), "all_to_all of channels last")


def test_channels_last_is_contiguous(world):
    world(2).run(channels_last)


@pytest.mark.parametrize("size", SIZES)
def test_buffers_that_share_memory(world, size):
    world(size).run(shared_memory)


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [{"rank": r, "text": "x" * r * 1000} for r in range(size)]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, everybody[rank])
    assert gathered == everybody
    at_root = [None] * size if rank == size - 1 else None
    dist.gather_object(everybody[rank], at_root, dst=size - 1)
    assert at_root == (everybody if rank == size - 1 else None)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, everybody if rank == 0 else None, src=0)
    assert mine == [everybody[rank]]
    shared = [everybody] if rank == 0 else [None]
    dist.broadcast_object_list(shared, src=0)
    assert shared == [everybody]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_objects(world, size):
    world(size).run(objects)


def refused_calls() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    four = [torch.ones(4) for _ in range(size)]
    for text, call in (
        ("takes one list of", lambda: backend().reduce_scatter([four[0]], [four[1:]], dist.ReduceScatterOptions())),
        ("the output has 3 elements, this rank's input has 4", lambda: dist.reduce_scatter(torch.ones(3), four)),
        ("the input has 5 elements", lambda: single("reduce_scatter_single")(torch.ones(4), torch.ones(5))),
        ("output tensors, got", lambda: backend().alltoall(four[1:], four, dist.AllToAllOptions())),
        ("its input block for itself has", lambda: dist.all_to_all([torch.ones(5 - size) for _ in four], four)),
        (
            "cannot be split into equal blocks",
            lambda: dist.all_to_all_single(torch.ones(2 * size + 1), torch.ones(2 * size + 1)),
        ),
        (
            "split sizes of the output add up to",
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(size), [3] * size),
        ),
        (
            "split size of the input is negative",
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), None, [5, -1]),
        ),
        (
            "split sizes for the input, the group has",
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), None, [4]),
        ),
        (
            "Tensors must be contiguous: the input of",
            lambda: dist.all_to_all_single(torch.ones(size, size), torch.ones(size, size).t()),
        ),
        (
            "Tensors must be contiguous: the output of",
            lambda: dist.all_to_all_single(torch.ones(size, size).t(), torch.ones(size, size)),
        ),
        ("takes one list of .* output tensors", lambda: dist.gather(four[0], four[1:], dst=rank)),
        ("output 0 has 4 elements, the input has 3", lambda: dist.gather(torch.ones(3), four, dst=rank)),
        ("input 0 has 4 elements, the output has 3", lambda: dist.scatter(torch.ones(3), four, src=rank)),
        ("elements that share memory", lambda: dist.scatter(torch.ones(1).expand(4), four, src=rank)),
    ):
        with pytest.raises((RuntimeError, ValueError), match=text) as error:
            call()
        assert not isinstance(error.value, dist.DistBackendError), error.value
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t[0].item() == size


def test_what_is_refused(world):
    world(2).run(refused_calls)


def splits_that_differ() -> str:
    splits = [3, 1] if dist.get_rank() == 0 else [2, 2]
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_to_all_single(torch.ones(4), torch.ones(4), splits, splits)
    return str(error.value)


def test_splits_of_two_ranks_must_agree(fresh_world):
    texts = fresh_world(2).run(splits_that_differ)
    assert all("in all_to_all #1, which sends it" in text for text in texts), texts
