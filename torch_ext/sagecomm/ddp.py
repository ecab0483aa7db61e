"""Communication hooks of DistributedDataParallel.

    model = DistributedDataParallel(module)
    model.register_comm_hook(None, sagecomm.ddp.chunked_hook(chunk_bytes=1 << 20))

The state, the first argument of register_comm_hook(), is the process group; None is the default one. All hooks average,
and refuse sparse gradients before they have sent anything of the bucket.
Annotations are no text here: DistributedDataParallel compares them with types.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sagecomm._futures import CommFuture
from sagecomm._groups import member
from sagecomm._overlap._gradients import BUCKET_BYTES, check_dense
from sagecomm._overlap._in_flight import started_on
from sagecomm.backends.group import GroupBackend

__all__ = ["bf16_hook", "chunked_hook", "fused_hook"]

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def chunked_hook(*, chunk_bytes: int) -> Hook:
    """Returns a hook that reduces a bucket in chunks which are in flight at the same time.

    Args:
        chunk_bytes: The length of a chunk, the same on all ranks; the last one of a bucket may be shorter.

    Raises:
        ValueError: A chunk has no bytes.
    """
    if chunk_bytes < 1:
        raise ValueError(f"sagecomm: chunk_bytes={chunk_bytes}: expected a whole number from 1")

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = _dense(bucket, "chunked_hook")
        chunks = torch.split(buffer, max(1, chunk_bytes // buffer.element_size()))
        backend = started_on(state, "ddp.chunked_hook")
        started = [backend.all_reduce(chunk, "avg", async_op=True) for chunk in chunks]

        def reduced() -> torch.Tensor:
            for each in started:
                each.finish()
            return buffer

        # All chunks are on their way when the first one is asked for its future, which may wait a little.
        return CommFuture([work for each in started for work in each.works], reduced, [buffer.device])

    return hook


def fused_hook(*, bucket_bytes: int = BUCKET_BYTES) -> Hook:
    """Returns a hook that reduces consecutive buckets as one collective, which is for models of many small buckets.

    A collective is started when the buckets that wait for it have `bucket_bytes`, and with the last bucket. The hook
    belongs to one model.

    Args:
        bucket_bytes: Of the buckets of a collective, the same on all ranks.
    """
    waiting: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            waiting.clear()  # of a backward() that raised
        buffer = _dense(bucket, "fused_hook")
        future: torch.futures.Future[torch.Tensor]
        future = torch.futures.Future(devices=[buffer.device] if buffer.device.type != "cpu" else None)
        waiting.append((buffer, future))
        if bucket.is_last() or sum(b.nbytes for b, _ in waiting) >= bucket_bytes:
            together = list(waiting)
            waiting.clear()
            _reduce_together(together, state)
        return future

    return hook


def bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that sends gradients as bfloat16, which halves the bytes of float32. On the CPU and with the engines
    `cuda` and `staged`, values of all ranks are added in float32 and rounded once; with `nccl`, `hccl` and `cncl`, the
    vendor's library adds and rounds as it does. The real and the imaginary part of a complex gradient are sent as
    bfloat16 each."""
    buffer = _dense(bucket, "bf16_hook")
    wide = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    short = wide.to(torch.bfloat16)
    sent = GroupBackend(member(state, "ddp.bf16_hook")).all_reduce(short, "avg", async_op=True)

    def widen(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()  # raises what the operation raised
        wide.copy_(short)
        return buffer

    widened: torch.futures.Future[torch.Tensor] = sent.then(widen)
    return widened


def _reduce_together(
    waiting: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]], group: dist.ProcessGroup | None
) -> None:
    """Starts one collective for each type and device, and completes the futures of the buckets when all are done."""
    backend = GroupBackend(member(group, "ddp.fused_hook"))

    def complete(done: torch.futures.Future[Any]) -> None:
        try:
            done.value()
        except Exception as error:
            for _, future in waiting:
                future.set_exception(error)  # type: ignore[arg-type]  # torch types it as a result
        else:
            for buffer, future in waiting:
                future.set_result(buffer)

    backend.fused_all_reduce([buffer for buffer, _ in waiting], "avg", async_op=True).add_done_callback(complete)


def _dense(bucket: GradBucket, hook: str) -> torch.Tensor:
    """Returns the gradients of a bucket. Raises ValueError if they are sparse."""
    buffer: torch.Tensor = bucket.buffer()
    check_dense(buffer, f"ddp.{hook}")
    return buffer
