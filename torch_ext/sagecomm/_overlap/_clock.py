"""Clocks of measure_overlap(): of the host, and of a device, whose times are those of events in its streams."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sagecomm._groups import backend_names
from sagecomm._overlap._in_flight import InFlight, Waitable

Marks = dict[str, float]
"""Seconds since the start, by what was complete then. What cannot be known is not there."""

_CALLBACKS = 1.0
"""Seconds within which the callbacks of complete operations have run. Else their end is not known."""


class Clock(Protocol):
    """Times of one repetition. Only mark() and mark_completion() take time between start() and end()."""

    def finish(self) -> None:
        """Waits until everything that was started is complete."""

    def start(self) -> None: ...

    def mark(self, name: str) -> None:
        """Marks the completion of what was computed until now."""

    def mark_completion(self, name: str, handle: Waitable) -> None:
        """Marks the completion of a communication, without waiting for it, if its handle can tell."""

    def end(self) -> Marks:
        """Waits until everything is complete, and returns all marks and the "end". Requires: handles of marked
        completions have been waited for."""


def clock(device: torch.device, group: dist.ProcessGroup) -> Clock:
    if device.type == "cpu":
        return _HostClock()
    return _DeviceClock(device, ordered=backend_names(group).get(device.type, "gloo") != "gloo")


class _HostClock:
    def __init__(self) -> None:
        self._start = 0.0
        self._marks: Marks = {}
        self._completions: dict[str, _Completions] = {}

    def finish(self) -> None:
        pass

    def start(self) -> None:
        self._marks, self._completions = {}, {}
        self._start = time.perf_counter()

    def mark(self, name: str) -> None:
        self._marks[name] = time.perf_counter() - self._start

    def mark_completion(self, name: str, handle: Waitable) -> None:
        futures = _futures(handle)
        if futures is not None:
            self._completions[name] = _Completions(futures)

    def end(self) -> Marks:
        end = time.perf_counter()
        for name, completions in self._completions.items():
            last = completions.last()
            if last is not None:  # a callback may run later than wait() returns
                self._marks[name] = min(last, end) - self._start
        return {**self._marks, "end": end - self._start}


class _Completions:
    """When futures complete, as their callbacks see it."""

    def __init__(self, futures: list[torch.futures.Future[Any]]) -> None:
        self._left = len(futures)
        self._last = time.perf_counter()
        self._changed = threading.Condition()
        for future in futures:
            future.add_done_callback(self._completed)

    def last(self) -> float | None:
        """The time of the last one. None if one does not tell."""
        with self._changed:
            return self._last if self._changed.wait_for(lambda: not self._left, _CALLBACKS) else None

    def _completed(self, _: Any) -> None:
        now = time.perf_counter()
        with self._changed:
            self._left -= 1
            self._last = max(self._last, now)
            self._changed.notify()


class _DeviceClock:
    def __init__(self, device: torch.device, *, ordered: bool) -> None:
        """`ordered`: wait() of a handle orders the current stream, and does not block the host as gloo's does."""
        self._device, self._side, self._ordered = device, torch.Stream(device=device), ordered
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

    def mark_completion(self, name: str, handle: Waitable) -> None:
        operations = _operations(handle)
        if operations is None or not self._ordered:
            return
        with self._side:  # only this stream waits
            for operation in operations:
                operation.wait()
            self.mark(name)

    def end(self) -> Marks:
        self.mark("end")
        self.finish()
        start = self._events.pop("start")
        return {name: 1e-3 * start.elapsed_time(event) for name, event in self._events.items()}


def _operations(handle: Waitable) -> list[dist.Work | torch.futures.Future[Any]] | None:
    """Returns the works and futures that a handle waits for. None if it waits for something else."""
    if isinstance(handle, (dist.Work, torch.futures.Future)):
        return [handle]
    if not isinstance(handle, InFlight):
        return None
    found: list[dist.Work | torch.futures.Future[Any]] = []
    for part in handle.works:
        operations = _operations(part)
        if operations is None:
            return None
        found += operations
    return found


def _futures(handle: Waitable) -> list[torch.futures.Future[Any]] | None:
    """Returns the futures of the operations that a handle waits for. None if one has no future."""
    operations = _operations(handle)
    if operations is None:
        return None
    try:
        return [each.get_future() if isinstance(each, dist.Work) else each for each in operations]
    except RuntimeError:  # some works of gloo have none
        return None
