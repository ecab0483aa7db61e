"""Streams of the library block neither each other nor the user's where they share queues of the hardware.

A stream that waits for a word holds up what was queued behind it in its queue, also in other streams. The driver of
CUDA has CUDA_DEVICE_MAX_CONNECTIONS queues for the streams of each priority."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import ALL, Schedule
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

KICK_MS = "5"  # work that no thread waits for begins after this time
PROGRAMS = {  # with their numbers of ranks
    "device_calls:under_fake_cuda": 2,
    "device_p2p:in_few_queues": 2,
    "device_waits:in_few_queues": 2,
    "device_waits:recv_beside_a_collective": 2,
    "device_waits:batch_of_several_senders": 3,
}


@pytest.mark.parametrize("schedule", quickly([ALL[3]], ALL), ids=str)
@pytest.mark.parametrize("queues", quickly(["2"], ["1", "2", "3"]))
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(cuda_bed: CudaBed, program: str, schedule: Schedule, queues: str) -> None:
    cuda_bed.ranks(
        program,
        PROGRAMS[program],
        schedule=schedule.name,
        seed=schedule.seed,
        CUDA_DEVICE_MAX_CONNECTIONS=queues,
        EMULATOR_QUEUES=queues,
        EMULATOR_KICK_MS=KICK_MS,
    )
