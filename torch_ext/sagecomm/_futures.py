"""Futures of collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class CommFuture(torch.futures.Future[T]):
    """The value of one or several works, once all of them are complete, or on a device ordered on its streams.

    It is a future of torch's, so `then`, `add_done_callback` and `torch.futures.collect_all` work as they do elsewhere.
    `wait` waits for the works themselves first: a waiter of sagecomm's carries its operation out instead of sleeping
    until another thread has done so, and an operation that fails raises the work's own exception.

    Comm backends and fused_all_reduce() return it, and not an InFlight as sliced operators do, because their callers
    expect a Future: one with callbacks, for hooks of DistributedDataParallel and torch.futures.

    Args:
        works: Of one group. A work may be waited for on any thread.
        value: Called once, when all works have succeeded, on the thread that completes the last one; on a device, where
            streams wait in place of the host, by the constructor. There the stream of a callback is the current one. It
            must not hold the last reference to a group.
        devices: Of the tensors of the value. On accelerators `wait` orders the current stream behind them and does
            not block the host.
    """

    def __init__(self, works: Sequence[dist.Work], value: Callable[[], T], devices: Iterable[torch.device]) -> None:
        super().__init__(devices=sorted({device for device in devices if device.type != "cpu"}, key=str))
        self._works = works
        self._futures: list[Any] = [work.get_future() for work in works]
        self._value = value
        self._lock = threading.Lock()
        self._left = len(works)
        if not works:
            self.set_result(value())
        for future in self._futures:
            future.add_done_callback(self._completed)

    def wait(self) -> T:
        """Returns the value. Raises what an operation failed with."""
        for work in self._works:
            work.wait()
        return super().wait()

    def _completed(self, _: Any) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if not last:
            return
        try:
            for future in self._futures:
                future.wait()  # complete: raises its error, or orders the current stream behind its outputs
            self.set_result(self._value())
        except Exception as error:
            self.set_exception(error)  # type: ignore[arg-type]  # torch's types name the wrong one
