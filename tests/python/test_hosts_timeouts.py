"""Timeouts in groups over several hosts: who is named, and that a process that is stopped has not died."""

from __future__ import annotations

import os
import re
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import host_stores
import sagecomm
import test_faults as faults
import test_timeouts as timeouts
from failing import backend, caught, common_cause, meet, sum_of_ones
from programs import Signals, await_stop, in_background, report
from promises import kept
from random_programs import SHAPES
from selection import quickly
from test_peer_failure import await_failure
from worlds import Pool

DEATH_BOUND_S = 3.0
TIMEOUT = timedelta(seconds=2)
ASKED_WITHIN_S = 1.0  # who waits for a rank of another host for so long has asked what it has called
Shape = tuple[int, ...]


def cause_of_all() -> str:
    return common_cause(c10d._get_default_store(), range(dist.get_world_size()))


def stays_away(mode: str) -> tuple[Any, str]:
    return timeouts.stays_away(mode), cause_of_all()


@pytest.mark.parametrize("shape", quickly([(1, 2)], [(1, 2), (2, 1), (1, 1, 1)]))
@pytest.mark.parametrize("mode", quickly(["sync"], ["sync", "async", "future", "own timeout", "recv"]))
def test_a_rank_that_does_not_call_is_named_with_its_last_call(mortals: Pool, shape: Shape, mode: str) -> None:
    told = mortals.hosts(*shape).run(stays_away, mode)
    answers = [answer for answer, _ in told[1:]]
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
    assert told[0][1] in {str(error) for error, _ in answers}, "the first cause is one that a rank has raised"


def barrier_without_the_last_rank() -> tuple[Any, float, str]:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.all_reduce(torch.ones(5))
    meet()
    if rank == last:
        await_failure()
        return caught(dist.barrier)[0], 1.0, cause_of_all()
    group: Any = c10d._get_default_group()
    error, began, ended = caught(lambda: group.barrier(timeout=timedelta(seconds=1)))
    return error, ended - began, cause_of_all()


@pytest.mark.parametrize("shape", quickly([(1, 1)], SHAPES))
def test_a_barrier_with_a_timeout(mortals: Pool, shape: Shape) -> None:
    answers = mortals.hosts(*shape).run(barrier_without_the_last_rank)
    kept(max(took for _, took, _ in answers) - 1, 1, "to know of the timeout")
    for error, _, _ in answers:
        assert type(error) is sagecomm.CollectiveTimeout, error
        assert error.rank == len(answers) - 1
        assert f"not arrived: rank {error.rank} (" in str(error), error
        assert "last called all_reduce #1" in str(error), error
    assert answers[0][2] in {str(error) for error, _, _ in answers}, "the first cause is one that a rank has raised"


@pytest.mark.long
def test_two_groups_in_opposite_order_end_by_timeout(mortals: Pool) -> None:
    texts = mortals.hosts(1, 1).run(timeouts.opposite_orders, False)
    assert "rank 1" in texts[0]
    assert "rank 0" in texts[1]


# ---- stopped processes ----


def stops_before_a_call(path: str, victim: int) -> tuple[faults.Told, str]:
    t = torch.ones(1000)
    for _ in range(4):
        dist.all_reduce(t)
    if dist.get_rank() == victim:
        threading.Event().wait(ASKED_WITHIN_S)
    dist.all_reduce(t)
    meet()
    t.fill_(1)
    if dist.get_rank() == victim:
        faults.strike("stop")
        try:
            dist.all_reduce(t)  # what the others have sent before they failed may complete it
            assert bool((t == dist.get_world_size()).all())
        except sagecomm.CollectiveTimeout:
            pass
        return faults.told(caught(dist.barrier)[0]), cause_of_all()
    backend()._set_default_timeout(TIMEOUT)
    error, began, ended = caught(lambda: dist.all_reduce(t))
    assert ended - began >= TIMEOUT.total_seconds() - 1, "another rank may have been in its call for a while"
    kept(ended - began - TIMEOUT.total_seconds(), 1, "to know of the timeout")
    report(path)
    return faults.told(error), cause_of_all()


# The ranks of each host, and who is stopped.
STOPS = [((2, 1), 2), ((2, 1), 0), ((1, 1), 1), ((2, 2), 3), ((1, 1, 1), 1)]
# The ranks of each host, who is stopped, and whether rank 0 has the store.
PAUSES = [((2, 1), (2,), False), ((2, 2), (0, 1), True), ((1, 1), (0,), True), ((1, 1, 1), (0, 2), False)]


@pytest.mark.long
@pytest.mark.parametrize("stop", quickly(STOPS[:1], STOPS), ids=str)
def test_a_stopped_rank_is_named_at_the_timeout(mortals: Pool, signals: Signals, stop: tuple[Shape, int]) -> None:
    shape, victim = stop
    ranks = mortals.hosts(*shape)
    pid = ranks.pids()[victim]
    outcomes = in_background(ranks, stops_before_a_call, signals.path, victim)
    try:
        signals.await_many(ranks.size - 1)
        await_stop(pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    for outcome in outcomes.result(90):
        assert outcome.ok, outcome.trace
        (kind, rank, of, text), _ = outcome.value
        assert (kind, rank, of) == ("CollectiveTimeout", victim, pid), text
        assert f"not arrived: rank {victim} (" in text, text
        # Who waits for a rank of another host asks what it has called. Who waits for other ranks does not.
        known = re.search(r"last called all_reduce #[45]\b", text) is not None
        unknown = "does not answer, so it is not known what it has called" in text
        assert known or (ranks.size > 2 and unknown), text
    assert ranks.run(sum_of_ones) == [ranks.size] * ranks.size, "a new group in the same processes"


@pytest.mark.long  # it waits for seconds
@pytest.mark.parametrize("pause", PAUSES, ids=str)
def test_who_was_stopped_and_goes_on_has_not_died(
    mortals: Pool, signals: Signals, pause: tuple[Shape, tuple[int, ...], bool]
) -> None:
    """The processes are stopped for longer than the bound of a death."""
    shape, stopped, with_store = pause
    ranks = mortals.hosts(*shape)
    made = host_stores.served_by_rank_0 if with_store else host_stores.of_the_tests
    outcomes = in_background(ranks, timeouts.reduce_through_a_pause, signals.path, 2.0, store=made)
    signals.await_many(ranks.size)
    pids = [ranks.pids()[rank] for rank in stopped]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            await_stop(pid)
        threading.Event().wait(DEATH_BOUND_S + 1)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    for outcome in outcomes.result(90):
        assert outcome.ok, outcome.trace
        assert outcome.value > DEATH_BOUND_S, "the pause was noticed by all ranks"
