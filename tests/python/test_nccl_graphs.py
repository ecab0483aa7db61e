"""Operations of the engine nccl in CUDA graphs, on the emulated libnccl.so.2. device_graphs.py has what ranks do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, cases_of, deaths, under_schedules
from device_graphs import OPERATIONS
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4", "SAGECOMM_ENGINE": "nccl"}
SIZES = quickly([2], [2, 4])
LAUNCHES = 8


def settings_for(schedule: Schedule) -> dict[str, Any]:
    return {**SETTINGS, "schedule": schedule.name, "seed": schedule.seed}


@under_schedules
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lengths", quickly([[24]], [[24], [1, 5000]]), ids=str)
def test_replays(cuda_bed: CudaBed, schedule: Schedule, size: int, lengths: list[int]) -> None:
    counts = cuda_bed.ranks("device_graphs:in_group", size, "replays", lengths, LAUNCHES, **settings_for(schedule))
    assert counts == [len(lengths) * len(OPERATIONS)] * size


@under_schedules
@pytest.mark.parametrize("size", quickly([3], [2, 3]))
@pytest.mark.parametrize("program", ["together", "streams", pytest.param("ahead", marks=pytest.mark.long)])
def test_programs(cuda_bed: CudaBed, schedule: Schedule, size: int, program: str) -> None:
    cuda_bed.ranks("device_graphs:in_group", size, program, LAUNCHES, **settings_for(schedule))


@pytest.mark.parametrize("program", ["works", "given_up"])
def test_captures(cuda_bed: CudaBed, program: str) -> None:
    cuda_bed.ranks("device_graphs:in_group", 2, program, **SETTINGS)


def test_what_graphs_cannot_hold(cuda_bed: CudaBed) -> None:
    """What is refused on one rank is refused on all, before anything of it is queued."""
    for first, p2p, gather, exchange, bits in cuda_bed.ranks("device_graphs:refusals", 2, **SETTINGS):
        assert "call a collective of the group on this device once before the capture" in first
        assert "send: " in p2p
        assert "the stream is being captured into a graph" in p2p
        for text in (gather, exchange):
            assert "nccl: the stream is being captured, and the ranks are not connected for this operation yet" in text
            assert "call the same operation of the group once before the capture" in text
        assert "the stream is being captured into a graph, and a graph cannot hold" in bits
        assert "or set SAGECOMM_ENGINE=cuda on all ranks" in bits


@deaths([2, 3, 4], ["lazy", "eager", "random"], cases_of(2, 5), [(3, "random", 1)])
def test_a_peer_dies(cuda_bed: CudaBed, size: int, schedule: str, seed: int) -> None:
    """Graphs of the survivors go on, launches after that too, and operations raise."""
    of_case = {**SETTINGS, "schedule": schedule, "seed": seed}
    survivors = cuda_bed.ranks("device_graphs:peer_dies", size, seed, dies=size - 1, **of_case)
    assert len(survivors) == size - 1  # the last rank has died
    for survivor in survivors:
        for text in survivor.split(" / "):
            assert text.startswith("PeerFailure: "), text
            assert f"rank {size - 1}" in text


def test_an_operation_fails_beside_graphs(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_graphs:eager_fails", 2, **SETTINGS):
        assert "rank 0" in text
        assert "ncclGroupEnd" in text


def test_a_capture_fails(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_graphs:capture_fails", 2, **SETTINGS):
        assert "the capture has a part of the operation only: ncclGroupEnd" in text


def test_a_graph_that_is_running(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_graphs:running", 2, **SETTINGS)


def test_a_process_that_ends_waits_for_peers(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_graphs:lingers", 2, **SETTINGS)


@pytest.mark.long
def test_an_abort(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_graphs:aborted", 3, **SETTINGS):
        assert text.startswith("Aborted: "), text


@pytest.mark.long
def test_a_group_that_is_gone(cuda_bed: CudaBed) -> None:
    for report in cuda_bed.ranks("device_graphs:gone", 2, **SETTINGS):
        assert report == "", report
