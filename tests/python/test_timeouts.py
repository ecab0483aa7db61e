"""Timeouts: which rank they name, how soon they come, and what a pause of the machine does to them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from failing import backend, caught, meet, sum_of_ones
from programs import await_calls, await_sleep, await_stop, in_background, report
from promises import kept
from selection import quickly

TIMEOUT = timedelta(seconds=3)


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
    before = time.monotonic()  # the pause may begin as soon as all have reported
    report(path)
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


@pytest.mark.long
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


@pytest.mark.long  # it waits for seconds
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


@pytest.mark.parametrize("mode", quickly(["sync", "recv"], ["sync", "async", "future", "own timeout", "recv"]))
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


def opposite_orders(known_at_once: bool = True) -> str:
    """Each of two ranks waits in another group: both time out. Unless a failure is known on both ranks at once, a call
    that the other one has made before may still be completed."""
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
    if not known_at_once:
        with contextlib.suppress(dist.DistBackendError):
            dist.all_reduce(t, group=second)
    caught(lambda: dist.all_reduce(t, group=second))
    return str(error)


def test_two_groups_in_opposite_order_end_by_timeout(world):
    texts = world(2).run(opposite_orders)
    assert "rank 1" in texts[0]
    assert "rank 0" in texts[1]
