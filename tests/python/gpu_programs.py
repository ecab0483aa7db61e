"""What ranks of gpu_check.py do that no program of the emulated tests does. They run on any number of ranks that share
one GPU, and under fake CUDA."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import cuda_holds
import device_graphs
import device_nccl
import fake_cuda
import sagecomm
from cuda_bed import emulated
from device_programs import FEW, accelerator, expect, full, held, main_stream, mine
from sagecomm._bench import checking
from sagecomm._bench.cases import POINT_TO_POINT, REDUCTIONS, TYPE_NAMES, Case, cases
from sagecomm._operations import make_buffers, make_call

OPERATIONS = ("all_reduce", "reduce_scatter", "reduce", "broadcast", "all_gather", "all_to_all", "gather", "scatter")
LENGTHS = (36, 40_000)  # bytes
STEPS = 40
LATE_CYCLES = 2_000_000  # about a millisecond
IN_FLIGHT = 500  # more commands than a stream of a GPU holds

_seed = 0


def resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def run(rank: int, size: int, store: str, names: Sequence[str], rounds: int, seed: int) -> None:
    """Runs programs several times, each in a group of its own. An error names the program and the seed."""
    global _seed
    warm(rank, size, f"{store}-warm")
    for _seed in range(seed, seed + rounds):
        for name in names:
            dist.init_process_group(
                "sagecomm", init_method=f"file://{store}-{_seed}-{name}", rank=rank, world_size=size
            )
            try:
                resolve(name)()
                cuda_holds.check()
            except Exception as error:
                raise AssertionError(f"{name}, seed {_seed}: {type(error).__name__}: {error}") from error
            dist.destroy_process_group()


def warm(rank: int, size: int, store: str) -> None:
    """The first collective of a process with the engine cuda loads kernels, and that waits for all streams."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.all_reduce(full(mine()))
    dist.destroy_process_group()


def describe(rank: int, size: int, store: str) -> dict[str, Any]:
    """Returns the device, or {} if there is none."""
    if not torch.cuda.is_available():
        return {}
    driver = torch.empty(1, device="cuda").device  # starts the runtime
    free, total = torch.cuda.mem_get_info(driver)
    return {
        "name": torch.cuda.get_device_name(driver),
        "torch": torch.__version__,
        "count": torch.cuda.device_count(),
        "free": free,
        "total": total,
    }


def holds(rank: int, size: int, store: str) -> None:
    """What the other checks rely on: a held stream waits until it is released. One that nobody releases goes on in the
    end, and the check fails."""
    cuda_holds.by_words, cuda_holds.EXPIRES_S = True, 0.5
    x = full(0)
    with held(main_stream()):
        x += 1
        assert not main_stream().query()
    cuda_holds.check()
    expect(x, 1)
    cuda_holds.hold(main_stream())
    x += 1
    with pytest.raises(AssertionError, match="the host waited"):
        cuda_holds.check()
    expect(x, 2)


# ---- results


def _refusal(case: Case, buffers: list[torch.Tensor]) -> str:
    try:
        make_call(case.op, buffers, None, getattr(dist.ReduceOp, REDUCTIONS.get(case.redop, "SUM")))()
    except (RuntimeError, ValueError) as error:  # torch itself refuses some with ValueError
        return str(error)
    return ""


def operations_and_types() -> None:
    """Each operation with each type and reduction gives what it must, or is refused as on the CPU."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in (*OPERATIONS, *(POINT_TO_POINT if size > 1 else ())):
        for case in cases(op, LENGTHS, TYPE_NAMES, tuple(REDUCTIONS), 0, size):
            host = make_buffers(op, case.block_bytes(), size, getattr(torch, case.type))
            checking.fill(case, host, rank, size, 0)
            device = [tensor.to(accelerator()) for tensor in host]
            refused = _refusal(case, device)
            if refused:
                assert refused == _refusal(case, host), case
                continue
            wrong = checking.wrong(case, [tensor.cpu() for tensor in device], rank, size, 0)
            assert wrong == 0, f"{case}: {wrong} elements are wrong"


# ---- order


def _late(rng: random.Random) -> None:
    """Delays the current stream. The emulator's schedule delays streams by itself."""
    if not emulated() and rng.random() < 0.5:
        torch.cuda._sleep(rng.randrange(LATE_CYCLES))


def random_orders() -> None:
    """Producers and consumers on random streams, each late at random, in two groups. Ranks choose the same operations,
    and streams and delays of their own. Nobody synchronises the device before the end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    common, own = random.Random(_seed), random.Random(1000 * _seed + rank)
    groups = [None, dist.new_group()]
    streams = [main_stream(), *(torch.Stream(accelerator()) for _ in range(2))]
    results: list[tuple[torch.Tensor, float]] = []
    for step in range(STEPS):
        op = common.choice(["all_reduce", "broadcast", "all_gather", "reduce_scatter"])
        n, group = common.choice([1, 1000, 70_000, 400_000]), common.choice(groups)
        producer, consumer = own.choice(streams), own.choice(streams)
        value = step % 5 + rank + 1.0
        total = sum(step % 5 + r + 1.0 for r in range(size))
        with producer:
            _late(own)
            x = full(value, n * size if op == "reduce_scatter" else n)
            out = full(0, n * size if op == "all_gather" else n)
            work: Any
            if op == "all_reduce":
                out, expected = x, total
                work = dist.all_reduce(x, group=group, async_op=True)
            elif op == "broadcast":
                out, expected = x, step % 5 + size * 1.0
                work = dist.broadcast(x, size - 1, group=group, async_op=True)
            elif op == "all_gather":
                expected = total / size  # the mean
                work = dist.all_gather_into_tensor(out, x, group=group, async_op=True)
            else:
                expected = total
                work = dist.reduce_scatter_tensor(out, x, group=group, async_op=True)
        del x
        with consumer:
            _late(own)
            work.wait()
            results.append((out.double().mean(), expected))
            out.record_stream(consumer)
        del out, work
    for stream in streams[1:]:
        main_stream().wait_stream(stream)
    for mean, expected in results:
        assert abs(mean.item() - expected) < 1e-9, (mean.item(), expected)


def many_in_flight() -> None:
    """Nobody waits for any operation but the last."""
    xs = [full(mine() + i, 100) for i in range(IN_FLIGHT)]
    works: list[Any] = [dist.all_reduce(x, async_op=True) for x in xs]
    works[-1].wait()
    for work in works:
        work.wait()
    size = dist.get_world_size()
    for i, x in enumerate(xs):
        expect(x, size * (size + 1) / 2 + i * size)


# ---- graphs, torch's sanitizer


def computation_in_a_graph() -> None:
    """A captured computation is replayed between operations, and while one is in flight."""
    size, x, y = dist.get_world_size(), full(mine()), full(mine())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
    for _ in range(FEW):
        graph.replay()
        dist.all_reduce(x)
        work: Any = dist.all_reduce(y, async_op=True)
        graph.replay()
        work.wait()
    total = size * (size + 1) / 2
    expect(x, 2 * (2 * total) * (4 * size) ** (FEW - 1))
    expect(y, total * size ** (FEW - 1))


def torch_sanitizer() -> None:
    """torch's sanitizer sees that operations are ordered, and sees an order that is missing. It does not see that one
    stream of the library waits for a word and so for the other one: wait() is called in the stream that has issued."""
    from torch.cuda import _sanitizer

    size, side = dist.get_world_size(), torch.cuda.Stream()
    total = size * (size + 1) / 2
    _sanitizer.cuda_sanitizer.enable()
    try:
        for _ in range(FEW):
            x, gathered = full(mine()), full(0, 100 * size)
            work: Any = dist.all_reduce(x, async_op=True)
            work.wait()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            torch.cuda.current_stream().wait_stream(side)
            dist.all_gather_into_tensor(gathered, full(mine(), 100))
            expect(y, 2 * total)
            expect(gathered[-100:], size)
        cuda_holds.check()
        z = full(0)
        with pytest.raises(_sanitizer.CUDASanitizerErrors), torch.cuda.stream(side):
            z.add_(1)
    finally:
        _sanitizer.cuda_sanitizer.disable()
    torch.cuda.synchronize()
    if emulated():
        fake_cuda.reset()  # the emulator has seen it as well


# ---- NVIDIA's NCCL


def vendors_nccl(rank: int, size: int, store: str) -> None:
    device_nccl.join_group(rank, size, store)
    programs = (device_nccl.reductions, device_nccl.movements, device_nccl.uneven, device_nccl.order)
    for program in (*programs, device_graphs.on_a_gpu):
        program()
        cuda_holds.check()
    engine = sagecomm.get_stats()["lanes"][-1]["engine"]
    assert engine == "nccl", engine
    dist.destroy_process_group()
