"""What ranks of test_device_waits.py do where the streams of a device can wait for a word in host memory: a whole
operation is queued at once, and no caller waits on the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceCoalescedOptions
from torch.distributed import distributed_c10d as c10d

import cuda_holds
import fake_cuda
import sagecomm
from device_calls import MINUTE, run_under_fake_cuda
from device_programs import FEW, SUM, N, accelerator, expect, full, held, main_stream, mine

LONG = 5_000_000  # elements that go through windows
SOON_S = 30.0


def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds that a thread of the host brings about."""
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end, f"not within {SOON_S} s"
        time.sleep(0.001)


def nothing_waits_on_the_host() -> None:
    """Calls and waits return while the stream of the caller is held. What is launched behind them comes after the
    outputs."""
    x, y, z = full(0), full(0), full(0, LONG)
    torch.accelerator.synchronize()
    with held(main_stream()):
        x += mine()
        y += 2 * mine()
        z += mine()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.all_reduce(y)
        dist.all_reduce(z)
        outs = [x + 1, y + 1, z + 1]
        assert not work.is_completed()
    for out, value in zip(outs, (SUM, 2 * SUM, SUM), strict=True):
        expect(out, value + 1)
    until(work.is_completed)  # a thread of the host notices the end


def futures_wait_on_the_stream() -> None:
    """A future is complete at once, as wait() returns at once, and callbacks come behind the outputs."""
    xs, order = [full(0) for _ in range(FEW)], list[int]()

    def callback(n: int, future: torch.futures.Future) -> torch.Tensor:
        order.append(n)
        result: torch.Tensor = future.value()[0] + n
        return result

    torch.accelerator.synchronize()
    with held(main_stream()):
        for x in xs:
            x += mine()
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        chained = [work.get_future().then(partial(callback, n)) for n, work in enumerate(works)]
        outs = [future.wait() for future in chained]
        doubled = works[0].get_future().wait()[0] * 2
        assert not works[0].is_completed()
    assert order == list(range(FEW))
    for n, out in enumerate(outs):
        expect(out, SUM + n)
    expect(doubled, 2 * SUM)


def backward_does_not_wait() -> None:
    """DDP waits for futures. Its backward pass returns while the stream is held."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(accelerator()), bucket_cap_mb=0.0001)
    inputs = torch.full((2, 8), float(mine()), device=accelerator())
    for _ in range(2):  # the second pass makes the buckets anew, and reads them on the host
        net(inputs).sum().backward()
        net.zero_grad()
    torch.accelerator.synchronize()
    with held(main_stream()):
        net(inputs).sum().backward()
        gradient = net.module.weight.grad * 1
    expect(gradient, SUM * 2 / dist.get_world_size())


def operations_follow_each_other() -> None:
    """The output of one operation is the input of the next, and nobody waits between."""
    x, y = full(mine()), full(mine(), LONG)
    for _ in range(FEW):
        dist.all_reduce(x)
        dist.all_reduce(y)
    expect(x, SUM * 2 ** (FEW - 1))
    expect(y, SUM * 2 ** (FEW - 1))


def outputs_that_nobody_has_waited_for() -> None:
    """The input of an operation is the output of earlier ones, for which nobody has waited."""
    for n in (N, LONG):
        x, gathered = full(mine(), n), full(0, 2 * n)
        works = [dist.all_reduce(x, async_op=True) for _ in range(FEW)]
        works.append(dist.all_gather_into_tensor(gathered, x, async_op=True))
        works[-1].wait()
        expect(gathered, SUM * 2 ** (FEW - 1))
        for work in works:
            work.wait()


def copies_of_outputs_that_nobody_has_waited_for() -> None:
    """The same where a copy, which is made in the current stream, stands for the input."""
    for reads in (multiplied, multiplies, conjugated, negated, of_columns, beside_its_block, repeated):
        x = torch.full(
            (2, N), mine(), dtype=torch.complex64 if reads is conjugated else torch.float32, device=accelerator()
        )
        torch.accelerator.synchronize()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        reads(x)
        work.wait()


def multiplied(x: torch.Tensor) -> None:
    dist.all_reduce(x, dist._make_nccl_premul_sum(full(2, 1)))
    expect(x, 4 * SUM)


def multiplies(x: torch.Tensor) -> None:
    y = full(1)
    dist.all_reduce(y, dist._make_nccl_premul_sum(x[0, :1]))
    expect(y, 2 * SUM)


def gathered(x: torch.Tensor) -> torch.Tensor:
    outputs = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for _ in range(2)]
    backend = c10d._get_default_group()._get_backend(accelerator())
    backend.allgather([outputs], [x]).wait()  # torch's dispatcher would copy a tensor that is conjugated or negative
    return torch.cat(outputs)


def conjugated(x: torch.Tensor) -> None:
    expect(torch.view_as_real(gathered(x.conj()))[..., 0], SUM)


def negated(x: torch.Tensor) -> None:
    expect(gathered(torch._neg_view(x)), -SUM)


def of_columns(x: torch.Tensor) -> None:
    expect(gathered(x[:, ::2]), SUM)


def beside_its_block(x: torch.Tensor) -> None:
    """The input overlaps the output, and is not this rank's block of it."""
    x = x.view(-1)
    dist.all_gather_into_tensor(x, x[N // 2 : N // 2 + N])
    expect(x, SUM)


def repeated(x: torch.Tensor) -> None:
    dist.all_reduce_coalesced([x, x])
    expect(x, 2 * SUM)


def copies_of_several_outputs() -> None:
    """What a copy reads was written by several operations, or by one that has several outputs."""
    x, y = torch.full((3, N), mine(), device=accelerator()), torch.zeros(2, N, device=accelerator())
    torch.accelerator.synchronize()
    works: list[Any] = [dist.all_reduce(row, async_op=True) for row in x]
    expect(gathered(x[:, ::2]), SUM)
    works.append(c10d._get_default_group().allreduce_coalesced(list(x), AllreduceCoalescedOptions()))
    expect(gathered(x[:, ::2]), 2 * SUM)
    works.append(dist.all_gather(list(y), full(mine()), async_op=True))
    copies = gathered(y[:, ::2])
    expect(copies[::2], 1)
    expect(copies[1::2], 2)
    for work in works:
        work.wait()


def copies_in_two_streams() -> None:
    """A copy waits for the output, which is no wait of the user: that of the next reader, in another stream, waits,
    too."""
    x, side = torch.full((2, N), mine(), device=accelerator()), torch.Stream(accelerator())
    columns, backend = x[:, ::2], c10d._get_default_group()._get_backend(accelerator())
    outputs = [[torch.zeros_like(columns) for _ in range(2)] for _ in range(2)]
    torch.accelerator.synchronize()
    written = dist.all_reduce(x, async_op=True)
    assert written is not None
    until(written.is_success)  # on the host: the stream that writes the output may not have come there
    works = [written, backend.allgather([outputs[0]], [columns])]
    with side:
        works.append(backend.allgather([outputs[1]], [columns]))
        works[-1].wait()
    for work in works:
        work.wait()
    for output in outputs:
        expect(torch.cat(output), SUM)


def rows_that_are_not_contiguous() -> None:
    x = torch.zeros(N, 4, device=accelerator())
    torch.accelerator.synchronize()
    with held(main_stream()):
        x[:, ::2] = mine()
        work = dist.all_reduce(x[:, ::2], async_op=True)
        work.wait()
        y = x * 2
    expect(y[:, ::2], 2 * SUM)
    expect(y[:, 1::2], 0)


def roots() -> None:
    for n in (N, LONG):
        for root in range(2):
            x, y = full(mine(), n), full(mine(), n)
            dist.broadcast(x, root)
            dist.reduce(y, root)
            expect(x, root + 1)
            expect(y, SUM if dist.get_rank() == root else mine())
            y.fill_(7)
            expect(y, 7)


def barrier_waits_on_the_host() -> None:
    x = full(0)
    torch.accelerator.synchronize()
    written = torch.Event(accelerator())
    with held(main_stream()):
        x += 1
        written.record()
        work = dist.barrier(device_ids=[accelerator().index], async_op=True)
        assert not work.is_completed()
    work.wait()
    assert written.query()


def barrier_waits_for_no_other_stream() -> None:
    x = full(0)
    torch.accelerator.synchronize()
    other, written = torch.Stream(accelerator()), torch.Event(accelerator())
    with held(other):
        with other:
            x += 1
            written.record()
        dist.barrier(device_ids=[accelerator().index])
        assert not written.query()
    other.synchronize()
    expect(x, 1)


def next_operation_raises() -> None:
    """Ranks make different calls. The stream goes on, and the group raises from then on."""
    x = full(mine(), N + dist.get_rank())

    def go_on() -> None:
        dist.all_reduce(x)
        while True:
            torch.accelerator.synchronize()
            dist.all_reduce(full(1))

    with pytest.raises(sagecomm.CollectiveMismatch):
        go_on()
    x.fill_(5)
    expect(x, 5)


PROGRAMS: list[Callable[[], Any]] = [
    nothing_waits_on_the_host,
    futures_wait_on_the_stream,
    backward_does_not_wait,
    operations_follow_each_other,
    outputs_that_nobody_has_waited_for,
    copies_of_outputs_that_nobody_has_waited_for,
    copies_of_several_outputs,
    copies_in_two_streams,
    rows_that_are_not_contiguous,
    roots,
    barrier_waits_on_the_host,
    barrier_waits_for_no_other_stream,
    next_operation_raises,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)


def in_few_queues(rank: int, size: int, store: str) -> None:
    """With one queue a stream that is held holds up the other streams of the program, that of a barrier, too."""
    one = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    programs = [p for p in PROGRAMS if not one or p is not barrier_waits_for_no_other_stream]
    run_under_fake_cuda(rank, size, store, programs)


def batch_of_several_senders(rank: int, size: int, store: str) -> None:
    """What rank 2 sends in the batch depends on what rank 1 sends behind the batch."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    x, y, z = full(0), full(0), full(0)
    if rank == 0:
        batch = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1), dist.P2POp(dist.irecv, y, 2)])
        dist.irecv(z, 1).wait()
        dist.isend(z, 2).wait()
        for work in batch:
            work.wait()
        future = batch[0].get_future()
        expect(x, 5)
        expect(y, 7)
        future.wait()
    elif rank == 1:
        dist.isend(full(5), 0).wait()
        dist.isend(full(6), 0).wait()
    else:
        dist.irecv(z, 0).wait()
        z += 1
        dist.isend(z, 0).wait()
    torch.cuda.synchronize()
    cuda_holds.check()
    dist.destroy_process_group()


CALLERS = 4  # streams of the caller that have streams of their own: mostOrigins of internal/engine/staged/p2p.go


def new_stream_beside_late_ones(rank: int, size: int, store: str) -> None:
    """All streams of the caller that have issued p2p operations are late but the main one. What a new stream sends is
    what they wait for."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    x, y = full(0), full(9)
    torch.cuda.synchronize()
    if rank == 0:
        late = [torch.cuda.Stream() for _ in range(CALLERS - 1)]
        for stream in [torch.cuda.current_stream(), *late]:
            with torch.cuda.stream(stream):
                dist.send(y, 2)
        torch.cuda.synchronize()
        with torch.cuda.stream(late[0]):
            dist.recv(x, 1)
        for stream in late:
            stream.wait_stream(late[0])
            with torch.cuda.stream(stream):
                dist.send(x, 2)
        with torch.cuda.stream(torch.cuda.Stream()):
            dist.send(y, 1)
    elif rank == 1:
        dist.recv(x, 0)
        dist.send(x - 4, 0)
    else:
        for value in [9] * CALLERS + [5] * (CALLERS - 1):
            dist.recv(x, 0)
            expect(x, value)
    torch.cuda.synchronize()
    cuda_holds.check()
    dist.destroy_process_group()


def recv_beside_a_collective(rank: int, size: int, store: str) -> None:
    """Both ranks wait for a recv whose send comes behind a collective that is called later."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    for _ in range(FEW):
        x, y = full(0), full(mine())
        recv = dist.irecv(x, 1 - rank)
        dist.all_reduce(y)
        send = dist.isend(y + mine(), 1 - rank)
        assert recv is not None
        assert send is not None
        recv.wait()
        send.wait()
        expect(x, SUM + 2 - rank)
    cuda_holds.check()
    dist.destroy_process_group()


def wait_in_a_capture(rank: int, size: int, store: str) -> None:
    """A graph cannot wait for an operation that was issued before its capture began, and need not if that is known to
    be complete. The capture goes on."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x, y = full(mine()), full(1)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    work = dist.all_reduce(x, async_op=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y += 1
        with pytest.raises(RuntimeError, match=r"call wait\(\) before the capture begins"):
            work.wait()
        with pytest.raises(RuntimeError, match="is being captured"):
            dist.all_reduce(x[::2])  # the copy of these rows waits for nothing
    work.wait()
    expect(x, 2 * SUM)
    graph.replay()
    expect(y, 2)
    work = dist.all_reduce(x, async_op=True)
    torch.cuda.synchronize()
    while not work.is_completed():
        pass
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        y += 1
        work.wait()
    expect(x, 4 * SUM)
    cuda_holds.check()
    dist.destroy_process_group()


def peer_dies(rank: int, size: int, store: str) -> None:
    """Rank 1 dies while streams of rank 0 wait for words: they go on, and the next operation raises."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x, y = full(mine()), full(mine(), LONG)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(3)
    work = dist.all_reduce(x, async_op=True)
    with suppress(sagecomm.PeerFailure):  # the group may know by now
        dist.all_reduce(y)
        work.wait()
    torch.cuda.synchronize()
    with pytest.raises(sagecomm.PeerFailure, match="rank 1"):
        dist.all_reduce(x)
    with pytest.raises(sagecomm.PeerFailure, match="rank 1"):
        work.wait(MINUTE)
    x.fill_(5)
    expect(x, 5)
    cuda_holds.check()
    dist.destroy_process_group()


def ends_without_destroying(rank: int, size: int, store: str) -> None:
    """The process ends while its streams wait for a peer that makes no further call."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x = full(mine())
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(full(mine()), async_op=True)
    else:
        dist.recv(torch.empty(1), 0)
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    expect(x, SUM)


def copies_out() -> int:
    """The copies out of the device that have run."""
    return int(fake_cuda.emulator().emulator_finished(b"copy from device to pinned memory"))


def copies_overlap_the_host(rank: int, size: int, store: str, groups: int) -> None:
    """The program of rank 0 cannot be done with the first chunk, because rank 1 has not called. Meanwhile the device
    copies further groups of the input out: as many as the window has room for."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.all_reduce(full(mine()))
    x = full(mine(), LONG)
    torch.cuda.synchronize()
    called = c10d._get_default_store()
    if rank == 0:
        before = copies_out()
        work = dist.all_reduce(x, async_op=True)
        until(lambda: copies_out() >= before + groups)
        called.set("all that can be is copied", b"")
    else:
        called.wait(["all that can be is copied"])
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    expect(x, SUM)
    cuda_holds.check()
    dist.destroy_process_group()


def abort_while_streams_wait(rank: int, size: int, store: str) -> None:
    aborted(rank, size, store, [lambda work: work.wait(), lambda work: work.get_future().wait()])


def futures_after_an_abort(rank: int, size: int, store: str) -> None:
    aborted(rank, size, store, [lambda work: work.get_future().wait(), lambda work: work.wait()])


def aborted(rank: int, size: int, store: str, ways: list[Callable[[dist.Work], Any]]) -> None:
    """Streams go on after an abort, and each way to wait raises it. What the caller has launched behind an operation
    still comes behind its reads: of one without outputs, which goes through a window, most of the input is read after
    the abort."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x = full(mine())
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        with pytest.raises(sagecomm.Aborted):
            dist.recv(torch.empty(1), 0)
        return
    z = full(mine(), LONG)
    dist.reduce(z, 1)
    z.fill_(5)
    works = [dist.all_reduce(full(mine(), n), async_op=True) for n in (N, LONG)]
    began = time.monotonic()
    dist.distributed_c10d._get_default_group().abort()
    for work in works:
        for way in ways:
            with pytest.raises(sagecomm.Aborted):
                way(work)
    torch.cuda.synchronize()
    assert time.monotonic() - began < 20
    expect(z, 5)
    cuda_holds.check()
