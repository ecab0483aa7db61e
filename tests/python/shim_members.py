"""Groups that reconfigure() while other threads abort, destroy or query them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import sagecomm
from sagecomm import _C
from shim_harness import NATIVE, backend_options, fake, last, raises, scenario

AT_ERROR, CREATED, AT_ABORT, AT_STATS = range(1, 5)
LONG_S = 60.0  # until a thread counts as hanging
PEER = "sagecomm:0000000001:1:0"  # the handle of the other rank


class Changing:
    """A group whose members are named by its reconfigure(); there are none before."""

    def __init__(self, *, members_from_the_start: bool = False) -> None:
        self.store = dist.HashStore()
        options = backend_options(self.store)
        options.enable_reconfigure = not members_from_the_start
        self.direct = _C.create_backend(options, {})

    def reconfigure(self, uuid: int, **how: Any) -> None:
        options = NATIVE.ReconfigureOptions()
        options.uuid, options.handles = uuid, [self.direct.get_reconfigure_handle(), PEER]
        options.timeout = how.get("timeout", timedelta(seconds=5))
        self.direct.reconfigure(options).wait()

    def all_reduce(self) -> None:
        self.direct.allreduce([torch.ones(1)]).wait()

    def await_meeting(self, uuid: int) -> None:
        """Returns when reconfigure() waits for its peers."""
        self.store.wait([f"reconfigure/{uuid}//fake/hello"])  # a prefix of torch's ends in a slash of its own


class Elsewhere:
    """A call on another thread and its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._value


@contextmanager
def held(place: int, call: Callable[[], Any]) -> Iterator[Elsewhere]:
    """Makes a call on another thread and holds it at `place` until the end of the block."""
    fake.fake_close(place)
    try:
        made = Elsewhere(call)
        fake.fake_await_held()
        yield made
    finally:
        fake.fake_open()


def reconfigurable(function: Callable[[], None]) -> Callable[[], None]:
    return scenario(function) if hasattr(dist.ProcessGroup, "reconfigure") else function


# ---- a thread that finds no group gets the cause ----


@reconfigurable
def op_beside_an_abort_gets_its_cause() -> None:
    group = Changing()
    group.reconfigure(1)
    with held(AT_ERROR, group.direct.abort) as aborting:  # abort() has taken the group and not finished
        raises(sagecomm.Aborted, group.all_reduce)
    aborting.result()
    raises(sagecomm.Aborted, group.all_reduce)


@reconfigurable
def of_two_aborts_neither_raises() -> None:
    group = Changing()
    group.reconfigure(1)
    with held(AT_ABORT, group.direct.abort) as aborting:
        group.direct.abort()
    aborting.result()
    raises(sagecomm.Aborted, group.all_reduce)


# ---- abort() and shutdown() interrupt reconfigure() ----


@reconfigurable
def shutdown_ends_a_reconfigure_that_waits_for_peers() -> None:
    groups = fake.fake_groups()
    for had_members in (False, True):
        group = Changing()
        if had_members:
            group.reconfigure(1)
        fake.fake_want_key(b"never")
        waiting = Elsewhere(lambda group=group: group.reconfigure(2, timeout=timedelta(seconds=LONG_S * 2)))
        group.await_meeting(2)
        group.direct.shutdown()
        raises(sagecomm.Aborted, waiting.result, "has shut group mine down")
        assert fake.fake_groups() == groups
        fake.fake_reset()


@reconfigurable
def abort_ends_a_reconfigure_that_waits_for_peers() -> None:
    for as_usual in (False, True):
        group = Changing(members_from_the_start=as_usual)
        fake.fake_want_key(b"never")
        waiting = Elsewhere(lambda group=group: group.reconfigure(2, timeout=timedelta(seconds=LONG_S * 2)))
        group.await_meeting(2)
        group.direct.abort()
        raises(sagecomm.Aborted, waiting.result, "abort() was called on rank 0 of group mine before")
        fake.fake_reset()
        group.reconfigure(3)
        group.all_reduce()


@reconfigurable
def members_that_meet_in_a_group_that_was_ended_meanwhile_lose_it() -> None:
    groups = fake.fake_groups()
    for ending, text in (("shutdown", "has shut group mine down"), ("abort", "abort() was called on rank 0")):
        for as_usual in (False, True):
            group = Changing(members_from_the_start=as_usual)
            with held(CREATED, lambda group=group: group.reconfigure(1)) as meeting:
                getattr(group.direct, ending)()
            error = raises(sagecomm.Aborted, meeting.result)
            assert text in str(error) or as_usual, error
            assert not fake.fake_groups() - groups, (ending, as_usual)
            expected = RuntimeError if ending == "abort" and not as_usual else sagecomm.Aborted
            raises(expected, group.all_reduce)
            if ending == "abort":
                group.direct._set_default_timeout(timedelta(seconds=7))  # for the group that reconfigure() makes
                group.reconfigure(2)
                assert fake.fake_timeout_set() == 7_000_000_000
                group.all_reduce()
                group.direct.shutdown()


@reconfigurable
def reconfigures_do_not_overtake_each_other() -> None:
    group = Changing()
    with held(CREATED, lambda: group.reconfigure(1)) as first:
        raises(RuntimeError, lambda: group.reconfigure(2), "another thread is in reconfigure() of group mine")
        raises(RuntimeError, group.all_reduce, "reconfigure() of group mine has not returned")
    first.result()
    group.all_reduce()
    group.reconfigure(2)  # the uuid was not used


# ---- queries during reconfigure() return ----


@reconfigurable
def statistics_and_errors_are_those_of_a_group_that_there_is() -> None:
    group = Changing()
    group.reconfigure(1)
    with held(AT_STATS, group.direct.stats_json) as stats:
        group.reconfigure(2)
    assert stats.result().strip() == "{}"
    with held(AT_ERROR, group.direct.get_error) as error:
        group.reconfigure(3)
    assert error.result() == NATIVE.ErrorType.SUCCESS
    group.direct.abort()
    raises(sagecomm.Aborted, group.direct.stats_json)


@reconfigurable
def ephemeral_time_of_a_call_that_raised_is_there_for_the_next() -> None:
    group = Changing()
    group.direct._set_default_timeout(timedelta(seconds=50))
    group.direct._add_ephemeral_timeout(timedelta(seconds=5))
    raises(RuntimeError, lambda: group.direct.allreduce_coalesced([torch.ones(1)]), "has no members yet")
    group.reconfigure(1)
    group.all_reduce()
    assert last().timeout_ns == 55 * 10**9
    group.all_reduce()
    assert last().timeout_ns == 0


# ---- forked children ----


def refused_in_the_child(calls: list[Callable[[], object]]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in calls:
                raises(RuntimeError, call, "scripted failure -8")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Untouched(dist.Store):
    """A store that fails the test if it is used."""

    def _touched(self, *_: object) -> Any:
        raise AssertionError("the store was touched")

    set = get = add = wait = check = compare_set = _touched  # type: ignore[assignment]


@reconfigurable
def forked_child_makes_no_groups() -> None:
    options = backend_options(Untouched())
    options.enable_reconfigure = True
    without_members = _C.create_backend(options, {})
    with_members = Changing(members_from_the_start=True).direct
    group = dist.ProcessGroup(dist.HashStore(), 0, 2)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, with_members)
    again = NATIVE.ReconfigureOptions()
    again.uuid, again.handles = 1, [without_members.get_reconfigure_handle(), PEER]
    refused_in_the_child(
        [
            lambda: without_members.reconfigure(again),
            lambda: with_members.split(Untouched(), [0, 1], None),
            lambda: with_members.shrink([1]),
            # torch counts the ranks in the store first
            lambda: group.merge_remote_group(dist.HashStore(), 2, timedelta(seconds=1), "merged", "none"),
        ]
    )
