"""What ranks of test_nccl_engine.py do: collectives on devices of their own through the emulated libnccl.so.2."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import device_catalogue
import fake_cuda
import sagecomm
from device_programs import held

N = 24
REDUCED = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.bool,
]  # fmt: skip
OPS: dict[str, Any] = {
    "SUM": dist.ReduceOp.SUM, "AVG": dist.ReduceOp.AVG, "PRODUCT": dist.ReduceOp.PRODUCT, "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX, "BAND": dist.ReduceOp.BAND, "BOR": dist.ReduceOp.BOR, "BXOR": dist.ReduceOp.BXOR,
}  # fmt: skip


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def ranks() -> range:
    return range(dist.get_world_size())


def host(rank: int, dtype: torch.dtype, n: int = N) -> torch.Tensor:
    """A rank's input: small numbers, so that sums and products of all types are exact."""
    values = (torch.arange(n) + rank) % 3
    return (values % 2 if dtype == torch.bool else values).to(dtype)


def mine(dtype: torch.dtype = torch.float32, n: int = N) -> torch.Tensor:
    return host(dist.get_rank(), dtype, n).to(device())


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert torch.equal(got.cpu(), want), f"{what}: {got.cpu().tolist()} instead of {want.tolist()}"


def calls() -> list[str]:
    text = ctypes.create_string_buffer(1 << 18)
    ctypes.CDLL(str(fake_cuda.NCCL)).fake_nccl_calls(text, ctypes.c_size_t(len(text)))
    return text.value.decode().splitlines()


def reduced(name: str, dtype: torch.dtype) -> torch.Tensor:
    """What gloo's CPU reduction would give."""
    inputs = [host(r, dtype) for r in ranks()]
    if dtype == torch.bool:
        total = torch.stack(inputs).sum(0)
        return {"SUM": total > 0, "MAX": total > 0, "BOR": total > 0, "BXOR": total % 2 == 1}.get(
            name, total == len(inputs)
        )
    if name in ("MIN", "MAX"):
        return getattr(torch.stack(inputs), {"MIN": "amin", "MAX": "amax"}[name])(0)
    function: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }  # fmt: skip
    total = inputs[0]
    for one in inputs[1:]:
        total = function[name](total, one)
    if name == "AVG":
        floats = dtype.is_floating_point or dtype.is_complex
        total = total / len(inputs) if floats else torch.div(total, len(inputs), rounding_mode="trunc")
    return total.to(dtype)


def defined(name: str, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return name in ("SUM", "AVG")  # torch refuses the product
    if dtype.is_floating_point:
        return not name.startswith("B")
    return dtype != torch.bool or name != "AVG"


def reductions() -> None:
    for dtype in REDUCED:
        for name, op in OPS.items():
            if defined(name, dtype):
                x = mine(dtype)
                dist.all_reduce(x, op)
                same(x, reduced(name, dtype), f"{name} of {dtype}")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        x = mine(dtype)
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        same(x, reduced("SUM", dtype) * 0.5, f"PREMUL_SUM of {dtype}")


def movements() -> None:
    last, rank, size = dist.get_world_size() - 1, dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex128, torch.float8_e5m2):
        inputs = [host(r, torch.float32).to(dtype) for r in ranks()]
        x = inputs[rank].to(device())
        gathered = torch.empty(size * N, dtype=dtype, device=device())
        dist.all_gather_into_tensor(gathered, x)
        bits = torch.uint8
        same(gathered.view(bits), torch.cat(inputs).view(bits), f"all_gather_into_tensor of {dtype}")
        parts = [torch.empty(N, dtype=dtype, device=device()) for _ in ranks()]
        dist.all_gather(parts, x)
        for r, part in enumerate(parts):
            same(part.view(bits), inputs[r].view(bits), f"all_gather of {dtype}")
        y = inputs[rank].to(device())
        dist.broadcast(y, last)
        same(y.view(bits), inputs[last].view(bits), f"broadcast of {dtype}")
    x = mine()
    dist.reduce(x, last)
    same(x, reduced("SUM", torch.float32) if rank == last else host(rank, torch.float32), "reduce")
    sums = torch.stack([host(r, torch.float32, size * N) for r in ranks()]).sum(0)
    out = torch.empty(N, device=device())
    dist.reduce_scatter_tensor(out, mine(n=size * N))
    same(out, sums[rank * N : (rank + 1) * N], "reduce_scatter_tensor")
    dist.reduce_scatter(out, list(mine(n=size * N).chunk(size)))
    same(out, sums[rank * N : (rank + 1) * N], "reduce_scatter")
    every = [host(r, torch.float32, size * N).chunk(size) for r in ranks()]
    out = torch.empty(size * N, device=device())
    dist.all_to_all_single(out, mine(n=size * N))
    same(out, torch.cat([every[r][rank] for r in ranks()]), "all_to_all_single")
    outs = [torch.empty(N, device=device()) for _ in ranks()]
    dist.all_to_all(outs, [part.clone() for part in mine(n=size * N).chunk(size)])
    same(torch.cat(outs), torch.cat([every[r][rank] for r in ranks()]), "all_to_all")
    dist.gather(mine(), outs if rank == last else None, last)
    if rank == last:
        same(torch.cat(outs), torch.cat([host(r, torch.float32) for r in ranks()]), "gather")
    out = torch.empty(N, device=device())
    dist.scatter(out, [torch.full((N,), float(r), device=device()) for r in ranks()] if rank == 0 else None, 0)
    same(out, torch.full((N,), float(rank)), "scatter")
    dist.barrier(device_ids=[device().index])
    nothing = torch.empty(0, device=device())
    dist.all_reduce(nothing)


def uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(r, device=device()) for r in ranks()]
    dist.all_gather(parts, mine(n=rank))
    for r, part in enumerate(parts):
        same(part, host(r, torch.float32, r), "all_gather of tensors of different lengths")
    inputs = [torch.full((r + 1,), float(rank), device=device()) for r in ranks()]
    out = torch.empty(rank + 1, device=device())
    dist.reduce_scatter(out, inputs)
    same(out, torch.full((rank + 1,), float(sum(ranks()))), "reduce_scatter of tensors of different lengths")
    out = torch.empty(sum(rank + r for r in ranks()), device=device())
    splits = [rank + r for r in ranks()]
    dist.all_to_all_single(out, torch.full((sum(splits),), float(rank), device=device()), splits, splits)
    same(out, torch.cat([torch.full((rank + r,), float(r)) for r in range(size)]), "all_to_all_single with splits")


def order() -> None:
    """Inputs are late, and an operation reads what an earlier one writes, whichever engine carries them out."""
    stream, size = torch.cuda.current_stream(), dist.get_world_size()
    with held(stream):
        x = torch.ones(1000, dtype=torch.int32, device=device())
        works = [
            dist.all_reduce(x, async_op=True),
            dist.all_reduce(x, dist.ReduceOp.BOR, async_op=True),
            dist.all_reduce(x, async_op=True),
        ]
        time.sleep(0.01)
        assert not any(work.is_completed() for work in works)
    works[-1].wait()
    assert (x + 1)[0].item() == size * size + 1
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = torch.full((1000,), float(dist.get_rank()), device=device())
        dist.all_reduce(y, async_op=True).wait()
        y.mul_(2)
    stream.wait_stream(side)
    y.record_stream(stream)
    assert y[3].item() == 2 * sum(ranks())
    tensors = [torch.full((n,), 1.0, device=device()) for n in (3, 5, 7)]
    with dist._coalescing_manager(device=device(), async_ops=True) as window:
        for t in tensors:
            dist.all_reduce(t)
    window.wait()
    for t in tensors:
        same(t, torch.full((len(t),), float(size)), "coalesced all_reduces")


def p2p() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.empty(N, device=device())
    ops = [dist.P2POp(dist.isend, mine(), (rank + 1) % size), dist.P2POp(dist.irecv, out, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(out, host((rank - 1) % size, torch.float32), "batch_isend_irecv")


def under_fake_cuda(rank: int, size: int, store: str) -> list[str]:
    """Runs all programs, and returns the calls of the library."""
    torch.cuda.set_device(rank)
    for program in (reductions, movements, uneven, order, p2p):
        name = program.__name__
        dist.init_process_group("sagecomm", init_method=f"file://{store}-{name}", rank=rank, world_size=size)
        try:
            program()
            fake_cuda.check()
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        dist.destroy_process_group()
    return calls()


# ---- failures ----


def join_group(rank: int, size: int, store: str, on: int | None = None, seconds: float = 60) -> None:
    torch.cuda.set_device(rank if on is None else on)
    how = f"file://{store}"
    dist.init_process_group("sagecomm", init_method=how, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))


def raised(function: Callable[[], Any]) -> str:
    """The failure that the function raises, and that of the group's next operation. Streams go on after it."""
    try:
        function()
        raise AssertionError("nothing was raised")
    except dist.DistBackendError as error:
        text = f"{type(error).__name__}: {error}"
    begun = time.monotonic()
    torch.cuda.synchronize()
    assert time.monotonic() - begun < 10
    try:
        dist.all_reduce(torch.ones(4, device="cuda"))
        raise AssertionError("the group goes on")
    except dist.DistBackendError as error:
        assert str(error).split(";")[0] == text.partition(": ")[2].split(";")[0]
    return text


def peer_dies(rank: int, size: int, store: str, seed: int) -> str:
    """The last rank dies at a random moment, while operations are on their way."""
    join_group(rank, size, store)
    chance = random.Random(seed)
    last, late = chance.randrange(1, 40), chance.random() * 0.01
    x = torch.ones(1000, device="cuda")

    def work() -> None:
        for i in range(10000):
            if rank == size - 1 and i == last:
                time.sleep(late)
                os.kill(os.getpid(), signal.SIGKILL)
            works = [dist.all_reduce(x, op, async_op=True) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)]
            if i % 3 == 0:
                torch.cuda.synchronize()
            if i % 4 == 0:
                works[-1].wait()

    return raised(work)


def library_knows_first(rank: int, size: int, store: str, result: int, waits: bool) -> str:
    """The last rank dies a second after the libraries of the ranks on other hosts have told them so. These wait for an
    operation, or call others."""
    join_group(rank, size, store)
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == size - 1:
        library, bound = ctypes.CDLL(str(fake_cuda.NCCL)), time.monotonic() + 30
        library.fake_nccl_breaks(result)
        while not library.fake_nccl_all_told():
            assert time.monotonic() < bound, "a library has told nothing"
            time.sleep(0.001)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        works = [dist.all_reduce(x, async_op=True)]
        while not waits:
            works.append(dist.all_reduce(x, async_op=True))
            time.sleep(0.01)
        works[-1].wait(timedelta(seconds=30))
        torch.cuda.synchronize()
        dist.all_reduce(x)

    return raised(work)


def communicator_fails(rank: int, size: int, store: str) -> str:
    """The fault plan of rank 0 gives its communicator an asynchronous error."""
    join_group(rank, size, store)

    def work() -> None:
        for _ in range(10000):
            dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
            time.sleep(0.01)

    return raised(work)


def library_fails(rank: int, size: int, store: str, seconds: float) -> str:
    """A call of NCCL fails on rank 0, in a group with that timeout."""
    join_group(rank, size, store, seconds=seconds)
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)

    def work() -> None:
        torch.cuda.synchronize()
        for _ in range(10000):
            dist.all_reduce(x, async_op=True)
            time.sleep(0.01)

    return raised(work)


def kernels_come_late(rank: int, size: int, store: str, soon: bool) -> str:
    """A call of rank 0 returns an error, and a thread of the library queues its kernels when the communicator is
    aborted. What uses the tensor afterwards comes behind them. If they do not come soon, nobody gets its memory, also
    if its storage gives it back; but what autograd keeps for the tensor goes with it."""
    join_group(rank, size, store)
    weights, saved = torch.ones(1000, device="cuda", requires_grad=True), torch.ones(1000, 1000, device="cuda")
    x = (weights * saved).mean(0)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    text = ""
    try:
        dist.all_reduce(x, async_op=True).wait(timedelta(seconds=30))
    except dist.DistBackendError as error:
        text = f"{type(error).__name__}: {error}"
    if soon:
        x.detach().fill_(3)  # without a call that waits
    before, taken = x.data_ptr(), torch.cuda.memory_allocated()
    x.untyped_storage().resize_(0)
    del x, weights, saved
    y = torch.full((1000,), 4.0, device="cuda")
    assert soon or rank > 0 or y.data_ptr() != before
    begun = time.monotonic()
    while torch.cuda.memory_allocated() > taken - 3_500_000:  # a thread of the host lets go of the tensors
        assert time.monotonic() < begun + 10, (taken, torch.cuda.memory_allocated())
        time.sleep(0.001)
    assert raised(lambda: dist.all_reduce(y)).split(";")[0] == text.split(";")[0]
    if rank == 0:
        begun = time.monotonic()
        while "late kernels" not in calls():
            assert time.monotonic() < begun + 30, "no kernels have come"
    torch.cuda.synchronize()
    assert y.tolist() == [4.0] * 1000
    fake_cuda.check()
    return text


def ranks_differ(rank: int, size: int, store: str) -> str:
    """NCCL waits for ever when the ranks call different things."""
    join_group(rank, size, store)

    def work() -> None:
        dist.all_reduce(torch.ones(4, device="cuda"))
        dist.all_reduce(torch.ones(4 + rank, device="cuda"), async_op=True).wait(timedelta(seconds=30))

    return raised(work)


def splits_differ(rank: int, size: int, store: str, sent: int, expected: int) -> str:
    """NCCL waits for ever, or ends with what it has, when a rank sends more or less than its peer expects."""
    join_group(rank, size, store)

    def work() -> None:
        for step in range(3):
            device_catalogue.exchange(step)
        device_catalogue.exchange(3, None, sent, expected)
        bound = time.monotonic() + 30
        while time.monotonic() < bound:
            dist.all_reduce(torch.ones(4, device="cuda"))
            torch.cuda.synchronize()

    return raised(work)


def ranks_reduce_differently(rank: int, size: int, store: str) -> str:
    """NCCL carries it out: each rank has an output that no call has asked for."""
    join_group(rank, size, store)

    def work() -> None:
        dist.all_reduce(torch.ones(4, device="cuda"), dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
        bound = time.monotonic() + 30
        while time.monotonic() < bound:
            dist.all_reduce(torch.ones(4, device="cuda"))
            torch.cuda.synchronize()

    return raised(work)


def rank_is_absent(rank: int, size: int, store: str) -> str:
    join_group(rank, size, store, seconds=2)
    dist.all_reduce(torch.ones(4, device="cuda"))
    told = c10d._get_default_store()
    if rank == size - 1:
        told.wait([f"rank {other} is told" for other in range(size - 1)])
    text = raised(lambda: dist.all_reduce(torch.ones(4, device="cuda"), async_op=True).wait(timedelta(seconds=30)))
    told.set(f"rank {rank} is told", "")
    return text


# ---- the choice ----


def falls_back(rank: int, size: int, store: str, on: list[int]) -> str:
    """Operations are right whichever engine carries them out. Returns what explain says."""
    join_group(rank, size, store, on[rank])
    for _ in range(3):
        x = torch.full((N,), float(rank), device="cuda")
        dist.all_reduce(x)
        assert x[N - 1].item() == sum(ranks())
    fake_cuda.check()
    text = str(sagecomm.explain("all_reduce", 4 * N, dist.group.WORLD, device=True))
    dist.destroy_process_group()
    return text


def shares_a_device(rank: int, size: int, store: str) -> str:
    """The user has set nccl, but both ranks have one device."""
    join_group(rank, size, store, 0)
    return raised(lambda: dist.all_reduce(torch.ones(4, device="cuda")))


def recorded(rank: int, size: int, store: str) -> list[str]:
    """The calls that operations make."""
    join_group(rank, size, store)
    x = torch.ones(6, device="cuda")
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_reduce(x.to(torch.bool), dist.ReduceOp.BAND)
    dist.all_reduce(x.to(torch.complex64))
    dist.all_reduce(x.to(torch.bfloat16), dist._make_nccl_premul_sum(2.0))
    dist.broadcast(x.to(torch.int16), 1)
    dist.reduce(x, 1)
    dist.all_gather_into_tensor(torch.empty(6 * size, device="cuda"), x)
    dist.all_gather([torch.empty(6, device="cuda") for _ in ranks()], x)
    dist.reduce_scatter_tensor(torch.empty(3, device="cuda"), x)
    dist.all_to_all_single(torch.empty(6, device="cuda"), x)
    dist.all_reduce(x.int(), dist.ReduceOp.BXOR)
    dist.barrier(device_ids=[device().index])
    fake_cuda.check()
    dist.destroy_process_group()
    return calls()
