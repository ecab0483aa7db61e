"""Measures how much of a communication is hidden behind computing."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from sagecomm._groups import member
from sagecomm._overlap._clock import Marks, clock
from sagecomm._overlap._in_flight import Waitable
from sagecomm._overlap._report import Interval, OverlapReport, Times


def measure_overlap(
    compute: Callable[[], Any],
    communicate: Callable[[Any], Waitable],
    overlappable: Callable[[], Any],
    group: dist.ProcessGroup | None = None,
    *,
    repetitions: int = 30,
    warm_up: int = 5,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> OverlapReport:
    """Measures a communication alone, the computations alone, and all of them overlapped.

        report = sagecomm.measure_overlap(
            lambda: x @ w, lambda y: dist.all_reduce(y, async_op=True), lambda: other @ w
        )
        print(report.table())
        report.save_timeline("overlap.svg")

    The four ways to run take turns in random order, each behind a barrier. A time is that of the slowest rank. Times on
    a device are those of its events. A fifth way, overlapped once more, marks when each part is complete: to ask for
    the end of a communication costs time itself, so `overlapped` is measured without. The end is known of works and
    futures, and of an InFlight, whose works end it. Of other handles, of works that have no future, and of gloo's on a
    device it is not.

    Args:
        compute: Returns what is communicated. It must make it anew each time.
        communicate: Starts to communicate it, and returns what to wait for: a Work, a Future, an InFlight, or
            something else with a `wait()`, whose end is unknown.
        overlappable: A computation that does not need the communication.
        group: All of whose ranks take part; the default group if None.
        repetitions: Of each way; the report has medians.
        warm_up: Repetitions before, which are not counted.
        device: Where `compute` runs; that of the tensor that it returns if None, else the host.
        seed: Of the order, the same on all ranks.

    Raises:
        ValueError: There are no repetitions, `communicate` returns nothing to wait for, or this rank is not in the
            group.
    """
    if repetitions < 1 or warm_up < 0:
        raise ValueError(f"sagecomm: measure_overlap: repetitions={repetitions}, warm_up={warm_up}: expected 1 or more")
    pg = member(group, "measure_overlap")
    value = compute()
    if device is None:
        device = value.device if isinstance(value, torch.Tensor) else "cpu"
    device = torch.device(device)
    times = clock(device, pg)

    def alone(run: Callable[[], Any]) -> Marks:
        times.start()
        run()
        return times.end()

    def start(made: Any) -> Waitable:
        work = communicate(made)
        if not hasattr(work, "wait"):
            raise ValueError(
                f"sagecomm: measure_overlap: communicate returned {work!r}: expected what to wait for, as an operation "
                "returns it with async_op=True"
            )
        return work

    def communicate_alone() -> Marks:
        made = compute()
        times.finish()
        dist.barrier(pg)
        return alone(lambda: start(made).wait())

    def overlapped() -> None:
        work = start(compute())
        overlappable()
        work.wait()

    def marked() -> Marks:
        times.start()
        made = compute()
        times.mark("compute")
        work = start(made)
        times.mark_completion("communicate", work)
        times.mark("issue")
        overlappable()
        times.mark("overlappable")
        work.wait()
        return times.end()

    ways: dict[str, Callable[[], Marks]] = {
        "compute": lambda: alone(compute),
        "overlappable": lambda: alone(overlappable),
        "communicate": communicate_alone,
        "overlapped": lambda: alone(overlapped),
        "marked": marked,
    }
    order, shuffled = list(ways), random.Random(seed)
    measured: dict[str, list[Marks]] = {name: [] for name in ways}
    for repetition in range(warm_up + repetitions):
        shuffled.shuffle(order)
        for name in order:
            dist.barrier(pg)
            marks = ways[name]()
            if repetition >= warm_up:
                measured[name].append(marks)
    return _report(measured, device, pg)


def _report(measured: dict[str, list[Marks]], device: torch.device, group: dist.ProcessGroup) -> OverlapReport:
    inside = measured.pop("marked")
    mine: dict[str, list[float | None]] = {name: [m["end"] for m in marks] for name, marks in measured.items()}
    mine["compute inside"] = [m["overlappable"] - m["issue"] for m in inside]
    mine["communicate inside"] = [m["communicate"] - m["compute"] if "communicate" in m else None for m in inside]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group)
    slowest = {
        name: [max(times) for times in zip(*(each[name] for each in everyone), strict=True) if None not in times]
        for name in mine
    }
    times = {name: Times(statistics.median(list_), _p90(list_)) for name, list_ in slowest.items() if list_}
    middle = statistics.median(m["end"] for m in inside)
    return OverlapReport(
        compute=times["compute"],
        overlappable=times["overlappable"],
        communicate=times["communicate"],
        overlapped=times["overlapped"],
        compute_inside=times["compute inside"].median,
        communicate_inside=times["communicate inside"].median if "communicate inside" in times else None,
        intervals=_intervals(min(inside, key=lambda m: abs(m["end"] - middle))),
        device=str(device),
        ranks=dist.get_world_size(group),
        threads=torch.get_num_threads(),
        processors=len(os.sched_getaffinity(0)),
        repetitions=len(inside),
        backend=dist.get_backend(group),
    )


def _intervals(marks: Marks) -> dict[str, Interval | None]:
    return {
        "compute": (0.0, marks["compute"]),
        "overlappable": (marks["issue"], marks["overlappable"]),
        "communicate": (marks["compute"], marks["communicate"]) if "communicate" in marks else None,
    }


def _p90(values: list[float]) -> float:
    return sorted(values)[(9 * len(values) - 1) // 10]
