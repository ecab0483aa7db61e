"""What comes behind operations that are queued whole, on CUDA tensors of the emulated driver (device_joined.py has the
programs)."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, by_turns

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

PROGRAMS = {"under_fake_cuda": 2, "batch_of_senders_in_turns": 3, "future_of_a_batch": 2}  # with their numbers of ranks


@by_turns("program", list(PROGRAMS), ["under_fake_cuda", "future_of_a_batch"])
def test_programs(cuda_bed: CudaBed, program: str, schedule: Schedule) -> None:
    settings = {"EMULATOR_KICK_MS": "5", "schedule": schedule.name, "seed": schedule.seed}
    cuda_bed.ranks(f"device_joined:{program}", PROGRAMS[program], **settings)
