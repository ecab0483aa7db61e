"""Training on tensors of an accelerator: DDP, fully_shard, DTensor and tensor parallelism on the emulated devices.

Parameters are those of the same ranks on the CPU bit for bit, and the emulator's checker finds no missing order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

import device_sharded
import device_training
from cuda_bed import CudaBed
from device_bed import FIRST_SEED, SEEDS, Schedule, Worlds
from selection import quickly
from test_device_tensors import checked, ranks
from worlds import Pool

LAZY, RANDOM = Schedule("lazy"), [Schedule("random", FIRST_SEED + n) for n in range(SEEDS)]

DATA_PARALLEL = [(model, hook) for model in device_training.MODELS for hook in (None, *device_training.HOOKS)]
QUICK_DATA_PARALLEL = [("convolutions", None), ("mlp", "PowerSGD")]
SHARDED = [(name, kind) for name, (_, kinds) in device_sharded.PROGRAMS.items() for kind in kinds]
QUICK_SHARDED = [("fully_sharded", "plain"), ("tensor_parallel", "sequence"), ("tensors", "")]
TOO_LONG = [("mlp", "PowerSGD"), ("tensor_parallel", "sequence")]  # for `make test`


def case(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def under_schedules(what: str, quick: Sequence[Any], cases: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test by a case and a schedule: quick cases under one seed, the others lazily or under that seed in
    turns. Under `make test-streams` it is all cases under all seeds."""
    if "SEEDS" in os.environ:
        pairs = [(each, schedule) for each in cases for schedule in (LAZY, *RANDOM)]
    else:
        turns = itertools.cycle((LAZY, RANDOM[0]))
        pairs = [(each, RANDOM[0] if each in quick else next(turns)) for each in cases]
    kept = [(each, RANDOM[0]) for each in quick if each not in TOO_LONG]
    rows = [pytest.param(*pair, marks=() if pair in kept else pytest.mark.long) for pair in pairs]
    return pytest.mark.parametrize((what, "schedule"), rows, ids=case)


needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")


@pytest.fixture(scope="module")
def on_the_cpu(pool: Pool) -> Callable[..., list[str]]:
    """on_the_cpu(ranks, function, *arguments) returns what the ranks return with tensors of the CPU. The ranks are a
    number, or those of several hosts."""

    def results(ranks: int | tuple[int, ...], function: str, *arguments: Any) -> list[str]:
        world = pool.hosts(*ranks) if isinstance(ranks, tuple) else pool.world(ranks)
        return world.run(device_training.called, function, *arguments)

    return cache(results)


RUN = "device_training:under_fake_cuda"


def compare(
    bed: CudaBed, on_the_cpu: Callable[..., list[str]], size: int, schedule: Schedule, function: str, *arguments: object
) -> None:
    expected = on_the_cpu(size, function, "cpu", *arguments)
    settings = {"EMULATOR_SCHEDULE": schedule.name, "EMULATOR_SEED": str(schedule.seed), "EMULATOR_KICK_MS": "5"}
    assert bed.ranks(RUN, size, function, "cuda", *arguments, **settings) == expected


@pytest.mark.smoke_if_quick
@needs_cuda
@under_schedules("what", QUICK_DATA_PARALLEL, DATA_PARALLEL)
def test_data_parallel(
    cuda_bed: CudaBed, on_the_cpu: Callable[..., list[str]], schedule: Schedule, what: tuple[str, str | None]
) -> None:
    compare(cuda_bed, on_the_cpu, 2, schedule, "device_training:data_parallel", *what)


@needs_cuda
@under_schedules("what", QUICK_SHARDED, SHARDED)
def test_sharded(
    cuda_bed: CudaBed, on_the_cpu: Callable[..., list[str]], schedule: Schedule, what: tuple[str, str]
) -> None:
    name, kind = what
    compare(cuda_bed, on_the_cpu, 2, schedule, f"device_sharded:{name}", kind)


def call_of(what: tuple[str, str | None]) -> tuple[str, str | None] | tuple[str, str, str | None]:
    name, kind = what
    return ("device_training:data_parallel", name, kind) if what in DATA_PARALLEL else (f"device_sharded:{name}", kind)


@needs_cuda
@pytest.mark.long
@pytest.mark.parametrize("schedule", [LAZY, *RANDOM] if "SEEDS" in os.environ else RANDOM[:1], ids=str)
@pytest.mark.parametrize("what", [("mlp", None), *QUICK_DATA_PARALLEL, *QUICK_SHARDED], ids=case)
def test_four_ranks(
    cuda_bed: CudaBed, on_the_cpu: Callable[..., list[str]], what: tuple[str, str | None], schedule: Schedule
) -> None:
    compare(cuda_bed, on_the_cpu, 4, schedule, *call_of(what))


HOSTS = (2, 2)
TRAINED_OVER_HOSTS = [("mlp", None), ("convolutions", "bf16"), ("fully_sharded", "plain")]


@needs_cuda
@pytest.mark.long
@pytest.mark.parametrize("schedule", [LAZY, *RANDOM] if "SEEDS" in os.environ else RANDOM[:1], ids=str)
@pytest.mark.parametrize("what", TRAINED_OVER_HOSTS, ids=case)
@pytest.mark.parametrize("engine", ["staged", "nccl"])
def test_over_hosts(
    cuda_bed: CudaBed,
    on_the_cpu: Callable[..., list[str]],
    engine: str,
    what: tuple[str, str | None],
    schedule: Schedule,
) -> None:
    """`staged` adds as ranks of these hosts do on the CPU, and the emulated NCCL as ranks of one host do."""
    function, *arguments = call_of(what)
    expected = on_the_cpu(HOSTS if engine == "staged" else sum(HOSTS), function, "cpu", *arguments)
    settings: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4", "SAGECOMM_ENGINE": engine}
    settings |= {"SAGECOMM_CHECKSUMS": "always", "schedule": schedule.name, "seed": schedule.seed}
    assert cuda_bed.ranks(RUN, sum(HOSTS), function, "cuda", *arguments, hosts=HOSTS, **settings) == expected


@needs_cuda
@pytest.mark.parametrize("schedule", quickly(RANDOM[:1], [LAZY, *RANDOM]), ids=str)
def test_collectives_in_callbacks_of_several_buckets(cuda_bed: CudaBed, schedule: Schedule) -> None:
    """Callbacks run in the order of the calls, the same on all ranks."""
    settings = {"EMULATOR_SCHEDULE": schedule.name, "EMULATOR_SEED": str(schedule.seed), "EMULATOR_KICK_MS": "5"}
    first, second = cuda_bed.ranks(RUN, 2, "device_training:data_parallel", "cuda", "mlp", "PowerSGD", True, **settings)
    assert first == second


@needs_cuda
@pytest.mark.long
def test_a_wait_of_torch_that_is_left_out_is_reported(cuda_bed: CudaBed) -> None:
    settings = {"EMULATOR_SCHEDULE": "random", "EMULATOR_FAULTS": "cudaStreamWaitEvent@60=#0", "EMULATOR_KICK_MS": "5"}
    with pytest.raises(AssertionError, match="without an order"):
        cuda_bed.ranks(RUN, 2, "device_training:data_parallel", "cuda", "mlp", "allreduce", **settings)


def compare_on_simdev(worlds: Worlds, size: int, schedule: Schedule, queue: str, hook: str | None) -> None:
    """Convolutions are not among the operators of simdev."""
    world = ranks(worlds, schedule, size, SIMDEV_LAUNCH_QUEUE=str(int(queue == "launch queue")))
    expected, got = (
        world.run(checked, device_training.data_parallel, device, "mlp", hook) for device in ("cpu", "simdev")
    )
    assert got == expected


@under_schedules("hook", ["bf16"], [None, *device_training.HOOKS])
@pytest.mark.parametrize("queue", quickly([], ["streams", "launch queue"]))
def test_data_parallel_on_simdev(fresh_world: Worlds, schedule: Schedule, hook: str | None, queue: str) -> None:
    compare_on_simdev(fresh_world, 2, schedule, queue, hook)


@pytest.mark.long
@pytest.mark.parametrize("schedule", [LAZY, *RANDOM] if "SEEDS" in os.environ else RANDOM[:1], ids=str)
@pytest.mark.parametrize("queue", ["streams", "launch queue"])
def test_four_ranks_on_simdev(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    compare_on_simdev(fresh_world, 4, schedule, queue, None)
