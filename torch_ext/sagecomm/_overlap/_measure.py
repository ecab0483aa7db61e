"""Measures how much of a communication is hidden behind computing."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sagecomm._overlap._in_flight import Waitable
from sagecomm._overlap._report import OverlapReport, Times

Marks = dict[str, float]
"""Seconds since the start, by what was complete then."""


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
    a device are those of its events.

    Args:
        compute: Returns what is communicated. It must make it anew each time.
        communicate: Starts to communicate it, and returns what to wait for: a Work, a Future, an InFlight.
        overlappable: A computation that does not need the communication.
        group: All of whose ranks take part; the default group if None.
        repetitions: Of each way; the report has medians.
        warm_up: Repetitions before, which are not counted.
        device: Where `compute` runs; that of the tensor that it returns if None, else the host.
        seed: Of the order, the same on all ranks.

    Raises:
        ValueError: There are no repetitions.
    """
    if repetitions < 1 or warm_up < 0:
        raise ValueError(f"sagecomm: measure_overlap: repetitions={repetitions}, warm_up={warm_up}: expected 1 or more")
    value = compute()
    if device is None:
        device = value.device if isinstance(value, torch.Tensor) else "cpu"
    clock = _clock(torch.device(device))

    def alone(run: Callable[[], Any]) -> Marks:
        clock.start()
        run()
        return clock.end()

    def communicate_alone() -> Marks:
        made = compute()
        clock.finish()
        dist.barrier(group)
        return alone(lambda: communicate(made).wait())

    def overlapped() -> Marks:
        clock.start()
        made = compute()
        clock.mark("compute")
        work = communicate(made)
        clock.mark("issue")
        clock.mark_completion("communicate", work)
        overlappable()
        clock.mark("overlappable")
        work.wait()
        return clock.end()

    ways: dict[str, Callable[[], Marks]] = {
        "compute": lambda: alone(compute),
        "overlappable": lambda: alone(overlappable),
        "communicate": communicate_alone,
        "overlapped": overlapped,
    }
    order, shuffled = list(ways), random.Random(seed)
    measured: dict[str, list[Marks]] = {name: [] for name in ways}
    for repetition in range(warm_up + repetitions):
        shuffled.shuffle(order)
        for name in order:
            dist.barrier(group)
            marks = ways[name]()
            if repetition >= warm_up:
                measured[name].append(marks)
    return _report(measured, group)


def _report(measured: dict[str, list[Marks]], group: dist.ProcessGroup | None) -> OverlapReport:
    inside = measured["overlapped"]
    mine = {name: [m["end"] for m in list_] for name, list_ in measured.items()}
    mine["compute inside"] = [m["overlappable"] - m["issue"] for m in inside]
    mine["communicate inside"] = [m["communicate"] - m["compute"] for m in inside]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group)
    slowest = {name: [max(times) for times in zip(*(each[name] for each in everyone), strict=True)] for name in mine}
    times = {name: Times(statistics.median(list_), _p90(list_)) for name, list_ in slowest.items()}
    typical = min(inside, key=lambda m: abs(m["end"] - statistics.median(mine["overlapped"])))
    return OverlapReport(
        compute=times["compute"],
        overlappable=times["overlappable"],
        communicate=times["communicate"],
        overlapped=times["overlapped"],
        compute_inside=times["compute inside"].median,
        communicate_inside=times["communicate inside"].median,
        intervals={
            "compute": (0.0, typical["compute"]),
            "overlappable": (typical["issue"], typical["overlappable"]),
            "communicate": (typical["compute"], typical["communicate"]),
        },
        ranks=dist.get_world_size(group),
        threads=torch.get_num_threads(),
        processors=len(os.sched_getaffinity(0)),
        repetitions=len(inside),
        backend=dist.get_backend(group),
    )


def _p90(values: list[float]) -> float:
    return sorted(values)[(9 * len(values) - 1) // 10]


class _Clock(Protocol):
    def finish(self) -> None:
        """Waits until everything that was started is complete."""

    def start(self) -> None: ...

    def mark(self, name: str) -> None:
        """Marks the completion of what was computed until now."""

    def mark_completion(self, name: str, work: Waitable) -> None:
        """Marks the completion of a communication, without waiting for it. If its handle cannot tell, that is the
        end."""

    def end(self) -> Marks:
        """Waits until everything is complete, and returns all marks and the "end"."""


def _clock(device: torch.device) -> _Clock:
    return _HostClock() if device.type == "cpu" else _DeviceClock(device)


class _HostClock:
    def __init__(self) -> None:
        self._start = 0.0
        self._marks: Marks = {}
        self._completions: list[str] = []

    def finish(self) -> None:
        pass

    def start(self) -> None:
        self._marks, self._completions = {}, []
        self._start = time.perf_counter()

    def mark(self, name: str) -> None:
        self._marks[name] = time.perf_counter() - self._start

    def mark_completion(self, name: str, work: Waitable) -> None:
        marks, start = self._marks, self._start
        self._completions.append(name)
        future = _future(work)
        if future is not None:
            future.add_done_callback(lambda _: marks.__setitem__(name, time.perf_counter() - start))

    def end(self) -> Marks:
        end = time.perf_counter() - self._start
        marks = {**self._marks, "end": end}
        for name in self._completions:
            marks[name] = min(marks.get(name, end), end)  # a callback may run later than wait() returns
        return marks


class _DeviceClock:
    def __init__(self, device: torch.device) -> None:
        self._device, self._side = device, torch.Stream(device=device)
        self._events: dict[str, torch.Event] = {}

    def finish(self) -> None:
        torch.accelerator.synchronize(self._device)

    def start(self) -> None:
        self._events = {}
        self.finish()
        self.mark("start")

    def mark(self, name: str) -> None:
        event = torch.Event(device=self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        self._events[name] = event

    def mark_completion(self, name: str, work: Waitable) -> None:
        with self._side:  # only this stream waits
            work.wait()
            self.mark(name)

    def end(self) -> Marks:
        self.mark("end")
        self.finish()
        start = self._events.pop("start")
        return {name: 1e-3 * start.elapsed_time(event) for name, event in self._events.items()}


def _future(work: Waitable) -> torch.futures.Future[Any] | None:
    if isinstance(work, torch.futures.Future):
        return work
    return work.get_future() if isinstance(work, dist.Work) else None
