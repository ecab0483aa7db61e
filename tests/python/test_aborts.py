"""abort() from another thread, torch's own way to abort, and Ctrl-C in a call."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from failing import backend, caught, meet, sum_of_ones
from older_torch import exception_of
from programs import await_sleep, in_background, report
from promises import kept
from worlds import World

# ---- abort ----


def abort_pending(mode: str) -> tuple[float, str] | None:
    """Rank 0 waits for a call that rank 1 never makes; a thread of rank 0 aborts."""
    t = torch.ones(100_000)
    group = backend()
    if dist.get_rank() == 1:
        # The abort reaches this rank too: whatever waits here ends as well.
        error, _, ended = caught(lambda: dist.irecv(t, 0))
        assert type(error) is sagecomm.Aborted, error
        return ended, str(error)
    aborted_at = []

    def abort() -> None:
        while mode != "recv" and group._get_sequence_number_for_group() == 0:
            time.sleep(0.001)
        await_sleep(os.getpid())  # the main thread is inside its call
        aborted_at.append(time.monotonic())
        group.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    if mode == "sync":
        error, _, ended = caught(lambda: dist.all_reduce(t))
    elif mode == "future":
        future = dist.all_reduce(t, async_op=True).get_future()
        error, _, ended = caught(future.wait)
    elif mode == "recv":
        error, _, ended = caught(lambda: dist.irecv(t, 1, tag=5))
    else:
        work = dist.all_reduce(t, async_op=True)
        error, _, ended = caught(work.wait)
        assert isinstance(exception_of(work), sagecomm.Aborted)
    thread.join()
    assert type(error) is sagecomm.Aborted, error
    kept(ended - aborted_at[0], 1)  # 0.1 s where the cores are not shared
    for call in (lambda: dist.barrier(), lambda: dist.all_reduce(t, async_op=True), lambda: dist.isend(t, 1)):
        again = caught(call)[0]
        assert (type(again), str(again)) == (sagecomm.Aborted, str(error)), again
    group.abort()
    return aborted_at[0], str(error)


@pytest.mark.parametrize("mode", ["sync", "async", "future", "recv"])
def test_abort_from_another_thread_ends_every_wait(world, mode):
    (aborted, text), (ended, there) = world(2).run(abort_pending, mode)
    assert text == there
    assert "aborted by rank 0" in text
    kept(ended - aborted, 1)


def torchs_own_abort() -> float:
    """abort_process_group() coalesces and waits, and drops the groups; the process then begins anew."""
    store = c10d._get_default_store()
    group = dist.new_group()
    t = torch.ones(10)
    dist.all_reduce(t, group=group)
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.all_reduce(t, async_op=True)
    meet()  # an abort may overtake a barrier
    c10d._abort_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("sagecomm", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    return sum_of_ones()


def test_torchs_own_abort_path(world):
    assert world(2).run(torchs_own_abort) == [2.0, 2.0]


# ---- Ctrl-C ----


def interrupted(path: str, mode: str) -> float | None:
    t = torch.ones(100_000)
    if dist.get_rank() == 1:
        try:
            dist.recv(t, 0)
        except (dist.DistBackendError, sagecomm.PeerFailure):
            return None
        # Rank 0 has survived its Ctrl-C and finishes what it began.
        dist.all_reduce(t)
        return None
    work = None if mode == "sync" else dist.all_reduce(t, async_op=True)
    report(path)
    try:
        if work is None:
            dist.all_reduce(t)
        else:
            work.wait()
    except KeyboardInterrupt:
        at = time.monotonic()
        dist.send(torch.ones(100_000), 1)
        if work is not None:
            work.wait()
        return at
    raise AssertionError("not interrupted")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_in_a_pending_collective(mortals, signals, mode):
    ranks: World = mortals.world(2)
    outcomes = in_background(ranks, interrupted, signals.path, mode)
    signals.await_many(1)
    await_sleep(ranks.pids()[0])  # in the collective
    at = time.monotonic()
    os.kill(ranks.pids()[0], signal.SIGINT)
    first, second = outcomes.result(60)
    assert first.ok, first.trace
    assert second.ok, second.trace
    kept(first.value - at, 1)  # 0.2 s where the cores are not shared
