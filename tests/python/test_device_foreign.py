"""Memory of an allocator that is not told of streams, on the emulated driver (device_foreign.py has the programs)."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, under_schedules

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

NO_WAITS = "cuStreamWaitValue32@1+=not_supported"


@pytest.mark.parametrize("faults", ["", NO_WAITS], ids=["waits", "no waits"])
@under_schedules
def test_memory_that_is_used_again(cuda_bed: CudaBed, schedule: Schedule, faults: str) -> None:
    settings = {"EMULATOR_KICK_MS": "5", "EMULATOR_FAULTS": faults, "schedule": schedule.name, "seed": schedule.seed}
    cuda_bed.ranks("device_foreign:under_fake_cuda", 2, **settings)
