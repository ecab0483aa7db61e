"""What every communication backend offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch.futures import Future

from sagecomm._reductions import Reduction

__all__ = ["CommBackendProtocol", "CommOp"]


class CommOp(str, Enum):
    """Names of operations, as statistics and `sagecomm.explain` have them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    RECV = "recv"
    BARRIER = "barrier"


class CommBackendProtocol(ABC):
    """The operations of one process group. `sagecomm.create_comm_backend` returns one.

    Every rank of the group makes the same calls in the same order. Ranks in arguments (`src`, `dst`) count within the
    group, from 0 to `world_size - 1`.

    A reduction `op` is "sum", "avg", "prod", "min", "max", "band", "bor" or "bxor", or a `torch.distributed.ReduceOp`.
    A reduction that the type of the tensor does not have is refused.

    With `async_op=True` a call returns a `torch.futures.Future` at once. Its `wait()` returns what the call returns
    otherwise; until then the tensors must not be touched. On an accelerator `wait()` orders the current stream behind
    the operation and does not block the host.

    Autograd does not record these operations: `sagecomm.autograd` has forms with gradients.
    """

    @property
    @abstractmethod
    def group(self) -> dist.ProcessGroup:
        """The process group, for `torch.distributed` and for `sagecomm.explain`."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Of this process in the group."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of ranks of the group."""

    @overload
    def all_reduce(self, tensor: torch.Tensor, op: Reduction = ..., async_op: Literal[False] = ...) -> torch.Tensor: ...
    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: Reduction = ..., *, async_op: Literal[True]
    ) -> Future[torch.Tensor]: ...
    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: Reduction = ..., async_op: bool = ...
    ) -> torch.Tensor | Future[torch.Tensor]: ...
    @abstractmethod
    def all_reduce(
        self, tensor: torch.Tensor, op: Reduction = "sum", async_op: bool = False
    ) -> torch.Tensor | Future[torch.Tensor]:
        """Combines the tensors of all ranks element by element.

        Args:
            tensor: Of the same shape and type on all ranks. Every rank's tensor is overwritten with the result.
            op: The reduction.
            async_op: Return a future.

        Returns:
            `tensor`.
        """

    @overload
    def all_gather(
        self, tensor: torch.Tensor, output: torch.Tensor | None = ..., async_op: Literal[False] = ...
    ) -> torch.Tensor: ...
    @overload
    def all_gather(
        self, tensor: torch.Tensor, output: torch.Tensor | None = ..., *, async_op: Literal[True]
    ) -> Future[torch.Tensor]: ...
    @overload
    def all_gather(
        self, tensor: torch.Tensor, output: torch.Tensor | None = ..., async_op: bool = ...
    ) -> torch.Tensor | Future[torch.Tensor]: ...
    @abstractmethod
    def all_gather(
        self, tensor: torch.Tensor, output: torch.Tensor | None = None, async_op: bool = False
    ) -> torch.Tensor | Future[torch.Tensor]:
        """Puts the tensors of all ranks one behind the other, in the order of ranks.

        Args:
            tensor: Of the same shape and type on all ranks.
            output: Where the result goes, of shape `[world_size * d0, d1, ...]` or `[world_size, d0, d1, ...]` for a
                tensor of shape `[d0, d1, ...]`. None: a new tensor of the first shape; `[world_size]` for a tensor
                without dimensions.
            async_op: Return a future.

        Returns:
            `output`, or the new tensor.

        Raises:
            ValueError: `output` has another shape, type or device.
        """

    @overload
    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        op: Reduction = ...,
        async_op: Literal[False] = ...,
        *,
        output: torch.Tensor | None = ...,
    ) -> torch.Tensor: ...
    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: Reduction = ..., *, async_op: Literal[True], output: torch.Tensor | None = ...
    ) -> Future[torch.Tensor]: ...
    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: Reduction = ..., async_op: bool = ..., *, output: torch.Tensor | None = ...
    ) -> torch.Tensor | Future[torch.Tensor]: ...
    @abstractmethod
    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        op: Reduction = "sum",
        async_op: bool = False,
        *,
        output: torch.Tensor | None = None,
    ) -> torch.Tensor | Future[torch.Tensor]:
        """Combines the tensors of all ranks and gives each rank one block of the result.

        Args:
            tensor: Of shape `[world_size * d0, d1, ...]`, the same on all ranks; block r is for rank r.
            op: The reduction.
            async_op: Return a future.
            output: Where this rank's block goes, of shape `[d0, d1, ...]`. None: a new tensor.

        Returns:
            `output`, or the new tensor.

        Raises:
            ValueError: The first dimension is no multiple of `world_size`, or `output` has another shape, type or
                device.
        """

    @overload
    def broadcast(self, tensor: torch.Tensor, src: int = ..., async_op: Literal[False] = ...) -> torch.Tensor: ...
    @overload
    def broadcast(self, tensor: torch.Tensor, src: int = ..., *, async_op: Literal[True]) -> Future[torch.Tensor]: ...
    @overload
    def broadcast(
        self, tensor: torch.Tensor, src: int = ..., async_op: bool = ...
    ) -> torch.Tensor | Future[torch.Tensor]: ...
    @abstractmethod
    def broadcast(
        self, tensor: torch.Tensor, src: int = 0, async_op: bool = False
    ) -> torch.Tensor | Future[torch.Tensor]:
        """Copies the tensor of rank `src` to all ranks.

        Args:
            tensor: Of the same shape and type on all ranks; overwritten on all but `src`.
            src: The rank whose tensor is copied.
            async_op: Return a future.

        Returns:
            `tensor`.
        """

    @overload
    def reduce(
        self, tensor: torch.Tensor, dst: int = ..., op: Reduction = ..., async_op: Literal[False] = ...
    ) -> torch.Tensor: ...
    @overload
    def reduce(
        self, tensor: torch.Tensor, dst: int = ..., op: Reduction = ..., *, async_op: Literal[True]
    ) -> Future[torch.Tensor]: ...
    @overload
    def reduce(
        self, tensor: torch.Tensor, dst: int = ..., op: Reduction = ..., async_op: bool = ...
    ) -> torch.Tensor | Future[torch.Tensor]: ...
    @abstractmethod
    def reduce(
        self, tensor: torch.Tensor, dst: int = 0, op: Reduction = "sum", async_op: bool = False
    ) -> torch.Tensor | Future[torch.Tensor]:
        """Combines the tensors of all ranks on rank `dst`.

        Args:
            tensor: Of the same shape and type on all ranks. That of `dst` is overwritten with the result; what is in
                those of the others afterwards depends on the backend.
            dst: The rank that gets the result.
            op: The reduction.
            async_op: Return a future.

        Returns:
            `tensor`.
        """

    @overload
    def all_to_all(
        self,
        send_list: Sequence[torch.Tensor],
        recv_list: Sequence[torch.Tensor] | None = ...,
        async_op: Literal[False] = ...,
    ) -> list[torch.Tensor]: ...
    @overload
    def all_to_all(
        self,
        send_list: Sequence[torch.Tensor],
        recv_list: Sequence[torch.Tensor] | None = ...,
        *,
        async_op: Literal[True],
    ) -> Future[list[torch.Tensor]]: ...
    @overload
    def all_to_all(
        self, send_list: Sequence[torch.Tensor], recv_list: Sequence[torch.Tensor] | None = ..., async_op: bool = ...
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
    @abstractmethod
    def all_to_all(
        self,
        send_list: Sequence[torch.Tensor],
        recv_list: Sequence[torch.Tensor] | None = None,
        async_op: bool = False,
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
        """Sends one tensor to each rank and receives one from each.

        Args:
            send_list: `world_size` tensors of one type; tensor r goes to rank r.
            recv_list: Where tensor r of rank r goes. None: new tensors with the shapes of `send_list`, for ranks that
                receive as much from each other as they send.
            async_op: Return a future.

        Returns:
            `recv_list` as a list, or the new tensors.

        Raises:
            ValueError: A list has not `world_size` tensors.
        """

    @overload
    def fused_all_reduce(
        self, tensors: Sequence[torch.Tensor], op: Reduction = ..., async_op: Literal[False] = ...
    ) -> list[torch.Tensor]: ...
    @overload
    def fused_all_reduce(
        self, tensors: Sequence[torch.Tensor], op: Reduction = ..., *, async_op: Literal[True]
    ) -> Future[list[torch.Tensor]]: ...
    @overload
    def fused_all_reduce(
        self, tensors: Sequence[torch.Tensor], op: Reduction = ..., async_op: bool = ...
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]: ...
    @abstractmethod
    def fused_all_reduce(
        self, tensors: Sequence[torch.Tensor], op: Reduction = "sum", async_op: bool = False
    ) -> list[torch.Tensor] | Future[list[torch.Tensor]]:
        """Reduces several tensors with one collective for each type and device among them.

        Each tensor is reduced in its own type. The result is that of one all_reduce for each tensor, but for the
        rounding of floating-point sums, since a longer buffer may be reduced by another algorithm.

        Args:
            tensors: Of any shapes, types and devices, the same on all ranks. They are overwritten with the results.
            op: The reduction.
            async_op: Return a future.

        Returns:
            The same tensors in the same order.
        """

    @abstractmethod
    def send(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> None:
        """Sends a tensor to rank `dst`, which receives it with the same `tag`. Returns when it may be changed again."""

    @abstractmethod
    def recv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> torch.Tensor:
        """Receives into a tensor what rank `src` sends with the same `tag`. Returns `tensor`."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    @abstractmethod
    def get_stats(self) -> dict[str, Any]:
        """Returns statistics of this rank's operations.

        Returns:
            `all_reduce_count`; `total_bytes` of this rank's inputs (of reduce_scatter, of its block); `avg_latency_ms`
            of all operations; `ops`: count and bytes by operation; `rows`: one for each `op`, `dtype`, size class
            (`up_to` bytes, more than half of that), `algorithm`, `device`, `engine` and `transport`, with `count`,
            `bytes`, `fused` (operations that shared a collective) and times in us (`avg_us`, `max_us`). On sagecomm it
            is what `sagecomm.get_stats` returns for the group. Operations of other backends are counted if they were
            issued through this object; their `algorithm` is empty, and their times are those of the host.
        """
