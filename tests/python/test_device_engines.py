"""The catalogue in docs/devices.md through the engines nccl and cuda, on fake CUDA. Other files run it through staged.

device_engines.py has what ranks do."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, lazily
from device_engines import MODULES
from test_device_tensors import KICK_MS

pytestmark = [
    pytest.mark.long,  # nccl and cuda have quick tests of their own
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA"),
]

ENGINES = ["nccl", "cuda"]
CASES = [(engine, module) for engine in ENGINES for module in MODULES]


def settings_for(schedule: Schedule, engine: str, devices: int) -> dict[str, str]:
    bed = {"EMULATOR_KICK_MS": KICK_MS, "EMULATOR_DEVICES": str(devices), "SAGECOMM_ENGINE": engine}
    return {"schedule": schedule.name, **bed}


@lazily
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_programs(cuda_bed: CudaBed, schedule: Schedule, case: tuple[str, str]) -> None:
    settings = settings_for(schedule, case[0], 2)
    cuda_bed.ranks("device_engines:run", 2, *case, seed=schedule.seed, **settings)


@lazily
@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_that_is_not_the_current_one(cuda_bed: CudaBed, schedule: Schedule, engine: str) -> None:
    settings = settings_for(schedule, engine, 4)
    cuda_bed.ranks("device_engines:run_on_another_device", 2, engine, seed=schedule.seed, **settings)
