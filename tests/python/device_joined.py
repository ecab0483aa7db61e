"""What ranks of test_device_joined.py do where streams can wait for a word in host memory: what comes behind operations
that are queued whole, where a call has several of them, or where their outputs are not contiguous."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions
from torch.distributed import distributed_c10d as c10d

import cuda_holds
from device_calls import MINUTE, run_under_fake_cuda
from device_programs import SUM, N, accelerator, expect, full, held, main_stream, mine


def futures_of_rows() -> None:
    """A Future comes behind the copies into rows, as `wait()` does, also in a stream that waits for nothing else."""
    peer = 1 - dist.get_rank()
    calls: list[tuple[Callable[[torch.Tensor], Any], float]] = [
        (lambda rows: dist.all_reduce(rows, async_op=True), SUM),
        (lambda rows: dist.irecv(rows, peer), 7),
    ]
    for call, value in calls:
        side = torch.Stream(accelerator())
        x, seven = torch.zeros(N, 4, device=accelerator()), full(7, 2 * N)
        torch.accelerator.synchronize()
        with held(main_stream()):
            x[:, ::2] = mine()
            future = call(x[:, ::2]).get_future()
            sent = dist.isend(seven, peer) if value == 7 else None
            doubled = future.then(lambda done: done.value()[0] * 2)
            with side:
                future.wait()
                y, z = x * 1, doubled.wait()
        side.synchronize()
        if sent is not None:
            sent.wait()
        expect(y[:, ::2], value)
        expect(y[:, 1::2], 0)
        expect(z, 2 * value)


def barriers_of_a_window() -> None:
    """The host waits for a barrier, wherever it stands among the operations of its window."""
    backend = c10d._get_default_group()._get_backend(accelerator())
    options = BarrierOptions()
    options.device_ids, options.asyncOp = [accelerator().index], True
    for place in range(3):
        xs = [full(0), full(0, 2 * N)]
        torch.accelerator.synchronize()
        written = torch.Event(accelerator())
        calls: list[Callable[[], Any]] = [partial(backend.allreduce, [x], AllreduceOptions()) for x in xs]
        calls.insert(place, partial(backend.barrier, options))
        with held(main_stream()):
            for x in xs:
                x += mine()
            written.record()
            backend._start_coalescing()
            for call in calls:
                call()
            work = backend._end_coalescing()
            assert not work.is_completed()
        work.wait()
        assert written.query(), f"wait() has returned before barrier {place} of its window"
        for x in xs:
            expect(x, SUM)


PROGRAMS: list[Callable[[], Any]] = [futures_of_rows, barriers_of_a_window]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)


def batch_of_senders_in_turns(rank: int, size: int, store: str) -> None:
    """A batch has recvs in the streams of two senders. The one that is not the last comes late, and whoever has waited
    for the batch comes behind it."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    told = c10d._get_default_store()
    if rank == 0:
        xs = [full(0) for _ in range(3)]
        torch.cuda.synchronize()
        [batch] = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 + n % 2) for n, x in enumerate(xs)])
        batch.wait()
        read = [x * 1 for x in xs]
        told.set("read", b"")
        for n, x in enumerate(read):
            expect(x, 5 + n)
    elif rank == 1:
        for value in (5, 7):
            dist.send(full(value), 0)
    else:
        told.wait(["read"], MINUTE)
        dist.send(full(6), 0)
    torch.cuda.synchronize()
    cuda_holds.check()
    dist.destroy_process_group()


def future_of_a_batch(rank: int, size: int, store: str) -> None:
    """The Future of a batch is that of all its parts, in whichever order they were called: the recv is late, and the
    send beside it is done."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    told = c10d._get_default_store()
    for turn in range(2):
        if rank == 1:
            first, x = full(0), full(7)
            dist.recv(first, 0)
            torch.cuda.synchronize()
            expect(first, 5)
            told.wait([f"looked {turn}"], MINUTE)
            dist.send(x, 0)
        else:
            x = full(0)
            parts = [dist.P2POp(dist.isend, full(5), 1), dist.P2POp(dist.irecv, x, 1)]
            [batch] = dist.batch_isend_irecv(parts if turn == 0 else parts[::-1])
            future = batch.get_future()
            assert not future.done(), "the Future is done, and the peer has sent nothing"
            told.set(f"looked {turn}", b"")
            side = torch.Stream(accelerator())
            with side:
                future.wait()
                y = x * 1
            side.synchronize()
            expect(y, 7)
    torch.cuda.synchronize()
    cuda_holds.check()
    dist.destroy_process_group()
