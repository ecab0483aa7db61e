"""Operations of the engine cuda in CUDA graphs, on fake CUDA. device_graphs.py has what ranks do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, by_turns, cases_of, deaths, quick_if_random
from device_graphs import CHUNK, OPERATIONS
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "SAGECOMM_ENGINE": "cuda"}
SIZES = quickly([2], [2, 4])
LAUNCHES = 8


def settings_for(schedule: Schedule) -> dict[str, Any]:
    return {**SETTINGS, "schedule": schedule.name, "seed": schedule.seed}


@quick_if_random
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lengths", quickly([[24]], [[24], [1, 5000]]), ids=str)
def test_replays(cuda_bed: CudaBed, schedule: Schedule, size: int, lengths: list[int]) -> None:
    counts = cuda_bed.ranks("device_graphs:in_group", size, "replays", lengths, LAUNCHES, **settings_for(schedule))
    assert counts == [len(lengths) * len(OPERATIONS)] * size


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_replays_of_more_chunks_than_slots(cuda_bed: CudaBed, schedule: str) -> None:
    lengths = [5 * CHUNK // 4 + 1]
    cuda_bed.ranks("device_graphs:in_group", 2, "replays", lengths, 2, schedule=schedule, **SETTINGS)


@by_turns("program", ["together", "ahead", "streams"])
@pytest.mark.parametrize("size", quickly([4], [3, 4]))
def test_programs(cuda_bed: CudaBed, schedule: Schedule, size: int, program: str) -> None:
    cuda_bed.ranks("device_graphs:in_group", size, program, LAUNCHES, **settings_for(schedule))


@pytest.mark.smoke_if_quick
@pytest.mark.parametrize("program", ["works", "given_up"])
def test_captures(cuda_bed: CudaBed, program: str) -> None:
    cuda_bed.ranks("device_graphs:in_group", 2, program, **SETTINGS)


def test_what_graphs_cannot_hold(cuda_bed: CudaBed) -> None:
    for first, p2p in cuda_bed.ranks("device_graphs:refusals", 2, **SETTINGS):
        assert "call a collective of the group on this device once before the capture" in first
        assert "send: " in p2p
        assert "the stream is being captured into a graph" in p2p


@deaths([2, 3, 4], ["lazy", "eager", "random"], cases_of(2, 5), [(2, "random", 1)])
def test_a_peer_dies(cuda_bed: CudaBed, size: int, schedule: str, seed: int) -> None:
    """Graphs of the survivors go on, launches after that too, and operations raise."""
    of_case = {**SETTINGS, "schedule": schedule, "seed": seed}
    survivors = cuda_bed.ranks("device_graphs:peer_dies", size, seed, dies=size - 1, **of_case)
    assert len(survivors) == size - 1  # the last rank has died
    for survivor in survivors:
        for text in survivor.split(" / "):
            assert text.startswith("PeerFailure: "), text
            assert f"rank {size - 1}" in text


def test_an_abort(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_graphs:aborted", 3, **SETTINGS):
        assert text.startswith("Aborted: "), text


@pytest.mark.parametrize("size", SIZES)
def test_a_group_that_is_gone(cuda_bed: CudaBed, size: int) -> None:
    for report in cuda_bed.ranks("device_graphs:destroyed", size, **SETTINGS):
        assert report == "", report
