"""Each operation under the cases of the table in docs/devices.md, on the emulated devices (device_each.py has the
programs)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import device_each
import device_random
from cuda_bed import CudaBed
from device_bed import ALL, FEW, Schedule, Worlds, lazily, quick_if_lazy, under_schedules
from test_device_tensors import KICK_MS, NO_WAITS, checked, ranks
from worlds import World, on_hosts

needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")


def on_cuda(bed: CudaBed, entry: str, schedule: Schedule, **settings: str) -> None:
    settings = {"EMULATOR_KICK_MS": KICK_MS, **settings}
    bed.ranks(f"device_each:{entry}", 2, schedule=schedule.name, seed=schedule.seed, **settings)


# A launch queue under the schedule with threads takes minutes on a busy machine.
CASES = [*(("streams", schedule) for schedule in ALL), *(("launch queue", schedule) for schedule in FEW)]


@pytest.mark.long
@pytest.mark.parametrize(("queue", "schedule"), CASES, ids=str)
def test_programs(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    for program in device_each.PROGRAMS:
        world.run(checked, program)


@pytest.mark.long
@needs_cuda
@quick_if_lazy
def test_programs_on_cuda(cuda_bed: CudaBed, schedule: Schedule) -> None:
    on_cuda(cuda_bed, "where_streams_wait", schedule)


@needs_cuda
def test_each_operation_with_a_late_producer(cuda_bed: CudaBed) -> None:
    """The quick one of the programs above, whose schedules have the others."""
    on_cuda(cuda_bed, "strided_and_late", Schedule("random"))


@pytest.mark.long
@needs_cuda
@under_schedules
def test_programs_on_cuda_without_waits(cuda_bed: CudaBed, schedule: Schedule) -> None:
    on_cuda(cuda_bed, "under_fake_cuda", schedule, EMULATOR_FAULTS=NO_WAITS)


@pytest.mark.long
@needs_cuda
@lazily
@pytest.mark.parametrize("faults", ["", NO_WAITS], ids=["waits", "no waits"])
def test_a_device_that_is_not_the_current_one(cuda_bed: CudaBed, schedule: Schedule, faults: str) -> None:
    settings = {"EMULATOR_DEVICES": "2", "EMULATOR_KICK_MS": KICK_MS, "EMULATOR_FAULTS": faults}
    entry, waits = "device_each:on_another_device", not faults
    cuda_bed.ranks(entry, 2, waits, schedule=schedule.name, seed=schedule.seed, **settings)


@pytest.mark.long
def test_the_current_device_behind_an_event_that_is_refused(fresh_world: Worlds) -> None:
    """The guard of the device leaves another one current then, as that of torch_npu does."""
    ranks(fresh_world, Schedule("lazy")).run(device_each.events_are_refused)


@pytest.mark.long
@needs_cuda
@lazily
@pytest.mark.parametrize("faults", ["", NO_WAITS], ids=["waits", "no waits"])
def test_long_tensors(cuda_bed: CudaBed, schedule: Schedule, faults: str) -> None:
    on_cuda(cuda_bed, "long_under_fake_cuda", schedule, EMULATOR_FAULTS=faults)


# Programs of a test, and their seeds: others under each schedule.
PROGRAMS = 2
FIRST = {"lazy": 1, "eager": 1001, "threaded": 2001, "random": 3001}


def seeds_of(schedule: Schedule) -> list[int]:
    first = FIRST[schedule.name] + PROGRAMS * (schedule.seed - 1)
    return list(range(first, first + PROGRAMS))


@pytest.mark.long
@needs_cuda
@pytest.mark.parametrize("schedule", FEW, ids=str)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("faults", ["", NO_WAITS], ids=["waits", "no waits"])
def test_random_programs(cuda_bed: CudaBed, schedule: Schedule, devices: int, faults: str) -> None:
    settings = {"EMULATOR_DEVICES": str(devices), "EMULATOR_KICK_MS": KICK_MS, "EMULATOR_FAULTS": faults}
    entry, seeds = "device_random:under_fake_cuda", seeds_of(schedule)
    cuda_bed.ranks(entry, 3, seeds, devices, schedule=schedule.name, seed=schedule.seed, **settings)


@needs_cuda
def test_a_random_program(cuda_bed: CudaBed) -> None:
    """A quick one, with the first seed of the schedule."""
    seeds = seeds_of(Schedule("lazy"))[:1]
    cuda_bed.ranks("device_random:under_fake_cuda", 3, seeds, 1, EMULATOR_KICK_MS=KICK_MS)


@pytest.mark.long
@pytest.mark.parametrize("schedule", FEW, ids=str)
@pytest.mark.parametrize("queue", ["streams", "launch queue"])
def test_random_programs_on_simdev(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, 3, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    world.run(checked, device_random.programs, seeds_of(schedule))


BEDS_OVER_HOSTS = {
    "waits": {"SAGECOMM_ENGINE": "staged"},
    "no waits": {"SAGECOMM_ENGINE": "staged", "EMULATOR_FAULTS": NO_WAITS},
    "nccl": {"SAGECOMM_ENGINE": "nccl", "EMULATOR_DEVICES": "3"},
}
HOSTS = [(1, 2), (2, 1), (1, 1, 1)]


def with_hosts(*beds: str) -> list[tuple[str, tuple[int, ...]]]:
    """Beds with the ranks of each host, which take turns; all of them with each bed under `make test-streams`."""
    if "SEEDS" in os.environ:
        return list(itertools.product(beds, HOSTS))
    return list(zip(beds, HOSTS, strict=False))


def over_hosts(cuda_bed: CudaBed, bed: str, hosts: tuple[int, ...], seeds: list[int], schedule: Schedule) -> None:
    settings: dict[str, Any] = {"EMULATOR_KICK_MS": KICK_MS, "SAGECOMM_CHECKSUMS": "always", **BEDS_OVER_HOSTS[bed]}
    settings |= {"schedule": schedule.name, "seed": schedule.seed}
    cuda_bed.ranks("device_random:under_fake_cuda", 3, seeds, 1, hosts=hosts, **settings)


@pytest.mark.long
@needs_cuda
@pytest.mark.parametrize("schedule", FEW, ids=str)
@pytest.mark.parametrize(("bed", "hosts"), with_hosts(*BEDS_OVER_HOSTS), ids=str)
def test_random_programs_over_hosts(cuda_bed: CudaBed, bed: str, hosts: tuple[int, ...], schedule: Schedule) -> None:
    over_hosts(cuda_bed, bed, hosts, seeds_of(schedule), schedule)


@needs_cuda
def test_a_random_program_over_hosts(cuda_bed: CudaBed) -> None:
    over_hosts(cuda_bed, "waits", (1, 2), seeds_of(Schedule("lazy"))[:1], Schedule("lazy"))


@pytest.mark.long
@pytest.mark.parametrize("schedule", FEW, ids=str)
@pytest.mark.parametrize(("queue", "hosts"), with_hosts("streams", "launch queue"), ids=str)
def test_random_programs_over_hosts_on_simdev(
    fresh_world: Worlds, queue: str, hosts: tuple[int, ...], schedule: Schedule
) -> None:
    def on_its_hosts(size: int, environment: dict[str, str]) -> World:
        assert size == sum(hosts)
        return fresh_world(size, on_hosts(*hosts, **environment))

    world = ranks(on_its_hosts, schedule, 3, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    world.run(checked, device_random.programs, seeds_of(schedule))


def test_the_table_of_the_docs_has_each_operation() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/devices.md").read_text()
    rows = page.partition("| operation | late |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == list(device_each.OPERATIONS)
