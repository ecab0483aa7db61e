"""The arguments with which the engine nccl calls the library: buffers, communicator and stream of each call, beside the
counts, types and roots of test_nccl_engine.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import sagecomm
from cuda_bed import CudaBed
from device_nccl import join_group

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA"),
]

FLOAT = 4  # bytes
SUM, MAX, PREMUL = 0, 2, 5  # nccl.h; the first reduction that a program makes comes behind its own
OF_FLOAT, HOST = 7, 1  # ncclFloat32, ncclScalarHostImmediate


def recorded(rank: int, size: int, store: str) -> dict[str, int]:
    """Calls each function once, and returns where the tensors are."""
    join_group(rank, size, store)
    on = torch.device("cuda", rank)
    x, all_of_x, part, swapped = (torch.ones(n, device=on) for n in (6, 12, 3, 6))
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_gather_into_tensor(all_of_x, x)
    dist.reduce_scatter_tensor(part, x)
    dist.all_to_all_single(swapped, x)
    torch.cuda.synchronize()
    places = {"x": x, "all": all_of_x, "part": part, "swapped": swapped}
    dist.destroy_process_group()
    sagecomm._C.shutdown()  # it waits for the ends of communicators, as the end of a user's process does
    return {name: tensor.data_ptr() for name, tensor in places.items()}


def expected(rank: int, at: dict[str, int]) -> list[tuple[str, int, int, int, int, int, int]]:
    """Name, input, output, count, type, reduction and root or peer; 0 for what a function does not take."""
    x, swapped, half = at["x"], at["swapped"], 3 * FLOAT
    exchange = [
        ("ncclSend", x + half * peer, 0, 3, OF_FLOAT, SUM, peer) for peer in range(2)
    ] + [("ncclRecv", 0, swapped + half * peer, 3, OF_FLOAT, SUM, peer) for peer in range(2)]  # fmt: skip
    return [
        ("ncclAllReduce", x, x, 6, OF_FLOAT, MAX, 0),
        ("ncclAllReduce", x, x, 6, OF_FLOAT, PREMUL, 0),
        ("ncclBroadcast", x, x, 6, OF_FLOAT, SUM, 1),
        ("ncclReduce", x, x if rank == 1 else 0, 6, OF_FLOAT, SUM, 1),
        ("ncclAllGather", x, at["all"], 6, OF_FLOAT, SUM, 0),
        ("ncclReduceScatter", x, at["part"], 3, OF_FLOAT, SUM, 0),
        *sorted(exchange),
    ]


def test_arguments(cuda_bed: CudaBed, tmp_path: Path) -> None:
    """All calls have one communicator and one stream. A rank joins with its number, and calls of it do not block."""
    settings = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "2", "SAGECOMM_ENGINE": "nccl"}
    store, files = str(tmp_path / "store"), [tmp_path / f"calls{rank}" for rank in range(2)]
    function = "test_nccl_arguments:recorded"
    children = [
        cuda_bed.start(function, rank, 2, store, EMULATOR_CALLS=str(file), **settings)
        for rank, file in enumerate(files)
    ]
    for rank, (child, file) in enumerate(zip(children, files, strict=True)):
        at = child.result()
        lines = [line.split() for line in file.read_text().splitlines() if line.startswith("nccl")]
        calls = [(name, *map(int, numbers)) for name, *numbers in lines]
        operations = [call for call in calls if len(call) == 9]
        (communicator,) = {call[7] for call in operations}
        (_stream,) = {call[8] for call in operations}
        first, exchange = operations[:6], operations[6:]
        assert [call[:7] for call in first] + sorted(call[:7] for call in exchange) == expected(rank, at)
        others = [call for call in calls if call not in operations]
        assert others[0] == ("ncclCommInitRankConfig", 2, rank, 0)
        assert others[1] == ("ncclRedOpCreatePreMulSum", OF_FLOAT, HOST, communicator)
        assert [call[0] for call in others[2:]] == ["ncclCommFinalize", "ncclCommDestroy"]
        assert {call[1] for call in others[2:]} == {communicator}
