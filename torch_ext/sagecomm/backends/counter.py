"""Statistics of operations that the core does not see: those of torch's own backends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sagecomm.backends.protocol import CommOp


@dataclass
class _Row:
    count: int = 0
    bytes: int = 0
    fused: int = 0  # operations that shared a collective with others
    seconds: float = 0.0
    longest: float = 0.0


class Counter:
    """Counts operations that have succeeded, by what the rows of `sagecomm.get_stats` are told apart by.

    Times run from the call to the completion as this process sees it: on an accelerator that is when the operation was
    enqueued. Which algorithm a backend uses is its own affair, so `algorithm` and `transport` are empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # works complete on threads of their backend
        self._rows: dict[tuple[str, str, int, str, str], _Row] = {}

    def begin(self, op: CommOp, backend: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Returns the function that counts the operation: its caller calls it when the operation is complete.

        Requires: `tensors`, if there are any, have one type and one device.
        """
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        device = tensors[0].device.type if tensors else "cpu"
        length = sum(tensor.nbytes for tensor in tensors)
        key = (op.value, dtype, _size_class(length), device, backend)
        fused = len(tensors) if op is CommOp.ALL_REDUCE and len(tensors) > 1 else 0
        began = time.perf_counter()

        def complete() -> None:
            took = time.perf_counter() - began
            with self._lock:
                row = self._rows.setdefault(key, _Row())
                row.count += 1
                row.bytes += length
                row.fused += fused
                row.seconds += took
                row.longest = max(row.longest, took)

        return complete

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {
                    "op": op,
                    "dtype": dtype,
                    "up_to": up_to,
                    "algorithm": "",
                    "device": device,
                    "engine": engine,
                    "transport": "",
                    "count": row.count,
                    "bytes": row.bytes,
                    "fused": row.fused,
                    "avg_us": row.seconds / row.count * 1e6,
                    "max_us": row.longest * 1e6,
                }
                for (op, dtype, up_to, device, engine), row in sorted(self._rows.items())
            ]


def _size_class(length: int) -> int:
    """Returns the least power of two that is not below the length, 1 for nothing."""
    return 1 << max(length - 1, 0).bit_length()


def summary(core: dict[str, Any] | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the core's statistics, if there are any, with rows of a Counter."""
    stats: dict[str, Any] = {"all_reduce_count": 0, "total_bytes": 0, "avg_latency_ms": 0.0, "ops": {}, "rows": []}
    stats.update(core or {})
    if not rows:
        return stats
    ops: dict[str, dict[str, int]] = stats["ops"]
    count = sum(op["count"] for op in ops.values())
    ms = stats["avg_latency_ms"] * count
    for row in rows:
        op = ops.setdefault(row["op"], {"count": 0, "bytes": 0})
        op["count"] += row["count"]
        op["bytes"] += row["bytes"]
        count += row["count"]
        ms += row["avg_us"] * row["count"] / 1000
        stats["total_bytes"] += row["bytes"]
    stats["all_reduce_count"] = ops.get("all_reduce", {"count": 0})["count"]
    stats["avg_latency_ms"] = ms / count
    stats["rows"] = [*stats["rows"], *rows]
    return stats
