"""Several operations in one call: the coalesced operations and batch_isend_irecv."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from contributions import CPU, contribution, group, sequence, summed
from worlds import World

LENGTHS = [5, 0, 1000, 1, 70_001, 33]
MIXED = [torch.float32, torch.int64, torch.float32, torch.bfloat16, torch.int64, torch.float32]


def tensors_of(dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    return [contribution(dist.get_rank(), i, n, t) for i, (n, t) in enumerate(zip(LENGTHS, dtypes, strict=True))]


def all_reduced(dtypes: list[torch.dtype], collectives: int, asynchronous: bool) -> None:
    tensors = tensors_of(dtypes)
    strided = torch.zeros(33, 2)
    strided[:, 0] = tensors[5]
    tensors[5] = strided[:, 0]
    before = sequence()
    options = dist.AllreduceCoalescedOptions()
    options.asyncOp = asynchronous
    work = group().allreduce_coalesced(tensors, options)
    assert len(work.get_future().wait()) == len(tensors)
    work.wait()
    assert sequence() == before + collectives
    for i, (n, t) in enumerate(zip(LENGTHS, dtypes, strict=True)):
        assert torch.equal(tensors[i], summed(i, n, t)), i
    assert strided[:, 1].eq(0).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_reduce_coalesced(world: Callable[[int], World], asynchronous: bool) -> None:
    world(3).run(all_reduced, [torch.float32] * 6, 1, asynchronous)
    world(2).run(all_reduced, MIXED, 3, asynchronous)


def gathered_and_scattered() -> None:
    size, rank, pg = dist.get_world_size(), dist.get_rank(), group()
    inputs = tensors_of(MIXED)
    expected = [
        [contribution(r, i, n, t) for r in range(size)] for i, (n, t) in enumerate(zip(LENGTHS, MIXED, strict=True))
    ]
    outputs = [torch.empty(size * n, dtype=t) for n, t in zip(LENGTHS, MIXED, strict=True)]
    pg.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for output, blocks in zip(outputs, expected, strict=True):
        assert torch.equal(output, torch.cat(blocks))

    lists = [[torch.empty(n, dtype=t) for n, t in zip(LENGTHS, MIXED, strict=True)] for _ in range(size)]
    group().allgather_coalesced(lists, inputs).wait()
    for r in range(size):
        assert all(torch.equal(lists[r][i], expected[i][r]) for i in range(len(inputs)))

    whole = [contribution(rank, i, size * n, t) for i, (n, t) in enumerate(zip(LENGTHS, MIXED, strict=True))]
    shares = [torch.empty(n, dtype=t) for n, t in zip(LENGTHS, MIXED, strict=True)]
    shares[2] = whole[2][rank * LENGTHS[2] : (rank + 1) * LENGTHS[2]]  # in place
    pg.reduce_scatter_tensor_coalesced(shares, whole).wait()
    for i, (n, t) in enumerate(zip(LENGTHS, MIXED, strict=True)):
        assert torch.equal(shares[i], summed(i, size * n, t)[rank * n : (rank + 1) * n]), i


def test_gathering_and_scattering_coalesced(world: Callable[[int], World]) -> None:
    for n in 1, 2, 3:
        world(n).run(gathered_and_scattered)


def deprecated() -> None:
    """torch.distributed's own coalesced functions accept tensors of one type."""
    tensors = [torch.ones(3), torch.ones(2, 2)]
    lists = [[torch.empty(3), torch.empty(2, 2)] for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_reduce_coalesced(tensors)
        dist.all_gather_coalesced(lists, tensors)
    assert all(t.eq(2).all() for t in tensors)
    assert all(t.eq(2).all() for row in lists for t in row)


def test_deprecated_functions(world: Callable[[int], World]) -> None:
    world(2).run(deprecated)


def slices_apart() -> None:
    """Columns of one tensor lie within the same range of memory and share none of it; diagonal slices may."""
    size, rank = dist.get_world_size(), dist.get_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for cut in (slice(0, 1), slice(3, 4)), (slice(0, 2), slice(2, 4)), (slice(1, 3), slice(3, 4)):
            t = torch.arange(20.0).reshape(5, 4) + rank
            want = t.clone()
            for columns in cut:
                want[:, columns] = size * torch.arange(20.0).reshape(5, 4)[:, columns] + sum(range(size))
            dist.all_reduce_coalesced([t[:, columns] for columns in cut])
            assert torch.equal(t, want)
        t = torch.zeros(5, 4)
        for one, other in (t[:, :2], t[:, 1:3]), (t[:, 0], t[1]), (t[:, 1], t[1:, 1]):
            with pytest.raises(RuntimeError, match="share memory"):
                dist.all_reduce_coalesced([one, other])
        dist.all_reduce_coalesced([t[:, 1], t[2:2, 1]])


def test_slices_of_one_tensor(world: Callable[[int], World]) -> None:
    world(2).run(slices_apart)


def batches() -> None:
    """A batch has sends and recvs between all ranks, itself included; each recv is listed before the send it needs."""
    size, rank = dist.get_world_size(), dist.get_rank()
    for n in 1, 3000, 100_000:
        received = [torch.empty(n) for _ in range(size)]
        ops: list[Any] = [dist.P2POp(dist.irecv, received[r], r) for r in range(size)]
        ops += [dist.P2POp(dist.isend, torch.full((n,), float(rank * size + r)), r) for r in range(size)]
        works = dist.batch_isend_irecv(ops)
        assert len(works) == 1
        for work in works:
            work.wait()
        assert all(received[r].eq(r * size + rank).all() for r in range(size))


def test_batch_isend_irecv(world: Callable[[int], World]) -> None:
    for n in 1, 2, 3, 8:
        world(n).run(batches)


def refused() -> None:
    pg = group()
    t = torch.ones(4)
    with pytest.raises(RuntimeError, match="operations 0 and 1 of one coalesced call"):
        pg.allreduce_coalesced([t, t[1:]])
    with pytest.raises(RuntimeError, match="tensor 1 is Sparse"):
        pg._get_backend(CPU).allreduce_coalesced([t, t.to_sparse()])
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.BAND
    with pytest.raises(RuntimeError, match="BAND is not defined for float32"):
        pg.allreduce_coalesced([t], options)
    with pytest.raises(RuntimeError, match="at least one tensor"):
        pg._get_backend(CPU).allreduce_coalesced([])
    with pytest.raises(RuntimeError, match="1 output tensors for 2 input tensors"):
        pg.allgather_into_tensor_coalesced([torch.empty(8)], [t, t])
    assert sequence() == 0
    dist.all_reduce(t)
    assert t.eq(2).all()


def test_refusals_send_nothing(world: Callable[[int], World]) -> None:
    world(2).run(refused)


def refused_batch() -> None:
    """After a refused batch torch's state of the group is as it was before."""
    t = torch.ones(3)
    with pytest.raises(RuntimeError, match="invalid tag"):
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.empty(3), 1 - dist.get_rank(), tag=-5)])
    dist.all_reduce(t)
    assert t.eq(2).all()
    batches()


def test_refused_batch(world: Callable[[int], World]) -> None:
    world(2).run(refused_batch)


def disagree() -> None:
    tensors = [torch.ones(8), torch.ones(8)] if dist.get_rank() == 0 else [torch.ones(16)]
    group().allreduce_coalesced(tensors).wait()


def test_different_batches_are_named(world: Callable[[int], World]) -> None:
    for outcome in world(2).outcomes(disagree):
        assert not outcome.ok
        assert "CollectiveMismatch" in outcome.trace
        assert "batch of 2" in outcome.trace


def functional() -> None:
    import torch.distributed._functional_collectives as funcol

    rank, size = dist.get_rank(), dist.get_world_size()
    share = funcol.reduce_scatter_tensor(torch.arange(4.0 * size), "sum", 0, group())
    assert torch.equal(share + 0, torch.arange(4.0 * size)[rank * 4 : rank * 4 + 4] * size)
    parts = funcol.reduce_scatter_tensor_coalesced([torch.ones(2 * size), torch.ones(size)], "sum", [0, 0], group())
    assert all((p + 0).eq(size).all() for p in parts)
    for t in funcol.all_gather_into_tensor_coalesced([torch.full((3,), float(rank)), torch.zeros(1)], group()):
        assert t.numel() in (3 * size, size)
    for t in funcol.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group()):
        assert (t + 0).eq(size).all()


def test_functional_collectives(world: Callable[[int], World]) -> None:
    world(2).run(functional)
