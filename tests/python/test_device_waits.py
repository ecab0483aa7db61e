"""Operations that are queued whole, on CUDA tensors of the emulated driver (device_waits.py has the programs)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from cuda_bed import CudaBed, fake_cuda
from device_bed import Schedule, by_turns, lazily, quick_if_lazy, quick_if_random
from older_torch import KNOWS_CAPTURES

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

KICK_MS = "5"  # work that no thread waits for begins after this time
NO_WAITS = "cuStreamWaitValue32@1+=not_supported"
IN_WINDOW = 3  # groups for which the window of an input has room: inWindow of internal/engine/staged/layout.go


@pytest.mark.smoke_if_quick
@quick_if_lazy
def test_programs(cuda_bed: CudaBed, schedule: Schedule) -> None:
    cuda_bed.ranks(
        "device_waits:under_fake_cuda", 2, schedule=schedule.name, seed=schedule.seed, EMULATOR_KICK_MS=KICK_MS
    )


@pytest.mark.smoke_if_quick
@pytest.mark.skipif(not KNOWS_CAPTURES, reason="this torch cannot tell whether a stream is being captured")
@quick_if_random
def test_a_wait_in_a_capture(cuda_bed: CudaBed, schedule: Schedule) -> None:
    cuda_bed.ranks(
        "device_waits:wait_in_a_capture", 2, schedule=schedule.name, seed=schedule.seed, EMULATOR_KICK_MS=KICK_MS
    )


@quick_if_random
def test_batch_of_several_senders(cuda_bed: CudaBed, schedule: Schedule) -> None:
    """The streams of a batch do not wait for each other."""
    cuda_bed.ranks(
        "device_waits:batch_of_several_senders",
        3,
        schedule=schedule.name,
        seed=schedule.seed,
        EMULATOR_KICK_MS=KICK_MS,
    )


@pytest.mark.long
@lazily
def test_a_new_stream(cuda_bed: CudaBed, schedule: Schedule) -> None:
    """Its operations wait for no operation of other streams, although more streams than have streams of their own have
    issued some, as long as one of those is idle."""
    program = "device_waits:new_stream_beside_late_ones"
    cuda_bed.ranks(program, 3, schedule=schedule.name, seed=schedule.seed, EMULATOR_KICK_MS=KICK_MS)


@pytest.mark.smoke_if_quick
@quick_if_lazy
def test_the_death_of_a_peer(cuda_bed: CudaBed, schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as folder:
        survivor, dead = (
            cuda_bed.start(
                "device_waits:peer_dies",
                rank,
                2,
                f"{folder}/store",
                schedule=schedule.name,
                seed=schedule.seed,
                EMULATOR_KICK_MS=KICK_MS,
            )
            for rank in range(2)
        )
        survivor.result()
        with pytest.raises(AssertionError, match="died"):
            dead.result()


@by_turns("driver", ["waits", "no waits"])
def test_copies_overlap_the_host(cuda_bed: CudaBed, schedule: Schedule, driver: str) -> None:
    groups, faults = (2, NO_WAITS) if driver == "no waits" else (IN_WINDOW, "")
    settings = {"EMULATOR_KICK_MS": KICK_MS, "EMULATOR_FAULTS": faults, "schedule": schedule.name}
    cuda_bed.ranks("device_waits:copies_overlap_the_host", 2, groups, seed=schedule.seed, **settings)


@pytest.mark.long
@pytest.mark.parametrize("faults", ["", NO_WAITS], ids=["waits", "no waits"])
def test_torchs_sanitizer(cuda_bed: CudaBed, faults: str) -> None:
    """It knows what waits for what, as far as its model of a collective goes, and its callbacks hold nobody up."""
    cuda_bed.ranks("device_sanitizer:under_fake_cuda", 2, EMULATOR_KICK_MS=KICK_MS, EMULATOR_FAULTS=faults)


@by_turns("program", ["abort_while_streams_wait", "futures_after_an_abort", "ends_without_destroying"])
def test_waits_are_released(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    settings = {"EMULATOR_KICK_MS": KICK_MS, "schedule": schedule.name}
    cuda_bed.ranks(f"device_waits:{program}", 2, seed=schedule.seed, **settings)


@pytest.mark.long
def test_a_process_that_ends_itself(cuda_bed: CudaBed, tmp_path: Path) -> None:
    """The end of Python, destructors included, does not wait for streams that nobody releases."""
    program = (
        "import sys, fake_cuda, device_waits; fake_cuda.install(); "
        f"device_waits.ends_without_destroying(int(sys.argv[1]), 2, {str(tmp_path / 'store')!r})"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            env=fake_cuda.environment("lazy", PYTHONPATH=os.pathsep.join(sys.path)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
