"""The work of an irecv into a tensor that its backend cannot write."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from sagecomm._futures import CommFuture
from sagecomm.backends import placing


class Receiving(dist.Work):
    """Receives into `target`. What came is copied home when its receiver waits for it or learns that it is there."""

    def __init__(self, work: dist.Work, target: torch.Tensor, home: torch.Tensor) -> None:
        super().__init__()
        self._work, self._target, self._home = work, target, home
        self._at_home = False
        self._copied: torch.Event | None = None  # behind the copy, on a device

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        succeeded = self._work.wait(timeout)
        self._take_back()
        return succeeded

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        if self._work.is_success():
            self._take_back()
        return True

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def source_rank(self) -> int:
        return self._work._source_rank()

    def get_future(self) -> Future[Any]:
        return CommFuture([self._work], self._received, [self._home.device])

    def _received(self) -> list[torch.Tensor]:
        self._take_back()
        return [self._home]

    def _take_back(self) -> None:
        """Copies in the current stream, or makes it wait for the copy."""
        if not self._at_home:
            placing.take_back(self._target, self._home)
            self._at_home = True
            if self._home.device.type != "cpu":
                self._copied = torch.Event(self._home.device)
                self._copied.record()
        elif self._copied is not None:
            self._copied.wait()
