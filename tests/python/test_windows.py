"""Coalescing windows: torch's coalescing manager, what a window orders and refuses, and how it ends."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from contributions import CPU, contribution, group, sequence, summed
from worlds import World

MANAGER = c10d._coalescing_manager


def managed(device: torch.device | None, asynchronous: bool) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensors = [contribution(rank, i, 2048, torch.float32) for i in range(10)]
    before = sequence()
    with MANAGER(group(), device, async_ops=asynchronous) as window:
        for t in tensors:
            dist.all_reduce(t)
        assert sequence() == before
    if asynchronous:
        window.wait()
    assert sequence() == before + 1
    assert all(torch.equal(t, summed(i, 2048, torch.float32)) for i, t in enumerate(tensors))

    outputs = [torch.empty(size * 50) for _ in range(4)]
    with MANAGER(group(), device, async_ops=asynchronous) as window:
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, contribution(rank, i, 50, torch.float32))
    if asynchronous:
        window.wait()
    assert sequence() == before + 2
    for i, output in enumerate(outputs):
        assert torch.equal(output, torch.cat([contribution(r, i, 50, torch.float32) for r in range(size)]))

    shares = [torch.empty(50) for _ in range(4)]
    with MANAGER(group(), device, async_ops=asynchronous) as window:
        for i, share in enumerate(shares):
            dist.reduce_scatter_tensor(share, contribution(rank, i, size * 50, torch.float32))
    if asynchronous:
        window.wait()
    for i, share in enumerate(shares):
        assert torch.equal(share, summed(i, size * 50, torch.float32)[rank * 50 : (rank + 1) * 50])


@pytest.mark.parametrize("device", [None, CPU], ids=["captured by torch", "device"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_manager(world: Callable[[int], World], device: torch.device | None, asynchronous: bool) -> None:
    world(2).run(managed, device, asynchronous)


def mixed_window() -> None:
    """Operations that torch does not collect itself reach the backend. They take effect in order when it closes."""
    size, rank = dist.get_world_size(), dist.get_rank()
    here, there = torch.full((100,), float(rank)), torch.full((7,), float(rank))
    parts = [torch.empty(3) for _ in range(size)]
    before = sequence()
    with MANAGER(group(), CPU) as window:
        dist.broadcast(here, 1)
        dist.broadcast(there, 1)
        dist.all_gather(parts, here[:3])  # after the broadcast that it reads
        outgoing = dist.isend(there.clone(), (rank + 1) % size)
        assert outgoing is not None
        assert not outgoing.is_completed()
        with pytest.raises(RuntimeError, match="inside a coalescing window"):
            outgoing.wait()
        incoming = torch.empty(7)
        dist.irecv(incoming, (rank - 1) % size)
        assert here[0] == rank, "nothing has begun"
        assert sequence() == before
    assert window.works == []
    assert sequence() == before + 2
    assert here.eq(1).all()
    assert there.eq(1).all()
    assert all(p.eq(1).all() for p in parts)
    assert incoming.eq((rank - 1) % size).all()
    outgoing.wait()
    assert outgoing.is_completed()
    assert outgoing.is_success()


def test_window_of_many_kinds(world: Callable[[int], World]) -> None:
    for n in 2, 3:
        world(n).run(mixed_window)


def empty_windows() -> None:
    before = sequence()
    with MANAGER(group(), CPU, async_ops=True) as window:
        pass
    assert len(window.works) == 1
    assert window.works[0].is_completed()
    window.wait()
    with MANAGER(group(), CPU):
        pass
    with MANAGER(group()):
        pass
    assert sequence() == before
    with pytest.raises(RuntimeError, match="no coalescing window open"):
        group()._end_coalescing(CPU)


def test_empty_window(world: Callable[[int], World]) -> None:
    world(2).run(empty_windows)


def left_by_exception(forgotten: bool) -> None:
    """An exception ends the window on all ranks: its operations are not issued, and the group works afterwards."""
    pg, rank = group(), dist.get_rank()
    lost = torch.full((4,), float(rank))
    with suppress(ZeroDivisionError), MANAGER(pg, CPU):
        dropped = dist.isend(lost, (rank + 1) % 2)
        dist.broadcast(lost, 0)
        raise ZeroDivisionError
    assert dropped is not None
    later = torch.ones(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if forgotten:  # torch forgets the window when the group is used again
            c10d._world.pg_coalesce_state.pop(pg)
            dist.all_reduce(later)
        else:
            with MANAGER(pg, CPU):
                dist.broadcast(later, 0)
                dist.all_reduce(later)
    assert any("2 operations, beginning with send" in str(w.message) for w in seen)
    assert later.eq(2).all()
    assert lost.eq(rank).all()
    with pytest.raises(RuntimeError, match="never issued"):
        dropped.wait()
    dist.barrier()


@pytest.mark.parametrize("forgotten", [False, True])
def test_window_left_by_an_exception(world: Callable[[int], World], forgotten: bool) -> None:
    world(2).run(left_by_exception, forgotten)


def strided_or_beside_p2p() -> None:
    """Operations that copy their input when collected, and p2p operations, are not ordered with the rest of a call."""
    pg, rank, backend = group(), dist.get_rank(), group()._get_backend(CPU)
    strided = torch.ones(4, 2)[:, 0]
    with pytest.raises(RuntimeError, match="not contiguous"):
        backend.allreduce_coalesced([strided, strided[1:]])
    backend._start_coalescing()
    backend.allreduce([strided])
    backend.broadcast([strided])
    with pytest.raises(RuntimeError, match=r"operations 0 and 1 .* not contiguous"):
        backend._end_coalescing()
    t = torch.ones(4)
    pg._start_coalescing(CPU)
    dist.all_reduce(t, async_op=True)
    dist.isend(t, 1 - rank)
    with pytest.raises(RuntimeError, match="operations 0 and 1 of one coalesced call"):
        pg._end_coalescing(CPU)
    pg._start_coalescing(CPU)
    freed = torch.ones(1000)
    work = dist.all_reduce(freed, async_op=True)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="freed or replaced before its coalescing window closed"):
        pg._end_coalescing(CPU)
    assert work is not None
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="freed or replaced"):
        work.wait()
    pg._start_coalescing(CPU)
    with pytest.raises(RuntimeError, match="cannot be coalesced"):
        sagecomm.monitored_barrier()
    pg._end_coalescing(CPU).wait()
    sends = [dist.P2POp(dist.isend, strided, 1 - rank), dist.P2POp(dist.isend, strided, 1 - rank)]
    receives = [dist.P2POp(dist.irecv, torch.empty(4), 1 - rank) for _ in range(2)]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()
    assert receives[1].tensor.eq(1).all()


def test_what_has_no_order_is_refused(world: Callable[[int], World]) -> None:
    world(2).run(strided_or_beside_p2p)


def window_of_a_thread_that_ends() -> None:
    thread = threading.Thread(target=lambda: group()._start_coalescing(CPU))
    thread.start()
    thread.join()
    t = torch.ones(3)
    thread = threading.Thread(target=lambda: dist.all_reduce(t))
    thread.start()
    thread.join()
    assert t.eq(2).all()


def test_window_ends_with_its_thread(world: Callable[[int], World]) -> None:
    world(2).run(window_of_a_thread_that_ends)
