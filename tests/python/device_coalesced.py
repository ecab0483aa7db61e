"""Coalesced operations and windows on tensors of an accelerator, as device_programs.py describes its programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, AllreduceOptions, BroadcastOptions

import sagecomm
from device_calls import MINUTE, run_under_fake_cuda
from device_programs import FEW, SUM, N, accelerator, expect, full, held, main_stream, mine

SIZES = [1, 33, N, 5000, 70_000]


def peer() -> int:
    return 1 - dist.get_rank()


def group() -> Any:
    return dist.distributed_c10d._get_default_group()


def backend() -> Any:
    return group()._get_backend(accelerator())


def all_reduces() -> None:
    """Of several types, each of which is a collective. A user of torch's own function has one type."""
    types = [torch.float32, torch.bfloat16, torch.float32, torch.int64, torch.float32]
    for async_op in (False, True):
        xs = [full(mine(), n, dtype=t) for n, t in zip(SIZES, types, strict=True)]
        options = AllreduceCoalescedOptions()
        options.asyncOp = async_op
        group().allreduce_coalesced(xs, options).wait()
        for x in xs:
            expect(x, SUM)
        ys = [full(mine(), n) for n in SIZES]
        work = dist.all_reduce_coalesced(ys, async_op=async_op)
        if work is not None:
            work.wait()
        for y in ys:
            expect(y, SUM)


def late_producer() -> None:
    xs = [full(0, n) for n in SIZES]
    torch.accelerator.synchronize()
    with held(main_stream()):
        for x in xs:
            x += mine()
        work = group().allreduce_coalesced(xs, AllreduceCoalescedOptions())
        assert not work.is_completed()
    work.wait()
    for x in xs:
        expect(x, SUM)


def all_gathers() -> None:
    ins = [full(10 * mine() + i, n) for i, n in enumerate(SIZES)]
    outs = [full(0, 2 * n) for n in SIZES]
    group().allgather_into_tensor_coalesced(outs, ins, AllgatherOptions()).wait()
    for i, out in enumerate(outs):
        expect(out[: SIZES[i]], 10 + i)
        expect(out[SIZES[i] :], 20 + i)
    lists = [[full(0, n) for n in SIZES] for _ in range(2)]
    group().allgather_coalesced(lists, ins, AllgatherOptions()).wait()
    for rank, tensors in enumerate(lists):
        for i, tensor in enumerate(tensors):
            expect(tensor, 10 * (rank + 1) + i)


def reduce_scatters() -> None:
    ins = [torch.cat([full(i, n), full(i + 1, n)]) * mine() for i, n in enumerate(SIZES)]
    outs = [full(0, n) for n in SIZES]
    with dist._coalescing_manager(device=accelerator(), async_ops=True) as window:
        for out, one in zip(outs, ins, strict=True):
            dist.reduce_scatter_tensor(out, one)
    window.wait()
    for i, out in enumerate(outs):
        expect(out, SUM * (i + dist.get_rank()))


def managers() -> None:
    for async_ops in (False, True):
        xs = [full(mine(), n) for n in SIZES]
        gathered = [full(0, 2 * n) for n in SIZES]
        with dist._coalescing_manager(device=accelerator(), async_ops=async_ops) as window:
            for x in xs:
                dist.all_reduce(x)
        if async_ops:
            window.wait()
        with dist._coalescing_manager(device=accelerator(), async_ops=async_ops) as window:
            for out, x in zip(gathered, xs, strict=True):
                dist.all_gather_into_tensor(out, x)
        if async_ops:
            window.wait()
        for out in gathered:
            expect(out, SUM)


def mixed_kinds() -> None:
    """Collectives of several kinds with sends and recvs between them, in one window of the backend."""
    for _ in range(2):
        x, root = full(mine()), full(5.0 if dist.get_rank() == 1 else 0)
        out, got, give = full(0, 2 * N), full(0), full(7 * mine())
        b = backend()
        b._start_coalescing()
        works = [b.recv([got], peer(), 1)]
        works.append(b.allreduce([x], AllreduceOptions()))
        options = BroadcastOptions()
        options.rootRank = 1
        works.append(b.broadcast([root], options))
        works.append(b.send([give], peer(), 1))
        works.append(b._allgather_base(out, full(mine()), AllgatherOptions()))
        work = b._end_coalescing()
        work.wait()
        expect(x, SUM)
        expect(root, 5)
        expect(got, 7 * (3 - mine()))
        expect(out[:N], 1)
        expect(out[N:], 2)
        for each in works:
            each.wait()
            assert each.is_success()


def streams_change_in_a_window() -> None:
    """An operation comes behind the stream that was current at its call, not at the end of the window."""
    side = torch.Stream(accelerator())
    x, y = full(0), full(0)
    torch.accelerator.synchronize()
    b = backend()
    with held(side):
        b._start_coalescing()
        with side:
            x += mine()
            b.allreduce([x], AllreduceOptions())
        y += mine()
        b.allreduce([y], AllreduceOptions())
        work = b._end_coalescing()
        assert not work.is_completed()
    work.wait()
    expect(x, SUM)
    expect(y, SUM)


def consumer_does_not_synchronise() -> None:
    xs = [full(mine(), n) for n in SIZES]
    for _ in range(FEW):
        work = group().allreduce_coalesced(xs, AllreduceCoalescedOptions())
        work.wait()
        xs = [x + 1 for x in xs]
    value = [1.0, 2.0]
    for _ in range(FEW):
        value = [sum(value) + 1] * 2
    for x in xs:
        expect(x, value[0])


def futures() -> None:
    xs = [full(mine()), full(2 * mine())]
    future = group().allreduce_coalesced(xs, AllreduceCoalescedOptions()).get_future()
    doubled = future.then(lambda f: [t * 2 for t in f.value()])
    a, b = doubled.wait()
    expect(a, 2 * SUM)
    expect(b, 4 * SUM)


def not_contiguous_and_repeated() -> None:
    x = torch.zeros(N, 4, device=accelerator())
    y = full(mine())
    x[:, ::2] = mine()
    group().allreduce_coalesced([x[:, ::2], y, y], AllreduceCoalescedOptions()).wait()
    expect(x[:, ::2], SUM)
    expect(x[:, 1::2], 0)
    expect(y, SUM)


def works_and_tensors_are_dropped() -> None:
    for i in range(FEW):
        sizes = [N * (i + 1), 50 * (i + 1)]
        group().allreduce_coalesced([full(mine(), n) for n in sizes], AllreduceCoalescedOptions())
        others = [full(99, n) for n in sizes]
        group()._wait_for_pending_works()
        for other in (*others, *(full(99, n) for n in sizes)):
            expect(other, 99)


def one_of_several_fails() -> None:
    """Nobody sends what the first recv of a window waits for, and the second send is too long. All outputs may be used
    again when `wait()` has raised."""
    with_peer = dist.new_group()
    if dist.get_rank() == 1:
        dist.recv(torch.empty(1), 0, group=with_peer)  # the window is issued

        def send_too_much() -> None:
            work = dist.isend(full(7, N + 1), 0, group=with_peer, tag=1)  # it raises, if the peer finds out first
            assert work is not None
            work.wait(MINUTE)

        with pytest.raises(sagecomm.CollectiveMismatch):
            send_too_much()
        return
    outputs = [full(0), full(0)]
    with_peer._start_coalescing(accelerator())
    for tag, output in enumerate(outputs):
        dist.irecv(output, 1, group=with_peer, tag=tag)
    work = with_peer._end_coalescing(accelerator())
    dist.send(torch.empty(1), 1, group=with_peer)
    with pytest.raises(sagecomm.CollectiveMismatch):
        work.wait(MINUTE)
    for output in outputs:
        output.fill_(5)
        expect(output, 5)


def refusals() -> None:
    x, c = full(mine()), torch.full((N,), mine())
    b, name = backend(), str(accelerator())
    reduce = AllreduceCoalescedOptions()
    second = "operation 1 of one coalesced call"
    with pytest.raises(RuntimeError, match=f"{second}, .* is on cpu, .* before it are on {name}"):
        group().allreduce_coalesced([x, c], reduce)
    with pytest.raises(RuntimeError, match=f"{second}, .* is on {name}, .* before it are on cpu"):
        group().allreduce_coalesced([c, x], reduce)
    with pytest.raises(RuntimeError, match=r"operations 0 and 1 of one coalesced call, .* share memory"):
        group().allreduce_coalesced([x[:600], x[400:]], reduce)
    b._start_coalescing()
    b.allreduce([x], AllreduceOptions())
    b._allgather_base(full(0, 2 * N), x, AllgatherOptions())
    with pytest.raises(RuntimeError, match=r"operations 0 and 1 of one coalesced call, .* share memory"):
        b._end_coalescing()
    dist.all_reduce(x)
    expect(x, SUM)


PROGRAMS: list[Callable[[], Any]] = [
    all_reduces,
    late_producer,
    all_gathers,
    reduce_scatters,
    managers,
    mixed_kinds,
    streams_change_in_a_window,
    consumer_does_not_synchronise,
    futures,
    not_contiguous_and_repeated,
    works_and_tensors_are_dropped,
    one_of_several_fails,
    refusals,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)
