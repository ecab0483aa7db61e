"""What ranks of test_nccl_waits.py do: they wait for each other inside the emulated libnccl.so.2, or one of them does
not come."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from device_nccl import calls, join_group, raised, ranks

LONG = timedelta(seconds=30)


def ones() -> torch.Tensor:
    return torch.ones(4, device="cuda")


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cuda"))


def right(x: torch.Tensor) -> None:
    assert x.tolist() == [dist.get_world_size()] * 4


def absent_until_told(rank: int, size: int, work: Callable[[], Any]) -> str:
    """All ranks but the last one call, and that one when they have failed. Returns the failure."""
    told = c10d._get_default_store()
    if rank == size - 1:
        told.wait([f"rank {other} is told" for other in range(size - 1)])
    text = raised(work)
    told.set(f"rank {rank} is told", "")
    return text


def misses_a_connection(rank: int, size: int, store: str) -> str:
    """The first broadcast connects the ranks anew."""
    join_group(rank, size, store, seconds=2)
    dist.all_reduce(ones())
    return absent_until_told(rank, size, lambda: dist.broadcast(ones(), 0, async_op=True).wait(LONG))


def p2p_behind_a_collective(rank: int, size: int, store: str) -> None:
    """The first p2p operation of a group that uses the library loads no kernels, which would wait for the all_reduce,
    and so for the peer's, which stands behind the recv."""
    join_group(rank, size, store)
    x, y = ones(), ones()
    dist.all_reduce(ones())
    torch.cuda.synchronize()
    if rank == 1:
        work = dist.all_reduce(x, async_op=True)
        dist.send(y + 1, 0)
        work.wait()
    else:
        dist.recv(y, 1)
        assert y.tolist() == [2] * 4
        dist.all_reduce(x)
    right(x)


def misses_the_join(rank: int, size: int, store: str) -> str:
    join_group(rank, size, store, seconds=2)
    return absent_until_told(rank, size, lambda: dist.all_reduce(ones()))


def moves_alone(rank: int, size: int, store: str) -> str:
    """The last rank's second collective is on another device."""
    join_group(rank, size, store, seconds=2)
    dist.all_reduce(ones())
    if rank == size - 1:
        torch.cuda.set_device(size)
    return raised(lambda: dist.all_reduce(ones(), async_op=True).wait(LONG))


@contextmanager
def interrupting(*, after: int) -> Iterator[list[float]]:
    """A signal handler that runs every 0.1 s, and raises KeyboardInterrupt at that call. Gives the times of calls."""
    times: list[float] = []

    def handle(_signal: int, _frame: FrameType | None) -> None:
        times.append(time.monotonic())
        if len(times) == after:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        yield times
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt(call: Callable[[], Any]) -> None:
    """Signal handlers run during the call, which waits for ever, and one of them ends it."""
    with interrupting(after=4) as times:
        try:
            call()
            raise AssertionError("nothing was raised")
        except KeyboardInterrupt:
            late = time.monotonic() - times[-1]
    assert len(times) == 4, times
    assert late < 1, late
    assert max(b - a for a, b in pairwise(times)) < 1, times


def interrupted_in_the_join(rank: int, size: int, store: str) -> None:
    """A call that was interrupted before it had its number was not made; the next one finds the ranks joined."""
    join_group(rank, size, store)
    told = c10d._get_default_store()
    if rank == 0:
        interrupt(lambda: dist.all_reduce(ones()))
        told.set("interrupted", "")
    told.wait(["interrupted"])
    x = ones()
    dist.all_reduce(x)
    right(x)


def destroyed_by_a_handler(rank: int, size: int, store: str, at: str) -> str:
    """A signal handler of rank 0 destroys the group in the middle of a call that waits for the others."""
    join_group(rank, size, store)
    told = c10d._get_default_store()
    if at == "a connection":
        dist.all_reduce(ones())
    if rank > 0:
        told.wait(["over"])
        return raised(lambda: dist.broadcast(ones(), 0))

    def handle(_signal: int, _frame: FrameType | None) -> None:
        dist.destroy_process_group()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        dist.broadcast(ones(), 0)
        raise AssertionError("nothing was raised")
    except dist.DistBackendError as error:
        text = f"{type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGALRM, before)
        told.set("over", "")
    assert not dist.is_initialized()
    assert json.loads(sys.modules["sagecomm._C"].flight_records())["groups"] == [], "the group lives"
    return text


def interrupted_in_a_connection(rank: int, size: int, store: str) -> str:
    """Peers know of the call, so the group fails."""
    join_group(rank, size, store)
    dist.all_reduce(ones())
    told = c10d._get_default_store()
    if rank == 0:
        interrupt(lambda: dist.broadcast(ones(), 0))
        told.set("interrupted", "")
    told.wait(["interrupted"])
    return raised(lambda: dist.broadcast(ones(), 0))


def handler_calls_while_its_thread_waits(rank: int, size: int, store: str, on: str) -> None:
    """Another thread connects with a peer, so the main thread waits until it can queue rows alone. A signal handler
    there makes a collective of the same group, or waits for a thread that does."""
    join_group(rank, size, store)
    dist.all_reduce(ones())
    told = c10d._get_default_store()
    x, y, rows = ones(), ones(), torch.ones(4, 2, device="cuda")
    handled: list[int] = []

    def rows_alone() -> Any:
        return backend().allreduce([rows[:, 0]])  # a handler that runs at this line runs inside the call

    def handle(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        if frame.f_code is not rows_alone.__code__ or frame.f_lineno == frame.f_code.co_firstlineno:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        elif not handled:
            handled.append(number)
            told.set("handled", "")
            if on == "its thread":
                dist.all_reduce(y)
            else:
                thread = threading.Thread(target=dist.all_reduce, args=(y,))
                thread.start()
                thread.join()

    if rank == 0:
        before, number = signal.signal(signal.SIGALRM, handle), backend()._get_sequence_number_for_group()
        thread = threading.Thread(target=dist.broadcast, args=(x, 0))
        thread.start()
        while backend()._get_sequence_number_for_group() == number:
            time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        rows_alone().wait()
        thread.join()
        signal.signal(signal.SIGALRM, before)
        assert handled == [signal.SIGALRM]
    else:
        told.wait(["handled"])
        dist.broadcast(x, 0)
        dist.all_reduce(y)
        dist.all_reduce(rows[:, 0])
    right(y)
    right(rows[:, 0])


def aborted(rank: int, size: int, store: str, at: str) -> str:
    """abort() on another thread ends a call that waits for peers."""
    join_group(rank, size, store)
    if at == "a connection":
        dist.all_reduce(ones())
    told = c10d._get_default_store()
    times: list[float] = []

    def abort() -> None:
        times.append(time.monotonic())
        backend().abort()

    if rank == 0:
        threading.Timer(0.3, abort).start()
        text = raised(lambda: dist.broadcast(ones(), 0))
        late = time.monotonic() - times[0]
        assert late < 2, late
        told.set("aborted", "")
        return text
    told.wait(["aborted"])
    return raised(lambda: dist.broadcast(ones(), 0))


def one_cannot_join(rank: int, size: int, store: str, seconds: float) -> list[str]:
    """The fault plan of one rank refuses its join. No other rank waits long for it, nor for its next join, and they do
    without NCCL. Returns what was printed, and what explain says."""
    join_group(rank, size, store, seconds=seconds)
    began, before = time.monotonic(), os.dup(2)
    with tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 2)
        try:
            for device in (rank, rank + size):
                torch.cuda.set_device(device)
                x = ones()
                dist.all_reduce(x)
                right(x)
        finally:
            os.dup2(before, 2)
            os.close(before)
        printed.seek(0)
        text = printed.read()
    assert time.monotonic() - began < 10
    explained = str(sagecomm.explain("all_reduce", 16, dist.group.WORLD, device=True))
    assert sum(call.startswith("Init") for call in calls()) < 2
    dist.destroy_process_group()
    return [text, explained]


def devices_differ(rank: int, size: int, store: str) -> list[str]:
    """On one device for all ranks they do without NCCL, and with it on their own devices. Returns what explain says."""
    join_group(rank, size, store, 0)
    explained = []
    for device in (0, rank):
        torch.cuda.set_device(device)
        if device == 0 and explained and rank == 0:
            torch.cuda.set_device(size)  # device 0 is known to do without
        x = ones()
        dist.all_reduce(x)
        right(x)
        explained.append(str(sagecomm.explain("all_reduce", 16, dist.group.WORLD, device=True)))
    dist.destroy_process_group()
    return explained


def queues_in_vain(rank: int, size: int, store: str) -> list[str]:
    """The last rank's first broadcast fails while all_reduces of it wait for peers. Their kernels are cut then, and
    none of them succeeds. Futures that were there before are complete: they order streams. Returns the failures and
    the library's calls."""
    join_group(rank, size, store)
    dist.all_reduce(ones())
    told = c10d._get_default_store()
    if rank < size - 1:
        told.set(f"summed {rank}", "")
        told.wait(["failed"])
        return [raised(lambda: dist.all_reduce(ones()))]
    told.wait([f"summed {each}" for each in range(size - 1)])
    cut = [dist.all_reduce(ones(), async_op=True) for _ in ranks()]
    futures = [work.get_future() for work in cut]
    text = [raised(lambda: dist.broadcast(ones(), 0, async_op=True).wait(LONG))]
    for work in cut:
        text.append(raised(lambda work=work: work.wait(LONG)))  # type: ignore[misc]
        assert not work.is_success()
    for future in futures:
        future.wait()
    text += [raised(lambda work=work: work.get_future().wait()) for work in cut]  # type: ignore[misc]
    told.set("failed", "")
    return text + ended("Abort")


def fails_while_idle(rank: int, size: int, store: str) -> list[str]:
    """Peers of a group that has failed may never end their communicators. Returns the library's calls."""
    join_group(rank, size, store)
    dist.all_reduce(ones())
    torch.cuda.synchronize()
    dist.barrier(device_ids=[rank])
    told = c10d._get_default_store()
    told.set(f"idle {rank}", "")  # a rank may be the last one to leave the barrier
    if rank == 0:
        told.wait([f"idle {each}" for each in range(size)])
        backend().abort()
    raised(lambda: [dist.all_reduce(ones()) for _ in range(10000)])
    return ended("Abort")


def ended(how: str) -> list[str]:
    """The library's calls, when a communicator has ended."""
    end = time.monotonic() + 10
    while how not in calls():
        assert time.monotonic() < end, calls()
        time.sleep(0.01)
    return calls()


def leaves_alone(rank: int, size: int, store: str) -> list[str]:
    """NCCL ends a communicator when all ranks end theirs. No rank waits for that. Returns the library's calls."""
    join_group(rank, size, store)
    x = ones()
    dist.all_reduce(x)
    right(x)
    told = c10d._get_default_store()
    if rank > 0:
        told.wait([f"rank {rank - 1} has left"])
    began = time.monotonic()
    dist.destroy_process_group()
    took = time.monotonic() - began
    assert took < 3, took
    told.set(f"rank {rank} has left", "")
    return ended("Destroy")


def long_lists(rank: int, size: int, store: str) -> list[int]:
    """Lists of tensors are gathered in memory of the device. Returns its free memory before and behind long ones."""
    join_group(rank, size, store)
    free = []
    for n in (1 << 10, 1 << 23, 1 << 10):
        outs = [torch.empty(n, device="cuda") for _ in ranks()]
        dist.all_gather(outs, torch.full((n,), float(rank), device="cuda"))
        assert [out[n - 1].item() for out in outs] == list(map(float, ranks()))
        del outs
        end = time.monotonic() + 10
        torch.cuda.empty_cache()
        while free and torch.cuda.mem_get_info()[0] < free[0] and time.monotonic() < end:
            time.sleep(0.01)
            torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    dist.destroy_process_group()
    return free
