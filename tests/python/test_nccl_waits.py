"""Where a rank waits for others inside NVIDIA's library, and for how long: the emulated libnccl.so.2 on fake CUDA,
which connects ranks at the first call of a kind, as the real one does.

device_nccl_waits.py has what ranks do.
"""

from __future__ import annotations

import re
import tempfile
from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from selection import quickly
from test_nccl_engine import SETTINGS

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

AUTO = SETTINGS | {"SAGECOMM_ENGINE": "auto"}


def run(
    bed: CudaBed, function: str, size: int, *arguments: Any, settings: dict[str, str] = SETTINGS, faults: str = ""
) -> list[Any]:
    """Runs a function of device_nccl_waits on ranks, the last one of which has a fault plan."""
    with tempfile.TemporaryDirectory() as folder:
        plans = [""] * (size - 1) + [faults]
        children = [
            bed.start(
                f"device_nccl_waits:{function}",
                rank,
                size,
                f"{folder}/store",
                *arguments,
                EMULATOR_FAULTS=plan,
                **settings,
            )
            for rank, plan in enumerate(plans)
        ]
        return [child.result() for child in children]


@pytest.mark.long
def test_a_rank_misses_a_connection(cuda_bed: CudaBed) -> None:
    """The call is announced before the library waits for peers, so the error names the one that has not come."""
    for text in run(cuda_bed, "misses_a_connection", 4):
        assert text.startswith("CollectiveTimeout: "), text
        assert "broadcast #2" in text, text
        assert "not arrived: rank 3 (" in text, text


def test_p2p_behind_a_collective(cuda_bed: CudaBed) -> None:
    run(cuda_bed, "p2p_behind_a_collective", 2, settings=AUTO | {"EMULATOR_STREAM_WAITS": "1"})


def test_a_rank_misses_the_join(cuda_bed: CudaBed) -> None:
    for text in run(cuda_bed, "misses_the_join", 2):
        assert text.startswith("CollectiveTimeout: "), text
        assert 'in control exchange "devices for nccl"' in text, text
        assert "not arrived: rank 1 (" in text, text


@pytest.mark.long
def test_a_rank_moves_to_another_device_alone(cuda_bed: CudaBed) -> None:
    for text in run(cuda_bed, "moves_alone", 2):
        assert text.startswith("CollectiveTimeout: "), text
        assert "at the first collective on another device" in text, text


def test_signals_during_the_join(cuda_bed: CudaBed) -> None:
    run(cuda_bed, "interrupted_in_the_join", 2)


def test_signals_during_a_connection(cuda_bed: CudaBed) -> None:
    for text in run(cuda_bed, "interrupted_in_a_connection", 2):
        assert text.startswith("Aborted: "), text
        assert re.search(r"rank 0 \(.*a signal has interrupted the wait", text), text


@pytest.mark.parametrize("at", quickly(["a connection"], ["the join", "a connection"]))
def test_a_handler_destroys_the_group_while_its_thread_waits(cuda_bed: CudaBed, at: str) -> None:
    for text in run(cuda_bed, "destroyed_by_a_handler", 2, at):
        assert text.startswith("Aborted: "), text
        assert "by rank 0: a signal handler has destroyed the group" in text, text


@pytest.mark.parametrize("on", ["its thread", "another thread"])
def test_a_handler_calls_while_its_thread_waits(cuda_bed: CudaBed, on: str) -> None:
    run(cuda_bed, "handler_calls_while_its_thread_waits", 2, on)


@pytest.mark.parametrize("at", ["the join", "a connection"])
def test_abort_during_a_wait(cuda_bed: CudaBed, at: str) -> None:
    for text in run(cuda_bed, "aborted", 2, at):
        assert text.startswith("Aborted: "), text
        assert "was aborted by rank 0" in text, text


JOINS = {
    "it fails at once": ("ncclCommInitRankConfig@1=#2", 60, "ncclCommInitRankConfig: unhandled system error"),
    "it fails later": ("ncclCommGetAsyncError@1=#2", 60, "unhandled system error"),
    "it hangs": ("ncclCommGetAsyncError@1+=#7", 2, "the join of all ranks takes longer than 2s"),
}


@pytest.mark.parametrize("case", quickly([case for case in JOINS if case != "it hangs"], JOINS))
def test_one_rank_cannot_join(cuda_bed: CudaBed, case: str) -> None:
    plan, timeout, why = JOINS[case]
    results = run(cuda_bed, "one_cannot_join", 2, timeout, settings=AUTO, faults=plan)
    printed, explained = zip(*results, strict=True)
    assert [text.count("WARN") for text in printed] == [1, 0], printed
    assert re.search(rf"does without the engine nccl, which rank 1 \(.*{why}", printed[0]), printed
    for text in explained:
        assert re.search(rf"rank 1 does not offer it: .*{why}", text), text


def test_communicators_of_several_devices(cuda_bed: CudaBed) -> None:
    for on_one, on_several in run(cuda_bed, "devices_differ", 2, settings=AUTO):
        assert re.search("is the device of rank 0 too", on_one), on_one
        assert re.search("the most preferred of those that all ranks offer", on_several), on_several


@pytest.mark.parametrize("fault", ["ncclBroadcast@1=#3", "ncclGroupEnd@4=#3"])
def test_an_operation_that_cannot_be_queued(cuda_bed: CudaBed, fault: str) -> None:
    """Kernels that an abort cuts are no success, and it is done where the device is current."""
    *others, last = run(cuda_bed, "queues_in_vain", 2, faults=fault)
    for text in [*last[:5], *(text for other in others for text in other)]:
        assert "a communicator of nccl failed: rank 1" in text, text
        assert "internal error" in text, text
    assert not any("made a context" in call for call in last), last


def test_a_group_fails_while_it_is_idle(cuda_bed: CudaBed) -> None:
    for calls in run(cuda_bed, "fails_while_idle", 2):
        assert "Destroy" not in calls, calls


def test_a_rank_leaves_alone(cuda_bed: CudaBed) -> None:
    for calls in run(cuda_bed, "leaves_alone", 2):
        assert not any("made a context" in call or call == "Abort" for call in calls), calls


def test_scratch_memory_is_given_back(cuda_bed: CudaBed) -> None:
    for free in run(cuda_bed, "long_lists", 2):
        assert min(free) == free[0], free
