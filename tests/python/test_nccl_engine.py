"""Collectives on devices through NVIDIA's library: the emulated libnccl.so.2 on fake CUDA.

device_nccl.py has what ranks do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import device_catalogue
from cuda_bed import CudaBed, on_hosts
from device_bed import Schedule, by_turns, cases_of, deaths
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4", "SAGECOMM_ENGINE": "nccl"}


@by_turns("size", [2, 4])
def test_programs(cuda_bed: CudaBed, schedule: Schedule, size: int) -> None:
    settings = {**SETTINGS, "schedule": schedule.name}
    for calls in cuda_bed.ranks("device_nccl:under_fake_cuda", size, seed=schedule.seed, **settings):
        assert any(call.startswith("AllReduce count 24 type 7 op 0") for call in calls)


HOSTS = [(1, 1), (2, 2), (1, 3)]


@pytest.mark.parametrize("hosts", quickly([(2, 2)], HOSTS), ids=str)
def test_programs_over_several_hosts(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    """NCCL has connections of its own between hosts: no engine has to be set for it."""
    settings = {**SETTINGS, "SAGECOMM_ENGINE": "auto"}
    for calls in cuda_bed.ranks("device_nccl:under_fake_cuda", sum(hosts), hosts=hosts, **settings):
        assert any(call.startswith("AllReduce count 24 type 7 op 0") for call in calls)


@pytest.mark.parametrize("hosts", quickly([(1, 3)], HOSTS), ids=str)
def test_a_peer_on_another_host_dies(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    size = sum(hosts)
    survivors = cuda_bed.ranks("device_nccl:peer_dies", size, 1, dies=size - 1, hosts=hosts, **SETTINGS)
    assert len(survivors) == size - 1
    for text in survivors:
        assert text.startswith("PeerFailure: "), text
        assert f": rank {size - 1} (" in text, text


RESULTS = {"ncclRemoteError": 6, "ncclSystemError": 2}


@pytest.mark.parametrize("hosts", quickly([(1, 1)], HOSTS), ids=str)
@pytest.mark.parametrize("result", quickly(["ncclRemoteError"], RESULTS))
@pytest.mark.parametrize("waits", quickly([True], [True, False]))
def test_nccl_reports_a_death_first(cuda_bed: CudaBed, hosts: tuple[int, ...], result: str, waits: bool) -> None:
    """The error names the dead rank and not one that has the report. It fails without vendor.Group.ReportWait."""
    size = sum(hosts)
    of_case = (RESULTS[result], waits)
    survivors = cuda_bed.ranks(
        "device_nccl:library_knows_first", size, *of_case, dies=size - 1, hosts=hosts, **SETTINGS
    )
    assert len(survivors) == size - 1
    for text in survivors:
        assert text.startswith("PeerFailure: "), text
        assert f": rank {size - 1} (" in text, text


CALLS = """Init RANK of 2
AllReduce count 6 type 7 op 2 root 0
AllReduce count 6 type 1 op 3 root 0
AllReduce count 12 type 7 op 0 root 0
AllReduce count 6 type 9 op 5 root 0
Broadcast count 12 type 1 op 0 root 1
Reduce count 6 type 7 op 0 root 1
AllGather count 6 type 7 op 0 root 0
AllGather count 6 type 7 op 0 root 0
ReduceScatter count 3 type 7 op 0 root 0
Send count 3 type 7 op 0 root 0
Recv count 3 type 7 op 0 root 0
Send count 3 type 7 op 0 root 1
Recv count 3 type 7 op 0 root 1
AllReduce count 1 type 2 op 2 root 0"""


def test_the_calls_of_operations(cuda_bed: CudaBed) -> None:
    """Booleans are bytes, complex numbers two floats, and 16-bit integers are moved as bytes. A BXOR is not NCCL's. The
    communicator is destroyed when all ranks have left."""
    for rank, calls in enumerate(cuda_bed.ranks("device_nccl:recorded", 2, **SETTINGS)):
        assert [call for call in calls if call != "Destroy"] == CALLS.replace("RANK", str(rank)).splitlines()


@deaths([2, 4], ["lazy", "eager", "random"], cases_of(4, 10), [(2, "lazy", 1), (4, "random", 1)])
def test_a_peer_dies(cuda_bed: CudaBed, size: int, schedule: str, seed: int) -> None:
    """NCCL's kernels wait for the dead rank for ever, until the survivors abort their communicators."""
    of_case = {**SETTINGS, "schedule": schedule, "seed": seed}
    survivors = cuda_bed.ranks("device_nccl:peer_dies", size, seed, dies=size - 1, **of_case)
    assert len(survivors) == size - 1  # the last rank has died
    for text in survivors:
        assert text.startswith("PeerFailure: "), text
        assert f"rank {size - 1}" in text


@pytest.mark.parametrize("hosts", [(2,), (1, 1)], ids=str)
def test_an_asynchronous_error(cuda_bed: CudaBed, tmp_path: Path, hosts: tuple[int, ...]) -> None:
    """No death explains it."""
    plan, function = {0: "ncclCommGetAsyncError@30+=#6"}, "device_nccl:communicator_fails"
    children = [
        cuda_bed.start(
            function, r, 2, str(tmp_path / "store"), EMULATOR_FAULTS=plan.get(r, ""), **SETTINGS, **on_hosts(hosts)[r]
        )
        for r in range(2)
    ]
    for child in children:
        text = child.result()
        assert "rank 0" in text
        assert "nccl" in text
        assert "remote process exited or there was a network error" in text


@pytest.mark.parametrize("seconds", quickly([], [2, 60]))
def test_an_error_before_a_timeout(cuda_bed: CudaBed, tmp_path: Path, seconds: float) -> None:
    """It waits for the death of a rank of another host no longer than until the operation is about to time out."""
    plan, function, store = {0: "ncclAllReduce@2=#2"}, "device_nccl:library_fails", str(tmp_path / "store")
    children = [
        cuda_bed.start(
            function, r, 2, store, seconds, EMULATOR_FAULTS=plan.get(r, ""), **SETTINGS, **on_hosts((1, 1))[r]
        )
        for r in range(2)
    ]
    for child in children:
        assert re.match("DistBackendError: .*rank 0.*ncclAllReduce: unhandled system error", child.result())


@pytest.mark.parametrize("soon", quickly([True], [True, False]))
def test_kernels_that_come_behind_an_error(cuda_bed: CudaBed, tmp_path: Path, soon: bool) -> None:
    plan = {0: f"ncclGroupEnd@2=late#3@{100 if soon else 2500}"}
    function, store = "device_nccl:kernels_come_late", str(tmp_path / "store")
    children = [
        cuda_bed.start(function, r, 2, store, soon, EMULATOR_FAULTS=plan.get(r, ""), **SETTINGS) for r in range(2)
    ]
    for child in children:
        assert re.match("DistBackendError: .*rank 0.*nccl: .*: late", child.result())


@pytest.mark.parametrize("hosts", [(2,), (1, 1)], ids=str)
def test_ranks_call_different_operations(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    for text in cuda_bed.ranks("device_nccl:ranks_differ", 2, hosts=hosts, **SETTINGS):
        assert text.startswith("CollectiveMismatch: "), text
        assert "4 elements" in text
        assert "5 elements" in text


@pytest.mark.parametrize("hosts", [(2,), (1, 1)], ids=str)
@pytest.mark.parametrize("splits", quickly([(5, 7)], device_catalogue.SPLITS), ids=str)
def test_splits_do_not_fit(cuda_bed: CudaBed, splits: tuple[int, int], hosts: tuple[int, ...]) -> None:
    sent, expected = splits
    for text in cuda_bed.ranks("device_nccl:splits_differ", 2, *splits, hosts=hosts, **SETTINGS):
        assert re.match("CollectiveMismatch: .*" + device_catalogue.unfit(4 * sent, 4 * expected), text), text


def test_calls_that_differ_and_end_all_the_same(cuda_bed: CudaBed) -> None:
    """Ranks of several hosts compare their calls once a second."""
    for text in cuda_bed.ranks("device_nccl:ranks_reduce_differently", 2, hosts=(1, 1), **SETTINGS):
        assert text.startswith("CollectiveMismatch: "), text
        assert "MAX" in text
        assert "SUM" in text


@pytest.mark.parametrize("hosts", quickly([(2,)], [(2,), (1, 1)]), ids=str)
def test_a_rank_is_absent(cuda_bed: CudaBed, hosts: tuple[int, ...]) -> None:
    for text in cuda_bed.ranks("device_nccl:rank_is_absent", 2, hosts=hosts, **SETTINGS):
        assert text.startswith("CollectiveTimeout: "), text
        assert "rank 1 (" in text, text


REASONS = {
    "a shared device": ([0, 0], {}, "rank 1 does not offer it: cuda:0 of host .* is the device of rank 0 too"),
    "no id": (
        [0, 1],
        {"EMULATOR_FAULTS": "ncclGetUniqueId@1=#2"},
        "rank 0 does not offer it: ncclGetUniqueId: unhandled",
    ),
    "no join": (
        [0, 1],
        {"EMULATOR_FAULTS": "ncclCommInitRankConfig@1=#2"},
        "no rank offers it: ncclCommInitRankConfig: unhandled system error",
    ),
    "streams that cannot wait": (
        [0, 1],
        {"EMULATOR_FAULTS": "cuStreamWaitValue32@1+=not_supported"},
        "is reached through bridge, whose streams take no kernels",
    ),
    "calls that block": (
        [0, 1],
        {"NCCL_COMM_BLOCKING": "1"},
        "no rank offers it: NCCL_COMM_BLOCKING=1 makes calls of NCCL wait for peers",
    ),
    "no reason": ([0, 1], {}, "the most preferred of those that all ranks offer"),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_ranks_do_without_the_library(cuda_bed: CudaBed, case: str) -> None:
    on, settings, reason = REASONS[case]
    for text in cuda_bed.ranks("device_nccl:falls_back", 2, on, **SETTINGS | {"SAGECOMM_ENGINE": "auto"} | settings):
        assert re.search(reason, text), text


def test_a_set_engine_that_cannot_be(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_nccl:shares_a_device", 2, **SETTINGS):
        assert "SAGECOMM_ENGINE=nccl, but rank 1 does not offer it" in text
