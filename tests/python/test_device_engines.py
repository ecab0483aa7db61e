"""The catalogue in docs/devices.md through the engines nccl and cuda, on fake CUDA. Other files run it through staged.

device_engines.py has what ranks do."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, lazily
from device_engines import MODULES
from test_device_tensors import KICK_MS

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

ENGINES = ["nccl", "cuda"]
CASES = [(engine, module) for engine in ENGINES for module in MODULES]


def settings_for(schedule: Schedule, engine: str, devices: int) -> dict[str, str]:
    bed = {"EMULATOR_KICK_MS": KICK_MS, "EMULATOR_DEVICES": str(devices), "SAGECOMM_ENGINE": engine}
    return {"schedule": schedule.name, **bed}


@pytest.mark.long  # nccl and cuda have quick tests of their own
@lazily
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_programs(cuda_bed: CudaBed, schedule: Schedule, case: tuple[str, str]) -> None:
    settings = settings_for(schedule, case[0], 2)
    cuda_bed.ranks("device_engines:run", 2, *case, seed=schedule.seed, **settings)


@pytest.mark.long
@lazily
@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_that_is_not_the_current_one(cuda_bed: CudaBed, schedule: Schedule, engine: str) -> None:
    settings = settings_for(schedule, engine, 4)
    cuda_bed.ranks("device_engines:run_on_another_device", 2, engine, seed=schedule.seed, **settings)


# What carries out a sum of floats, one of int16, and p2p operations.
CARRIERS = {
    "nccl": (["nccl", "library"], ["staged", "shm"], ["staged", "shm"]),
    "cuda": (["cuda", "device"], ["cuda", "device"], ["staged", "shm"]),
    "staged": (["staged", "shm"], ["staged", "shm"], ["staged", "shm"]),
}


@pytest.mark.parametrize("engine", CARRIERS)
def test_observers_name_the_engine_that_carried_an_operation_out(cuda_bed: CudaBed, engine: str) -> None:
    on = [0, 1] if engine == "nccl" else [0, 0]
    floats, whole, p2p = CARRIERS[engine]
    for rank, told in enumerate(
        cuda_bed.ranks("device_engines:carried_out", 2, on, **settings_for(Schedule("eager"), engine, 2))
    ):
        assert told["rows"] == [
            ["all_reduce", "float32", *floats],
            ["all_reduce", "int16", *whole],
            [("send", "recv")[rank], "int16", *p2p],
        ]
        for name, transport in (floats, whole, p2p):
            assert any(f'engine="{name}",transport="{transport}"' in line for line in told["metrics"])
        for what, (name, _) in zip(("float32", "int16", "p2p"), (floats, whole, p2p), strict=True):
            chosen, carrier, why = told["explained"][what]
            assert (chosen, carrier) == (engine, name)
            assert (why is None) == (chosen == carrier)
        if engine != "staged":
            assert told["explained"]["p2p"][2] == (
                f"{engine} does not carry out p2p operations: they go through host memory"
            )
        if engine == "nccl":
            assert "all_reduce (SUM) of int16: they go through host memory" in told["explained"]["int16"][2]


@pytest.mark.parametrize("engine", [*ENGINES, "staged"])
def test_groups_leave_no_descriptors(cuda_bed: CudaBed, engine: str) -> None:
    on, settings = [0, 1] if engine == "nccl" else [0, 0], settings_for(Schedule("eager"), engine, 2)
    for before, after in cuda_bed.ranks("device_engines:descriptors", 2, on, 20, **settings):
        assert after <= before
