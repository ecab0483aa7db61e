"""What ranks of test_device_engines.py do: programs of the catalogue in docs/devices.md through the engines nccl and
cuda, which move data between devices themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

import device_calls
import device_catalogue
import device_coalesced
import device_each
import device_p2p
import device_programs
import device_waits
import fake_cuda
import sagecomm
from device_nccl import join_group
from device_programs import SUM, expect, full, mine
from device_waits import until

Program = Callable[[], Any]

MODULES: dict[str, list[Program]] = {
    "calls": device_calls.PROGRAMS,
    "p2p": [*device_p2p.PROGRAMS, device_p2p.mismatch],
    "coalesced": device_coalesced.PROGRAMS,
    "catalogue": device_catalogue.PROGRAMS,
    "each": device_each.WAITING,
    "waits": device_waits.PROGRAMS,
}
# The first collectives of two groups come in one order, because they wait for all ranks.
WITHOUT = {device_programs.two_groups_in_opposite_order}


def behind_a_first_operation(engine: str, program: Program) -> Program:
    """The program in a group that has carried out an operation with the engine. The first one makes the communicator
    and loads kernels, which waits for streams that the program holds."""

    @wraps(program)
    def both() -> None:
        x = full(mine())
        dist.all_reduce(x)
        expect(x, SUM)
        assert sagecomm.explain("all_reduce", x.nbytes, device=True)["engine"] == engine
        program()

    return both


def run(rank: int, size: int, store: str, engine: str, module: str) -> None:
    """NCCL has a device for each rank. With cuda the ranks share device 0."""
    torch.cuda.set_device(rank if engine == "nccl" else 0)
    programs = [behind_a_first_operation(engine, each) for each in MODULES[module] if each not in WITHOUT]
    device_calls.run_under_fake_cuda(rank, size, store, programs)


def run_on_another_device(rank: int, size: int, store: str, engine: str) -> None:
    """A rank has two devices: of its own with NCCL, the same ones with cuda."""
    first = 2 * rank if engine == "nccl" else 0
    device_each.on_devices(rank, size, store, first, [behind_a_first_operation(engine, p) for p in device_each.WAITING])


def carried_out(rank: int, size: int, store: str, on: list[int]) -> dict[str, Any]:
    """What statistics, metrics and explain() tell of operations that one engine, or two, carry out."""
    join_group(rank, size, store, on[rank])
    whole = torch.ones(4, dtype=torch.int16, device="cuda")
    dist.all_reduce(whole.float())
    dist.all_reduce(whole)
    if rank == 0:
        dist.send(whole, 1)
    else:
        dist.recv(whole, 0)
    torch.cuda.synchronize()
    until(lambda: len(sagecomm.get_stats()["rows"]) == 3)  # an operation counts when the host has seen its end
    asked = {
        "float32": sagecomm.explain("all_reduce", 16, device=True),
        "int16": sagecomm.explain("all_reduce", 8, device=True, dtype=torch.int16, reduction="SUM"),
        "p2p": sagecomm.explain("send", 8, device=True, dtype=torch.int16),
    }
    told = {
        "rows": sorted([r["op"], r["dtype"], r["engine"], r["transport"]] for r in sagecomm.get_stats()["rows"]),
        "metrics": [line for line in sagecomm.metrics().splitlines() if line.startswith("sagecomm_collectives_total")],
        "explained": {name: [a["engine"], a["carrier"], a.get("carrier_why")] for name, a in asked.items()},
    }
    dist.destroy_process_group()
    fake_cuda.check()
    return told


def descriptors(rank: int, size: int, store: str, on: list[int], groups: int) -> list[int]:
    """How many descriptors this process has when some groups have used the device and are gone, and when so many more
    have. Communicators end in the background, so the second number is asked for until it is not above the first."""
    join_group(rank, size, store, on[rank])

    def used() -> None:
        group = dist.new_group(backend="sagecomm")
        dist.all_reduce(torch.ones(8, device="cuda"), group=group)
        torch.cuda.synchronize()
        dist.destroy_process_group(group)

    def left() -> int:
        return len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        used()
    before = left()
    for _ in range(groups):
        used()
    bound, after = time.monotonic() + 20, left()
    while after > before and time.monotonic() < bound:
        time.sleep(0.01)
        after = left()
    dist.destroy_process_group()
    return [before, after]
