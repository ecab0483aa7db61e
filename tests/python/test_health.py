"""Ephemeral timeouts, options, errors and sequence numbers of a group; the attributes of a Work."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d

import sagecomm
from older_torch import WORK_HAS_NUMBER, exception_of
from worlds import World

CPU = torch.device("cpu")
NATIVE = torch._C._distributed_c10d


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(CPU)


# ---- timeouts ----


def lonely(seconds: float, **how: Any) -> float:
    """Returns how long an operation waits that no other rank joins. It makes its group fail, so each call has a group
    of its own."""
    group = dist.new_group()
    took = 0.0
    if dist.get_rank() == 0:
        if "extra" in how:
            backend(group)._add_ephemeral_timeout(timedelta(seconds=how["extra"]))
        if how.get("used"):
            dist.send(torch.ones(1), 1, group=group)
        backend(group)._set_default_timeout(timedelta(seconds=seconds))
        began = time.monotonic()
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.recv(torch.ones(1), 1, group=group)
        took = time.monotonic() - began
    elif how.get("used"):
        dist.recv(torch.ones(1), 0, group=group)
    dist.barrier()
    return took


def ephemeral() -> list[float]:
    return [lonely(0.4), lonely(0.4, extra=0.8), lonely(0.4, extra=100, used=True)]


@pytest.mark.long
@pytest.mark.smoke
def test_ephemeral_time_counts_until_the_first_operation_has_completed(world: Callable[[int], World]) -> None:
    plain, extended, expired = world(2).run(ephemeral)[0]
    assert plain > 0.35
    assert extended > 1.15
    assert 0.35 < expired < 100, "what was added has not expired"


def ephemeral_sums() -> None:
    """The timeouts that Works were given: what was added counts until a Work that came after it has ended."""
    group, peer = dist.new_group(timeout=timedelta(seconds=100)), 1 - dist.get_rank()
    direct = backend(group)

    def post(tag: int) -> tuple[Any, float]:
        work = direct.recv([torch.empty(1)], peer, tag)
        return work, work.timeout.total_seconds()

    first, given = post(1)
    assert given == 100
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=5))
    second, given = post(2)
    assert given == 105
    direct._add_ephemeral_timeout(timedelta(seconds=2))
    third, given = post(3)
    assert given == 107
    dist.barrier()  # the first send ends the time that it was given: only when both have posted all
    for tag in (1, 2, 3):
        direct.send([torch.ones(1)], peer, tag).wait()
    first.wait()
    second.wait()
    third.wait()
    _, given = post(4)
    assert given == 100
    with pytest.raises(RuntimeError, match="is negative"):
        direct._add_ephemeral_timeout(timedelta(seconds=-1))
    direct.send([torch.ones(1)], peer, 4).wait()
    dist.barrier()


@pytest.mark.smoke
@pytest.mark.skipif(not hasattr(dist.Work, "timeout"), reason="this torch's Works do not tell their timeout")
def test_ephemeral_times_add_up_and_expire_one_by_one(world: Callable[[int], World]) -> None:
    world(2).run(ephemeral_sums)


def torchs_timeout() -> float:
    group = dist.new_group()
    dist.set_timeout(timedelta(seconds=1), group)
    assert backend(group).options._timeout == timedelta(seconds=1)
    took = 0.0
    if dist.get_rank() == 0:
        began = time.monotonic()
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.all_reduce(torch.ones(1), group=group)
        took = time.monotonic() - began
        assert backend(group).get_error() == NATIVE.ErrorType.TIMEOUT
        assert backend().get_error() == NATIVE.ErrorType.SUCCESS
    dist.barrier()
    return took


@pytest.mark.smoke
@pytest.mark.skipif(not hasattr(dist, "set_timeout"), reason="this torch has no set_timeout")
def test_set_timeout(world: Callable[[int], World]) -> None:
    assert 0.9 < world(2).run(torchs_timeout)[0] < 60, "the group's own timeout counted"


# ---- options ----


def option_copies() -> None:
    options = backend().options
    assert options.backend == "sagecomm"
    assert options.group_name == c10d._get_default_group().group_name
    for made in (options.clone(), copy.copy(options), copy.deepcopy(options)):
        assert type(made) is type(options)
        assert (made.settings, made._timeout) == ({"debug": "WARN"}, options._timeout)
        made.settings, made._timeout, made.group_name, made.group_desc = {}, timedelta(seconds=1), "x", "y"
        made.global_ranks_in_group = [5]
    assert options.settings == {"debug": "WARN"}
    assert options._timeout == timedelta(seconds=60)
    assert options.global_ranks_in_group == []


@pytest.mark.smoke
def test_options_are_copied_whole(world: Callable[[int], World]) -> None:
    world(1).run(option_copies, options=sagecomm.Options(settings={"debug": "WARN"}))


# ---- destroying a group and making another one ----


def begin_again() -> list[float]:
    store, rank, size = c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    sums = []
    for how in ("destroy", "abort", "shutdown"):
        t = torch.ones(2)
        dist.all_reduce(t)
        sums.append(t[0].item())
        assert c10d._get_default_group()._get_sequence_number_for_group() == 1
        if how == "abort":
            c10d._abort_process_group()
        else:
            if how == "shutdown":
                backend().shutdown()
                backend().shutdown()
            dist.destroy_process_group()
        assert not dist.is_initialized()
        again = dist.PrefixStore(how, store)
        dist.init_process_group("sagecomm", store=again, rank=rank, world_size=size)
    return sums


def test_initialising_again(world: Callable[[int], World]) -> None:
    assert world(2).run(begin_again) == [[2.0] * 3] * 2


# ---- Work ----


def states() -> None:
    rank = dist.get_rank()
    t = torch.ones(4)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert (work.is_completed(), work.is_success(), exception_of(work)) == (True, True, None)
    assert [x.data_ptr() for x in work.result()] == [t.data_ptr()]
    assert work.get_future().value()[0].data_ptr() == t.data_ptr()
    assert work.get_future_result().wait() == 0
    with pytest.raises(RuntimeError, match="only a receive has a source rank"):
        work._source_rank()
    with pytest.raises(RuntimeError, match="its duration was not measured"):
        work._get_duration()
    c10d._get_default_group()._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(300_000), async_op=True)
    work.wait()
    assert work._get_duration() > 0
    if rank == 0:
        out = torch.empty(1)
        got = set()
        for _ in range(2):
            work = dist.irecv(out)
            work.wait()
            assert work._source_rank() == out.item()
            got.add(out.item())
            assert not WORK_HAS_NUMBER or work._get_sequence_number() == 0
        assert got == {1.0, 2.0}
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(t, group=group, async_op=True)
        backend(group).abort()
        with pytest.raises(sagecomm.Aborted):
            work.wait()
        assert (work.is_completed(), work.is_success()) == (True, False)
        assert isinstance(exception_of(work), sagecomm.Aborted)
        assert work.get_future_result().wait() == 2  # COMM_ERROR
        with pytest.raises(RuntimeError):
            work.get_future().value()
    dist.barrier()


@pytest.mark.smoke
def test_what_a_work_says_of_itself(world: Callable[[int], World]) -> None:
    world(3).run(states)


def registry() -> None:
    """A tensor that the compiler may see as a graph input stays in torch's registry until a wait for its Work."""
    before = NATIVE._get_work_registry_size()
    out = torch.ops._c10d_functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD.group_name)
    assert NATIVE._get_work_registry_size() == before + 1
    assert torch.ops._c10d_functional.wait_tensor(out)[0] == dist.get_world_size()
    assert NATIVE._get_work_registry_size() == before
    with funcol.allow_inflight_collective_as_graph_input_ctx():
        for wait in (lambda work: work.wait(), lambda work: work.synchronize()):
            work = dist.all_reduce(torch.ones(4), async_op=True)
            assert NATIVE._get_work_registry_size() == before + 1
            wait(work)
            assert NATIVE._get_work_registry_size() == before
    dist.barrier()


def test_works_leave_torchs_registry_when_they_were_waited_for(world: Callable[[int], World]) -> None:
    world(2).run(registry)


def many_threads() -> None:
    """Several threads call then() on futures of operations that end before, during and after the call."""
    size = dist.get_world_size()
    seen: list[float] = []
    failures: list[BaseException] = []

    def use(group: Any, count: int) -> None:
        try:
            for _ in range(20):
                t = torch.ones(count)
                future = dist.all_reduce(t, group=group, async_op=True).get_future()
                for step in range(3):
                    future = future.then(lambda f, step=step: f.value() if step else f.value()[0][0].item())
                seen.append(future.wait())
        except BaseException as error:
            failures.append(error)

    groups = [dist.new_group() for _ in range(3)]
    threads = [threading.Thread(target=use, args=pair) for pair in zip(groups, (2, 5000, 200_000), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert failures == []
    assert seen == [float(size)] * 60


def test_callbacks_from_several_threads(world: Callable[[int], World]) -> None:
    world(2).run(many_threads)


def numbers() -> list[int]:
    """Ranks that take part in different groups: each group counts by itself, and its members agree."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for count, pair in enumerate(pairs, 1):
        if pair != dist.GroupMember.NON_GROUP_MEMBER:
            for _ in range(count):
                dist.all_reduce(torch.ones(1), group=pair)
    with c10d._coalescing_manager():
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(2))
    mine = [pair for pair in pairs if pair != dist.GroupMember.NON_GROUP_MEMBER]
    found = [each._get_sequence_number_for_group() for each in (c10d._get_default_group(), *mine)]
    assert found == [backend(each)._get_sequence_number_for_group() for each in (None, *mine)], rank
    return found


def test_sequence_numbers_of_groups_agree(world: Callable[[int], World]) -> None:
    (whole, first), both, (same, second) = world(3).run(numbers)
    assert whole == same == both[0]
    assert (first, second) == (1, 2)
    assert both[1:] == [1, 2]
