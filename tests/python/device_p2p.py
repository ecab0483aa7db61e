"""Sends and recvs of tensors of an accelerator, as device_programs.py describes its programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from device_calls import MINUTE, run_under_fake_cuda
from device_programs import FEW, N, accelerator, expect, full, held, main_stream, mine

LONG = 300_000  # elements: several frames


def peer() -> int:
    return 1 - dist.get_rank()


def send_of_a_late_producer() -> None:
    """The payload is written behind a held stream, and other operations of the pair do not wait for it."""
    side = torch.Stream(accelerator())
    if dist.get_rank() == 0:
        x, y = full(0), full(7)
        torch.accelerator.synchronize()
        with held(side):
            with side:
                x += 5
                late = dist.isend(x, 1, tag=1)
            dist.send(y, 1, tag=2)
            dist.recv(y, 1, tag=3)
            assert late is not None
            assert not late.is_completed()
        late.wait()
        expect(y, 9)
        with side:
            x.fill_(99)  # behind the send
        side.synchronize()
    else:
        x, y = full(0), full(0)
        late = dist.irecv(x, 0, tag=1)
        dist.recv(y, 0, tag=2)
        dist.send(y + 2, 0, tag=3)
        assert late is not None
        late.wait()
        expect(x, 5)


def recv_into_memory_that_is_in_use() -> None:
    """The output is written behind what the current stream held at the recv, however early the payload comes."""
    x = full(1)
    if dist.get_rank() == 0:
        dist.send(full(5), 1)
        return
    torch.accelerator.synchronize()
    with held(main_stream()):
        y = x * 2
        work = dist.irecv(x, 0)
        assert work is not None
        assert not work.is_completed()
    work.wait()
    expect(y, 2)
    expect(x, 5)


def chain_without_the_host() -> None:
    """No rank synchronises its device between the operations."""
    x, y = full(mine()), full(0)
    for step in range(FEW):
        if dist.get_rank() == 0:
            dist.send(x, 1, tag=step)
            dist.recv(y, 1, tag=step)
        else:
            dist.recv(y, 0, tag=step)
            dist.send(x, 0, tag=step)
        x = y + x
    expect(x, {0: 3 * 2 ** (FEW - 1), 1: 3 * 2 ** (FEW - 1)}[dist.get_rank()])


def crossing() -> None:
    """Both ranks send first, and both receive first."""
    for n in (0, 1, N, LONG):
        x, y = full(mine(), n), full(0, n)
        first = [dist.isend(x, peer()), dist.irecv(y, peer())]
        for work in first:
            assert work is not None
            work.wait()
        z = full(0, n)
        second = [dist.irecv(z, peer()), dist.isend(y, peer())]
        for work in reversed(second):
            assert work is not None
            work.wait()
        if n > 0:
            expect(y, 3 - mine())
            expect(z, mine())


def tags_in_another_order() -> None:
    xs = [full(10 * mine() + tag, LONG if tag % 2 else N) for tag in range(FEW)]
    ys = [full(0, len(x)) for x in xs]
    works = [dist.isend(x, peer(), tag=tag) for tag, x in enumerate(xs)]
    works += [dist.irecv(ys[tag], peer(), tag=tag) for tag in reversed(range(FEW))]
    for work in works:
        assert work is not None
        work.wait()
    for tag, y in enumerate(ys):
        expect(y, 10 * (3 - mine()) + tag)


def later_recv_ends_first() -> None:
    """A recv does not wait for an earlier one, whose sender waits for what the later one brings."""
    x, y = full(0), full(0)
    if dist.get_rank() == 0:
        first, second = dist.irecv(x, 1, tag=1), dist.irecv(y, 1, tag=2)
        assert first is not None
        assert second is not None
        second.wait()
        dist.send(y + 1, 1, tag=3)
        first.wait()
        expect(x, 8)
    else:
        dist.send(full(7), 0, tag=2)
        dist.recv(x, 0, tag=3)
        dist.send(x, 0, tag=1)


def from_any_source() -> None:
    x = full(mine())
    if dist.get_rank() == 0:
        dist.send(x, 1)
        work = dist.irecv(x)
        assert work is not None
        work.wait()
        assert work._source_rank() == 1
    else:
        assert dist.recv(x) == 0
        expect(x, 1)
        dist.send(x + 1, 0)
    expect(x, 3 - dist.get_rank() - 1)


def to_itself() -> None:
    """torch refuses it, but not a backend."""
    group = dist.distributed_c10d._get_default_group()._get_backend(accelerator())
    for n in (N, LONG):
        x, y = full(mine(), n), full(0, n)
        recv = group.recv([y], dist.get_rank(), 4)
        group.send([x], dist.get_rank(), 4).wait()
        recv.wait()
        expect(y, mine())


def not_contiguous() -> None:
    x = torch.zeros(N, 4, device=accelerator())
    x[:, ::2] = mine()
    y = torch.full((4, N), -1.0, device=accelerator()).t()
    send = dist.isend(x[:, ::2], peer())
    recv = dist.irecv(y[:, 1::2], peer())
    assert send is not None
    assert recv is not None
    recv.wait()
    send.wait()
    x.zero_()
    expect(y[:, 1::2], 3 - mine())
    expect(y[:, ::2], -1)


def crossing_parts_of_one_tensor() -> None:
    """Rows come in, and columns between them go out: no send waits for the recv that is called before it."""
    x = torch.full((2, 4, 4), mine(), device=accelerator())
    torch.accelerator.synchronize()
    receives = dist.irecv(x[:, 0, 1:3], peer())
    sends = dist.isend(x[:, 1:3, 1], peer())
    assert receives is not None
    assert sends is not None
    receives.wait()
    sends.wait()
    expect(x[:, 0, 1:3], 3 - mine())
    expect(x[:, 1:], mine())


def tensors_and_works_are_dropped() -> None:
    group = dist.distributed_c10d._get_default_group()
    for i in range(FEW):
        n = N * (i + 1)
        dist.isend(full(mine(), n), peer())
        work = dist.irecv(full(0, n), peer())
        assert work is not None
        others = [full(99, n) for _ in range(FEW)]
        work.wait()
        del work
        group._wait_for_pending_works()
        for other in (*others, full(99, n)):
            expect(other, 99)


def objects() -> None:
    for device in (None, accelerator()):
        got: list[Any] = [None, None]
        if dist.get_rank() == 0:
            dist.send_object_list(["a", {"b": 1}], 1, device=device)
            dist.recv_object_list(got, 1, device=device)
        else:
            dist.recv_object_list(got, 0, device=device)
            dist.send_object_list(got, 0, device=device)
        assert got == ["a", {"b": 1}]


def batch() -> None:
    """A ring in one call, whatever the order of the operations."""
    for n in (N, LONG):
        x, y, z = full(mine(), n), full(0, n), full(0, n)
        ops = [
            dist.P2POp(dist.irecv, y, peer(), tag=1),
            dist.P2POp(dist.isend, x, peer(), tag=1),
            dist.P2POp(dist.irecv, z, peer(), tag=2),
            dist.P2POp(dist.isend, x, peer(), tag=2),
        ]
        if dist.get_rank() == 1:
            ops.reverse()
        works = dist.batch_isend_irecv(ops)
        assert len(works) == 1
        works[0].wait()
        expect(y, 3 - mine())
        expect(z, 3 - mine())
        x.fill_(5)
        expect(x, 5)


def batch_of_late_producers() -> None:
    x, y = full(0), full(0)
    torch.accelerator.synchronize()
    with held(main_stream()):
        x += mine()
        ops = [dist.P2POp(dist.isend, x, peer()), dist.P2POp(dist.irecv, y, peer())]
        (work,) = dist.batch_isend_irecv(ops)
        assert not work.is_completed()
    work.wait()
    expect(y, 3 - mine())


def mismatch() -> None:
    x = full(mine(), N + dist.get_rank())

    def exchange() -> None:
        work = dist.isend(x, 1) if dist.get_rank() == 0 else dist.irecv(x, 0)
        assert work is not None
        work.wait(MINUTE)  # until the operation has ended, also where a stream could wait

    with pytest.raises(sagecomm.CollectiveMismatch):
        exchange()
    with pytest.raises(sagecomm.CollectiveMismatch):
        dist.send(x, peer())
    x.fill_(5)
    expect(x, 5)


def peer_leaves_a_recv() -> str:
    """Rank 1 ends while rank 0 waits for its send."""
    x = full(mine())
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        os._exit(3)
    work = dist.irecv(x, 1)
    assert work is not None
    with pytest.raises(sagecomm.PeerFailure) as raised:
        work.wait(MINUTE)
    x.fill_(5)
    expect(x, 5)
    return str(raised.value)


def destroyed_in_flight() -> None:
    """The group is destroyed before anybody has waited."""
    group = dist.new_group()
    x, y = full(mine(), LONG), full(0, LONG)
    send = dist.isend(x, peer(), group=group)
    recv = dist.irecv(y, peer(), group=group)
    assert send is not None
    assert recv is not None
    dist.destroy_process_group(group)
    recv.wait()
    send.wait()
    expect(y, 3 - mine())


PROGRAMS: list[Callable[[], Any]] = [
    send_of_a_late_producer,
    recv_into_memory_that_is_in_use,
    chain_without_the_host,
    crossing,
    tags_in_another_order,
    later_recv_ends_first,
    from_any_source,
    to_itself,
    not_contiguous,
    crossing_parts_of_one_tensor,
    tensors_and_works_are_dropped,
    objects,
    batch,
    batch_of_late_producers,
    destroyed_in_flight,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, [*PROGRAMS, mismatch])


def in_few_queues(rank: int, size: int, store: str) -> None:
    """With one queue a stream that is held holds up the other streams of the program."""
    one = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    run_under_fake_cuda(rank, size, store, [p for p in PROGRAMS if not one or p is not send_of_a_late_producer])


def warm() -> None:
    """The first operation on the device: the library makes its streams, while none of them waits."""
    dist.all_reduce(full(1))
    torch.accelerator.synchronize()


def beside_calls_that_wait(rank: int, size: int, store: str) -> None:
    """To make a stream waits for all streams of the device."""
    run_under_fake_cuda(rank, size, store, [warm, *PROGRAMS])


def first_operations(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, [send_of_a_late_producer])
