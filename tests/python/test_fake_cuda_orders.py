"""The checker under fake CUDA: a missing order is reported under each schedule, a correct program never."""

from __future__ import annotations

import os

import pytest

from cuda_bed import CudaBed
from device_bed import SEEDS
from selection import quickly

RUNS = quickly([SEEDS], [SEEDS, 200 if "SEEDS" in os.environ else 40])  # numbers of seeds
PRODUCER = "[aten::fill_.Scalar on the default stream of device 0]"
COPY = "reads in [copy from device to device memory, 16384 bytes on stream"
# Both accesses of each program of cuda_orders.py.
ACCESSES = {
    "copy_of_producer": (COPY, f"writes in {PRODUCER}"),
    "reuse_of_memory": (COPY, f"writes in {PRODUCER}"),
    "read_of_slot": (
        "reads in [the reader of the slot]",
        "writes in [copy from device to pinned memory, 16384 bytes on",
    ),
}


@pytest.mark.parametrize("seeds", RUNS)
def test_a_missing_order_is_reported_with_both_accesses(cuda_bed: CudaBed, seeds: int) -> None:
    for found in cuda_bed.under_all("cuda_orders:reports", False, seeds=seeds):
        assert list(found) == list(ACCESSES)
        for program, accesses in ACCESSES.items():
            assert len(found[program]) == 1, found
            assert all(access in found[program][0] for access in accesses), found


@pytest.mark.parametrize("seeds", RUNS)
def test_the_correct_forms_are_never_reported(cuda_bed: CudaBed, seeds: int) -> None:
    for found in cuda_bed.under_all("cuda_orders:reports", True, seeds=seeds):
        assert found == {program: [] for program in ACCESSES}


@pytest.mark.long
def test_programs_of_several_threads_are_ordered_by_torch(cuda_bed: CudaBed) -> None:
    cuda_bed.under_all("cuda_orders:threads", seeds=40)
