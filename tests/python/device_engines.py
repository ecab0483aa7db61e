"""What ranks of test_device_engines.py do: programs of the catalogue in docs/devices.md through the engines nccl and
cuda, which move data between devices themselves."""

from __future__ import annotations

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
import sagecomm
from device_programs import SUM, expect, full, mine

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
