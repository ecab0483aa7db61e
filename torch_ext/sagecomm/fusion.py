"""Explicit fusion: several all_reduces in one collective for each type.

On sagecomm the tensors are packed straight into the shared slots that the collective goes through, so no buffer in
between is allocated or filled. Other backends get torch's coalesced operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch.futures import Future

from sagecomm._groups import member
from sagecomm._reductions import Reduction
from sagecomm.backends.group import GroupBackend
from sagecomm.backends.protocol import CommBackendProtocol

__all__ = ["CommFusionBuffer", "fused_all_reduce"]


@overload
def fused_all_reduce(
    tensors: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    async_op: Literal[False] = ...,
) -> list[torch.Tensor]: ...
@overload
def fused_all_reduce(
    tensors: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    *,
    async_op: Literal[True],
) -> Future[list[torch.Tensor]]: ...
@overload
def fused_all_reduce(
    tensors: Sequence[torch.Tensor],
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    async_op: bool = ...,
) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
def fused_all_reduce(
    tensors: Sequence[torch.Tensor],
    op: Reduction = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
    """Reduces several tensors with one collective for each type and device among them.

    Args:
        tensors: Of any shapes, types and devices, the same on all ranks; strided ones and those without elements too.
            They are overwritten with the results, each reduced in its own type.
        op: The reduction: a name such as "sum", or a `torch.distributed.ReduceOp`.
        group: The process group; the default one if None.
        async_op: Return a `torch.futures.Future` whose `wait()` returns the tensors.

    Returns:
        The same tensors in the same order.

    Raises:
        ValueError: There is no group, or this rank is not in it; or there is no such reduction.
        RuntimeError: The type of a tensor does not have the reduction.
        CollectiveMismatch: Ranks passed other tensors.
    """
    backend: CommBackendProtocol = GroupBackend(member(group, "fused_all_reduce"))
    return backend.fused_all_reduce(tensors, op, async_op)


class CommFusionBuffer:
    """Collects tensors that are to be reduced, and reduces them together.

        buffer = sagecomm.CommFusionBuffer(max_size_mb=25)
        for parameter in model.parameters():
            buffer.add_tensor(parameter.grad)
            if buffer.full:
                buffer.flush_and_all_reduce(op="avg")
        buffer.flush_and_all_reduce(op="avg")

    It takes tensors of any type, device, shape and length, also longer ones than `max_size_mb`, and loses none. It
    holds references and no memory of its own: what counts is what the tensors contain when the buffer is flushed. All
    ranks add the same tensors in the same order, and flush after the same ones.

    Args:
        max_size_mb: MiB from which on the buffer is `full`.

    Raises:
        ValueError: `max_size_mb` is not above 0.
        TypeError: It is no number.
    """

    def __init__(self, max_size_mb: float = 100) -> None:
        if not isinstance(max_size_mb, (int, float)):
            raise TypeError(
                f"sagecomm: CommFusionBuffer: max_size_mb must be a number, got {type(max_size_mb).__name__}"
            )
        if not max_size_mb > 0:
            raise ValueError(f"sagecomm: CommFusionBuffer: max_size_mb must be above 0, got {max_size_mb!r}")
        self._limit = max_size_mb * 1024 * 1024
        self._tensors: list[torch.Tensor] = []
        self._nbytes = 0

    def __len__(self) -> int:
        """The number of tensors that wait for a flush."""
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<CommFusionBuffer: {len(self)} tensors, {self._nbytes} of {self._limit:.0f} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that wait for a flush."""
        return self._nbytes

    @property
    def full(self) -> bool:
        """Whether the tensors have `max_size_mb` or more, so that it is time to flush."""
        return self._nbytes >= self._limit

    def add_tensor(self, tensor: torch.Tensor) -> bool:
        """Takes a tensor, which the next flush overwrites with the result.

        Returns:
            True: the buffer grows as needed, so it takes every tensor. Ask `full` when to flush.

        Raises:
            TypeError: It is no tensor.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"sagecomm: CommFusionBuffer: expected a tensor, got {type(tensor).__name__}")
        self._tensors.append(tensor)
        self._nbytes += tensor.nbytes
        return True

    @overload
    def flush_and_all_reduce(
        self,
        backend: CommBackendProtocol | dist.ProcessGroup | None = ...,
        op: Reduction = ...,
        async_op: Literal[False] = ...,
    ) -> list[torch.Tensor]: ...
    @overload
    def flush_and_all_reduce(
        self,
        backend: CommBackendProtocol | dist.ProcessGroup | None = ...,
        op: Reduction = ...,
        *,
        async_op: Literal[True],
    ) -> Future[list[torch.Tensor]]: ...
    @overload
    def flush_and_all_reduce(
        self,
        backend: CommBackendProtocol | dist.ProcessGroup | None = ...,
        op: Reduction = ...,
        async_op: bool = ...,
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
    def flush_and_all_reduce(
        self,
        backend: CommBackendProtocol | dist.ProcessGroup | None = None,
        op: Reduction = "sum",
        async_op: bool = False,
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
        """Reduces the tensors with one collective for each type and device among them, and empties the buffer.

        If that raises, the buffer keeps the tensors.

        Args:
            backend: A communication backend or a process group; the default group if None.
            op: The reduction.
            async_op: Return a future. The buffer is empty at once and may be filled again.

        Returns:
            The tensors in the order in which they were added, with the results.
        """
        if not isinstance(backend, CommBackendProtocol):
            backend = GroupBackend(member(backend, "flush_and_all_reduce"))
        reduced = backend.fused_all_reduce(self._tensors, op, async_op)
        self.reset()
        return reduced

    def reset(self) -> None:
        """Forgets the tensors that wait for a flush. They stay as they are."""
        self._tensors = []
        self._nbytes = 0
