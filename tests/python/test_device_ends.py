"""Groups that end while operations on CUDA tensors of the emulated driver are left. device_ends.py has the programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fake_cuda
from cuda_bed import CudaBed
from device_ends import SOON_S
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

keeps_members = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch's groups keep members"
)
SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5"}


def test_a_death_in_the_end(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_ends:a_peer_dies_in_the_end", 2, dies=1, **SETTINGS)


@pytest.mark.parametrize(
    "program",
    [pytest.param("a_peer_is_late", marks=pytest.mark.long), "an_exception_is_handled", "ctrl_c_in_the_end"],
)
def test_how_long_the_end_waits(cuda_bed: CudaBed, program: str) -> None:
    cuda_bed.ranks(f"device_ends:{program}", 2, **SETTINGS)


def processes(tmp_path: Path, call: str) -> list[subprocess.Popen[str]]:
    """Two processes on fake CUDA that make this call of device_ends, of `rank` and `store`, in the main thread."""
    program = (
        "import sys, fake_cuda, device_ends; fake_cuda.install(); "
        f"rank, store = int(sys.argv[1]), {str(tmp_path / 'store')!r}; device_ends.{call}"
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            env=fake_cuda.environment("lazy", PYTHONPATH=os.pathsep.join(sys.path), **SETTINGS),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.long
def test_a_thread_that_outlives_the_main_thread(cuda_bed: CudaBed, tmp_path: Path) -> None:
    """It may wait for peers as long as operations may take."""
    ranks = processes(tmp_path, "a_thread_ends_the_group(rank, 2, store)")
    try:
        said = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0] == "the sum is there\n", said


@pytest.mark.long
@pytest.mark.parametrize("how", ["nothing", "exit handler"])
def test_a_process_that_ends(cuda_bed: CudaBed, tmp_path: Path, how: str) -> None:
    """Its end waits for peers as briefly as where an exception is being handled."""
    ranks = processes(tmp_path, f"process_ends(rank, 2, store, {how!r})")
    assert ranks[0].stdout is not None
    try:
        assert ranks[0].stdout.readline() == "the program is over\n"
        began = time.monotonic()
        _, errors = ranks[0].communicate(timeout=120)
        assert ranks[0].returncode == 0, errors
        assert time.monotonic() - began < SOON_S
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.long
@keeps_members
def test_reconfigure_behind_a_failure(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_ends:reconfigured_behind_a_failure", 2, **SETTINGS)


@keeps_members
@pytest.mark.parametrize("call", quickly([True], [False, True]))
def test_reconfigure_in_vain_behind_a_failure(cuda_bed: CudaBed, call: bool) -> None:
    cuda_bed.ranks("device_ends:reconfigured_in_vain_behind_a_failure", 2, call, **SETTINGS)


@keeps_members
@pytest.mark.parametrize("to", quickly([2], [1, 2]))
def test_reconfigure_with_an_operation(cuda_bed: CudaBed, to: int) -> None:
    cuda_bed.ranks("device_ends:reconfigured_with_an_operation", 2, to, **SETTINGS)
