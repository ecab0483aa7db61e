"""torch's completion hooks between real ranks: they hear of every Work that succeeds, once, and of no other."""

from __future__ import annotations

import json
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
from members import backend
from worlds import World

WorldOf = Callable[[int], World]
bindings: Any = torch._C._distributed_c10d

HOOK = 11  # the id of a hook
DEADLINE_S = 60.0


@contextmanager
def completions(group: Any = None) -> Iterator[list[tuple[int, float | None]]]:
    told: list[tuple[int, float | None]] = []
    backend(group).register_completion_hook(HOOK, lambda key, ms: told.append((key, ms)))
    try:
        yield told
    finally:
        backend(group).unregister_completion_hook(HOOK)


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
    count = 3 + 1 + 1  # synchronous calls: all_reduces, a barrier, a send or recv
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
