"""torch's own backend nccl, unmodified, on fake CUDA, with libsagecomm_nccl.so where NCCL stands. The backend is
ProcessGroupNCCL2, and ProcessGroupNCCL before torch 2.15 and with TORCH_DIST_USE_NCCL2=0.

facade_ranks.py has what ranks do. The emulator's checker reports each pair of accesses that nothing orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

import device_training
from cuda_bed import CudaBed, fake_cuda
from device_bed import Schedule, quick_if_random
from facade_ranks import SLOTS
from nccl_facade import FACADE
from selection import quickly
from worlds import Pool

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

SETTINGS = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4"}
ENGINES = ["staged", "cuda", "auto"]
SHRINK_DEFAULT, SHRINK_ABORT = 0, 1  # as in torch.distributed
# Which class torch's backend nccl is: since 2.15 ProcessGroupNCCL2, unless TORCH_DIST_USE_NCCL2 is 0.
CLASSES = {"ProcessGroupNCCL2": "1"} if hasattr(c10d, "ProcessGroupNCCL2") else {}
CLASSES["ProcessGroupNCCL"] = "0"
of_both_classes = pytest.mark.parametrize("group_class", CLASSES)


def of_class(group_class: str) -> dict[str, str]:
    return {"GROUP_CLASS": group_class, "TORCH_DIST_USE_NCCL2": CLASSES[group_class]}


def case(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture(scope="module")
def facade_bed() -> Iterator[CudaBed]:
    try:
        fake_cuda.build()
    except fake_cuda.builder.UnavailableError as error:
        pytest.skip(str(error))
    bed = CudaBed(preload=[FACADE])
    yield bed
    bed.stop()


@pytest.mark.parametrize("group_class", quickly(["ProcessGroupNCCL"], CLASSES))
@quick_if_random
@pytest.mark.parametrize("of", quickly([("staged", 2)], [("staged", 2), ("cuda", 4), ("auto", 4)]), ids=case)
def test_programs(facade_bed: CudaBed, schedule: Schedule, of: tuple[str, int], group_class: str) -> None:
    engine, size = of
    settings = {**SETTINGS, **of_class(group_class), "SAGECOMM_ENGINE": engine, "schedule": schedule.name}
    for mapped in facade_bed.ranks("facade_ranks:programs", size, seed=schedule.seed, **settings):
        assert mapped == [FACADE.name]  # NVIDIA's is not in the process


@pytest.mark.long
@of_both_classes
def test_programs_over_hosts(facade_bed: CudaBed, group_class: str) -> None:
    settings = {**SETTINGS, **of_class(group_class)}
    for mapped in facade_bed.ranks("facade_ranks:programs", 2, hosts=(1, 1), **settings):
        assert mapped == [FACADE.name]


@pytest.mark.parametrize("engine", quickly(["auto"], ["auto", "staged"]))
@of_both_classes
def test_ranks_share_a_device(facade_bed: CudaBed, engine: str, group_class: str) -> None:
    settings = {**SETTINGS, **of_class(group_class), "EMULATOR_DEVICES": "1", "SAGECOMM_ENGINE": engine}
    facade_bed.ranks("facade_ranks:programs", 2, **settings)


@pytest.mark.parametrize("nonblocking", quickly([True], [False, True]))
@pytest.mark.parametrize("size", quickly([2], [2, 4]))
@of_both_classes
def test_splits(facade_bed: CudaBed, size: int, nonblocking: bool, group_class: str) -> None:
    facade_bed.ranks("facade_ranks:splits", size, nonblocking, **SETTINGS, **of_class(group_class))


@pytest.mark.parametrize("flags", quickly([SHRINK_ABORT], [SHRINK_DEFAULT, SHRINK_ABORT]))
@of_both_classes
def test_shrinks(facade_bed: CudaBed, flags: int, group_class: str) -> None:
    facade_bed.ranks("facade_ranks:shrinks", 3, flags, **SETTINGS, **of_class(group_class))


@pytest.mark.parametrize("size", quickly([2], [2, 4]))
@of_both_classes
def test_aborts(facade_bed: CudaBed, size: int, group_class: str) -> None:
    texts = facade_bed.ranks("facade_ranks:aborts", size, **SETTINGS, **of_class(group_class))
    assert all("rank 0" in text and " left " in text for text in texts[1:]), texts


@pytest.mark.parametrize("of", quickly([("staged", 2)], [(e, n) for e in ENGINES for n in (2, 4)]), ids=case)
def test_pynccl(facade_bed: CudaBed, of: tuple[str, int]) -> None:
    engine, size = of
    facade_bed.ranks("facade_ranks:pynccl", size, **SETTINGS, SAGECOMM_ENGINE=engine)


@pytest.mark.parametrize("schedule", quickly(["random"], ["lazy", "eager", "random"]))
def test_several_streams_in_a_group_call(facade_bed: CudaBed, schedule: str) -> None:
    facade_bed.ranks("facade_ranks:several_streams", 2, **SETTINGS, schedule=schedule)


def test_a_communicator_of_another_device(facade_bed: CudaBed) -> None:
    facade_bed.ranks("facade_ranks:of_another_device", 2, **SETTINGS)


def test_an_abort_ends_a_finalize(facade_bed: CudaBed) -> None:
    texts = facade_bed.ranks("facade_ranks:aborted_in_finalize", 2, **SETTINGS)
    assert all("ncclCommAbort() was called" in text for text in texts), texts


@pytest.mark.long
def test_an_operation_that_times_out_in_finalize(facade_bed: CudaBed) -> None:
    text = facade_bed.ranks("facade_ranks:finalized", 2, **SETTINGS, SAGECOMM_TIMEOUT="2")[0]
    assert "rank 1" in text, text


@pytest.mark.parametrize("ranks", quickly([2], [2, 4]))
def test_ranks_in_one_thread(facade_bed: CudaBed, ranks: int) -> None:
    facade_bed.ranks("facade_ranks:in_one_thread", 1, ranks, **SETTINGS)


def test_an_operation_in_a_capture_is_refused(facade_bed: CudaBed) -> None:
    for text in facade_bed.ranks("facade_ranks:captured", 2, **SETTINGS):
        assert "captured" in text


@pytest.mark.parametrize("size", quickly([2], [2, 4]))
def test_graphs(facade_bed: CudaBed, size: int) -> None:
    facade_bed.ranks("facade_ranks:replayed", size, **SETTINGS, SAGECOMM_ENGINE="cuda")


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "destroyed"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_an_abort_beside_graphs(facade_bed: CudaBed, kept: bool, told: bool) -> None:
    """A graph that was destroyed is none, where the driver tells of that."""
    settings = {**SETTINGS, "SAGECOMM_ENGINE": "cuda"}
    if not told:
        settings["EMULATOR_FAULTS"] = "cuUserObjectCreate@1+=not_supported"
    text = facade_bed.ranks("facade_ranks:aborts_beside_graphs", 2, kept, **settings)[1]
    assert ("was aborted by rank 0" if kept or not told else "has left") in text, text


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_memory_of_graphs_that_are_gone(facade_bed: CudaBed, told: bool) -> None:
    """It comes back, where the driver tells of the end of graphs."""
    settings = {**SETTINGS, "SAGECOMM_ENGINE": "cuda"}
    if not told:
        settings["EMULATOR_FAULTS"] = "cuUserObjectCreate@1+=not_supported"
    for gone in facade_bed.ranks("facade_ranks:memory_of_graphs", 2, told, **settings):
        assert gone < 2 * SLOTS if told else gone >= 4 * SLOTS, gone


def test_memory_of_threads(facade_bed: CudaBed) -> None:
    facade_bed.ranks("facade_ranks:memory_of_threads", 1, **SETTINGS)


@pytest.mark.parametrize("engine", quickly(["staged"], ["staged", "cuda"]))
def test_a_rank_sends_to_itself(facade_bed: CudaBed, engine: str) -> None:
    for text in facade_bed.ranks("facade_ranks:to_itself", 2, **SETTINGS, SAGECOMM_ENGINE=engine):
        assert "has 1 sends to itself" in text


def test_pinned_memory(facade_bed: CudaBed) -> None:
    facade_bed.ranks("facade_ranks:host_memory", 2, **SETTINGS)


@pytest.fixture(scope="module")
def on_the_cpu(pool: Pool) -> Callable[..., list[str]]:
    return cache(lambda size, function, *arguments: pool.world(size).run(device_training.called, function, *arguments))


TRAININGS = [
    ("device_training:data_parallel", "convolutions", None),
    ("device_training:data_parallel", "mlp", "bf16"),
    ("device_sharded:fully_sharded", "plain"),
    ("device_sharded:tensor_parallel", "sequence"),
    ("device_sharded:tensors", ""),
]


@pytest.mark.long
@pytest.mark.parametrize("of", [(size, *training) for training in TRAININGS for size in (2, 4)], ids=case)
@of_both_classes
def test_training(
    facade_bed: CudaBed, on_the_cpu: Callable[..., list[str]], of: tuple[Any, ...], group_class: str
) -> None:
    """Parameters are those of sagecomm on the CPU, bit for bit."""
    size, function, *arguments = of
    settings = {**SETTINGS, **of_class(group_class)}
    got = facade_bed.ranks("facade_ranks:training", size, function, "cuda", *arguments, **settings)
    assert got == on_the_cpu(size, function, "cpu", *arguments)
