"""Collectives on tensors of an accelerator, on an emulated device that reports a missing order with both accesses.

device_programs.py and device_calls.py have what the ranks do. A failure names the schedule and its seed:
EMULATOR_SEED=n pytest ... begins with that seed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

import device_calls
import device_coalesced
import device_comm
import device_p2p
import device_pipeline
import device_programs
from cuda_bed import CudaBed
from device_bed import Schedule, Worlds, built, by_turns, lazily, quick_if_lazy, quick_if_random
from older_torch import KNOWS_CAPTURES
from selection import quickly
from worlds import World

KICK_MS = "5"  # work that no thread waits for begins after this time
NO_WAITS = "cuStreamWaitValue32@1+=not_supported"
MODULES = ["device_calls", "device_p2p", "device_coalesced", "device_comm", "device_pipeline"]


def prepare() -> None:
    """Loads the emulator where the core and the shim find its annotations, and then the device."""
    import build

    ctypes.CDLL(str(build.OUTPUT / "libemulator.so"), mode=ctypes.RTLD_GLOBAL)
    import simdev  # noqa: F401


def checked(program: Callable[..., Any], *arguments: Any) -> Any:
    import simdev

    result = program(*arguments)
    simdev.check()
    return result


def ranks(worlds: Worlds, schedule: Schedule, size: int = 2, **environment: str) -> World:
    built()
    settings = {
        "EMULATOR_SCHEDULE": schedule.name,
        "EMULATOR_SEED": str(schedule.seed),
        "EMULATOR_KICK_MS": KICK_MS,
        **environment,
    }
    world = worlds(size, settings)
    world.run(prepare, backend=None)
    return world


@pytest.mark.smoke_if_quick
@by_turns("queue", ["streams", "launch queue"])
def test_programs(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    programs = list(device_calls.PROGRAMS)
    if queue == "streams" and KNOWS_CAPTURES:  # simdev cannot capture behind a launch queue
        programs.insert(0, device_calls.captures_are_refused)
    for program in programs:
        world.run(checked, program)


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize("queue", quickly(["launch queue"], ["streams", "launch queue"]))
@quick_if_random
def test_coalesced(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    for program in device_coalesced.PROGRAMS:
        world.run(checked, program)


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize("queue", quickly(["launch queue"], ["streams", "launch queue"]))
@quick_if_random
def test_p2p(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    for program in (*device_p2p.PROGRAMS, device_p2p.mismatch):
        world.run(checked, program)


@quick_if_random
def test_communication_backends(fresh_world: Worlds, schedule: Schedule) -> None:
    world = ranks(fresh_world, schedule)
    for program in device_comm.PROGRAMS:
        world.run(checked, program)


@pytest.mark.smoke_if_quick
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@by_turns("driver", ["waits", "no waits"])
@pytest.mark.parametrize("module", quickly(["device_calls", "device_p2p"], MODULES))
def test_programs_on_cuda(cuda_bed: CudaBed, schedule: Schedule, module: str, driver: str) -> None:
    """The same programs on CUDA tensors, with torch's own guard, allocator, streams, events and futures; and with a
    driver whose streams cannot wait for a word."""
    cuda_bed.ranks(
        f"{module}:under_fake_cuda",
        2,
        schedule=schedule.name,
        seed=schedule.seed,
        EMULATOR_KICK_MS=KICK_MS,
        EMULATOR_FAULTS=NO_WAITS if driver == "no waits" else "",
    )


# The first operation makes two streams for the stream of its caller. The first of them fills the table out of which
# streams write words.
FIRST_ORDERS = {
    "cuEventRecord@1": "behind the table",
    "cuEventRecord@2": "behind the caller's stream",
    "cuStreamWaitEvent@3": "the stream of the input, for the caller's",
    "cuStreamWaitEvent@4": "the next stream of an input, for the table",
}


@pytest.mark.long
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@pytest.mark.parametrize("call", FIRST_ORDERS)
def test_each_first_order_is_needed(cuda_bed: CudaBed, call: str) -> None:
    """The driver leaves out one call and reports success. Nothing is wrong without the first two waits for the table:
    one is in the stream that fills it, and the stream of an output writes its first word when a run is complete that
    has begun with a word of the table."""
    with pytest.raises(AssertionError, match=r"conflict: |AssertionError: \(0\.0, 5\)"):
        cuda_bed.ranks(
            "device_p2p:first_operations", 2, EMULATOR_KICK_MS=KICK_MS, EMULATOR_FAULTS=f"{NO_WAITS};{call}=#0"
        )


@quick_if_lazy
def test_wait_does_not_block_the_host(fresh_world: Worlds, schedule: Schedule) -> None:
    ranks(fresh_world, schedule).run(checked, device_programs.consumer_waits_for_the_copy_back)


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize(
    "program", quickly([device_p2p.peer_leaves_a_recv], [device_calls.peer_leaves, device_p2p.peer_leaves_a_recv])
)
@quick_if_random
def test_a_peer_that_ends(fresh_world: Worlds, schedule: Schedule, program: Callable[[], str]) -> None:
    survivor, left = ranks(fresh_world, schedule).outcomes(checked, program)
    assert left.exitcode == 3
    assert survivor.ok, survivor.trace
    assert "rank 1" in survivor.value


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize("schedule", quickly([Schedule("random")], [Schedule("lazy"), Schedule("random")]), ids=str)
@pytest.mark.parametrize(
    "program",
    quickly([device_calls.training], [device_calls.training, device_pipeline.pipeline]),
    ids=["DDP", "pipelines"],
)
def test_training(fresh_world: Worlds, schedule: Schedule, program: Callable[[], Any]) -> None:
    ranks(fresh_world, schedule).run(checked, program)


INTERLEAVED = (2, "ScheduleInterleaved1F1B")
PIPELINES = [INTERLEAVED, *((4, kind) for kind in device_pipeline.KINDS)]


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
@pytest.mark.parametrize("of", quickly([INTERLEAVED], PIPELINES), ids=str)
@lazily
def test_pipelines_on_cuda(cuda_bed: CudaBed, schedule: Schedule, of: tuple[int, str]) -> None:
    size, kind = of
    if not hasattr(device_pipeline.schedules, kind):
        pytest.skip("this torch has no such schedule")
    settings = {"EMULATOR_KICK_MS": KICK_MS, "schedule": schedule.name, "seed": schedule.seed}
    cuda_bed.ranks("device_pipeline:as_on_the_cpu", size, kind, **settings)
