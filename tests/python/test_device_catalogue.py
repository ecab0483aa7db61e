"""Cases of the table in docs/devices.md, on the emulated devices (device_catalogue.py has the programs)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device_catalogue
from cuda_bed import CudaBed
from device_bed import EMULATOR, Schedule, Worlds, built, quick_if_lazy
from selection import quickly
from test_device_tensors import KICK_MS, NO_WAITS, checked, ranks

needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")


@pytest.mark.parametrize("queue", quickly(["streams"], ["streams", "launch queue"]))
@quick_if_lazy
def test_programs(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    world = ranks(fresh_world, schedule, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    for program in device_catalogue.PROGRAMS:
        world.run(checked, program)


@needs_cuda
@pytest.mark.parametrize("driver", quickly(["waits"], ["waits", "no waits"]))
@quick_if_lazy
def test_programs_on_cuda(cuda_bed: CudaBed, schedule: Schedule, driver: str) -> None:
    cuda_bed.ranks(
        "device_catalogue:under_fake_cuda",
        2,
        schedule=schedule.name,
        seed=schedule.seed,
        EMULATOR_KICK_MS=KICK_MS,
        EMULATOR_FAULTS=NO_WAITS if driver == "no waits" else "",
    )


@needs_cuda
def test_collectives_on_the_cpu_need_no_device(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_catalogue:without_devices", 2, EMULATOR_DEVICES="0")


@needs_cuda
@pytest.mark.parametrize("symbol", ["cuStreamWaitValue32", "cuMemHostAlloc"])
def test_the_library_does_without_a_symbol(cuda_bed: CudaBed, symbol: str) -> None:
    cuda_bed.ranks("device_catalogue:without_a_symbol", 2, EMULATOR_FAULTS=f"missing={symbol}")


@needs_cuda
@pytest.mark.parametrize("driver", ["waits", "no waits"])
def test_events_run_out(cuda_bed: CudaBed, driver: str) -> None:
    faults = ["cudaEventCreateWithFlags@20+=out_of_memory", *([NO_WAITS] if driver == "no waits" else [])]
    cuda_bed.ranks("device_catalogue:events_run_out", 2, EMULATOR_FAULTS=";".join(faults), EMULATOR_KICK_MS=KICK_MS)


EVENTS = "8"  # that a device has


@needs_cuda
@pytest.mark.parametrize("bed", quickly(["staged"], ["staged", "staged without waits", "cuda"]))
@quick_if_lazy
def test_few_events(cuda_bed: CudaBed, schedule: Schedule, bed: str) -> None:
    """A record waits until the device has an event for it."""
    settings = {"EMULATOR_EVENTS": EVENTS, "EMULATOR_KICK_MS": KICK_MS, "SAGECOMM_ENGINE": bed.partition(" ")[0]}
    settings |= {"EMULATOR_FAULTS": NO_WAITS if "without" in bed else ""}
    cuda_bed.ranks("device_catalogue:few_events", 2, schedule=schedule.name, seed=schedule.seed, **settings)


@pytest.mark.long
@needs_cuda
def test_streams_run_out(cuda_bed: CudaBed) -> None:
    """The error tells how many streams of torch's pool the library has, and not how many streams it has in all."""
    cuda_bed.ranks("device_catalogue:streams_run_out", 1, EMULATOR_KICK_MS=KICK_MS)


@needs_cuda
def test_copies_run_out(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_catalogue:copies_run_out", 2, EMULATOR_FAULTS="cuMemcpyHtoDAsync@9+=out_of_memory")


@pytest.mark.long
def test_a_process_that_ends_itself(tmp_path: Path) -> None:
    """The end of Python does not wait for an operation that no peer joins; simdev's streams cannot wait for words."""
    built()
    program = (
        "import sys; from test_device_tensors import prepare; prepare(); import device_waits; "
        f"device_waits.ends_without_destroying(int(sys.argv[1]), 2, {str(tmp_path / 'store')!r})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EMULATOR), *sys.path]), "EMULATOR_KICK_MS": KICK_MS}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
