"""Communication hooks of DistributedDataParallel.

    model = DistributedDataParallel(module)
    model.register_comm_hook(None, sagecomm.ddp.chunked_hook(chunk_bytes=1 << 20))

The state, the first argument of register_comm_hook(), is the process group; None is the default one. All hooks average.
Annotations are no text here: DistributedDataParallel compares them with types.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sagecomm._overlap._gradients import BUCKET_BYTES, all_reduce_coalesced
from sagecomm._overlap._in_flight import issued

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
        buffer: torch.Tensor = bucket.buffer()
        chunks = torch.split(buffer, max(1, chunk_bytes // buffer.element_size()))
        works = [dist.all_reduce(c, dist.ReduceOp.AVG, state, async_op=True) for c in chunks]
        return _after([_future(work) for work in works], buffer)  # to ask for a future may wait a little

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
        buffer: torch.Tensor = bucket.buffer()
        future = _promise(buffer)
        waiting.append((buffer, future))
        if bucket.is_last() or sum(b.nbytes for b, _ in waiting) >= bucket_bytes:
            _reduce_together(list(waiting), state)
            waiting.clear()
        return future

    return hook


def bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that sends gradients as bfloat16, which halves the bytes of float32. Values of all ranks are added in
    float32 and rounded once."""
    buffer: torch.Tensor = bucket.buffer()
    short = buffer.to(torch.bfloat16)
    work = dist.all_reduce(short, dist.ReduceOp.AVG, state, async_op=True)

    def widen(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()  # raises what the operation raised
        buffer.copy_(short)
        return buffer

    return _future(work).then(widen)


def _reduce_together(
    waiting: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]], group: dist.ProcessGroup | None
) -> None:
    """One collective for each type and device; it completes the futures of its buckets."""
    together: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]]] = {}
    for buffer, future in waiting:
        together.setdefault((buffer.dtype, buffer.device), []).append((buffer, future))
    for pairs in together.values():
        work = all_reduce_coalesced([buffer for buffer, _ in pairs], dist.ReduceOp.AVG, group)

        def complete(done: torch.futures.Future[Any], pairs: Any = pairs) -> None:
            try:
                done.value()
            except Exception as error:
                for _, future in pairs:
                    future.set_exception(error)
            else:
                for buffer, future in pairs:
                    future.set_result(buffer)

        _future(work).add_done_callback(complete)


def _after(works: list[torch.futures.Future[Any]], buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Returns the future of a buffer whose parts are communicated.

    torch.futures.collect_all() would not do: its callback waits for no stream.
    """
    result, lock, open_ones = _promise(buffer), threading.Lock(), [len(works)]

    def complete(_: torch.futures.Future[Any]) -> None:
        with lock:
            open_ones[0] -= 1
            if open_ones[0] > 0:
                return
        try:
            for each in works:
                each.wait()  # all are done: it orders this thread's streams, and raises what the chunk raised
        except Exception as error:
            result.set_exception(error)  # type: ignore[arg-type]  # torch types it as a result
        else:
            result.set_result(buffer)

    for each in works:
        each.add_done_callback(complete)
    return result


def _promise(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=[buffer.device] if buffer.device.type != "cpu" else None)


def _future(work: dist.Work | None) -> torch.futures.Future[Any]:
    return issued(work).get_future()
