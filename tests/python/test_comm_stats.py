"""get_stats() of a communication backend, counted by the core or here, and its futures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from sagecomm import CommOp, create_comm_backend
from sagecomm.backends.counter import Counter, summary
from worlds import World

ROW = {"op", "dtype", "up_to", "algorithm", "device", "engine", "transport"}
ROW |= {"count", "bytes", "fused", "avg_us", "max_us"}


def calls(name: str) -> dict[str, Any]:
    backend = create_comm_backend(name)
    assert backend.get_stats()["all_reduce_count"] == 0
    for asynchronous in False, True, False:
        result = backend.all_reduce(torch.ones(1000), async_op=asynchronous)
        if isinstance(result, torch.futures.Future):
            result.wait()
    backend.all_reduce(torch.ones(1, dtype=torch.int64))
    backend.fused_all_reduce([torch.ones(500), torch.ones(500)])
    backend.all_gather(torch.ones(10))
    backend.reduce_scatter(torch.ones(2 * backend.world_size), output=torch.empty(2))
    backend.broadcast(torch.ones(3))
    backend.all_to_all([torch.ones(2)] * backend.world_size)
    backend.barrier()
    if backend.rank == 0:
        backend.send(torch.ones(5), 1)
    elif backend.rank == 1:
        backend.recv(torch.ones(5), 0)
    return backend.get_stats()


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_statistics(world: Callable[[int], World], name: str) -> None:
    """The same calls have the same counts, whoever counts."""
    for rank, stats in enumerate(world(2).run(calls, name, backend=name)):
        assert stats["all_reduce_count"] == 5
        assert stats["total_bytes"] == 4 * 4000 + 8 + 40 + 8 + 12 + 16 + 20
        assert stats["avg_latency_ms"] > 0
        p2p = CommOp.SEND if rank == 0 else CommOp.RECV
        assert {op: count["count"] for op, count in stats["ops"].items()} == {
            CommOp.ALL_REDUCE: 5,
            CommOp.ALL_GATHER: 1,
            CommOp.REDUCE_SCATTER: 1,
            CommOp.BROADCAST: 1,
            CommOp.ALL_TO_ALL: 1,
            CommOp.BARRIER: 1,
            p2p: 1,
        }
        rows = stats["rows"]
        assert all(row.keys() >= ROW for row in rows)
        long = [row for row in rows if row["op"] == "all_reduce" and row["dtype"] == "float32"]
        assert [(row["count"], row["bytes"], row["up_to"], row["fused"]) for row in long] == [(4, 16_000, 4096, 2)]
        assert sum(row["fused"] for row in rows) == 2
        assert long[0]["engine"] == ("host" if name == "sagecomm" else "gloo")
        assert bool(long[0]["algorithm"]) is (name == "sagecomm")
        assert 0 < long[0]["avg_us"] <= long[0]["max_us"]


def of_two_backends() -> None:
    """What the core counts and what is counted here are not mixed up: each backend has its own calls."""
    ours, gloo = create_comm_backend("sagecomm"), create_comm_backend("gloo")
    ours.all_reduce(torch.ones(4))
    for _ in range(2):
        gloo.all_reduce(torch.ones(4))
    assert ours.get_stats()["all_reduce_count"] == 1
    assert gloo.get_stats()["all_reduce_count"] == 2
    assert gloo.get_stats()["total_bytes"] == 32
    assert create_comm_backend("gloo").get_stats()["all_reduce_count"] == 0  # of this object's calls


def test_two_backends(world: Callable[[int], World]) -> None:
    world(2).run(of_two_backends)


def test_a_group_of_two_backends_has_the_rows_of_both() -> None:
    core = {
        "all_reduce_count": 3,
        "total_bytes": 100,
        "avg_latency_ms": 2.0,
        "ops": {"all_reduce": {"count": 3, "bytes": 60}, "broadcast": {"count": 1, "bytes": 40}},
        "rows": [{"op": "all_reduce"}],
        "sequence": 4,
    }
    counter = Counter()
    counter.begin(CommOp.ALL_REDUCE, "nccl", [torch.ones(3)])()
    counter.begin(CommOp.BARRIER, "nccl", [])()
    rows = counter.rows()
    for row in rows:
        row["avg_us"] = 5000.0
    joined = summary(core, rows)
    assert joined["all_reduce_count"] == 4
    assert joined["total_bytes"] == 112
    assert joined["ops"] == {
        "all_reduce": {"count": 4, "bytes": 72},
        "broadcast": {"count": 1, "bytes": 40},
        "barrier": {"count": 1, "bytes": 0},
    }
    assert joined["avg_latency_ms"] == pytest.approx((4 * 2.0 + 2 * 5.0) / 6)
    assert [row.get("engine") for row in joined["rows"]] == [None, "nccl", "nccl"]
    assert joined["sequence"] == 4
    assert summary(None, [])["all_reduce_count"] == 0


@pytest.mark.parametrize(("length", "up_to"), [(0, 1), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_size_classes_are_those_of_the_core(length: int, up_to: int) -> None:
    counter = Counter()
    counter.begin(CommOp.BROADCAST, "gloo", [torch.empty(length, dtype=torch.uint8)])()
    assert counter.rows()[0]["up_to"] == up_to


# ---- futures ----


def futures(name: str) -> None:
    """They are torch's: callbacks, children and collections work, and several are in flight at once."""
    backend = create_comm_backend(name)
    size = backend.world_size
    flying = [backend.all_reduce(torch.full((100,), float(i)), async_op=True) for i in range(20)]
    for i in reversed(range(20)):  # in any order
        assert flying[i].wait()[0].item() == size * i
    chained = backend.all_reduce(torch.ones(2), async_op=True).then(lambda future: future.value() * 10)
    assert chained.wait().tolist() == [10.0 * size] * 2
    both = torch.futures.collect_all([backend.all_reduce(torch.ones(1), async_op=True) for _ in range(2)])
    assert [future.wait().item() for future in both.wait()] == [size, size]
    seen = threading.Event()
    future = backend.all_gather(torch.ones(1), async_op=True)
    future.add_done_callback(lambda _: seen.set())
    future.wait()
    assert seen.wait(60)
    # Waited for on another thread, twice, and dropped without a wait.
    future = backend.broadcast(torch.full((3,), float(backend.rank)), size - 1, async_op=True)
    found: list[list[float]] = []
    thread = threading.Thread(target=lambda: found.append(future.wait().tolist()))
    thread.start()
    thread.join(60)
    assert found == [[size - 1.0] * 3] == [future.wait().tolist()]
    backend.all_reduce(torch.ones(1), async_op=True)
    backend.barrier()


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_futures(world: Callable[[int], World], name: str) -> None:
    world(2).run(futures, name, backend=name)


def failed() -> None:
    """The error of the operation itself comes out of wait(), and out of what was chained to the future."""
    backend = create_comm_backend("sagecomm")
    if backend.rank == 1:
        backend.recv(torch.empty(1), 0)
        with pytest.raises(sagecomm.CollectiveMismatch):  # from either: rank 0 has been there before
            backend.all_reduce(torch.ones(2), async_op=True).wait()
        return
    future = backend.all_reduce(torch.ones(1), async_op=True)
    chained = future.then(lambda done: done.value())
    backend.send(torch.ones(1), 1)
    with pytest.raises(sagecomm.CollectiveMismatch):
        future.wait()
    with pytest.raises(RuntimeError, match="CollectiveMismatch"):
        chained.wait()
    assert future.done()


def test_a_future_of_an_operation_that_fails(world: Callable[[int], World]) -> None:
    world(2).run(failed)


def aborted() -> None:
    """A future whose operation never takes place ends with its group."""
    backend = create_comm_backend("sagecomm")
    if backend.rank == 0:
        future = backend.fused_all_reduce([torch.ones(2), torch.ones(2, dtype=torch.int32)], async_op=True)
        assert not future.done()
        backend.group.abort()
        with pytest.raises(sagecomm.Aborted):
            future.wait()
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        assert ended.wait(60)
    else:
        with pytest.raises(sagecomm.Aborted):
            backend.recv(torch.empty(1), 0)


def test_a_future_of_a_group_that_is_aborted(world: Callable[[int], World]) -> None:
    world(2).run(aborted)


def late() -> bool:
    """A future is not done before its operation is."""
    backend = create_comm_backend("sagecomm")
    if backend.rank == 0:
        future = backend.all_reduce(torch.ones(2), async_op=True)
        early = future.done()
        dist.send(torch.ones(1), 1)
        future.wait()
        return not early and future.done()
    dist.recv(torch.ones(1), 0)
    backend.all_reduce(torch.ones(2))
    return True


def test_a_future_completes_with_its_operation(world: Callable[[int], World]) -> None:
    assert world(2).run(late) == [True, True]
