"""Operations that do not fit into the streams in which they are queued (device_full.py has the programs)."""

from __future__ import annotations

import pytest
import torch

import device_full
from cuda_bed import CudaBed
from device_bed import Schedule, by_turns

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

KICK_MS = "5"  # work that no thread waits for begins after this time
ROOM = "1000"  # commands that have not run, in a stream of an NVIDIA GPU


@by_turns("program", [program.__name__ for program in device_full.PROGRAMS])
def test_programs(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    """A call that finds its stream full waits until there is room, and the program hangs."""
    cuda_bed.ranks(
        "device_full:run",
        2,
        program,
        schedule=schedule.name,
        seed=schedule.seed,
        EMULATOR_STREAM_ROOM=ROOM,
        EMULATOR_KICK_MS=KICK_MS,
    )
