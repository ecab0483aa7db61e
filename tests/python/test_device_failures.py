"""Failures of operations on CUDA tensors of the emulated driver: waits on the host that raise them, and what the end of
a group tells (device_failures.py has the programs)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, quick_if_random, under_schedules
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5"}
BLOCKS: dict[str, Any] = {**SETTINGS, "SAGECOMM_BLOCKING_WAIT": "on"}
NO_WAITS = "cuStreamWaitValue32@1+=not_supported"
# nccl needs a device for each rank
BEDS = {
    "staged": {"SAGECOMM_ENGINE": "staged"},
    "staged without waits": {"SAGECOMM_ENGINE": "staged", "EMULATOR_FAULTS": NO_WAITS},
    "cuda": {"SAGECOMM_ENGINE": "cuda"},
    "nccl": {"SAGECOMM_ENGINE": "nccl", "EMULATOR_DEVICES": "2"},
}
beds = pytest.mark.parametrize("bed", BEDS)


@pytest.mark.parametrize("bed", quickly(["staged"], BEDS))
@pytest.mark.parametrize("schedule", quickly(["random"], ["lazy", "random"]))
def test_a_peer_that_never_calls(cuda_bed: CudaBed, bed: str, schedule: str) -> None:
    cuda_bed.ranks("device_failures:a_peer_never_calls", 2, schedule=schedule, **BLOCKS, **BEDS[bed])


@beds
@pytest.mark.parametrize("call", quickly(["synchronous"], ["synchronous", "asynchronous", "recv", "window"]))
def test_a_peer_that_dies(cuda_bed: CudaBed, bed: str, call: str) -> None:
    cuda_bed.ranks("device_failures:a_peer_dies", 2, call, dies=1, **BLOCKS, **BEDS[bed])


@pytest.mark.parametrize("bed", quickly(["staged"], BEDS))
@pytest.mark.parametrize("program", ["interrupted", "waits_until_it_is_complete"])
def test_blocking_waits(cuda_bed: CudaBed, bed: str, program: str) -> None:
    cuda_bed.ranks(f"device_failures:{program}", 2, **BLOCKS, **BEDS[bed])


def test_a_group_that_blocks(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_failures:a_group_blocks", 2, **SETTINGS)


def test_captures_stay_as_they_are(cuda_bed: CudaBed) -> None:
    settings = {**BLOCKS, **BEDS["cuda"]}
    for program in ("works", "together"):
        arguments = [4] if program == "together" else []
        cuda_bed.ranks("device_graphs:in_group", 2, program, *arguments, **settings)


@quick_if_random
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("ends_are_told", marks=pytest.mark.long),
        pytest.param("nothing_is_told_twice", marks=pytest.mark.long),
        "an_abort_is_no_news",
        "an_abort_by_a_peer",
        "users_exception_stays",
    ],
)
def test_what_the_end_of_a_group_tells(cuda_bed: CudaBed, schedule: Schedule, program: str) -> None:
    cuda_bed.ranks(f"device_failures:{program}", 2, schedule=schedule.name, seed=schedule.seed, **SETTINGS)


@under_schedules
def test_a_death_in_several_groups(cuda_bed: CudaBed, schedule: Schedule) -> None:
    settings = {**SETTINGS, "schedule": schedule.name, "seed": schedule.seed}
    cuda_bed.ranks("device_failures:a_death_in_several_groups", 2, dies=1, **settings)
