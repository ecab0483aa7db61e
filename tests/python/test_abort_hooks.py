"""torch's abort hooks between real ranks: they run on every rank when the group fails, whoever is in a call."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from members import backend
from programs import Programs, in_background, report
from worlds import World

WorldOf = Callable[[int], World]

HOOK = 11  # the id of a hook
DEADLINE_S = 60.0


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


@pytest.mark.long
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
