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

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

keeps_members = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch's groups keep members"
)
SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5"}


@pytest.mark.parametrize("program", ["a_peer_dies_in_the_end", "a_peer_dies_behind_the_last_operation"])
def test_a_death_in_the_end(cuda_bed: CudaBed, program: str) -> None:
    cuda_bed.ranks(f"device_ends:{program}", 2, dies=1, **SETTINGS)


@pytest.mark.parametrize(
    "program",
    [pytest.param("a_peer_is_late", marks=pytest.mark.long), "an_exception_is_handled", "ctrl_c_in_the_end"],
)
def test_how_long_the_end_waits(cuda_bed: CudaBed, program: str) -> None:
    cuda_bed.ranks(f"device_ends:{program}", 2, **SETTINGS)


@pytest.mark.parametrize("how", ["nothing", "exit handler"])
def test_a_process_that_ends(cuda_bed: CudaBed, tmp_path: Path, how: str) -> None:
    """Its end waits for peers as briefly as where an exception is being handled."""
    store = str(tmp_path / "store")
    program = (
        "import sys, fake_cuda, device_ends; fake_cuda.install(); "
        f"device_ends.process_ends(int(sys.argv[1]), 2, {store!r}, {how!r})"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            env=fake_cuda.environment("lazy", PYTHONPATH=os.pathsep.join(sys.path), **SETTINGS),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
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


@keeps_members
def test_reconfigure_behind_a_failure(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_ends:reconfigured_behind_a_failure", 2, **SETTINGS)


@keeps_members
@pytest.mark.parametrize("to", [1, 2])
def test_reconfigure_with_an_operation(cuda_bed: CudaBed, to: int) -> None:
    cuda_bed.ranks("device_ends:reconfigured_with_an_operation", 2, to, **SETTINGS)
