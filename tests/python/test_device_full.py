"""Operations that do not fit into the streams in which they are queued (device_full.py has the programs)."""

from __future__ import annotations

import pytest
import torch

import device_full
from cuda_bed import CudaBed
from device_bed import ONE_SEED, Schedule, by_turns

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

KICK_MS = "5"  # work that no thread waits for begins after this time
ROOM = "1000"  # commands that have not run, in a stream of an NVIDIA GPU


ROOM_AND_KICK = {"EMULATOR_STREAM_ROOM": ROOM, "EMULATOR_KICK_MS": KICK_MS}
NO_WAITS = "cuStreamWaitValue32@1+=not_supported"


def run(bed: CudaBed, program: str, schedule: Schedule, **settings: str) -> None:
    """A call that finds its stream full waits until there is room, and the program hangs."""
    settings = ROOM_AND_KICK | settings
    bed.ranks("device_full:run", 2, program, schedule=schedule.name, seed=schedule.seed, **settings)


KEPT = [
    "recvs_before_sends",
    "batch",
    "collectives_before_a_send",
    "rows_before_a_send",
    "recvs_with_tags_before_a_send",
    "late_receiver",
]


@by_turns("program", [program.__name__ for program in device_full.PROGRAMS], KEPT, ONE_SEED)
def test_programs(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    run(cuda_bed, program, schedule)


@by_turns("program", [program.__name__ for program in device_full.WITHOUT_WAITS], ["late_caller"], ONE_SEED)
def test_where_streams_cannot_wait(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    run(cuda_bed, program, schedule, EMULATOR_FAULTS=NO_WAITS)


@by_turns("program", ["collectives_before_a_send", "recvs_before_sends"], ["recvs_before_sends"], ONE_SEED)
def test_in_few_queues(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    """Streams share queues of the hardware."""
    run(cuda_bed, program, schedule, CUDA_DEVICE_MAX_CONNECTIONS="2", EMULATOR_QUEUES="2")


@by_turns("program", ["sends_that_wait"], schedules=ONE_SEED)
def test_streams_are_made_ahead(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    """To make a stream waits for all streams of the device."""
    run(cuda_bed, program, schedule, EMULATOR_STREAM_WAITS="1")
