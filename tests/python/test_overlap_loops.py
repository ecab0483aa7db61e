"""Loops, buffers and chunks that communicate while the program computes, beside what one process computes."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import sagecomm
from sagecomm import DoubleBuffer, pipeline


def all_reduce(tensor: torch.Tensor) -> dist.Work:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work


# ---- overlap()


def scope() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [torch.arange(2.0 * size) + 100 * r for r in range(size)]
    mine, total = everybody[rank], torch.stack(everybody).sum(0)
    own_rows = slice(2 * rank, 2 * rank + 2)
    with sagecomm.overlap() as ov:
        assert isinstance(ov, sagecomm.Overlap)
        results = {
            "sum": ov.all_reduce(mine.clone()),
            "max": ov.all_reduce(mine.clone(), dist.ReduceOp.MAX),
            "mean": ov.all_reduce(mine.clone(), "avg"),
            "mean of integers": ov.all_reduce(mine.long() - 150, dist.ReduceOp.AVG),
            "broadcast": ov.broadcast(mine.clone(), src=1),
            "gathered": ov.all_gather(mine),
            "part": ov.reduce_scatter(mine),
            "part of the mean": ov.reduce_scatter(mine, "avg"),
            "exchanged": ov.all_to_all(mine),
        }
    wanted = {
        "sum": total,
        "max": everybody[-1],
        "mean": total / size,
        "mean of integers": torch.div(total.long() - 150 * size, size, rounding_mode="trunc"),
        "broadcast": everybody[1],
        "gathered": torch.cat(everybody),
        "part": total[own_rows],
        "part of the mean": total[own_rows] / size,
        "exchanged": torch.cat([each[own_rows] for each in everybody]),
    }
    for name, want in wanted.items():
        assert torch.equal(results[name], want), name
    assert torch.equal(mine, torch.arange(2.0 * size) + 100 * rank)
    with pytest.raises(ValueError, match="3 rows among 2 ranks"), sagecomm.overlap() as ov:
        ov.reduce_scatter(torch.ones(3))
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        with pytest.raises(ValueError, match=rf"overlap: {name}: a tensor of shape \[\] has no first dimension"):
            getattr(sagecomm.Overlap(None), name)(torch.tensor(1.0))
    with pytest.raises(ValueError, match="unknown reduction 'mean'"), sagecomm.overlap() as ov:
        ov.all_reduce(torch.ones(3), "mean")
    with pytest.raises(ValueError, match="overlap: broadcast: rank 7 of the job is not in the group"):
        sagecomm.Overlap(None).broadcast(torch.ones(3), 7)


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_a_scope_waits_for_its_operations_at_the_end(world, name):
    world(2).run(scope, backend=name)


def scope_of_a_part() -> float | None:
    """Ranks are those of the job, also in a group of a part of it."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    with sagecomm.overlap(group) as ov:
        tensor = ov.broadcast(torch.tensor([float(dist.get_rank())]), src=2)
    return tensor.item()


def test_the_source_of_a_broadcast_is_a_rank_of_the_job(world):
    assert world(3).run(scope_of_a_part) == [None, 2, 2]


def scope_that_raises() -> str:
    scopes: list[sagecomm.Overlap] = []

    def body() -> None:
        with sagecomm.overlap() as ov:
            scopes.append(ov)
            ov.all_reduce(torch.ones(1 << 18))
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        body()
    assert len(scopes[0]._pending) == 1  # nobody has waited
    later = torch.ones(3)
    dist.all_reduce(later)
    return str(later[0].item())


def test_an_exception_leaves_the_scope_at_once_and_the_group_usable(world):
    assert world(2).run(scope_that_raises) == ["2.0", "2.0"]


# ---- pipeline() and DoubleBuffer


def test_a_pipeline_computes_ahead_and_yields_in_order():
    """Without a group: the order of events is what counts."""
    events: list[str] = []

    class Handle:
        def __init__(self, at: int) -> None:
            self.at = at

        def wait(self) -> None:
            events.append(f"wait {self.at}")

    def compute(at: int) -> int:
        events.append(f"compute {at}")
        return at

    for value in pipeline(range(3), compute, Handle):
        events.append(f"use {value}")
    assert events == [
        *("compute 0", "compute 1", "wait 0", "use 0"),
        *("compute 2", "wait 1", "use 1", "wait 2", "use 2"),
    ]
    assert list(pipeline([4, 5], lambda x: x, lambda _: None, depth=1)) == [4, 5]
    with pytest.raises(ValueError, match="depth=0"):
        pipeline([], compute, Handle, depth=0)


def test_chained_pipelines_alternate():
    order: list[str] = []

    def stage(name: str) -> Callable[[int], int]:
        def compute(at: int) -> int:
            order.append(f"{name}{at}")
            return at

        return compute

    items = pipeline(pipeline(range(3), stage("a"), lambda _: None), stage("b"), lambda _: None)
    assert list(items) == [0, 1, 2]
    assert order == ["a0", "a1", "b0", "a2", "b1", "b2"]


def double_buffered() -> list[float]:
    buffers = DoubleBuffer((1000,), dtype=torch.float32)

    def compute(at: int) -> torch.Tensor:
        buffer = buffers.acquire()
        return buffer.fill_(at + dist.get_rank())

    def communicate(buffer: torch.Tensor) -> dist.Work:
        work = all_reduce(buffer)
        buffers.release(work)
        return work

    sums = [buffer[-1].item() for buffer in pipeline(range(6), compute, communicate, depth=2)]
    buffers.wait()
    return sums


def test_two_buffers_take_turns(world):
    assert world(2).run(double_buffered) == [[2.0 * at + 1 for at in range(6)]] * 2


def test_a_buffer_is_acquired_and_released_in_turns():
    buffers = DoubleBuffer((2,), n=3)
    taken = []
    for _ in range(4):
        taken.append(buffers.acquire().data_ptr())
        with pytest.raises(RuntimeError, match="release"):
            buffers.acquire()
        buffers.release(None)
    assert len(set(taken[:3])) == 3
    assert taken[3] == taken[0]
    with pytest.raises(RuntimeError, match="acquire"):
        buffers.release(None)
    with pytest.raises(ValueError, match="n=0"):
        DoubleBuffer((2,), n=0)
    assert DoubleBuffer(()).acquire().shape == ()


def documented_pipeline() -> list[float]:
    """The pipeline of the specification: tensors are doubled and summed, and nothing is returned half done."""
    tensors = [torch.full((100,), float(at)) for at in range(4)]
    return [t[0].item() for t in pipeline(tensors, lambda t: t * 2, all_reduce)]


def test_the_documented_pipeline_returns_complete_sums(world):
    assert world(2).run(documented_pipeline) == [[0.0, 4.0, 8.0, 12.0]] * 2


class Failing:
    def wait(self) -> None:
        raise ValueError("the peer has died")


def test_a_failed_communication_raises_at_each_wait():
    """It must not pass for a complete one when somebody waits again."""
    buffers = DoubleBuffer((2,), n=1)
    buffers.acquire()
    buffers.release(Failing())
    flight = sagecomm.InFlight(torch.ones(1), [Failing()])
    for wait in (flight.wait, flight.wait, buffers.wait, buffers.acquire):
        with pytest.raises(ValueError, match="the peer has died"):
            wait()


# ---- chunks and fused gradients


def chunks() -> list[Any]:
    rank = dist.get_rank()
    value = torch.arange(1000.0) * (rank + 1)
    summed = sagecomm.chunked_all_reduce(value.clone(), chunk_bytes=1200)
    assert torch.equal(summed, torch.arange(1000.0) * 3)
    strided = torch.zeros(2, 50)[:, ::2].copy_(torch.arange(25.0))
    assert sagecomm.chunked_all_reduce(strided, chunk_bytes=7) is strided
    assert torch.equal(strided[1], torch.arange(25.0) * 2)
    integers = sagecomm.chunked_all_reduce(torch.tensor([-4, 4, 7]) + rank, chunk_bytes=16, op="avg")
    assert integers.tolist() == [-3, 4, 7]  # of -3.5, 4.5 and 7.5
    asynchronous: bool = rank >= 0  # a type checker does not know it
    started = sagecomm.chunked_all_reduce(value, chunk_bytes=1 << 20, op=dist.ReduceOp.AVG, async_op=asynchronous)
    assert isinstance(started, sagecomm.InFlight)
    assert started.wait() is value
    assert torch.equal(value, torch.arange(1000.0) * 1.5)

    seen: list[tuple[int, int]] = []

    def produce(chunk: torch.Tensor, at: int) -> None:
        seen.append((at, chunk.numel()))
        chunk.fill_(at + rank)

    produced = sagecomm.chunked_all_reduce(torch.empty(10), chunk_bytes=16, produce=produce)
    with pytest.raises(ValueError, match="contiguous"):
        sagecomm.chunked_all_reduce(strided, chunk_bytes=8, produce=produce)
    with pytest.raises(ValueError, match="chunk_bytes=0"):
        sagecomm.chunked_all_reduce(value, chunk_bytes=0)
    with pytest.raises(ValueError, match="chunked_all_reduce: unknown reduction 'mean'"):
        sagecomm.chunked_all_reduce(value, chunk_bytes=8, op="mean", produce=produce)
    return [seen, produced.tolist()]


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_chunks_are_lengths_in_bytes_and_sums_are_exact(world, name):
    want = [[(0, 4), (4, 4), (8, 2)], [1.0] * 4 + [9.0] * 4 + [17.0] * 2]
    assert world(2).run(chunks, backend=name) == [want, want]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads() is new in Python 3.11")
def test_a_type_checker_takes_any_bool_for_async_op():
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "fused_all_reduce"]
    for name in [*names, "chunked_all_reduce"]:
        forms = [form.__annotations__["async_op"] for form in typing.get_overloads(getattr(sagecomm, name))]
        assert forms == ["Literal[False]", "Literal[True]", "bool"], name


def fused() -> tuple[int, int, list[float]]:
    rank = dist.get_rank()
    parameters = [
        nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (5, 7, 3) for dtype in (torch.float32, torch.float64)
    ]
    for at, parameter in enumerate(parameters[:-1]):  # the last one has no gradient
        parameter.grad = torch.full_like(parameter, at + rank)
    before = len(sagecomm.get_stats()["rows"])
    collectives = sagecomm.fused_allreduce_gradients(parameters)
    assert before == 0
    once = sum(row["count"] for row in sagecomm.get_stats()["rows"])
    averages = [p.grad[0].item() for p in parameters if p.grad is not None]
    assert sagecomm.fused_allreduce_gradients(parameters, average=False, bucket_bytes=24) == 4
    assert parameters[1].grad is not None
    assert parameters[1].grad[0].item() == 2 * averages[1]
    # A sparse gradient is noticed before the dense ones before it are sent, on every call.
    for _ in range(2):
        kept = [p.grad.clone() for p in parameters if p.grad is not None]
        before = sagecomm.get_stats()["sequence"]
        parameters[4].grad = torch.sparse_coo_tensor([[0]], [1.0], (3,))
        with pytest.raises(ValueError, match=r"fused_allreduce_gradients: .* torch\.sparse_coo"):
            sagecomm.fused_allreduce_gradients(parameters, bucket_bytes=1)
        assert sagecomm.get_stats()["sequence"] == before
        for parameter, gradient in zip(parameters[:4], kept, strict=False):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)
    return collectives, once, averages


def fused_on_gloo() -> list[Any]:
    parameters = [nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.complex64)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, dist.get_rank() + 1) * (1j if parameter.is_complex() else 1)
    assert sagecomm.fused_allreduce_gradients(parameters) == 2
    return [p.grad[1].item() for p in parameters if p.grad is not None]


def test_gradients_are_averaged_on_gloo(world):
    assert world(2).run(fused_on_gloo, backend="gloo") == [[1.5, 1.5j]] * 2


def test_gradients_of_one_type_share_one_collective(world):
    assert world(2).run(fused) == [(2, 2, [0.5, 1.5, 2.5, 3.5, 4.5])] * 2
