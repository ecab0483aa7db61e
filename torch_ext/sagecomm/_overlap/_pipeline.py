"""Loops in which one item is communicated while the next one is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from sagecomm._overlap._in_flight import Waitable

Item = TypeVar("Item")
Value = TypeVar("Value")


def pipeline(
    items: Iterable[Item],
    compute: Callable[[Item], Value],
    communicate: Callable[[Value], Waitable | None],
    *,
    depth: int = 2,
) -> Iterator[Value]:
    """Yields compute(item) of each item, in order, when its communication is complete.

    The communication of an item goes on while the next ones are computed, and while the caller uses the ones before it.
    Pipelines can be chained: the items of one may be the results of another, and then both alternate.

        for gradient in pipeline(layers, backward_of, lambda g: dist.all_reduce(g, async_op=True)):
            apply(gradient)

    Args:
        items: The same number on all ranks.
        compute: Returns what is communicated.
        communicate: Starts the communication and returns what to wait for: a Work, a Future, an InFlight. None: there
            is nothing to wait for.
        depth: The most items that are computed and not yet yielded. A compute function that writes into the buffers of
            a DoubleBuffer needs at least as many buffers.

    Raises:
        ValueError: The depth is not positive.
    """
    if depth < 1:
        raise ValueError(f"sagecomm: pipeline: depth={depth}: expected a whole number from 1")
    return _pipeline(items, compute, communicate, depth)


def _pipeline(
    items: Iterable[Item],
    compute: Callable[[Item], Value],
    communicate: Callable[[Value], Waitable | None],
    depth: int,
) -> Iterator[Value]:
    started: deque[tuple[Value, Waitable | None]] = deque()
    for item in items:
        value = compute(item)
        started.append((value, communicate(value)))
        if len(started) == depth:
            yield _taken(started)
    while started:
        yield _taken(started)


def _taken(started: deque[tuple[Value, Waitable | None]]) -> Value:
    value, work = started.popleft()
    if work is not None:
        work.wait()
    return value


class DoubleBuffer:
    """Buffers that take turns: one is computed into while the others are communicated.

        buffers = DoubleBuffer((1024,))
        for item in items:
            buffer = buffers.acquire()                  # waits for the communication that used it before
            torch.mul(item, 2, out=buffer)
            buffers.release(dist.all_reduce(buffer, async_op=True))
        buffers.wait()

    The contents of a buffer are those of its communication until it is acquired again, so they must be read before.

    Args:
        shape: Of each buffer.
        n: Number of buffers.
        dtype: Of the buffers; torch's default if None.
        device: Of the buffers; torch's default if None.

    Raises:
        ValueError: There is no buffer.
    """

    def __init__(
        self,
        shape: Sequence[int],
        n: int = 2,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"sagecomm: DoubleBuffer: n={n}: expected a whole number from 1")
        self.buffers = [torch.empty(tuple(shape), dtype=dtype, device=device) for _ in range(n)]
        self._works: list[Waitable | None] = [None] * n
        self._next = 0
        self._acquired = False

    def acquire(self) -> torch.Tensor:
        """Returns the next buffer, when the communication that used it is complete. Raises RuntimeError if the one
        before it was not released."""
        if self._acquired:
            raise RuntimeError("sagecomm: DoubleBuffer: release() the buffer before the next acquire()")
        self._wait(self._next)
        self._acquired = True
        return self.buffers[self._next]

    def release(self, work: Waitable | None) -> None:
        """Gives the acquired buffer to a communication that has been started. None: it is free at once. Raises
        RuntimeError if no buffer was acquired."""
        if not self._acquired:
            raise RuntimeError("sagecomm: DoubleBuffer: acquire() a buffer before release()")
        self._works[self._next] = work
        self._next = (self._next + 1) % len(self.buffers)
        self._acquired = False

    def wait(self) -> None:
        """Waits for the communication of all buffers, the oldest first."""
        for at in range(len(self.buffers)):
            self._wait((self._next + at) % len(self.buffers))

    def _wait(self, at: int) -> None:
        work = self._works[at]
        if work is not None:
            work.wait()
            self._works[at] = None
