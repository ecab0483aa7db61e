"""Timeouts, mismatches, aborts, signals: what every rank sees, how soon, and that the processes go on."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from older_torch import exception_of
from programs import await_calls, await_sleep, await_stop, in_background, report
from promises import kept
from worlds import World

TIMEOUT = timedelta(seconds=3)


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(torch.device("cpu"))


def caught(call: Callable[[], Any]) -> tuple[dist.DistBackendError, float, float]:
    """Returns the error of a call, when the call began and when the error came."""
    began = time.monotonic()
    try:
        work = call()
        if work is not None:
            work.wait()
    except dist.DistBackendError as error:
        return error, began, time.monotonic()
    raise AssertionError("the call succeeded")


# ---- timeout ----


def reduce_until_timeout(path: str, victim: int) -> tuple[Any, float]:
    t = torch.ones(1000)
    for _ in range(10):
        dist.all_reduce(t)
    report(path)
    if dist.get_rank() == 0:
        backend()._set_default_timeout(TIMEOUT)
    for number in itertools.count(11):
        if dist.get_rank() == 0:  # the others wait for long: only the victim can be late
            await_calls(number, 3 - victim)
        began = time.monotonic()
        try:
            dist.all_reduce(t)
        except dist.DistBackendError as error:
            raised = time.monotonic()
            again = caught(lambda: dist.barrier())[0]
            assert (type(again), str(again)) == (type(error), str(error)), again
            assert dist.get_rank() == victim or "TIMEOUT" in str(backend().get_error())
            report(path)
            return error, raised - began
    raise AssertionError("it goes on for ever")


def test_a_stopped_rank_is_named_at_the_timeout(mortals, signals):
    ranks = mortals.world(3)
    pid = ranks.pids()[1]
    outcomes = in_background(ranks, reduce_until_timeout, signals.path, 1)
    signals.await_many(3)
    os.kill(pid, signal.SIGSTOP)
    try:
        signals.await_many(2)  # the others have timed out
        await_stop(pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    waited = 0.0
    for outcome in outcomes.result(60):
        assert outcome.ok, outcome.trace
        error, took = outcome.value
        assert type(error) is sagecomm.CollectiveTimeout, error
        assert (error.rank, error.pid) == (1, pid), error
        assert f"rank 1 (host {error.host}, pid {pid})" in str(error), error
        if outcome.rank == 0:
            waited = took
    assert waited >= TIMEOUT.total_seconds(), waited
    kept(waited - TIMEOUT.total_seconds(), 1, "to know of the timeout")
    assert ranks.run(sum_of_ones) == [3.0] * 3, "a new group in the same processes"


def reduce_through_a_pause(path: str, bound_s: float) -> float:
    """Continues for a while after the clock has shown a pause longer than the timeout."""
    t, paused, ends = torch.ones(1000), 0.0, float("inf")
    dist.all_reduce(t)
    report(path)
    before = time.monotonic()
    while True:
        t.fill_(1)
        dist.all_reduce(t)
        now = time.monotonic()
        if now - before > bound_s:
            paused, ends = now - before, now + 1
        before = now
        # All ranks leave after the same round.
        done = torch.tensor([float(now > ends)])
        dist.all_reduce(done)
        if done.item() > 0:
            return paused


def test_a_machine_that_pauses_names_no_culprit(mortals, signals):
    ranks = mortals.world(2)
    outcomes = in_background(ranks, reduce_through_a_pause, signals.path, 2.0, operations_timeout=timedelta(seconds=2))
    signals.await_many(2)
    for pid in ranks.pids()[:2]:
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(3)
    for pid in ranks.pids()[:2]:
        os.kill(pid, signal.SIGCONT)
    for outcome in outcomes.result(60):
        assert outcome.ok, outcome.trace


def receives_in_vain(path: str) -> tuple[float, str]:
    """Returns how long a recv without a send took, and its error."""
    report(path)
    began = time.monotonic()
    with pytest.raises(sagecomm.CollectiveTimeout) as caught:
        dist.recv(torch.ones(1), 1 - dist.get_rank(), tag=dist.get_rank())
    return time.monotonic() - began, str(caught.value)


def test_a_pause_gives_a_receive_its_time_back_once(mortals, signals):
    ranks = mortals.world(2)
    timeout = timedelta(seconds=3)
    outcomes = in_background(ranks, receives_in_vain, signals.path, operations_timeout=timeout)
    signals.await_many(2)
    for pid in ranks.pids()[:2]:
        await_sleep(pid)  # the process waits inside the core
    stopped = time.monotonic()
    for pid in ranks.pids()[:2]:
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(4)
    pause = time.monotonic() - stopped
    for pid in ranks.pids()[:2]:
        os.kill(pid, signal.SIGCONT)
    for outcome in outcomes.result(60):
        assert outcome.ok, outcome.trace
        took, error = outcome.value
        once = timeout.total_seconds() + pause
        assert once - 0.5 < took < once + pause - 0.5, f"{took} after a pause of {pause}: {error}"


def sum_of_ones() -> float:
    t = torch.ones(10)
    dist.all_reduce(t)
    return t[0].item()


def stays_away(mode: str) -> tuple[Any, float] | None:
    """Rank 0 does not make its second call."""
    t = torch.ones(5)
    dist.broadcast(t, 0)
    meet()
    if mode != "own timeout":
        backend()._set_default_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        # Ends with the group's failure: by then the others have seen theirs.
        deadline = time.monotonic() + 60
        while "SUCCESS" in str(backend().get_error()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return None
    if mode == "future":
        began = time.monotonic()
        try:
            dist.all_reduce(t, async_op=True).get_future().wait()
        except dist.DistBackendError as error:
            return error, time.monotonic() - began
        raise AssertionError("succeeded")
    if mode == "own timeout":
        opts = dist.AllreduceOptions()
        opts.timeout = timedelta(seconds=1)
        error, began, ended = caught(lambda: backend().allreduce([t], opts))
    elif mode == "recv":
        error, began, ended = caught(lambda: dist.irecv(t, 0))
    else:
        error, began, ended = caught(lambda: dist.all_reduce(t, async_op=mode == "async"))
    return error, ended - began


@pytest.mark.parametrize("mode", ["sync", "async", "future", "own timeout", "recv"])
def test_a_rank_that_does_not_call_is_named_with_its_last_call(world, mode):
    answers = world(3).run(stays_away, mode)[1:]
    longest = max(took for _, took in answers)  # whose time runs out first speaks for all
    assert longest >= 1, answers
    kept(longest - 1, 1, "to know of the timeout")
    for error, _ in answers:
        assert type(error) is sagecomm.CollectiveTimeout, error
        assert error.rank == 0
        text = str(error)
        assert ("recv" if mode == "recv" else "all_reduce") in text
        assert "rank 0" in text
        assert mode == "recv" or "last called broadcast #1" in text, text


def opposite_orders() -> str:
    """Each of two ranks waits in another group: both time out."""
    groups = [dist.new_group() for _ in range(2)]
    for group in groups:
        backend(group)._set_default_timeout(timedelta(seconds=1))
    dist.barrier()
    first, second = groups if dist.get_rank() == 0 else reversed(groups)
    t = torch.ones(10)
    error, began, ended = caught(lambda: dist.all_reduce(t, group=first))
    assert type(error) is sagecomm.CollectiveTimeout, error
    assert ended - began >= 1
    kept(ended - began, 2)
    dist.barrier()  # a call that came before the other rank's deadline would complete what that rank waits for
    caught(lambda: dist.all_reduce(t, group=second))
    return str(error)


def test_two_groups_in_opposite_order_end_by_timeout(world):
    texts = world(2).run(opposite_orders)
    assert "rank 1" in texts[0]
    assert "rank 0" in texts[1]


# ---- mismatch ----

MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
    "elements": (
        lambda: dist.all_reduce(torch.ones(1001)),
        lambda: dist.all_reduce(torch.ones(1000)),
        "all_reduce (float32, SUM, 1001 elements)",
        "all_reduce (float32, SUM, 1000 elements)",
    ),
    "many elements": (
        lambda: dist.all_reduce(torch.ones(1_000_001), async_op=True),
        lambda: dist.all_reduce(torch.ones(1_000_000), async_op=True),
        "all_reduce (float32, SUM, 1000001 elements)",
        "all_reduce (float32, SUM, 1000000 elements)",
    ),
    "size classes": (
        lambda: dist.all_reduce(torch.ones(10)),
        lambda: dist.all_reduce(torch.ones(500_000)),
        "all_reduce (float32, SUM, 10 elements)",
        "all_reduce (float32, SUM, 500000 elements)",
    ),
    "kinds": (
        lambda: dist.broadcast(torch.ones(100), 0),
        lambda: dist.reduce(torch.ones(100), 0),
        "broadcast (float32, 100 elements, root 0)",
        "reduce (float32, SUM, 100 elements, root 0)",
    ),
    "barrier": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.barrier(),
        "all_reduce (float32, SUM, 100 elements)",
        "barrier",
    ),
    "sync and async": (
        lambda: dist.all_reduce(torch.ones(7), async_op=True),
        lambda: dist.all_reduce(torch.ones(8)),
        "all_reduce (float32, SUM, 7 elements)",
        "all_reduce (float32, SUM, 8 elements)",
    ),
    "types": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.all_reduce(torch.ones(100, dtype=torch.int32)),
        "all_reduce (float32, SUM, 100 elements)",
        "all_reduce (int32, SUM, 100 elements)",
    ),
    "formats of 8-bit floats": (
        lambda: dist.all_gather_into_tensor(
            torch.ones(dist.get_world_size() * 30).to(torch.float8_e5m2), torch.ones(30).to(torch.float8_e5m2)
        ),
        lambda: dist.all_gather_into_tensor(
            torch.ones(dist.get_world_size() * 30).to(torch.float8_e4m3fn), torch.ones(30).to(torch.float8_e4m3fn)
        ),
        "all_gather (float8_e5m2, 30 elements)",
        "all_gather (float8_e4m3fn, 30 elements)",
    ),
    "reductions": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.all_reduce(torch.ones(100), op=dist.ReduceOp.MAX),
        "all_reduce (float32, SUM, 100 elements)",
        "all_reduce (float32, MAX, 100 elements)",
    ),
    "roots": (
        lambda: dist.broadcast(torch.ones(100), 0),
        lambda: dist.broadcast(torch.ones(100), 1),
        "broadcast (float32, 100 elements, root 0)",
        "broadcast (float32, 100 elements, root 1)",
    ),
    "all_gather": (
        lambda: dist.all_gather_into_tensor(torch.empty(dist.get_world_size() * 30), torch.ones(30)),
        lambda: dist.all_gather_into_tensor(torch.empty(dist.get_world_size() * 31), torch.ones(31)),
        "all_gather (float32, 30 elements)",
        "all_gather (float32, 31 elements)",
    ),
}


def meet() -> None:
    """Waits until all ranks are here, without a collective."""
    store = c10d._get_default_store()
    store.set(f"met {dist.get_rank()}", "")
    store.wait([f"met {rank}" for rank in range(dist.get_world_size())])


def disagree(what: str, odd: int, before: int) -> tuple[Any, float, float, Any]:
    for _ in range(before):
        dist.all_reduce(torch.ones(10))
    dist.barrier()
    meet()
    call = MISMATCHES[what][0 if dist.get_rank() == odd else 1]
    began = time.monotonic()
    try:
        work = call()
        if work is not None:
            work.wait()
        # No data came to this rank: a root's broadcast, or a reduce to another rank. The next call in which data
        # moves between the ranks carries the difference.
        assert what in ("kinds", "roots"), "the call succeeded"
        error, _, ended = caught(lambda: dist.all_reduce(torch.ones(3)))
    except dist.DistBackendError as raised:
        error, ended = raised, time.monotonic()
    later = caught(lambda: dist.all_reduce(torch.ones(3)))[0]
    return error, began, ended, later


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_mismatch_names_both_calls_on_all_ranks(world, size, what):
    for odd, before in ((1, 0), (0, 3), (size - 1, 40)):
        answers = world(size).run(disagree, what, odd, before)
        last = max(began for _, began, _, _ in answers)
        for rank, (error, _, ended, later) in enumerate(answers):
            assert type(error) is sagecomm.CollectiveMismatch, f"rank {rank}: {error}"
            for call in MISMATCHES[what][2:]:
                assert call in str(error), f"rank {rank}: {call!r} is not in: {error}"
            assert f"#{before + 2}" in str(error), error
            assert f"rank {odd} called {MISMATCHES[what][2]}" in str(error), error
            kept(ended - last, 1, f"to know of the mismatch on rank {rank}")
            assert str(later) == str(error), later


def wrong_length() -> str:
    t = torch.ones(10 if dist.get_rank() == 0 else 12)
    meet()
    if dist.get_rank() == 0:
        dist.isend(t, 1)
        return str(caught(lambda: dist.barrier())[0])
    error, began, ended = caught(lambda: dist.irecv(t, 0))
    kept(ended - began, 1)
    assert type(error) is sagecomm.CollectiveMismatch, error
    return str(error)


def test_a_message_of_another_length_than_the_receive(world):
    for text in world(2).run(wrong_length):
        assert "recv" in text
        assert "12 elements" in text
        assert "40 bytes" in text


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
    dist.barrier(group=group)
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
