"""What tests of flight recorder dumps share: operations whose record is known, and readers of torch's dumps."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

bindings: Any = torch._C._distributed_c10d
with_recorder = pytest.mark.skipif(
    not hasattr(bindings, "_dump_fr_trace"), reason="this torch has no flight recorder for all backends"
)


def read(**how: Any) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(bindings._dump_fr_trace(**how))
    return dump


def read_json(**how: Any) -> dict[str, Any]:
    dump: dict[str, Any] = json.loads(bindings._dump_fr_trace_json(**how))
    return dump


def ours(dump: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in dump.get("entries", []) if entry["profiling_name"].startswith("c10d:")]


def names(dump: dict[str, Any]) -> list[str]:
    return [entry["profiling_name"].removeprefix("c10d:") for entry in ours(dump)]


def every_collective() -> None:
    t = torch.ones(3, 4)
    dist.all_reduce(t)
    dist.broadcast(t.to(torch.bfloat16), 1)
    dist.reduce(t.to(torch.int64), 0)
    dist.barrier()
    dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(5))
    dist.all_gather_into_tensor(torch.zeros(10, dtype=torch.uint8), torch.ones(5, dtype=torch.uint8))
    dist.all_reduce(torch.zeros(0))
    dist.reduce_scatter_tensor(torch.zeros(5), torch.ones(10))
    dist.all_to_all_single(torch.zeros(6), torch.ones(6))
    rank = dist.get_rank()
    dist.gather(torch.ones(4), [torch.zeros(4), torch.zeros(4)] if rank == 0 else None)
    dist.scatter(torch.ones(4), [torch.zeros(4), torch.zeros(4)] if rank == 0 else None)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4))
    work = dist.all_reduce(t.double(), op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()


# Name, sizes of the input, sizes of the output, type.
COLLECTIVES = [
    ("all_reduce", [[12]], [[12]], "Float"),
    ("broadcast", [[12]], [[12]], "BFloat16"),
    ("reduce", [[12]], [[12]], "Long"),
    ("barrier", [], [], ""),
    ("all_gather", [[5]], [[10]], "Float"),
    ("all_gather", [[5]], [[10]], "Byte"),
    ("all_reduce", [[0]], [[0]], "Float"),
    ("reduce_scatter", [[10]], [[5]], "Float"),
    ("all_to_all", [[0]], [[0]], "Float"),  # there is no length that all ranks have
    ("gather", [[4]], [[8]], "Float"),
    ("scatter", [[8]], [[4]], "Float"),
    ("all_reduce", [[7]], [[7]], "Float"),
    ("all_reduce", [[12]], [[12]], "Double"),
]


def send_and_receive() -> dict[str, Any]:
    rank, t = dist.get_rank(), torch.arange(6, dtype=torch.int16)
    dist.barrier()
    if rank == 0:
        dist.send(t, 1, tag=3)
        dist.recv(t[:2])
    else:
        dist.recv(t, 0, tag=3)
        dist.send(t[:2], 0)
    dist.barrier()
    return read()
