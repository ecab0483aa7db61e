"""Collectives on devices that ranks share, or whose memory they can use: the engine cuda on fake CUDA.

device_cuda.py has what ranks do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device_catalogue
import fake_cuda
from cuda_bed import CudaBed
from device_bed import Schedule, cases_of, deaths, quick_if_lazy, quick_if_random
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

ARENA = 16 << 20  # bytes
PAGE_OF_FILES = 4096  # by which the emulator's memory of cuMemCreate is longer
SETTINGS = {"EMULATOR_KICK_MS": "5", "SAGECOMM_ENGINE": "cuda"}
PLACES = [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4)]  # ranks, and devices


def settings_for(schedule: Schedule, devices: int) -> dict[str, str]:
    return {**SETTINGS, "schedule": schedule.name, "EMULATOR_DEVICES": str(devices)}


@quick_if_lazy
@pytest.mark.parametrize("place", quickly([(2, 2)], PLACES), ids=str)
def test_programs(cuda_bed: CudaBed, schedule: Schedule, place: tuple[int, int]) -> None:
    size, devices = place
    settings = settings_for(schedule, devices)
    cuda_bed.ranks("device_cuda:under_fake_cuda", size, devices, seed=schedule.seed, **settings)


@quick_if_random
@pytest.mark.parametrize("place", quickly([(3, 1)], PLACES), ids=str)
def test_random_programs(cuda_bed: CudaBed, schedule: Schedule, place: tuple[int, int]) -> None:
    size, devices = place
    settings = settings_for(schedule, devices)
    cuda_bed.ranks("device_cuda:in_group", size, devices, "program", schedule.seed, seed=schedule.seed, **settings)


@pytest.mark.parametrize("size", quickly([2], [1, 2, 3, 8]))
def test_bits(cuda_bed: CudaBed, size: int) -> None:
    cuda_bed.ranks("device_cuda:in_group", size, 1, "bits", **SETTINGS)


@pytest.mark.parametrize("of", quickly([], [(2, 1), (3, 1), (4, 1), (2, 6)]), ids=str)
def test_borders_of_chunks(cuda_bed: CudaBed, of: tuple[int, int]) -> None:
    size, chunks = of
    cuda_bed.ranks("device_cuda:in_group", size, 1, "borders", chunks, **SETTINGS)


@pytest.mark.parametrize("size", quickly([], [2, 3]))
def test_long_sums(cuda_bed: CudaBed, size: int) -> None:
    cuda_bed.ranks("device_cuda:in_group", size, 1, "long_sums", 6, **SETTINGS)


@deaths([2, 3, 4], ["lazy", "eager", "random"], cases_of(5, 23), [(3, "random", 1)])
def test_a_peer_dies(cuda_bed: CudaBed, size: int, schedule: str, seed: int) -> None:
    """The streams of the survivors wait for the dead rank until the survivors end the waits."""
    of_case = {**SETTINGS, "schedule": schedule, "seed": seed}
    survivors = cuda_bed.ranks("device_cuda:peer_dies", size, seed, dies=size - 1, **of_case)
    assert len(survivors) == size - 1  # the last rank has died
    for text in survivors:
        assert text.startswith("PeerFailure: "), text
        assert f"rank {size - 1}" in text


@pytest.mark.parametrize("how", quickly(["future"], ["wait", "backward", "future"]))
def test_a_rank_leaves_before_the_backward(cuda_bed: CudaBed, how: str) -> None:
    """An operation that a rank will never call fails when it has left, and not at the timeout."""
    *others, left = cuda_bed.ranks("device_cuda:rank_leaves", 3, how, **SETTINGS)
    assert left == "left"
    for text in others:
        assert re.match("PeerFailure: .*Connection closed by peer: rank 2 .* has left the group", text), text


@pytest.mark.parametrize("schedule", quickly([], ["lazy", "eager", "random"]))
def test_factors_on_the_device(cuda_bed: CudaBed, schedule: str) -> None:
    cuda_bed.ranks("device_cuda:factors", 2, **SETTINGS, schedule=schedule)


@pytest.mark.parametrize("engine", quickly(["cuda"], ["cuda", "nccl", "staged"]))
def test_a_thread_captures_beside_another_one(cuda_bed: CudaBed, engine: str) -> None:
    cuda_bed.ranks("device_cuda:beside_a_capture", 2, engine, **SETTINGS | {"SAGECOMM_ENGINE": engine})


def test_a_thread_captures_beside_the_first_operations(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_cuda:first_beside_a_capture", 2, **SETTINGS | {"SAGECOMM_ENGINE": "staged"})


STREAM_WAITS = {"EMULATOR_KICK_MS": "5", "EMULATOR_STREAM_WAITS": "1", "EMULATOR_STALL_S": "10"}


@pytest.mark.parametrize("engine", ["cuda", "staged"])
def test_calls_that_wait(cuda_bed: CudaBed, engine: str) -> None:
    """Streams and kernels are made before a stream waits for a peer. It hangs where they are made later."""
    cuda_bed.ranks("device_cuda:calls_that_wait", 2, engine, **STREAM_WAITS)


def test_a_signal_while_kernels_load(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_cuda:interrupted_while_kernels_load", 2, **STREAM_WAITS)


def test_an_abort_while_kernels_load(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_cuda:aborted_while_kernels_load", 2, **STREAM_WAITS)


@pytest.mark.parametrize("engine", quickly(["cuda"], ["cuda", "staged"]))
@pytest.mark.parametrize("schedule", quickly([], ["lazy", "eager", "random"]))
def test_p2p_beside_calls_that_wait(cuda_bed: CudaBed, schedule: str, engine: str) -> None:
    settings = {**STREAM_WAITS, "SAGECOMM_ENGINE": engine, "schedule": schedule}
    cuda_bed.ranks("device_p2p:beside_calls_that_wait", 2, **settings)


@pytest.mark.parametrize("engine", quickly(["staged"], ["cuda", "staged"]))
def test_rows_do_not_wait_for_another_thread(cuda_bed: CudaBed, engine: str) -> None:
    cuda_bed.ranks("device_cuda:rows_beside_another_thread", 2, **SETTINGS | {"SAGECOMM_ENGINE": engine})


@pytest.mark.long
def test_rows_do_not_wait_for_a_handler(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_cuda:rows_beside_a_handler", 2, **SETTINGS)


def test_an_output_that_cannot_be_written(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_cuda:unwritten", 2, **SETTINGS):
        where = r"rank 0 \(.*\) cannot go on as its peers do in all_gather #2 on a device"
        assert re.match(f"DistBackendError: .*{where}: an output on cuda:0 cannot be written: ", text), text
        assert "no copies here; peers hold the operation for complete, so make a new group" in text


@pytest.mark.long
def test_an_output_that_cannot_be_written_in_a_capture(cuda_bed: CudaBed) -> None:
    cuda_bed.ranks("device_cuda:unwritten_in_a_capture", 2, **SETTINGS)


@pytest.mark.parametrize("engine", ["cuda", "nccl", "staged"])
def test_calls_after_an_abort(cuda_bed: CudaBed, engine: str) -> None:
    for texts in cuda_bed.ranks("device_cuda:calls_after_an_abort", 2, **SETTINGS | {"SAGECOMM_ENGINE": engine}):
        assert len(texts) == 7
        for text in texts:
            assert re.match("Aborted: .*was aborted by rank", text), text


def test_what_a_peer_has_cut_is_no_success(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_cuda:is_void", 3, **SETTINGS):
        assert text.startswith("Aborted: "), text


@pytest.mark.long  # it waits for a timeout of 2 s
def test_peers_are_told_of_a_cut(cuda_bed: CudaBed) -> None:
    gone, *others = cuda_bed.ranks("device_cuda:is_cut", 3, **SETTINGS)
    assert gone == "destroyed"
    told = "PeerFailure: .*rank 0 .* has destroyed the group and ended operations of cuda .*all_reduce #2"
    for text in others:
        assert re.match(told, text), text


@pytest.mark.long  # it waits for a timeout of 2 s
def test_a_rank_is_absent(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_nccl:rank_is_absent", 2, **SETTINGS):
        assert text.startswith("CollectiveTimeout: "), text


def test_ranks_call_different_operations(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_nccl:ranks_differ", 2, **SETTINGS):
        assert text.startswith("CollectiveMismatch: "), text


@pytest.mark.parametrize("splits", quickly([(5, 7)], device_catalogue.SPLITS), ids=str)
def test_splits_do_not_fit(cuda_bed: CudaBed, splits: tuple[int, int]) -> None:
    sent, expected = splits
    for text in cuda_bed.ranks("device_nccl:splits_differ", 2, *splits, **SETTINGS):
        assert re.match("CollectiveMismatch: .*" + device_catalogue.unfit(4 * sent, 4 * expected), text), text


@pytest.mark.parametrize("devices", quickly([1], [1, 4]))
def test_links_choose_the_algorithm(cuda_bed: CudaBed, devices: int) -> None:
    """Ranks on one device have another border than ranks whose devices reach each other. All ranks choose the same."""
    told = cuda_bed.ranks("device_cuda:explained", 4, devices, **SETTINGS, EMULATOR_DEVICES=str(devices))
    assert told == [told[0]] * 4
    before, after = told[0]
    apart, shared = "131072-inf:two_shot@chunk=2097152", "524288-inf:two_shot@chunk=2097152"
    assert before.endswith(apart)
    assert after.endswith(shared if devices == 1 else apart)


@pytest.mark.long
def test_memory_is_given_back(cuda_bed: CudaBed) -> None:
    for bytes_in_use in cuda_bed.ranks("device_cuda:many_communicators", 2, **SETTINGS):
        assert bytes_in_use <= ARENA + PAGE_OF_FILES


def test_memory_with_handles_is_used_again(cuda_bed: CudaBed) -> None:
    settings = {**SETTINGS, "EMULATOR_FAULTS": "cuMemExportToShareableHandle@1+=not_supported"}
    assert cuda_bed.ranks("device_cuda:memory_is_used_again", 2, **settings) == [True, True]


# A driver without files for memory: on all ranks, or on one, which shares or opens none.
WITHOUT_FILES = {
    "all": ["cuMemExportToShareableHandle@1+=not_supported"] * 3,
    "one shares none": ["", "cuMemExportToShareableHandle@1+=not_supported", ""],
    "one opens none": ["", "", "cuMemImportFromShareableHandle@1+=invalid_value"],
}


@pytest.mark.parametrize("case", quickly([], WITHOUT_FILES))
@pytest.mark.parametrize("devices", [1, pytest.param(3, marks=pytest.mark.long)])
def test_slots_by_handles(cuda_bed: CudaBed, tmp_path: Path, case: str, devices: int) -> None:
    settings = {**SETTINGS, "schedule": "random", "EMULATOR_DEVICES": str(devices)}
    for function, arguments in (("device_cuda:in_group", [devices, "program", 1]), ("device_cuda:is_void", [])):
        children = [
            cuda_bed.start(function, rank, 3, str(tmp_path / function), *arguments, EMULATOR_FAULTS=faults, **settings)
            for rank, faults in enumerate(WITHOUT_FILES[case])
        ]
        for child in children:
            assert str(child.result()).startswith(("None", "Aborted: "))


REASONS = {
    "devices apart": (
        [0, 1],
        "cuDeviceCanAccessPeer@1+=#0",
        "cuda:0 of host .* cannot use the memory of cuda:1 of host .*, the device of rank 1",
    ),
    "nothing to share": (
        [0, 0],
        "cuIpcGetMemHandle@1=not_supported;cuMemExportToShareableHandle@1=not_supported",
        "no rank offers it: cannot share memory of the device by a file: .*; cannot share memory of the device: ",
    ),
    "no import": (
        [0, 0],
        "cuIpcOpenMemHandle@1=out_of_memory;cuMemImportFromShareableHandle@1=not_supported",
        "cannot open memory that another process shares by a file: .*; memory of rank .* another process shares: ",
    ),
    "no registration": ([0, 0], "cuMemHostRegister@1=not_supported", "cannot register host memory"),
    "no kernels": ([0, 0], "cuModuleLoadDataEx@1+=not_supported", "cannot load the kernels of reductions"),
    "no reason": ([0, 0], "", "'engine': 'cuda', 'chosen': True"),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_ranks_do_without_the_engine(cuda_bed: CudaBed, case: str) -> None:
    on, faults, reason = REASONS[case]
    settings = SETTINGS | {"SAGECOMM_ENGINE": "auto", "EMULATOR_FAULTS": faults, "NCCL_COMM_BLOCKING": "1"}
    for text in cuda_bed.ranks("device_cuda:used", 2, on, **settings):
        assert re.search(reason, text), text


@pytest.mark.long
def test_a_shortage_costs_one_group_the_engine(cuda_bed: CudaBed) -> None:
    faults = "cuIpcGetMemHandle@1=out_of_memory;cuMemExportToShareableHandle@1+=not_supported"
    settings = SETTINGS | {"SAGECOMM_ENGINE": "auto", "EMULATOR_FAULTS": faults, "NCCL_COMM_BLOCKING": "1"}
    for first, second in cuda_bed.ranks("device_cuda:after_a_shortage", 2, **settings):
        assert "no rank offers it: cannot share memory of the device" in first, first
        assert "'engine': 'cuda', 'chosen': True" in second, second


def test_ranks_that_share_a_device_do_without_nccl(cuda_bed: CudaBed) -> None:
    for text in cuda_bed.ranks("device_cuda:used", 2, [0, 0], **SETTINGS | {"SAGECOMM_ENGINE": "auto"}):
        assert "is the device of rank 0 too" in text, text
        assert "'engine': 'cuda', 'chosen': True" in text, text


def test_a_set_engine_that_cannot_be(cuda_bed: CudaBed) -> None:
    faults = "cuIpcGetMemHandle@1=not_supported;cuMemExportToShareableHandle@1=not_supported"
    for text in cuda_bed.ranks("device_nccl:shares_a_device", 2, **SETTINGS, EMULATOR_FAULTS=faults):
        assert "SAGECOMM_ENGINE=cuda, but no rank offers it: cannot share memory of the device" in text, text


@pytest.mark.long
def test_env_tells_of_the_engine(cuda_bed: CudaBed) -> None:
    command = [sys.executable, "-m", "sagecomm", "env"]
    said = subprocess.run(command, env=fake_cuda.environment(), capture_output=True, text=True, timeout=120, check=True)
    line = r"\n  cuda: 2 devices \(libcuda.so.1\); .*; engine cuda for ranks that share a device\n"
    assert re.search(line, said.stdout), said.stdout
