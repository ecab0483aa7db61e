"""Tensors of an accelerator in groups over several hosts, through the engine that stages them, on the emulated device
of tests/emulator/simdev."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_calls
import device_p2p
import sagecomm
from device_bed import FEW, Schedule, Worlds
from device_calls import MINUTE
from device_programs import N, accelerator, expect, full, held, main_stream, mine
from failing import meet
from selection import quickly
from test_device_tensors import checked, ranks
from worlds import World, on_hosts

Shape = tuple[int, ...]
TWO, FOUR = (1, 1), (2, 2)  # ranks of each host
SHORT = timedelta(seconds=1)
LONG = 300_000  # elements: several frames

PROGRAMS: list[Callable[[], Any]] = [
    device_calls.order.producer_is_late,
    device_calls.order.synchronous_call_without_a_wait,
    device_calls.operations,
    device_calls.long_tensors,
    device_p2p.send_of_a_late_producer,
    device_p2p.crossing,
    device_p2p.tags_in_another_order,
]


def over(worlds: Worlds, shape: Shape, schedule: Schedule) -> World:
    def on_its_hosts(size: int, environment: dict[str, str]) -> World:
        return worlds(size, on_hosts(*shape, **environment))

    return ranks(on_its_hosts, schedule, size=sum(shape))


@pytest.mark.parametrize("schedule", quickly(FEW[:1], FEW), ids=str)
def test_operations_of_two_hosts(fresh_world: Worlds, schedule: Schedule) -> None:
    world = over(fresh_world, TWO, schedule)
    for program in PROGRAMS:
        world.run(checked, program)


def behind_a_late_stream() -> None:
    """The last rank, which shares memory with one rank and a link with two, writes its input late."""
    x, last = full(0, LONG), dist.get_world_size() - 1
    torch.accelerator.synchronize()
    if dist.get_rank() == last:
        with held(main_stream()):
            x += mine()
            work = dist.all_reduce(x, async_op=True)
            assert not work.is_completed()
    else:
        x += mine()
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    expect(x, sum(range(1, last + 2)))


def each_collective() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (N, LONG):
        blocks = torch.cat([full(10 * rank + peer, count) for peer in range(size)])
        gathered, out = full(-1, size * count), full(-1, count)
        total = size * (size - 1) / 2
        for root in (0, size - 1):
            x = full(5.0 if rank == root else 0, count)
            dist.broadcast(x, root)
            expect(x, 5)
            dist.reduce(x, root)
            if rank == root:
                expect(x, 5 * size)
        dist.all_gather_into_tensor(gathered, full(mine(), count))
        for peer, block in enumerate(gathered.chunk(size)):
            expect(block, peer + 1)
        dist.reduce_scatter_tensor(out, blocks)
        expect(out, 10 * total + size * rank)
        dist.all_to_all_single(gathered, blocks)
        for peer, block in enumerate(gathered.chunk(size)):
            expect(block, 10 * peer + rank)
        dist.barrier(device_ids=[accelerator().index])


def all_pairs() -> None:
    """Sends to ranks of this host and of the other one, the longest first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [peer for peer in range(size) if peer != rank]
    got = {peer: full(0, LONG if peer > rank else N) for peer in others}
    works = [dist.isend(full(10 * rank + peer, LONG if peer < rank else N), peer) for peer in others]
    works += [dist.irecv(got[peer], peer) for peer in reversed(others)]
    for work in works:
        assert work is not None
        work.wait()
    for peer, x in got.items():
        expect(x, 10 * peer + rank)


@pytest.mark.long
@pytest.mark.parametrize("schedule", FEW, ids=str)
def test_operations_of_hosts_that_share_memory(fresh_world: Worlds, schedule: Schedule) -> None:
    world = over(fresh_world, FOUR, schedule)
    for program in (behind_a_late_stream, each_collective, all_pairs):
        world.run(checked, program)


def last_one_dies(recv: bool) -> tuple[str, str | None]:
    """All others wait for an operation that needs it. Returns the text and the operation of their failure."""
    x, last = full(mine()), dist.get_world_size() - 1
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if dist.get_rank() == last:
        os._exit(3)
    work = dist.irecv(x, last) if recv else dist.all_reduce(x, async_op=True)
    assert work is not None
    with pytest.raises(sagecomm.PeerFailure) as raised:
        work.wait(MINUTE)
    with pytest.raises(sagecomm.PeerFailure):
        dist.all_reduce(x)
    x.fill_(5)
    expect(x, 5)
    return str(raised.value), raised.value.op


@pytest.mark.parametrize("shape", quickly([TWO], [TWO, FOUR]))
@pytest.mark.parametrize("recv", quickly([False], [False, True]))
def test_a_death(fresh_world: Worlds, shape: Shape, recv: bool) -> None:
    *survivors, dead = over(fresh_world, shape, Schedule("lazy")).outcomes(checked, last_one_dies, recv)
    assert dead.exitcode == 3
    for outcome in survivors:
        assert outcome.ok, outcome.trace
        text, op = outcome.value
        assert f"Connection closed by peer: rank {dead.rank} (" in text
        assert op in (("recv", "all_reduce") if recv else ("all_reduce",)), text
    assert len({outcome.value for outcome in survivors}) == 1, "one first cause"


def last_one_does_not_call() -> str:
    x, last = full(mine()), dist.get_world_size() - 1
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    text = ""
    if dist.get_rank() != last:
        dist.distributed_c10d._get_default_group()._get_backend(accelerator())._set_default_timeout(SHORT)
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(sagecomm.CollectiveTimeout, match=f"rank {last} ") as raised:
            work.wait(MINUTE)
        text = str(raised.value)
        x.fill_(5)
        expect(x, 5)
    meet()
    return text


@pytest.mark.long
def test_a_timeout(fresh_world: Worlds) -> None:
    *waited, _ = over(fresh_world, FOUR, Schedule("lazy")).run(checked, last_one_does_not_call)
    assert len(set(waited)) == 1, waited
    assert "all_reduce #2" in waited[0]
