"""Collectives on tensors of `npu` and `mlu`: simdev under these names, with the streams of the emulated libraries of
Huawei and Cambricon. The core moves memory with the runtime of the vendor, and uses its library of collectives.

The programs are those of test_device_tensors.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_calls
import device_catalogue
import device_coalesced
import device_each
import device_failures
import device_p2p
import device_pipeline
import device_programs
import device_scaling
import device_waits
import sagecomm
from device_bed import FEW, Schedule, Worlds, build_bound
from selection import quickly
from test_device_tensors import checked, prepare, ranks
from worlds import World, on_hosts

pytestmark = build_bound
under_few_schedules = pytest.mark.parametrize("schedule", quickly(FEW[1:2], FEW), ids=str)
with_queues = pytest.mark.parametrize("queue", quickly(["launch queue"], ["streams", "launch queue"]))

LIBRARIES = {"npu": ("libascendcl.so", "libhccl.so"), "mlu": ("libcnrt.so", "libcncl.so")}
OF_COLLECTIVES = {"npu": "hccl", "mlu": "cncl"}
MODULES = {
    "calls": device_calls,
    "p2p": device_p2p,
    "coalesced": device_coalesced,
    "catalogue": device_catalogue,
    "each": device_each,
}

# The first collectives of two groups come in one order where they wait for each other.
_TWO_GROUPS = {device_programs.two_groups_in_opposite_order}
# HCCL has no abort: a stream waits for an operation that has failed.
_FAILURES = {
    device_calls.mismatch,
    device_catalogue.a_rank_that_does_not_call,
    device_catalogue.different_calls,
    device_catalogue.splits_that_do_not_fit,
    device_catalogue.blocks_that_do_not_fit,
    device_catalogue.a_timeout_with_few_events,
    device_waits.next_operation_raises,
}
WITHOUT: dict[str, set[Callable[[], Any]]] = {"staged": set(), "cncl": _TWO_GROUPS, "hccl": _TWO_GROUPS | _FAILURES}


def prepare_vendor(name: str) -> None:
    """Loads the vendor's libraries where the core looks for them. A rank has a device of its own."""
    prepare()
    import build

    for library in LIBRARIES[name]:
        ctypes.CDLL(str(build.OUTPUT / library))
    torch.accelerator.set_device_index(dist.get_rank())


def uses_engine(expected: str) -> None:
    x = torch.ones(5, device=torch.accelerator.current_accelerator())
    dist.all_reduce(x)
    assert sagecomm.explain("all_reduce", 20, device=True)["engine"] == expected


def vendor_ranks(worlds: Worlds, schedule: Schedule, name: str, queue: str, engine: str, **settings: str) -> World:
    world = ranks(
        worlds,
        schedule,
        SIMDEV_NAME=name,
        SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")),
        SAGECOMM_ENGINE=engine,
        # The checker does not see the order that Go gives its threads, one of which releases memory of the device.
        EMULATOR_HOST_CLOCKS="thread" if engine == "staged" else "shared",
        **settings,
    )
    world.run(prepare_vendor, name, backend="gloo")
    return world


def run_programs(world: World, chosen: str, programs: list[Callable[[], Any]]) -> None:
    world.run(checked, uses_engine, chosen)
    for program in programs:
        if program not in WITHOUT[chosen]:
            world.run(checked, program)


@under_few_schedules
@with_queues
@pytest.mark.parametrize("module", quickly(["p2p"], MODULES))
@pytest.mark.parametrize("by", quickly(["library"], ["staged", "library"]))
@pytest.mark.parametrize("name", quickly(["mlu"], LIBRARIES))
def test_programs(fresh_world: Worlds, schedule: Schedule, name: str, by: str, module: str, queue: str) -> None:
    chosen = OF_COLLECTIVES[name] if by == "library" else by
    run_programs(vendor_ranks(fresh_world, schedule, name, queue, chosen), chosen, MODULES[module].PROGRAMS)


@pytest.mark.parametrize("schedule", quickly(FEW[:1], [Schedule("eager"), *FEW]), ids=str)
@with_queues
@pytest.mark.parametrize("name", quickly(["npu"], LIBRARIES))
def test_averages_and_factors(fresh_world: Worlds, schedule: Schedule, name: str, queue: str) -> None:
    """The libraries have neither, so kernels of torch's divide and multiply beside a SUM."""
    chosen = OF_COLLECTIVES[name]
    run_programs(vendor_ranks(fresh_world, schedule, name, queue, chosen), chosen, device_scaling.WITH_A_LIBRARY)


@pytest.mark.parametrize("name", quickly([], LIBRARIES))
def test_averages_and_factors_through_host_memory(fresh_world: Worlds, name: str) -> None:
    world = vendor_ranks(fresh_world, Schedule("lazy"), name, "launch queue", "staged")
    run_programs(world, "staged", device_scaling.PROGRAMS)


@pytest.mark.long
@pytest.mark.parametrize("name", LIBRARIES)
def test_averages_and_factors_of_three_ranks(fresh_world: Worlds, name: str) -> None:
    def three(_: int, environment: dict[str, str]) -> World:
        return fresh_world(3, environment)

    world = vendor_ranks(three, Schedule("lazy"), name, "launch queue", OF_COLLECTIVES[name], EMULATOR_DEVICES="3")
    run_programs(world, OF_COLLECTIVES[name], [device_scaling.close_to_the_cpu])


@pytest.mark.long
def test_a_torch_that_lacks_a_kernel(fresh_world: Worlds) -> None:
    world = vendor_ranks(fresh_world, Schedule("lazy"), "mlu", "launch queue", "cncl")
    world.run(device_scaling.without_a_kernel)


@pytest.mark.long
def test_a_product_outlives_its_failed_operation(fresh_world: Worlds, tmp_path: Path) -> None:
    """HCCL cannot end a call, so what may still be read is not given back."""
    late, calls = str(tmp_path / "late"), str(tmp_path / "calls")
    settings = {"EMULATOR_LATE_UNTIL": late, "EMULATOR_CALLS": calls}
    world = vendor_ranks(fresh_world, Schedule("lazy"), "npu", "launch queue", "hccl", **settings)
    world.run(device_scaling.a_product_is_kept, late, calls)


# Function, elements, type, reduction and root: numbers of hccl_types.h and cncl.h. Both have SUM as 0.
SUMS = {
    "npu": {
        "x": ("HcclAllReduce", 6, 4, 0),
        "y": ("HcclAllReduce", 7, 4, 0),
        "z": ("HcclReduce", 8, 4, 0, 1),
        "part": ("HcclReduceScatter", 3, 4, 0),
    },
    "mlu": {
        "x": ("cnclAllReduce", 6, 0x12, 0),
        "y": ("cnclAllReduce", 7, 0x12, 0),
        "z": ("cnclReduce", 8, 0x12, 0, 1),
        "part": ("cnclReduceScatter", 3, 0x12, 0),
    },
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_adds_what_is_averaged(fresh_world: Worlds, tmp_path: Path, name: str) -> None:
    """It gets the users' buffers, and for a factor the product in place of the input."""
    chosen, file = OF_COLLECTIVES[name], tmp_path / "calls"
    world = vendor_ranks(fresh_world, Schedule("lazy"), name, "launch queue", chosen, EMULATOR_CALLS=str(file))
    world.run(checked, uses_engine, chosen)
    of_ranks = world.run(checked, device_scaling.places)
    calls = [(call, *map(int, numbers)) for call, *numbers in map(str.split, file.read_text().splitlines())]
    for rank, places in enumerate(of_ranks):
        for which, (read, written) in places.items():
            function, *numbers = SUMS[name][which]
            found = [c for c in calls if c[0] == function and list(c[3 : 3 + len(numbers)]) == numbers]
            assert len(found) == len(of_ranks), (which, calls)
            inputs = [c[1] for c in found if c[2] == written or (which == "z" and c[1] == read)]
            assert inputs, (rank, which, found)
            assert (read in inputs) == (which != "y"), (rank, which, found)


@pytest.mark.long
@under_few_schedules
@with_queues
@pytest.mark.parametrize("chosen", ["staged", "hccl"])
def test_few_events(fresh_world: Worlds, schedule: Schedule, chosen: str, queue: str) -> None:
    """An event of Ascend takes its place on the device at the record, which waits for one."""
    world = vendor_ranks(fresh_world, schedule, "npu", queue, chosen, EMULATOR_EVENTS="8")
    run_programs(world, chosen, device_catalogue.FEW_EVENTS)


@under_few_schedules
@pytest.mark.parametrize("module", quickly(["calls"], MODULES))
@pytest.mark.parametrize("name", quickly([], LIBRARIES))
def test_programs_over_two_hosts(fresh_world: Worlds, schedule: Schedule, name: str, module: str) -> None:
    """The libraries have connections of their own between hosts: no engine has to be set for them."""

    def over_hosts(size: int, environment: dict[str, str]) -> World:
        return fresh_world(size, on_hosts(*[1] * size, **environment))

    world = vendor_ranks(over_hosts, schedule, name, "launch queue", "auto")
    run_programs(world, OF_COLLECTIVES[name], MODULES[module].PROGRAMS)


@under_few_schedules
@with_queues
@pytest.mark.parametrize("chosen", quickly(["hccl"], ["staged", "hccl"]))
def test_nothing_waits_on_the_host(fresh_world: Worlds, schedule: Schedule, chosen: str, queue: str) -> None:
    """Streams of NPUs can wait for words, so operations are queued whole."""
    run_programs(vendor_ranks(fresh_world, schedule, "npu", queue, chosen), chosen, device_waits.PROGRAMS)


@pytest.mark.parametrize("by", quickly(["library"], ["staged", "library"]))
@pytest.mark.parametrize("name", quickly([], LIBRARIES))
def test_blocking_waits(fresh_world: Worlds, name: str, by: str) -> None:
    """The call raises, also where the streams hang from then on."""
    chosen = OF_COLLECTIVES[name] if by == "library" else by
    on = {"SAGECOMM_BLOCKING_WAIT": "on"}
    world = vendor_ranks(fresh_world, Schedule("lazy"), name, "launch queue", chosen, **on)
    run_programs(world, chosen, [device_failures.ends_on_the_host])
    world.run(device_failures.only_one_rank, "synchronous")


@pytest.mark.parametrize("name", quickly(["npu"], LIBRARIES))
def test_splits_that_do_not_fit(fresh_world: Worlds, name: str) -> None:
    """Both ranks raise it, also with HCCL, which has no abort."""
    chosen, on = OF_COLLECTIVES[name], {"SAGECOMM_BLOCKING_WAIT": "on"}
    world = vendor_ranks(fresh_world, Schedule("lazy"), name, "launch queue", chosen, **on)
    world.run(checked, uses_engine, chosen)
    world.run(device_catalogue.splits_that_do_not_fit_are_raised)


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize("told", quickly(["no"], ["no", "raises"]))
def test_a_guard_that_does_not_know_of_captures(fresh_world: Worlds, told: str) -> None:
    """AscendCL is asked, whatever torch says."""
    world = vendor_ranks(fresh_world, Schedule("lazy"), "npu", "streams", "staged", SIMDEV_CAPTURES=told)
    run_programs(world, "staged", [device_calls.captures_are_refused, device_programs.wait_twice])


@pytest.mark.long
@under_few_schedules
@pytest.mark.parametrize("chosen", ["staged", "cncl"])
def test_a_peer_that_ends(fresh_world: Worlds, schedule: Schedule, chosen: str) -> None:
    """The same with hccl is TestAPeerOfALibraryDies of tests/devices, since its streams hang then."""
    world = vendor_ranks(fresh_world, schedule, "mlu", "streams", chosen)
    survivor, left = world.outcomes(checked, device_calls.peer_leaves)
    assert left.exitcode == 3
    assert survivor.ok, survivor.trace
    assert "rank 1" in survivor.value


@pytest.mark.long
@under_few_schedules
@pytest.mark.parametrize("program", [device_calls.training, device_pipeline.pipeline], ids=["DDP", "pipelines"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_training(fresh_world: Worlds, schedule: Schedule, name: str, program: Callable[[], Any]) -> None:
    vendor_ranks(fresh_world, schedule, name, "launch queue", OF_COLLECTIVES[name]).run(checked, program)
