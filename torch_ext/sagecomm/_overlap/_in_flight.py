"""Results that are still being communicated, and a scope that waits for all of its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sagecomm._groups import member


class Waitable(Protocol):
    """What an asynchronous operation returns: a Work of torch.distributed, a Future, an InFlight."""

    def wait(self) -> Any: ...


class InFlight:
    """A tensor whose communication has begun. `wait()` returns it.

    Nothing may read or write the tensor before. On a device, wait() orders the current stream behind the communication
    and does not block the host.

    What communicates in slices or chunks returns it, and not a Future as fused_all_reduce() does: a Future has
    callbacks, and for them asks every slice for a future of its own, which takes time and lets another thread complete
    the slice.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        works: Sequence[Waitable],
        finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`finish` is applied to the tensor once, after the works."""
        self._tensor, self._works, self._finish = tensor, works, finish
        self._finished: torch.Event | None = None  # behind what `finish` has launched on a device

    @property
    def works(self) -> tuple[Waitable, ...]:
        """The operations that wait() waits for. What completes the tensor behind them is not among them."""
        return tuple(self._works)

    def wait(self) -> torch.Tensor:
        """Waits for the communication and returns the tensor. Called again, it returns the same tensor, or raises once
        more what the operation raised."""
        for work in self._works:  # each call orders the stream that is current
            work.wait()
        device = self._tensor.device
        if self._finish is not None:
            self._tensor, self._finish = self._finish(self._tensor), None
            if device.type != "cpu":
                self._finished = torch.Event(device)
                self._finished.record(torch.accelerator.current_stream(device))
        elif self._finished is not None:
            torch.accelerator.current_stream(device).wait_event(self._finished)
        return self._tensor


class Overlap:
    """Starts operations that the scope of overlap() waits for."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self._works: list[dist.Work] = []

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Starts to reduce a tensor in place over all ranks, and returns it."""
        self._keep(dist.all_reduce(tensor, op, self.group, async_op=True))
        return tensor

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Starts to send the tensor of the rank `src` of the job to all ranks, in place, and returns it."""
        self._keep(dist.broadcast(tensor, src, self.group, async_op=True))
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Starts to gather the tensors of all ranks, and returns their concatenation along the first dimension."""
        size = dist.get_world_size(self.group)
        out = tensor.new_empty((size * tensor.shape[0], *tensor.shape[1:]))
        self._keep(dist.all_gather_into_tensor(out, tensor.contiguous(), self.group, async_op=True))
        return out

    def reduce_scatter(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Starts to reduce a tensor over all ranks, and returns this rank's part of the result along the first
        dimension, which the number of ranks must divide."""
        out = tensor.new_empty((shared(tensor.shape[0], self.group, "rows"), *tensor.shape[1:]))
        self._keep(dist.reduce_scatter_tensor(out, tensor.contiguous(), op, self.group, async_op=True))
        return out

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Starts to send equal parts of the tensor along the first dimension to the ranks, and returns theirs."""
        shared(tensor.shape[0], self.group, "rows")
        out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._keep(dist.all_to_all_single(out, tensor.contiguous(), group=self.group, async_op=True))
        return out

    def wait(self) -> None:
        """Waits for all operations that were started until now."""
        for work in self._works:
            work.wait()
        self._works = []

    def _keep(self, work: dist.Work | None) -> None:
        self._works.append(issued(work))


@contextmanager
def overlap(group: dist.ProcessGroup | None = None) -> Iterator[Overlap]:
    """A scope in which communication goes on while the program computes; its end waits for all of it.

        with sagecomm.overlap(group) as ov:
            ov.all_reduce(gradient)
            prepare_next_layer()        # must not touch the gradient
        gradient.mul_(0.5)

    If the body raises, the scope does not wait: peers may have failed as well, and the exception would be late. Its
    tensors may still be written to then.

    Args:
        group: The process group; the default one if None.
    """
    started = Overlap(group)
    yield started
    started.wait()


def issued(work: dist.Work | None) -> dist.Work:
    """Returns the work of an asynchronous operation. Raises ValueError if there is none, since this rank is not in the
    group."""
    if work is None:
        raise ValueError("sagecomm: this rank is not in the group")
    return work


def shared(count: int, group: dist.ProcessGroup | None, what: str) -> int:
    """Returns a rank's part of a number of things. Raises ValueError if the number of ranks does not divide it."""
    size = dist.get_world_size(member(group, "overlap"))
    if count % size:
        raise ValueError(f"sagecomm: {count} {what} among {size} ranks: the number of ranks must divide it")
    return count // size
