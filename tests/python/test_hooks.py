"""torch's hooks between real ranks: completion hooks hear of every Work that succeeds, once, and of no other; abort
hooks run on every rank when the group fails, whoever is in a call."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from programs import Programs, in_background, report
from worlds import World

WorldOf = Callable[[int], World]
bindings: Any = torch._C._distributed_c10d

HOOK = 11  # the id of a hook
DEADLINE_S = 60.0


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(torch.device("cpu"))


@contextmanager
def completions(group: Any = None) -> Iterator[list[tuple[int, float | None]]]:
    told: list[tuple[int, float | None]] = []
    backend(group).register_completion_hook(HOOK, lambda key, ms: told.append((key, ms)))
    try:
        yield told
    finally:
        backend(group).unregister_completion_hook(HOOK)


# ---- completion hooks ----


def one_of_each() -> int:
    """Makes calls of every sort and returns how many Works have succeeded."""
    rank = dist.get_rank()
    works: list[Any] = []
    for n in (1, 1000, 300000):
        dist.all_reduce(torch.ones(n))
        works.append(dist.all_reduce(torch.ones(n), async_op=True))
    works += [dist.broadcast(torch.ones(n), 0, async_op=True) for n in range(1, 20)]
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(5), 1)
        works.append(dist.irecv(torch.ones(5), 1))
    else:
        dist.recv(torch.ones(5))
        works.append(dist.isend(torch.ones(5), 0))
    count = 3 + 1 + 1  # synchronous calls: all_reduces, a barrier, a message
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (4,), check_invariants=True)
    dist.all_reduce(sparse)
    works.append(dist.all_reduce(sparse, async_op=True))
    count += 1
    for device in (None, torch.device("cpu")):
        with c10d._coalescing_manager(device=device, async_ops=True) as manager:
            for n in range(1, 4):
                dist.all_reduce(torch.ones(n))
        manager.wait()
    count += 1 + 2  # torch issues all three as one call; with a device, the window around it is one more Work
    window = [
        dist.P2POp(dist.isend, torch.ones(2), 1 - rank),
        dist.P2POp(dist.irecv, torch.ones(2), 1 - rank),
    ]
    for work in dist.batch_isend_irecv(window):
        work.wait()
    count += len(window) + 1
    dist.monitored_barrier()
    for work in works:
        work.wait()
    return count + len(works)


def count_completions() -> tuple[int, int, list[float | None]]:
    with completions() as told:
        expected = one_of_each()
        dist.distributed_c10d._get_default_group()._wait_for_pending_works()
        dist.barrier()
        assert len({key for key, _ in told}) == len(told)
        return expected + 1, len(told), [ms for _, ms in told]


def test_every_work_is_told_once(world: WorldOf) -> None:
    for expected, told, durations in world(2).run(count_completions):
        assert told == expected
        assert all(ms is not None and 0 <= ms < 1000 * DEADLINE_S for ms in durations), durations


def measure_a_wait() -> float | None:
    store = c10d._get_default_store()
    with completions() as told:
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            store.set("issued", "")
            assert work is not None
            work.wait()
            group: Any = c10d._get_default_group()
            group._wait_for_pending_works()
            assert work._get_duration() == told[0][1]
        else:
            store.wait(["issued"])
            threading.Event().wait(0.2)
            dist.all_reduce(torch.ones(4))
    return told[0][1]


def test_the_duration_holds_the_wait_for_peers(world: WorldOf) -> None:
    waited = world(2).run(measure_a_wait)[0]
    assert waited is not None
    assert 200 <= waited < 1000 * DEADLINE_S


def reduce_different_lengths(async_op: bool) -> None:
    work = dist.all_reduce(torch.ones(4 + dist.get_rank()), async_op=async_op)
    assert work is not None
    work.wait()


def fail_with_a_hook() -> int:
    with completions() as told:
        dist.all_reduce(torch.ones(4))
        work = dist.irecv(torch.ones(4), 1 - dist.get_rank())
        for async_op in (True, False):
            with pytest.raises(sagecomm.CollectiveMismatch):
                reduce_different_lengths(async_op)
        assert work is not None
        with pytest.raises(sagecomm.CollectiveMismatch):
            work.wait()
        group: Any = c10d._get_default_group()
        group._wait_for_pending_works()
    return len(told)


def test_what_fails_is_not_told(world: WorldOf) -> None:
    assert world(2).run(fail_with_a_hook) == [1, 1]


def unregister_in_flight() -> None:
    other = dist.new_group([0, 1])
    for _ in range(30):
        with completions(other) as told:
            works = [dist.all_reduce(torch.ones(1000), group=other, async_op=True) for _ in range(8)]
        for work in works:
            assert work is not None
            work.wait()
        other._wait_for_pending_works()
        seen = len(told)  # a call of the hook that had begun when it was unregistered may end later
        for _ in range(2):
            work = dist.all_reduce(torch.ones(1000), group=other, async_op=True)
            assert work is not None
            work.wait()
        other._wait_for_pending_works()
        assert len(told) == seen
    backend(other).register_completion_hook(HOOK, lambda *_: None)
    dist.all_reduce(torch.ones(1), group=other, async_op=True)
    dist.destroy_process_group(other)


def test_hooks_go_while_operations_fly_and_with_the_group(world: WorldOf) -> None:
    world(2).run(unregister_in_flight)


# ---- torch's own user of completion hooks ----


def record_with_torch(group: Any) -> list[dict[str, Any]]:
    recorder = bindings.FlightRecorderHook.attach(group, list(range(dist.get_world_size())))
    try:
        dist.all_reduce(torch.ones(4), group=group)
        works = [dist.all_reduce(torch.ones(100000), group=group, async_op=True) for _ in range(10)]
        with c10d._coalescing_manager(group=group, async_ops=True) as manager:
            dist.all_reduce(torch.ones(3), group=group)
            dist.all_reduce(torch.ones(4), group=group)
        manager.wait()
        sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (4,))
        dist.all_reduce(sparse, group=group)
        for work in works:
            assert work is not None
            work.wait()
        group._wait_for_pending_works()
        dump = bindings._dump_fr_trace_json
        entries: list[dict[str, Any]] = json.loads(getattr(dump, "sagecomm_wraps", dump)(backend="sagecomm"))["entries"]
        return entries
    finally:
        recorder.remove()


def trace() -> list[tuple[str, str, bool]]:
    bindings._reset_fr_trace(backend="sagecomm")
    entries = record_with_torch(dist.new_group([0, 1]))
    return [(entry["profiling_name"], entry["state"], entry.get("duration_ms") is not None) for entry in entries]


@pytest.mark.skipif(not hasattr(bindings, "FlightRecorderHook"), reason="this torch has no completion hooks")
def test_torch_finds_the_op_that_a_completion_is_of(world: WorldOf) -> None:
    for entries in world(2).run(trace):
        assert len(entries) == 13, entries
        assert {(state, timed) for _, state, timed in entries} == {("completed", True)}, entries


# ---- the older completion hook ----


def keep_infos() -> list[tuple[str, int]]:
    infos: list[Any] = []
    group: Any = dist.new_group([0, 1])
    group._register_on_completion_hook(infos.append)
    dist.all_reduce(torch.ones(4), group=group)
    for _ in range(5):
        dist.broadcast(torch.ones(200000), 0, group=group, async_op=True)
    dist.destroy_process_group(group)  # torch waits for the hooks
    for info in infos:
        assert info.time_started <= info.time_finished
        assert timedelta(0) <= info.active_duration < timedelta(seconds=DEADLINE_S)
    return [(info.op_type.name, info.seq) for info in infos]


def test_work_infos_have_come_when_the_group_is_destroyed(world: WorldOf) -> None:
    for infos in world(2).run(keep_infos):
        assert sorted(infos, key=lambda info: info[1]) == [("ALLREDUCE", 1)] + [("BROADCAST", 2 + i) for i in range(5)]


# ---- abort hooks ----


class Callback:
    """An abort hook of the default group."""

    def __init__(self) -> None:
        self.count = 0
        self.rung = threading.Event()
        backend().register_abort_hook(HOOK, self)

    def __call__(self) -> None:
        self.count += 1
        self.rung.set()

    def once(self) -> bool:
        """Waits until the hook is called, and reports whether it was called once so far."""
        assert self.rung.wait(DEADLINE_S)
        return self.count == 1


def abort_from_rank_0() -> None:
    callback = Callback()
    dist.all_reduce(torch.ones(4))
    assert callback.count == 0
    store = c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait([f"ready {rank}" for rank in range(1, dist.get_world_size())])
        backend().abort()
    else:
        store.set(f"ready {dist.get_rank()}", "")
    assert callback.once()  # in no call
    with pytest.raises(sagecomm.Aborted):
        dist.all_reduce(torch.ones(4))
    backend().abort()
    assert callback.once()
    late = []
    backend().register_abort_hook(HOOK + 1, lambda: late.append(1))
    dist.destroy_process_group()
    assert callback.once()
    assert late == []


def test_abort_reaches_the_hooks_of_idle_ranks(world: WorldOf) -> None:
    world(3).run(abort_from_rank_0)


def mismatch_with_a_callback() -> None:
    callback = Callback()
    with pytest.raises(sagecomm.CollectiveMismatch):
        dist.all_reduce(torch.ones(4 + dist.get_rank()))
    assert callback.once()


def timeout_with_a_callback() -> None:
    callback = Callback()
    store = c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["armed"])
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.all_reduce(torch.ones(4))
        assert callback.once()
        store.set("over", "")
    else:
        store.set("armed", "")
        assert callback.once()  # in no call
        store.wait(["over"])


def test_mismatch_and_timeout_reach_the_hooks(world: WorldOf) -> None:
    world(2).run(mismatch_with_a_callback)
    world(2).run(timeout_with_a_callback, operations_timeout=timedelta(seconds=2))


def wait_for_a_death(path: str) -> bool:
    callback = Callback()
    dist.all_reduce(torch.ones(4))
    report(path)
    if dist.get_rank() == 2:
        threading.Event().wait()  # until the signal comes
    return callback.once()


def test_a_death_reaches_the_hooks_of_idle_ranks(mortals, signals) -> None:
    ranks = mortals.world(3)
    outcomes = in_background(ranks, wait_for_a_death, signals.path)
    signals.await_many(3)
    os.kill(ranks.pids()[2], signal.SIGKILL)
    assert [outcome.value for outcome in outcomes.result(DEADLINE_S)[:2]] == [True, True]


def abort_with_hooks_that_raise_and_call() -> list[str]:
    seen: list[str] = []
    done = threading.Event()

    def raises() -> None:
        raise ValueError("of the hook")

    def calls() -> None:
        with pytest.raises(sagecomm.Aborted):
            dist.all_reduce(torch.ones(4))
        backend().abort()
        backend().unregister_abort_hook(HOOK)
        done.set()

    before, sys.unraisablehook = sys.unraisablehook, lambda args: seen.append(str(args.exc_value))
    try:
        backend().register_abort_hook(HOOK - 1, raises)
        backend().register_abort_hook(HOOK, calls)
        work = dist.irecv(torch.ones(4), 1 - dist.get_rank())
        store = c10d._get_default_store()
        if dist.get_rank() == 0:
            store.wait(["posted"])
            backend().abort()
        else:
            store.set("posted", "")
        assert work is not None
        with pytest.raises(sagecomm.Aborted):
            work.wait()
        assert done.wait(DEADLINE_S)
    finally:
        sys.unraisablehook = before
    return seen


def test_abort_hooks_may_raise_and_call_the_group(world: WorldOf) -> None:
    assert world(2).run(abort_with_hooks_that_raise_and_call) == [["of the hook"]] * 2


# ---- the end of the process ----


def test_the_process_waits_for_an_abort_hook_that_runs() -> None:
    script = """
        import sagecomm
        dist.init_process_group("sagecomm")
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        begun = threading.Event()
        def hook():
            begun.set()
            time.sleep(0.2)  # of the 2 s that the end of the process gives it
            say("hooked")
        backend.register_abort_hook(1, hook)
        backend.register_completion_hook(1, lambda key, ms: None)
        dist.all_reduce(torch.ones(4))
        backend.abort()
        begun.wait(60)
        """
    with Programs(script, 2) as ranks:
        assert ranks.lines() == ["hooked", "hooked"]
        ranks.end_well()


def test_the_process_ends_with_hooks_and_operations() -> None:
    script = """
        import sagecomm
        dist.init_process_group("sagecomm")
        group = dist.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("cpu"))
        calls = []
        backend.register_abort_hook(1, lambda: calls.append(1))
        backend.register_completion_hook(1, lambda key, ms: calls.append(key))
        group._register_on_completion_hook(calls.append)
        works = [dist.all_reduce(torch.ones(300000), async_op=True) for _ in range(5)]
        """
    with Programs(script, 2) as ranks:
        ranks.end_well()
        assert all("terminate" not in ranks.errors(rank) for rank in range(2))
