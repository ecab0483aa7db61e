"""Results that are still being communicated, and a scope that waits for all of its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sagecomm._groups import member, rank_in_group
from sagecomm._reductions import Reduction
from sagecomm.backends.group import GroupBackend


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


class Pending:
    """What an operation of started_on() returns. It asks no Work for a future: that may wait a little, and the future's
    callback needs the GIL while the program computes.

    On a device one stream waits for it: what wait() launches after the works is ordered in that one.
    """

    def __init__(self, works: Sequence[dist.Work], value: Callable[[], object], _: Iterable[torch.device]) -> None:
        self.works = works
        self._value: Callable[[], object] | None = value

    def wait(self) -> None:
        """Waits for the works and finishes the result. Called again, it raises once more what a work has raised."""
        for work in self.works:
            work.wait()
        self.finish()

    def finish(self) -> None:
        """Divides sums of backends that have no averages, and copies results home, once. Requires: complete works."""
        if self._value is not None:
            self._value()
            self._value = None


def started_on(group: dist.ProcessGroup | None, call: str) -> GroupBackend:
    """Returns the operations of a group, of which asynchronous ones return Pending."""
    return GroupBackend(member(group, call), started=Pending)


class Overlap:
    """Starts operations that the scope of overlap() waits for.

    Attributes:
        group: The process group.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._backend = started_on(group, "overlap")
        self.group = self._backend.group
        self._pending: list[Waitable] = []

    def all_reduce(self, tensor: torch.Tensor, op: Reduction = dist.ReduceOp.SUM) -> torch.Tensor:
        """Starts to reduce a tensor in place over all ranks, and returns it. `op` is a name such as "sum", or a
        `torch.distributed.ReduceOp`."""
        self._pending.append(self._backend.all_reduce(tensor, op, async_op=True))
        return tensor

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Starts to send the tensor of the rank `src` of the job to all ranks, in place, and returns it."""
        source = rank_in_group(self.group, src, "overlap: broadcast")
        self._pending.append(self._backend.broadcast(tensor, source, async_op=True))
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Starts to gather the tensors of all ranks, and returns their concatenation along the first dimension."""
        out = tensor.new_empty((self.group.size() * _rows(tensor, "all_gather"), *tensor.shape[1:]))
        self._pending.append(self._backend.all_gather(tensor, out, async_op=True))
        return out

    def reduce_scatter(self, tensor: torch.Tensor, op: Reduction = dist.ReduceOp.SUM) -> torch.Tensor:
        """Starts to reduce a tensor over all ranks, and returns this rank's part of the result along the first
        dimension, which the number of ranks must divide."""
        out = tensor.new_empty((shared(_rows(tensor, "reduce_scatter"), self.group, "rows"), *tensor.shape[1:]))
        self._pending.append(self._backend.reduce_scatter(tensor, op, async_op=True, output=out))
        return out

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Starts to send equal parts of the tensor along the first dimension to the ranks, and returns theirs."""
        own = shared(_rows(tensor, "all_to_all"), self.group, "rows")
        out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        sent, received = (t.view(self.group.size(), own, *t.shape[1:]).unbind(0) for t in (tensor.contiguous(), out))
        self._pending.append(self._backend.all_to_all(sent, received, async_op=True))
        return out

    def wait(self) -> None:
        """Waits for all operations that were started until now."""
        for each in self._pending:
            each.wait()
        self._pending = []


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

    Raises:
        ValueError: There is no group, or this rank is not in it.
    """
    started = Overlap(group)
    yield started
    started.wait()


def _rows(tensor: torch.Tensor, call: str) -> int:
    if tensor.dim() == 0:
        raise ValueError(f"sagecomm: overlap: {call}: a tensor of shape [] has no first dimension: pass it as view(1)")
    return tensor.shape[0]


def issued(work: dist.Work | None) -> dist.Work:
    """Returns the work of an asynchronous operation. torch returns none only where the rank is not in the group."""
    assert work is not None
    return work


def shared(count: int, group: dist.ProcessGroup, what: str) -> int:
    """Returns a rank's part of a number of things. Raises ValueError if the number of ranks does not divide it."""
    size = group.size()
    if count % size:
        raise ValueError(f"sagecomm: {count} {what} among {size} ranks: the number of ranks must divide it")
    return count // size
