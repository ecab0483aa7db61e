"""Work and Future over the real core: completion, waiting, callbacks, lifetimes, several groups and threads."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from older_torch import WORK_HAS_NUMBER, exception_of

DEADLINE = timedelta(seconds=60)


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(torch.device("cpu"))


def go(rank: int, tag: int = 900) -> None:
    """Tells a rank that waits in held() to go on, by a send, because p2p operations do not wait behind collectives."""
    dist.send(torch.ones(1), rank, tag=tag)


def held(tag: int = 900) -> None:
    dist.recv(torch.empty(1), 0, tag=tag)


# ---- completion ----


def not_complete_before_the_peer(count: int) -> None:
    t = torch.ones(count)
    if dist.get_rank() == 0:
        work = dist.all_reduce(t, async_op=True)
        assert not work.is_completed()
        assert not work.is_success()
        assert exception_of(work) is None
        for bound_ms in (1, 50):
            began = time.monotonic()
            try:
                work.wait(timedelta(milliseconds=bound_ms))
            except RuntimeError as error:
                assert "timed out" in str(error).lower(), error
                assert "the operation goes on" in str(error), error
                assert not isinstance(error, dist.DistBackendError), "one wait has ended, not the operation"
            else:
                raise AssertionError("wait(timeout) returned for an operation that nobody joined")
            assert bound_ms / 1000 <= time.monotonic() - began < 20
            assert not work.is_completed()
        go(1)
        assert work.wait(DEADLINE)
        assert work.is_completed()
        assert work.is_success()
    else:
        held()
        work = dist.all_reduce(t, async_op=True)
        assert work.wait()
    assert torch.equal(t, torch.full((count,), 2.0))
    assert work.result()[0].data_ptr() == t.data_ptr()
    assert work.wait(timedelta(milliseconds=1))
    assert work.wait()


@pytest.mark.parametrize("count", [3, 300_000])
def test_wait_with_timeout_leaves_the_operation_running(world, count):
    world(2).run(not_complete_before_the_peer, count)


def completed_by_nobody() -> None:
    """Without any wait() the progress engine completes an operation, and is_completed() reports it."""
    for count in (1, 5000, 500_000):
        t = torch.ones(count)
        work = dist.all_reduce(t, async_op=True)
        deadline = time.monotonic() + 60
        while not work.is_completed():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert torch.equal(t, torch.full((count,), float(dist.get_world_size())))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_operation_completes_without_a_waiter(world, size):
    world(size).run(completed_by_nobody)


def many_in_flight(count: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((count,), float(i)) for i in range(300)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    if WORK_HAS_NUMBER:
        numbers = [work._get_sequence_number() for work in works]
        assert numbers == list(range(numbers[0], numbers[0] + 300))
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        assert torch.equal(t, torch.full((count,), float(i * size))), f"operation {i} holds {t[0].item()}"


@pytest.mark.parametrize("count", [1, 30_000])
@pytest.mark.parametrize("size", [2, 3])
def test_many_in_flight_waited_for_backwards(world, size, count):
    world(size).run(many_in_flight, count)


def sequence_numbers() -> None:
    group = c10d._get_default_group()
    assert group._get_sequence_number_for_group() == 0
    dist.all_reduce(torch.ones(1))
    work = dist.broadcast(torch.ones(1), 0, async_op=True)
    assert work._get_sequence_number() == 2
    work.wait()
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(torch.ones(1), 0)
    dist.barrier()
    assert group._get_sequence_number_for_group() == 3, "p2p operations have no number"
    other = dist.new_group([0, 1])
    if rank < 2:
        assert other._get_sequence_number_for_group() == 0


@pytest.mark.skipif(not WORK_HAS_NUMBER, reason="this torch asks only its own backends for sequence numbers")
def test_sequence_numbers_count_the_collectives_of_a_group(world):
    world(2).run(sequence_numbers)


class Block(bytearray):
    """Returns memory whose release can be observed."""


def dropped() -> None:
    """An operation keeps its memory although the caller has dropped Work and tensor, and then releases it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    alive = []
    for number in range(40):
        count = 10 if number % 2 else 100_000
        block = Block(4 * count)
        alive.append(weakref.ref(block))
        t = torch.frombuffer(block, dtype=torch.int32)
        t.fill_(number)
        dist.all_reduce(t, async_op=True)
        del t, block
    last = torch.full((5,), rank)
    dist.all_reduce(last)
    assert last.tolist() == [size * (size - 1) // 2] * 5
    deadline = time.monotonic() + 60
    while any(ref() is not None for ref in alive):
        gc.collect()
        assert time.monotonic() < deadline, "memory of finished operations is not given back"
        time.sleep(0.01)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_works_dropped_before_completion(world, size):
    world(size).run(dropped)


# ---- futures ----


def chains() -> None:
    size = dist.get_world_size()
    for count in (2, 100_000):
        t = torch.ones(count)
        chained = (
            dist.all_reduce(t, async_op=True)
            .get_future()
            .then(lambda f: f.value()[0] / size)
            .then(lambda f: f.value().sum().item())
        )
        assert chained.wait() == count
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        late = work.get_future()  # a Future that is asked for after the end of the operation
        assert late.done()
        assert late.then(lambda f: f.value()[0][0].item()).wait() == size * size
        out = [torch.empty(count) for _ in range(size)]
        values = dist.all_gather(out, t, async_op=True).get_future().wait()
        assert [v.data_ptr() for v in torch.utils._pytree.tree_leaves(values)] == [o.data_ptr() for o in out]
    assert dist.barrier(async_op=True).get_future().wait() == []


@pytest.mark.smoke
@pytest.mark.parametrize("size", [1, 2, 3])
def test_futures_chain(world, size):
    world(size).run(chains)


def callback_threads() -> bool:
    """A callback runs on a thread that completes the operation, not on the caller's, when nobody waits."""
    ran_on: list[int] = []
    finished = threading.Event()

    def note(future: Any) -> None:
        ran_on.append(threading.get_ident())
        finished.set()

    t = torch.ones(200_000)
    if dist.get_rank() == 0:
        dist.all_reduce(t, async_op=True).get_future().add_done_callback(note)
        go(1)
        assert finished.wait(60)
        return ran_on == [threading.get_ident()]
    held()
    dist.all_reduce(t, async_op=True).wait()
    return False


def test_futures_are_completed_from_another_thread(world):
    assert world(2).run(callback_threads) == [False, False]


def callbacks_issue() -> None:
    """Each callback issues the next collective, all ranks alike; two chains use two groups."""
    groups = [dist.new_group(), dist.new_group()]
    size = dist.get_world_size()
    ends = []
    for group in groups:
        t = torch.ones(1000)
        future = dist.all_reduce(t, group=group, async_op=True).get_future()
        for _ in range(5):

            def again(f: Any, group: Any = group) -> torch.Tensor:
                value = f.value()[0] if isinstance(f.value(), list) else f.value()
                dist.all_reduce(value, group=group)
                return value

            future = future.then(again)
        ends.append(future)
    for end in ends:
        assert end.wait()[0].item() == float(size**6)


@pytest.mark.smoke
@pytest.mark.parametrize("size", [2, 3])
def test_callbacks_issue_collectives(world, size):
    world(size).run(callbacks_issue)


def raising_callback() -> None:
    def fail(_: Any) -> None:
        raise ValueError("the user's own mistake")

    t = torch.ones(10)
    future = dist.all_reduce(t, async_op=True).get_future().then(fail)
    try:
        future.wait()
    except Exception as error:
        assert "the user's own mistake" in str(error)
    else:
        raise AssertionError("the error in a callback is lost")
    dist.all_reduce(t)
    assert t[0].item() == dist.get_world_size() ** 2


def test_an_error_in_a_callback_does_not_harm_the_group(world):
    world(2).run(raising_callback)


# ---- groups and threads ----


def interleaved_groups() -> None:
    """Operations of overlapping groups can be waited for in another order than that of their issue."""
    rank, size = dist.get_rank(), dist.get_world_size()
    members = [[0, 1], [1, 2], [0, 2, 3], [3], list(range(size))]
    groups = [dist.new_group(m) for m in members]
    for round_number in range(20):
        flying = []
        for m, group in zip(members, groups, strict=True):
            if rank in m:
                t = torch.full((1 + 7000 * (round_number % 3),), float(rank))
                flying.append((dist.all_reduce(t, group=group, async_op=True), t, float(sum(m))))
        for work, t, want in reversed(flying):
            work.wait()
            assert torch.equal(t, torch.full_like(t, want))
        # Roots are named by their rank in the job.
        for m, group in zip(members, groups, strict=True):
            if rank in m:
                t = torch.tensor([float(rank)])
                dist.broadcast(t, m[-1], group=group)
                assert t.item() == m[-1]
    for m, group in zip(members, groups, strict=True):
        if rank in m:
            dist.destroy_process_group(group)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == size


def test_several_groups_interleaved(world):
    world(4).run(interleaved_groups)


def threads_on_groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(4)]
    errors: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for i in range(60):
                count = (1, 500, 20_000)[(i + number) % 3]
                t = torch.full((count,), float(rank + i + number))
                if i % 2:
                    dist.all_reduce(t, group=groups[number])
                else:
                    dist.all_reduce(t, group=groups[number], async_op=True).wait()
                want = float(sum(r + i + number for r in range(size)))
                assert torch.equal(t, torch.full((count,), want)), f"group {number}, round {i}: {t[0].item()}"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("size", [2, 3])
def test_threads_issue_on_groups_of_their_own(world, size):
    world(size).run(threads_on_groups)


def threads_wait_for_one() -> None:
    rank = dist.get_rank()
    t = torch.ones(100_000)
    if rank == 1:
        held()
    work = dist.all_reduce(t, async_op=True)
    seen: list[float] = []
    threads = [threading.Thread(target=lambda: (work.wait(), seen.append(t[-1].item()))) for _ in range(6)]
    for thread in threads:
        thread.start()
    if rank == 0:
        go(1)
    for thread in threads:
        thread.join(60)
    assert seen == [2.0] * 6


def test_many_threads_wait_for_one_work(world):
    world(2).run(threads_wait_for_one)


def groups_come_and_go() -> None:
    """A process can make more groups in a row than fit at once, because memory of destroyed groups is used again."""
    size = dist.get_world_size()
    for _ in range(60):
        group = dist.new_group()
        t = torch.ones(40_000)
        dist.all_reduce(t, group=group)
        assert t[-1].item() == size
        dist.destroy_process_group(group)


def test_groups_come_and_go(world):
    world(2).run(groups_come_and_go)
