"""What ranks of test_mixed_devices.py do: one group, whose ranks have devices of different vendors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import device_calls
import device_coalesced
import device_each
import device_p2p
import device_programs
import sagecomm
from device_programs import accelerator, full


def goes_through_staging() -> None:
    """All ranks have chosen the engine that serves the devices of all."""
    dist.all_reduce(full(1))
    assert sagecomm.explain("all_reduce", 4000, device=True)["engine"] == "staged"


def devices_differ() -> None:
    """Each rank sees another type of device in its own tensors than its peer does."""
    types: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(types, accelerator().type)
    assert len(set(types)) == len(types), types


PROGRAMS: list[Callable[[], Any]] = [
    goes_through_staging,
    devices_differ,
    device_programs.producer_is_late,
    device_programs.two_groups_in_opposite_order,
    device_calls.operations,
    device_calls.long_tensors,
    device_calls.futures,
    device_calls.mismatch,
    *device_p2p.PROGRAMS,
    device_p2p.mismatch,
    *device_coalesced.PROGRAMS,
    *device_each.PROGRAMS,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    device_calls.run_under_fake_cuda(rank, size, store, PROGRAMS)


def on_simdev(rank: int, size: int, store: str) -> None:
    """The same programs in a rank of simdev whose peer is no rank of the test's world."""
    import simdev

    device_calls.run_in_groups(rank, size, store, PROGRAMS, simdev.check)
