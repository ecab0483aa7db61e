"""One group of ranks whose devices are of different vendors: each process has its own torch device, as device_mixed.py
says. The core carries out their operations through host memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_mixed
from cuda_bed import CudaBed
from device_bed import FEW, Schedule, Worlds, build_bound
from programs import in_background
from selection import quickly
from test_device_tensors import KICK_MS, checked, ranks
from test_vendor_devices import prepare_vendor
from worlds import World, results_of

pytestmark = build_bound
under_few_schedules = pytest.mark.parametrize("schedule", quickly(FEW[1:2], FEW), ids=str)
# As in test_vendor_devices.py; the ranks choose the engine.
CLOCKS = {"EMULATOR_HOST_CLOCKS": "thread", "SAGECOMM_ENGINE": "auto"}


def prepare_rank(*names: str) -> None:
    prepare_vendor(names[dist.get_rank()])


@pytest.mark.long
@under_few_schedules
def test_an_npu_and_an_mlu(fresh_world: Worlds, schedule: Schedule) -> None:
    names = ("npu", "mlu")

    def of_each_vendor(size: int, environment: dict[str, str]) -> World:
        return fresh_world(size, [{**environment, "SIMDEV_NAME": name} for name in names])

    world = ranks(of_each_vendor, schedule, SIMDEV_LAUNCH_QUEUE="1", **CLOCKS)
    world.run(prepare_rank, *names, backend="gloo")
    for program in device_mixed.PROGRAMS:
        world.run(checked, program)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@under_few_schedules
@pytest.mark.parametrize("name", quickly(["npu"], ["npu", "mlu"]))
def test_a_vendors_device_and_cuda(
    fresh_world: Worlds, cuda_bed: CudaBed, tmp_path: Path, schedule: Schedule, name: str
) -> None:
    """One rank is a process under fake CUDA, the other one a process of simdev."""
    store = str(tmp_path / "store")
    world = ranks(one_rank_of(fresh_world), schedule, SIMDEV_NAME=name, SIMDEV_LAUNCH_QUEUE="1", **CLOCKS)
    world.run(prepare_vendor, name, backend="gloo")
    other = cuda_bed.start(
        "device_mixed:under_fake_cuda",
        1,
        2,
        store,
        schedule=schedule.name,
        seed=schedule.seed,
        EMULATOR_KICK_MS=KICK_MS,
        SAGECOMM_ENGINE="auto",
    )
    ranks_of_simdev = in_background(world, device_mixed.on_simdev, 0, 2, store, backend=None)
    of_both(other.result, lambda: results_of(ranks_of_simdev.result()))


def of_both(*results: Callable[[], Any]) -> None:
    """Raises what the ranks of both beds have raised: the rank that fails first makes the other one fail."""
    errors = []
    for result in results:
        try:
            result()
        except AssertionError as error:  # of the beds, which have the traces of their ranks
            errors.append(str(error))
    if errors:
        raise AssertionError("\n".join(errors))


def one_rank_of(worlds: Worlds) -> Worlds:
    return lambda _, environment: worlds(1, environment)
