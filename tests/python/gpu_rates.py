"""Measures our engines on CUDA tensors beside gloo, and beside a program that copies to pinned memory by itself and
calls the library there. Blocks of calls take turns (sagecomm/_interleave.py)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import sagecomm
from device_programs import accelerator
from sagecomm import _interleave
from sagecomm._bench.cases import BLOCKS, bus_factor
from sagecomm._operations import make_buffers, make_call

# Which of make_buffers() an operation reads and writes. The root of a broadcast reads, the others write.
READ_AND_WRITTEN = {
    "all_reduce": ([0], [0]),
    "broadcast": ([0], [0]),
    "all_gather": ([0], [1]),
    "reduce_scatter": ([1], [0]),
    "all_to_all": ([0], [1]),
    "send_recv": ([0], [0]),
}


def _through_pinned_memory(
    op: str, buffers: list[torch.Tensor], group: dist.ProcessGroup, stages: list[torch.Tensor]
) -> Callable[[], Any]:
    call = make_call(op, stages, group)
    read, written = READ_AND_WRITTEN[op]
    if op == "broadcast":
        read, written = (read, []) if dist.get_rank() == 0 else ([], written)

    def run() -> None:
        for i in read:
            stages[i].copy_(buffers[i], non_blocking=True)
        torch.cuda.synchronize()
        call()
        for i in written:
            buffers[i].copy_(stages[i], non_blocking=True)

    return run


def _until_the_device_has_it(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def _why_not(call: Callable[[], Any]) -> str:
    """Returns why the call is refused on any rank."""
    text = ""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        text = str(error).splitlines()[0]
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return next((str(said) for said in texts if said), "")


def measure(
    rank: int, size: int, store: str, engines: Sequence[str], sizes: Sequence[int], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Returns a row for each operation, number of bytes and way: engines, gloo, copies. The default group coordinates,
    as in bench. Requires: SAGECOMM_ENGINE is not set, which would be the engine of all groups."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {
        engine: dist.new_group(backend="sagecomm", pg_options=sagecomm.Options(settings={"engine": engine}))
        for engine in engines
    }
    groups["gloo"] = dist.new_group(backend="gloo")
    rows: list[dict[str, Any]] = []
    for op in READ_AND_WRITTEN:
        for nbytes in sizes:
            block = max(4, nbytes // size if op in BLOCKS else nbytes)
            buffers = [tensor.to(accelerator()) for tensor in make_buffers(op, block, size)]
            stages = [tensor.pin_memory() for tensor in make_buffers(op, block, size)]
            calls = {name: make_call(op, buffers, group) for name, group in groups.items()}
            calls["pinned"] = _through_pinned_memory(op, buffers, groups[engines[0]], stages)
            runners, refused = {}, {}
            for name, call in calls.items():
                if name == "gloo" and op == "send_recv":  # it ends the process
                    refused[name] = "gloo sends no memory of a device"
                    continue
                once = _until_the_device_has_it(call)
                if why := _why_not(once):
                    refused[name] = why
                else:
                    runners[name] = _interleave.one_by_one(once)
            counts = {name: _interleave.calls_in(seconds, runner) for name, runner in runners.items()}
            laps: dict[str, list[float]] = {name: [] for name in runners}
            for taken in _interleave.rounds(runners, counts, rounds):
                for name, (_, slowest) in taken.items():
                    laps[name] += slowest
            for name in calls:
                row = {"op": op, "ranks": size, "bytes": block * (size if op in BLOCKS else 1), "through": name}
                if name in refused:
                    rows.append(row | {"refused": refused[name]})
                    continue
                took = sorted(laps[name])
                time = statistics.median(took)
                trips = 2 if op == "send_recv" else 1
                rate = row["bytes"] * trips / time * bus_factor(op, size) / 1e9
                row |= {"median_us": time * 1e6 / trips, "min_us": took[0] * 1e6 / trips, "busbw_gb_s": rate}
                rows.append(row | {"p90_us": took[len(took) * 9 // 10] * 1e6 / trips, "calls": len(took)})
    dist.barrier()
    dist.destroy_process_group()
    return rows
