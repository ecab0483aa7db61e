"""Collectives of gradients and other large tensors: in chunks, and many in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, overload

import torch
import torch.distributed as dist

from sagecomm._overlap._in_flight import InFlight, Pending, started_on
from sagecomm._reductions import Reduction, reduce_op

BUCKET_BYTES = 25 << 20
"""Of a bucket of gradients: the default of DistributedDataParallel."""

Producer = Callable[[torch.Tensor, int], object]


@overload
def chunked_all_reduce(
    tensor: torch.Tensor,
    *,
    chunk_bytes: int,
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    produce: Producer | None = ...,
    async_op: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def chunked_all_reduce(
    tensor: torch.Tensor,
    *,
    chunk_bytes: int,
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    produce: Producer | None = ...,
    async_op: Literal[True],
) -> InFlight: ...
@overload
def chunked_all_reduce(
    tensor: torch.Tensor,
    *,
    chunk_bytes: int,
    op: Reduction = ...,
    group: dist.ProcessGroup | None = ...,
    produce: Producer | None = ...,
    async_op: bool = ...,
) -> torch.Tensor | InFlight: ...
def chunked_all_reduce(
    tensor: torch.Tensor,
    *,
    chunk_bytes: int,
    op: Reduction = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    produce: Producer | None = None,
    async_op: bool = False,
) -> torch.Tensor | InFlight:
    """Reduces a tensor over all ranks in place, in chunks that are in flight at the same time.

    One chunk is as fast where nothing is computed meanwhile. Chunks pay if they are produced one after the other: chunk
    k is communicated while `produce` computes chunk k+1.

    Args:
        tensor: Of the same shape and type on all ranks.
        chunk_bytes: The length of a chunk, the same on all ranks; the last one may be shorter.
        op: The reduction: a name such as "sum", or a `torch.distributed.ReduceOp`. "avg" divides by the number of
            ranks.
        group: The process group; the default one if None.
        produce: Called as produce(chunk, at) for each chunk before it is sent, with the chunk as a flat view of the
            tensor's elements and the number of the first one. The tensor must be contiguous then.
        async_op: Return at once; wait() of the result returns the tensor.

    Raises:
        ValueError: A chunk has no bytes, the tensor of a producer is not contiguous, there is no such reduction, or
            this rank is not in the group.
    """
    backend, reduction = started_on(group, "chunked_all_reduce"), reduce_op(op, "chunked_all_reduce")
    if chunk_bytes < 1:
        raise ValueError(f"sagecomm: chunk_bytes={chunk_bytes}: expected a whole number from 1")
    if produce is not None and not tensor.is_contiguous():
        raise ValueError("sagecomm: chunked_all_reduce: the tensor of a producer must be contiguous")
    flat = tensor.detach().contiguous().view(-1)
    count = max(1, chunk_bytes // tensor.element_size())
    chunks: list[Pending] = []
    for at in range(0, flat.numel(), count):
        chunk = flat[at : at + count]
        if produce is not None:
            produce(chunk, at)
        chunks.append(backend.all_reduce(chunk, reduction, async_op=True))

    def finish(reduced: torch.Tensor) -> torch.Tensor:
        for each in chunks:
            each.finish()
        if flat.data_ptr() != reduced.data_ptr():
            reduced.detach().copy_(flat.view(reduced.shape))
        return reduced

    started = InFlight(tensor, [work for each in chunks for work in each.works], finish)
    return started if async_op else started.wait()


def fused_allreduce_gradients(
    parameters: Iterable[torch.nn.Parameter],
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
) -> int:
    """Reduces the gradients of parameters over all ranks in place, one collective for each bucket.

    Gradients of a bucket have one type and device. Nothing is copied to join them: sagecomm packs a coalesced
    all_reduce into its slots.

    Args:
        parameters: In the same order on all ranks, and with gradients for the same ones. Those without are left out.
        group: The process group; the default one if None.
        average: Average the gradients; otherwise add them up.
        bucket_bytes: A bucket is closed when it has so many bytes.

    Returns:
        The number of collectives.

    Raises:
        ValueError: A gradient is sparse, or this rank is not in the group. Nothing was reduced then.
    """
    backend = started_on(group, "fused_allreduce_gradients")
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        check_dense(gradient, "fused_allreduce_gradients")
    op = "avg" if average else "sum"
    works = [backend.fused_all_reduce(bucket, op, async_op=True) for bucket in _buckets(gradients, bucket_bytes)]
    for work in works:
        work.wait()
    return len(works)


def check_dense(gradient: torch.Tensor, call: str) -> None:
    """Raises ValueError for a sparse gradient."""
    if gradient.layout != torch.strided:
        raise ValueError(f"sagecomm: {call}: a gradient has the layout {gradient.layout}; only dense ones are reduced")


def _buckets(tensors: list[torch.Tensor], bucket_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Yields tensors of one type and device in their order, as many together as a bucket holds."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        bucket = open_ones.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(t.nbytes for t in bucket) >= bucket_bytes:
            yield open_ones.pop((tensor.dtype, tensor.device))
    yield from open_ones.values()
