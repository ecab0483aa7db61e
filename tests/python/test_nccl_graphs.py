"""Operations of the engine nccl in CUDA graphs, on the emulated libnccl.so.2. device_graphs.py has what ranks do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, by_turns, cases_of, deaths, quick_if_random
from device_graphs import OPERATIONS
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4", "SAGECOMM_ENGINE": "nccl"}
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


@by_turns("program", ["together", "streams", "ahead"])
@pytest.mark.parametrize("size", quickly([3], [2, 3]))
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


# ---- over several hosts ----

HOSTS = [(1, 1), (2, 2)]
CPU_TAKES_PART = "a graph cannot hold an operation that the CPU takes part in; call it outside of the capture"


@pytest.mark.parametrize("hosts", quickly([(1, 1)], HOSTS), ids=str)
def test_replays_over_hosts(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    of_case = {**SETTINGS, "schedule": "random"}
    counts = cuda_bed.ranks("device_graphs:in_group", sum(hosts), "replays", [24], LAUNCHES, hosts=hosts, **of_case)
    assert counts == [len(OPERATIONS)] * sum(hosts)


def test_what_graphs_cannot_hold_over_hosts(cuda_bed: CudaBed) -> None:
    """Nobody is told to set the engine cuda, which is for one host."""
    for texts in cuda_bed.ranks("device_graphs:refusals", 2, hosts=(1, 1), **SETTINGS):
        assert CPU_TAKES_PART in texts[-1]
        assert not any("SAGECOMM_ENGINE" in text for text in texts), texts


@pytest.mark.parametrize("offered", [True, False], ids=["nccl is there", "nccl is not there"])
def test_captures_that_staged_refuses_over_hosts(cuda_bed: CudaBed, offered: bool) -> None:
    """The error names nccl where all ranks offer it, and never cuda."""
    settings = {**SETTINGS, "SAGECOMM_ENGINE": "staged", **({} if offered else {"NCCL_COMM_BLOCKING": "1"})}
    nccl = ", or set SAGECOMM_ENGINE=nccl on all ranks: a graph can hold collectives of that engine"
    for first, p2p in cuda_bed.ranks("device_graphs:refusals", 2, hosts=(1, 1), **settings):
        assert CPU_TAKES_PART in first
        assert (nccl in first) == offered
        assert "cuda" not in first.partition(CPU_TAKES_PART)[2]
        assert "SAGECOMM_ENGINE" not in p2p


def test_the_engine_cuda_over_hosts(cuda_bed: CudaBed) -> None:
    """It is refused before anything can be captured."""
    settings = {**SETTINGS, "SAGECOMM_ENGINE": "cuda"}
    for text in cuda_bed.ranks("device_graphs:cannot_join", 2, hosts=(1, 1), **settings):
        assert "SAGECOMM_ENGINE=cuda, but " in text
        assert "the ranks are on several hosts" in text


@pytest.mark.long
@pytest.mark.parametrize("hosts", [(1, 1), (1, 3)], ids=str)
def test_a_peer_on_another_host_dies(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    last = sum(hosts) - 1
    survivors = cuda_bed.ranks("device_graphs:peer_dies", last + 1, 1, dies=last, hosts=hosts, **SETTINGS)
    assert len(survivors) == last
    for survivor in survivors:
        for text in survivor.split(" / "):
            assert text.startswith("PeerFailure: "), text
            assert f": rank {last} (" in text, text


# ---- failures ----


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
