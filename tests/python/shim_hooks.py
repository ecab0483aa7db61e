"""Hooks that run when an operation has succeeded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import sagecomm
from sagecomm import _C
from shim_harness import (
    CPU,
    FAIL,
    MANUAL,
    PEER_FAILURE,
    WAITS,
    all_reduce,
    backend,
    backend_options,
    fake,
    group,
    raises,
    scenario,
)

HOOK = 7  # the id of a hook


class RecordingHook:
    """A completion hook that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float | None]] = []

    def __call__(self, key: int, milliseconds: float | None) -> None:
        self.calls.append((key, milliseconds))

    def keys(self) -> list[int]:
        return [key for key, _ in self.calls]


@contextmanager
def completion_hook(hook: Any = None, hook_id: int = HOOK) -> Iterator[Any]:
    hook = hook or RecordingHook()
    backend().register_completion_hook(hook_id, hook)
    try:
        yield hook
    finally:
        backend().unregister_completion_hook(hook_id)


@contextmanager
def unraisable() -> Iterator[list[str]]:
    """Collects the exceptions that Python passes to sys.unraisablehook."""
    seen: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda args: seen.append(f"{args.object}: {args.exc_value}")
    try:
        yield seen
    finally:
        sys.unraisablehook = before


def raising(*_: object) -> None:
    raise ValueError("the hook's own")


def another() -> _C.ProcessGroupSagecomm:
    """A group that the scenario may make fail."""
    return _C.create_backend(backend_options(dist.HashStore()), {})


# ---- completion ----


@scenario
def completion_hook_hears_of_a_synchronous_op_before_the_call_returns() -> None:
    with completion_hook() as recorded:
        dist.all_reduce(torch.ones(4))
        fake.fake_script(WAITS, 3)
        dist.all_reduce(torch.ones(4))
    assert len(set(recorded.keys())) == 2
    assert all(ms is not None and ms >= 0 for _, ms in recorded.calls), recorded.calls
    dist.all_reduce(torch.ones(4))
    assert len(recorded.calls) == 2


@scenario
def completion_hook_hears_of_an_asynchronous_op_when_it_is_complete() -> None:
    fake.fake_script(MANUAL, 0)
    with completion_hook() as recorded:
        _, work = all_reduce()
        assert recorded.calls == []
        fake.fake_finish_elsewhere(0, 1)
        assert len(recorded.calls) == 1
        work.wait()
        work.get_future().wait()
    assert len(recorded.calls) == 1


@scenario
def completion_hook_sees_the_work_as_completed() -> None:
    seen = []
    fake.fake_script(MANUAL, 0)
    works: list[dist.Work] = []
    with completion_hook(lambda _key, _ms: seen.append(works[0].is_completed())):
        works.append(all_reduce()[1])
        fake.fake_finish_elsewhere(0, 1)
    assert seen == [True]


@scenario
def completion_hook_hears_of_a_work_that_nobody_kept() -> None:
    fake.fake_script(MANUAL, 0)
    with completion_hook() as recorded:
        all_reduce()
        fake.fake_finish_elsewhere(0, 1)
    assert len(recorded.calls) == 1


@scenario
def completion_hook_hears_nothing_of_failures() -> None:
    with completion_hook() as recorded:
        fake.fake_script(FAIL, PEER_FAILURE)
        raises(sagecomm.PeerFailure, lambda: dist.all_reduce(torch.ones(4)))
        fake.fake_script(MANUAL, 0)
        _, work = all_reduce()
        fake.fake_finish_elsewhere(PEER_FAILURE, 1)
        raises(sagecomm.PeerFailure, work.wait)
        assert work.is_completed()
    assert recorded.calls == []


@scenario
def completion_hook_that_comes_late_hears_of_ops_in_flight_without_their_duration() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()
    with completion_hook() as recorded:
        fake.fake_finish_elsewhere(0, 1)
        work.wait()
    assert [ms for _, ms in recorded.calls] == [None]
    raises(RuntimeError, work._get_duration, "its duration was not measured")


@scenario
def completion_hook_that_goes_hears_no_more() -> None:
    fake.fake_script(MANUAL, 0)
    with completion_hook() as recorded:
        works = [all_reduce()[1] for _ in range(3)]
    fake.fake_finish_elsewhere(0, 1)
    for work in works:
        work.wait()
    assert recorded.calls == []
    backend().unregister_completion_hook(HOOK)  # does nothing: the hook is gone


@scenario
def completion_hook_may_unregister_itself() -> None:
    recorded = RecordingHook()

    def once(key: int, ms: float | None) -> None:
        recorded(key, ms)
        backend().unregister_completion_hook(HOOK)

    with completion_hook(once):
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4))
    assert len(recorded.calls) == 1


@scenario
def completion_hook_that_raises_harms_nobody() -> None:
    with unraisable() as seen, completion_hook(raising), completion_hook(hook_id=HOOK + 1) as recorded:
        dist.all_reduce(torch.ones(4))
        fake.fake_script(MANUAL, 0)
        tensor, work = all_reduce()
        fake.fake_finish_elsewhere(0, 1)
        work.wait()
        assert tensor.tolist() == [2.0] * 4
    assert len(recorded.calls) == 2
    assert seen == ["a completion hook: the hook's own"] * 2


@scenario
def completion_hooks_have_ids_of_their_own() -> None:
    with completion_hook():
        raises(
            RuntimeError,
            lambda: backend().register_completion_hook(HOOK, RecordingHook()),
            "completion hook 7 is registered",
        )


@scenario
def completion_hook_hears_once_of_a_coalesced_call() -> None:
    with completion_hook() as recorded:
        group().allreduce_coalesced([torch.ones(2), torch.ones(3)])
        fake.fake_script(MANUAL, 0)
        work = group().allreduce_coalesced([torch.ones(2), torch.ones(3)])
        fake.fake_finish_elsewhere(0, 1)
        work.wait()
    assert len(set(recorded.keys())) == len(recorded.calls) == 2


# Each of them is a Work that the caller has, and so is the window's.
@scenario
def completion_hook_hears_of_a_window_and_of_each_op_in_it() -> None:
    fake.fake_script(MANUAL, 0)
    with completion_hook() as recorded:
        group()._start_coalescing(CPU)
        for _ in range(3):
            group().allreduce([torch.ones(2)])
        work = group()._end_coalescing(CPU)
        assert recorded.calls == []
        fake.fake_finish_elsewhere(0, 1)
        work.wait()
        assert len(set(recorded.keys())) == len(recorded.calls) == 4
        group()._start_coalescing(CPU)
        group()._end_coalescing(CPU).wait()
    assert len(recorded.calls) == 4


@scenario
def completion_hook_hears_nothing_of_a_window_that_failed() -> None:
    with completion_hook() as recorded:
        fake.fake_script(FAIL, PEER_FAILURE)
        group()._start_coalescing(CPU)
        group().allreduce([torch.ones(2)])
        raises(sagecomm.PeerFailure, lambda: group()._end_coalescing(CPU))
    assert recorded.calls == []


@scenario
def completion_hook_hears_nothing_of_a_monitored_barrier() -> None:
    with completion_hook() as recorded:
        sagecomm.monitored_barrier(timeout=timedelta(seconds=5))  # torch's own refuses other backends, if it is older
        dist.barrier()
    assert len(recorded.calls) == 1


@scenario
def completion_hooks_of_many_threads_lose_nothing() -> None:
    n, rounds = 4, 200
    with completion_hook() as recorded:

        def work() -> None:
            for _ in range(rounds):
                dist.all_reduce(torch.ones(4))

        threads = [threading.Thread(target=work) for _ in range(n)]
        for thread in threads:
            thread.start()
        for i in range(100):  # other hooks come and go
            backend().register_completion_hook(HOOK + 1 + i, RecordingHook())
            backend().unregister_completion_hook(HOOK + 1 + i)
        for thread in threads:
            thread.join(60)
    assert len(set(recorded.keys())) == len(recorded.calls) == n * rounds


# ---- durations ----


@scenario
def durations_are_measured_when_they_are_asked_for() -> None:
    mine = another()
    opts = dist.AllreduceOptions()
    raises(RuntimeError, lambda: mine.allreduce([torch.ones(2)], opts)._get_duration(), "its duration was not measured")
    mine.register_completion_hook(HOOK, RecordingHook())
    assert mine.allreduce([torch.ones(2)], opts)._get_duration() >= 0
    fake.fake_script(MANUAL, 0)
    work = mine.allreduce([torch.ones(2)], opts)
    raises(RuntimeError, work._get_duration, "not known before it is complete")
    fake.fake_finish_elsewhere(0, 1)
    work.wait()
    assert work._get_duration() > 0
    mine.unregister_completion_hook(HOOK)


# ---- the older hook ----


@scenario
def work_info_is_told_of_every_work_that_succeeds() -> None:
    infos: list[Any] = []
    own = dist.new_group([0, 1], backend="fake_core")
    assert not own._has_hooks()
    own._register_on_completion_hook(infos.append)
    assert own._has_hooks()
    raises(RuntimeError, lambda: own._register_on_completion_hook(infos.append), "has a completion hook already")
    own.allreduce([torch.ones(2)]).wait()
    fake.fake_script(MANUAL, 0)
    works = [own.broadcast(torch.ones(2), 0) for _ in range(2)]
    fake.fake_finish_elsewhere(0, 0)
    own._wait_for_pending_works()
    fake.fake_join()
    assert [info.op_type.name for info in infos] == ["ALLREDUCE", "BROADCAST", "BROADCAST"]
    assert [info.seq for info in infos] == [1, 2, 3]
    for info in infos:
        assert info.time_finished - info.time_started >= info.active_duration - timedelta(microseconds=1)
        assert info.active_duration >= timedelta(0)
    assert [work.wait() for work in works] == [True, True]
    failing = own.allreduce([torch.ones(2)])
    fake.fake_finish_elsewhere(PEER_FAILURE, 1)
    raises(sagecomm.PeerFailure, failing.wait)
    own._wait_for_pending_works()
    assert len(infos) == 3
    dist.destroy_process_group(own)


@scenario
def waiting_for_pending_works_waits_for_their_hooks() -> None:
    fake.fake_script(MANUAL, 0)
    begun, go_on = threading.Event(), threading.Event()
    finished = []

    def slow(_key: int, _ms: float | None) -> None:
        begun.set()
        go_on.wait(60)
        finished.append(1)

    with completion_hook(slow):
        all_reduce()
        fake.fake_finish_elsewhere(0, 0)
        assert begun.wait(60)
        threading.Timer(0.2, go_on.set).start()
        group()._wait_for_pending_works()
        assert finished == [1]
        fake.fake_join()
