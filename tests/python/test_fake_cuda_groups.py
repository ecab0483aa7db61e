"""Process groups of torch, unmodified, under fake CUDA: the bed is torch's, and not made for sagecomm."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_bed import CudaBed
from device_bed import SEEDS
from selection import quickly

SCHEDULES = ["lazy 1", "eager 1", "threaded 1", *(f"random {seed + 1}" for seed in range(SEEDS))]


def _environment(schedule: str) -> dict[str, str]:
    name, seed = schedule.split()
    return {"EMULATOR_SCHEDULE": name, "EMULATOR_SEED": seed}


@pytest.fixture(scope="module")
def on_the_cpu(cuda_bed: CudaBed) -> list[str]:
    return cuda_bed.ranks("cuda_groups:training", 2, "cpu")


@pytest.mark.parametrize("schedule", quickly(SCHEDULES[3:4], SCHEDULES))
def test_gloo_trains_on_cuda_tensors_as_on_the_cpu(cuda_bed: CudaBed, on_the_cpu: list[str], schedule: str) -> None:
    assert cuda_bed.ranks("cuda_groups:training", 2, "cuda", **_environment(schedule)) == on_the_cpu


@pytest.mark.parametrize("schedule", quickly(SCHEDULES[3:4], SCHEDULES))
def test_gloo_orders_the_stream_that_waits(cuda_bed: CudaBed, schedule: str) -> None:
    assert cuda_bed.ranks("cuda_groups:asynchronous", 2, **_environment(schedule)) == [[7, 7], [7, 7]]


@pytest.mark.parametrize("schedule", quickly(SCHEDULES[3:4], SCHEDULES))
def test_torch_shares_memory_between_processes(cuda_bed: CudaBed, schedule: str) -> None:
    assert cuda_bed.ranks("cuda_groups:share_memory", 2, **_environment(schedule)) == [[4, 4, 4], None]


@pytest.mark.parametrize("schedule", quickly(SCHEDULES[3:4], SCHEDULES))
def test_events_of_another_process_order_streams(cuda_bed: CudaBed, schedule: str) -> None:
    assert cuda_bed.ranks("cuda_groups:share_tensors", 2, **_environment(schedule)) == [[4, 4, 4], [4, 4, 4]]


@pytest.mark.parametrize("schedule", quickly(["random"], ["lazy", "random"]))
def test_torchs_nccl_backend_runs(cuda_bed: CudaBed, tmp_path: Path, schedule: str) -> None:
    done = cuda_bed.run("cuda_groups:nccl", str(tmp_path / "store"), schedule=schedule)
    moves = ["AllReduce count 4 type 7 op 0 root 0", "AllGather count 4 type 7 op 0 root 0"]
    assert done == {"result": [1, 2, 3, 4], "calls": ["Init 0 of 1", *moves, "Destroy"]}


@pytest.mark.parametrize("schedule", quickly(["random"], ["lazy", "random"]))
def test_auto_takes_the_vendors_library_for_its_devices(cuda_bed: CudaBed, schedule: str) -> None:
    assert cuda_bed.run("cuda_groups:comm_backend", schedule=schedule) == {
        "name": "<sagecomm cpu:sagecomm,cuda:nccl backend of rank 0 of 1>",
        "result": [1, 2, 3, 4],
        "count": 5,
        "rows": [["all_reduce", "host", "cpu", 1], ["all_reduce", "host", "cpu", 1], ["all_reduce", "nccl", "cuda", 3]],
    }
