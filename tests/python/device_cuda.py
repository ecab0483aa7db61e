"""What ranks of test_cuda_engine.py do: collectives on devices that they share, or whose memory they can use."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import fake_cuda
import sagecomm
from device_nccl import (
    OPS,
    REDUCED,
    defined,
    device,
    host,
    join_group,
    movements,
    order,
    p2p,
    raised,
    ranks,
    reductions,
    same,
    uneven,
)
from device_nccl_waits import backend, interrupt
from torch_copies import copying_by, without_copies

CHUNK = 2 << 20  # bytes of a slot
ARENA = 8 * CHUNK  # memory of the device that a group takes on each rank, that of graphs included
TWO_SHOT = 2 << 20  # bytes: so long all_reduces of more than two ranks have two rounds


def noise(rank: int, dtype: torch.dtype, n: int) -> torch.Tensor:
    """A rank's input, with what sums round."""
    generator = torch.Generator().manual_seed(rank * 1000 + n)
    if dtype == torch.bool:
        return torch.randint(0, 2, (n,), generator=generator).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        x = torch.randn(n, dtype=torch.complex128 if dtype.is_complex else torch.float64, generator=generator) * 100
        if not dtype.is_complex:
            x[:: 7 + rank] = float("inf")
            x[3 :: 5 + rank] = float("nan")
            x[1::9] = -0.0
            x[2::9] *= 1e-6 if dtype == torch.float16 else 1e-39
        return x.to(dtype)
    return torch.randint(-100 if dtype != torch.uint8 else 0, 127, (n,), generator=generator).to(dtype)


def same_bits(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """NaNs have payloads, which may differ."""
    got = got.cpu()
    if got.dtype.is_complex:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    if got.dtype.is_floating_point:
        assert torch.equal(got.isnan(), want.isnan()), what
        got, want = got.nan_to_num(0, float("inf"), -float("inf")), want.nan_to_num(0, float("inf"), -float("inf"))
    equal = torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    assert equal, f"{what}: {got.tolist()} instead of {want.tolist()}"


def choice(op: str, nbytes: int) -> str:
    """The algorithm of the engine for a length. Other rows are those that it does not use."""
    rows = sagecomm.explain(op, nbytes, device=True)["device_candidates"]
    return str(next(row["algorithm"] for row in rows if row["chosen"]))


def bits() -> None:
    """Results have the bits of the CPU engine."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in REDUCED:
        for name, op in OPS.items():
            if not defined(name, dtype):
                continue
            for n in (1, 37):
                want = noise(rank, dtype, n)
                x = want.to(device())
                dist.all_reduce(x, op)
                dist.all_reduce(want, op)
                same_bits(x, want, f"{name} of {n} {dtype}")
                parts = noise(rank, dtype, n * size)
                out, wanted = torch.empty(n, dtype=dtype, device=device()), torch.empty(n, dtype=dtype)
                dist.reduce_scatter_tensor(out, parts.to(device()), op)
                dist.reduce_scatter_tensor(wanted, parts, op)
                same_bits(out, wanted, f"reduce_scatter: {name} of {n} {dtype}")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        op = dist._make_nccl_premul_sum(0.3 + rank)  # ranks have factors of their own
        want = noise(rank, dtype, 37)
        x = want.to(device())
        dist.all_reduce(x, op)
        dist.all_reduce(want, op)
        same_bits(x, want, f"PREMUL_SUM of {dtype}")
        parts = noise(rank, dtype, 37 * size)
        out, wanted = torch.empty(37, dtype=dtype, device=device()), torch.empty(37, dtype=dtype)
        dist.reduce_scatter_tensor(out, parts.to(device()), op)
        dist.reduce_scatter_tensor(wanted, parts, op)
        same_bits(out, wanted, f"reduce_scatter: PREMUL_SUM of {dtype}")
    if size > 2:
        assert choice("all_reduce", TWO_SHOT) == choice("reduce", TWO_SHOT) == "two_shot"
    for name in ("SUM", "AVG", "MAX"):  # two rounds
        want = noise(rank, torch.bfloat16, TWO_SHOT // 2 + 13)
        x, y = want.to(device()), want.to(device())
        dist.all_reduce(x, OPS[name])
        dist.reduce(y, size - 1, OPS[name])
        dist.all_reduce(want, OPS[name])
        same_bits(x, want, f"{name} of two rounds")
        if rank == size - 1:
            same_bits(y, want, f"reduce: {name} of two rounds")


def borders(chunks: int) -> None:
    """Lengths around the borders of chunks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in {CHUNK * k + d for k in (1, chunks) for d in (-1, 0, 1)}:
        inputs = [(torch.arange(length) * (r + 3) % 251).to(torch.uint8) for r in ranks()]
        x = inputs[rank].to(device())
        parts = [torch.empty_like(x) for _ in ranks()]
        dist.all_gather(parts, x)
        for r, part in enumerate(parts):
            assert torch.equal(part.cpu(), inputs[r]), f"all_gather of {length}: part {r}"
        dist.broadcast(x, size - 1)
        assert torch.equal(x.cpu(), inputs[size - 1]), f"broadcast of {length}"
    each = CHUNK // max(1, size - 1) // 256 * 256
    for length in {each * k + d for k in (1, chunks) for d in (-1, 0, 1)}:
        splits = [[(length * (r + to + 1)) // size for to in ranks()] for r in ranks()]
        inputs = [(torch.arange(sum(splits[r])) * (r + 3) % 251).to(torch.uint8) for r in ranks()]
        out_splits = [splits[r][rank] for r in ranks()]
        out = torch.empty(sum(out_splits), dtype=torch.uint8, device=device())
        dist.all_to_all_single(out, inputs[rank].to(device()), out_splits, splits[rank])
        want = torch.cat([inputs[r].split(splits[r])[rank] for r in ranks()])
        assert torch.equal(out.cpu(), want), f"all_to_all of {length}"


def long_sums(chunks: int) -> None:
    """Reductions of several chunks."""
    rank = dist.get_rank()
    n = CHUNK * chunks // 4 + 5
    x = (torch.arange(n) % 1000 * (rank + 1)).to(torch.int32).to(device())
    dist.all_reduce(x)
    assert torch.equal(x.cpu(), (torch.arange(n) % 1000 * sum(r + 1 for r in ranks())).to(torch.int32))


def program(seed: int, steps: int = 40) -> None:
    """Random collectives of several groups, many of them at once. All ranks make the same choices."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chance = random.Random(seed)
    groups = [dist.group.WORLD, dist.new_group(backend="sagecomm")]
    pending: list[tuple[Any, torch.Tensor, torch.Tensor, str]] = []
    for step in range(steps):
        group, kind, root = chance.choice(groups), chance.randrange(6), chance.randrange(size)
        n = chance.choice([1, 7, 64, 1000, 4099, 70_000])
        values = [torch.full((n,), float(chance.randrange(100) + r), device=device()) for r in ranks()]
        mine, total = values[rank].clone(), sum(v.cpu() for v in values)
        if kind == 0:
            work, out, want = dist.all_reduce(mine, group=group, async_op=True), mine, total
        elif kind == 1:
            work, out, want = dist.broadcast(mine, root, group=group, async_op=True), mine, values[root].cpu()
        elif kind == 2:
            out = torch.empty(n * size, device=device())
            work, want = dist.all_gather_into_tensor(out, mine, group=group, async_op=True), torch.cat(values).cpu()
        elif kind == 3:
            out, flat = torch.empty(n, device=device()), mine.repeat(size)
            work, want = dist.reduce_scatter_tensor(out, flat, group=group, async_op=True), total
        elif kind == 4:
            out, flat = torch.empty(n * size, device=device()), mine.repeat(size)
            work, want = dist.all_to_all_single(out, flat, group=group, async_op=True), torch.cat(values).cpu()
        else:
            work = dist.reduce(mine, root, group=group, async_op=True)
            out, want = mine, total if rank == root else values[rank].cpu()
        pending.append((work, out, want, f"step {step}: kind {kind} of {n}, root {root}"))
        if chance.random() < 0.2:
            work, out, want, what = pending.pop(chance.randrange(len(pending)))
            work.wait()
            same(out, want, what)
    for work, out, want, what in pending:
        work.wait()
        same(out, want, what)


def in_group(rank: int, size: int, store: str, devices: int, name: str, *arguments: Any) -> None:
    """Runs one function of this file in a group. Rank r has the device r mod `devices`."""
    join_group(rank, size, store, rank % devices)
    try:
        globals()[name](*arguments)
        fake_cuda.check()
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    dist.destroy_process_group()


def under_fake_cuda(rank: int, size: int, store: str, devices: int) -> None:
    for function in (reductions, movements, uneven, order, p2p):
        in_group(rank, size, f"{store}-{function.__name__}", devices, function.__name__)


# ---- failures ----


def peer_dies(rank: int, size: int, store: str, seed: int) -> str:
    """The last rank dies at a random moment, while operations are on their way."""
    join_group(rank, size, store, 0)
    chance = random.Random(seed)
    last, late = chance.randrange(0, 40), chance.random() * 0.01
    x = torch.ones(chance.choice([1000, 100_000]), device="cuda")
    parts = torch.empty(len(x) * size, device="cuda")

    def work() -> None:
        for i in range(10000):
            if rank == size - 1 and i == last:
                time.sleep(late)
                os.kill(os.getpid(), signal.SIGKILL)
            works = [
                dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True),
                dist.all_gather_into_tensor(parts, x, async_op=True),
                dist.broadcast(x, i % size, async_op=True),
            ]
            if i % 3 == 0:
                torch.cuda.synchronize()
            if i % 4 == 0:
                works[-1].wait()

    return raised(work)


def rank_leaves(rank: int, size: int, store: str, how: str) -> str:
    """The last rank leaves the group in order, as after an exception in its forward, and the others go on."""
    join_group(rank, size, store, 0)
    x = torch.ones(4, 1000, device="cuda")
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000).cuda())
    if how == "future":
        model.register_comm_hook(None, allreduce_hook)
    for _ in range(2):  # the second forward makes new buckets
        model(x).sum().backward()
    torch.cuda.synchronize()
    if rank == size - 1:
        dist.destroy_process_group()
        return "left"

    def work() -> None:
        if how == "wait":
            dist.all_reduce(x, async_op=True).wait(timedelta(seconds=50))
        model(x).sum().backward()
        torch.cuda.synchronize()
        dist.all_reduce(x)

    begun = time.monotonic()
    text = raised(work)
    assert time.monotonic() - begun < 20  # the timeout of the group is 60 s
    return text


def factors(rank: int, size: int, store: str) -> None:
    """PREMUL_SUM with a factor on the device, which its stream has yet to make: nobody waits, and no capture breaks."""
    join_group(rank, size, store, 0)
    dist.all_reduce(torch.ones(4, device="cuda"))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        want, parts = noise(rank, dtype, 37), noise(rank, dtype, 37 * size)
        x, y, out = want.to(device()), parts.to(device()), torch.empty(37, dtype=dtype, device=device())
        factor = torch.zeros(1, dtype=torch.float64, device=device())
        op = dist._make_nccl_premul_sum(factor)
        torch.cuda.synchronize()
        with fake_cuda.held(torch.cuda.current_stream()):
            factor.fill_(0.3 + rank)
            works = [dist.all_reduce(x, op, async_op=True), dist.reduce_scatter_tensor(out, y, op, async_op=True)]
        for work in works:
            work.wait()
        named = dist._make_nccl_premul_sum(0.3 + rank)
        wanted = torch.empty(37, dtype=dtype)
        dist.all_reduce(want, named)
        dist.reduce_scatter_tensor(wanted, parts, named)
        same_bits(x, want, f"PREMUL_SUM of {dtype}")
        same_bits(out, wanted, f"reduce_scatter: PREMUL_SUM of {dtype}")
        same_bits(y, parts, f"the input of a reduce_scatter of {dtype}")
    many_factors(rank, size)
    x, factor = torch.ones(5, device="cuda"), torch.full((), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [float(2 * size) ** 2] * 5, x
    fake_cuda.check()


# Types of tensors and of their factors.
KINDS_OF_FACTORS = [
    (torch.float16, torch.float32),
    (torch.float16, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.int32),
    (torch.float32, torch.float16),
    (torch.float32, torch.float64),
    (torch.float32, torch.bool),
    (torch.float64, torch.float32),
    (torch.float64, torch.int64),
    (torch.complex64, torch.float64),
]


def many_factors(rank: int, size: int) -> None:
    """Factors of many types, of device and host, several in flight, of rows, in a window, and their memory."""
    op = dist._make_nccl_premul_sum
    for dtype, kind in KINDS_OF_FACTORS:
        values = [torch.tensor(v + rank).to(kind) for v in (1.3, 2.7, -3.9)]
        inputs = [noise(rank, dtype, 37), noise(rank + 7, dtype, 37), noise(rank + 14, dtype, 37)]
        xs = [x.to(device()) for x in inputs]
        rows = torch.zeros(37, 2, dtype=dtype, device=device())
        rows[:, 1] = xs[2]
        factor, works = values[0].to(device()), []
        works.append(dist.all_reduce(xs[0], op(factor), async_op=True))
        factor.copy_(values[1])  # behind the product of the first
        works.append(dist.all_reduce(xs[1], op(factor), async_op=True))
        works.append(dist.all_reduce(rows[:, 1], op(values[2]), async_op=True))  # a factor of the host
        window = [x.to(device()) for x in inputs[:2]]
        with dist._coalescing_manager(device=device(), async_ops=True) as manager:
            for x in window:
                dist.all_reduce(x, op(factor))
        manager.wait()
        for work in works:
            work.wait()
        wanted = [x.clone() for x in (*inputs, *inputs[:2])]
        for want, value in zip(wanted, (*values, values[1], values[1]), strict=True):
            dist.all_reduce(want, op(float(value)))
        for got, want in zip((xs[0], xs[1], rows[:, 1], *window), wanted, strict=True):
            same_bits(got.contiguous(), want, f"PREMUL_SUM of {dtype} by {kind}")
        assert not rows[:, 0].any()
    backend = c10d._get_default_group()._get_backend(torch.device("cuda"))
    factor = torch.full((), 0.3, dtype=torch.float64, device=device())
    for dtype in (
        torch.complex64,
        torch.complex128,
    ):  # the functions of torch.distributed pass the parts of complex numbers
        want = noise(rank, dtype, 37)
        x = want.to(device())
        opts = dist.AllreduceOptions()
        opts.reduceOp = op(factor)
        backend.allreduce([x.conj()], opts).wait()
        want = want.conj().resolve_conj()
        dist.all_reduce(want, op(0.3))
        same_bits(x.conj().resolve_conj(), want, f"PREMUL_SUM of a conjugate of {dtype}")
    x = torch.full((), 3.0, device=device())
    dist.all_reduce(x, op(factor))
    want = torch.full((), 3.0)
    dist.all_reduce(want, op(0.3))
    same_bits(x.reshape(1), want.reshape(1), "PREMUL_SUM of a tensor without dimensions")
    rows = torch.ones(1 << 20, 2, dtype=torch.float16, device=device())
    for x in (torch.ones(1 << 20, dtype=torch.float16, device=device()), rows[:, 0]):
        factor = torch.full((1,), 0.5, device=device())
        dist.all_reduce(x, op(factor))
        assert x[-1].item() == 0.5 * size
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dist.all_reduce(x, op(factor))
        torch.cuda.synchronize()
        more, bytes_of_x = torch.cuda.max_memory_allocated() - before, x.numel() * x.element_size()
        assert more <= bytes_of_x + 4096, f"{more} bytes for the product of {bytes_of_x}"


def rows_beside_another_thread(rank: int, size: int, store: str) -> None:
    """The end of an operation whose rows are copied back does not wait for one that another thread issues behind it."""
    join_group(rank, size, store, 0)
    told = c10d._get_default_store()
    backend = c10d._get_default_group()._get_backend(torch.device("cuda"))
    x, rows = torch.zeros(1000, device="cuda"), torch.ones(1000, 4, device="cuda")
    few = torch.full((3,), 5.0 - 5 * rank, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    works: list[Any] = []

    def other(number: int) -> None:
        while backend._get_sequence_number_for_group() == number:
            pass
        works.append(dist.all_reduce(x, async_op=True))

    def columns(step: int) -> Any:
        if step % 3 == 0:
            return backend.allreduce_coalesced([rows[:, 0], rows[:, 2]], dist.AllreduceCoalescedOptions())
        if step % 3 == 1:
            return dist.all_reduce(rows[:, 0], async_op=True)
        backend._start_coalescing()
        exchange = backend.send if rank == 0 else backend.recv
        exchange([few], 1 - rank, 0)  # a window with a collective takes its turn, wherever the collective stands
        backend.allreduce([rows[:, 0]], dist.AllreduceOptions())
        return backend._end_coalescing()

    for step in range(10):
        if rank > 0:
            columns(step).wait()
            told.wait([f"rows {step}"])
            dist.all_reduce(x)
            continue
        thread = threading.Thread(target=other, args=(backend._get_sequence_number_for_group(),))
        thread.start()
        columns(step).wait()
        there = torch.cuda.Event()
        there.record()
        begun = time.monotonic()
        while not there.query():
            assert time.monotonic() < begun + 20, "the rows wait for the operation of another thread"
        told.set(f"rows {step}", "")
        thread.join()
        works.pop().wait()
    torch.cuda.synchronize()
    assert rows[0].tolist() == [float(size) ** 10, 1.0, float(size) ** 4, 1.0], rows[0]
    assert few.tolist() == [5.0] * 3, few
    fake_cuda.check()


def rows_beside_a_handler(rank: int, size: int, store: str) -> None:
    """Another thread of rank 0 queues rows alone. Neither the main thread nor its signal handler queues a collective
    before the copy of the rows is queued. A call inside the call that has its turn does."""
    join_group(rank, size, store, 0)
    told = c10d._get_default_store()
    backend = c10d._get_default_group()._get_backend(torch.device("cuda"))
    x, y, rows = (torch.ones(1000, device="cuda") for _ in range(3))
    outputs = [torch.zeros(1000, 2, device="cuda")[:, 0], *(torch.zeros_like(x) for _ in range(size - 1))]
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank > 0:
        told.wait(["copied"])
        dist.all_gather(outputs, rows)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (y, x)]
        dist.all_gather(outputs, rows)
        works.append(dist.all_reduce(y, async_op=True))
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        return
    in_copy, handled = threading.Event(), threading.Event()
    numbers: list[int] = []

    def copy(to: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        numbers.append(backend._get_sequence_number_for_group())
        in_copy.set()
        handled.wait()
        begun = time.monotonic()
        while time.monotonic() < begun + 0.5:  # for calls that do not wait for this one
            if backend._get_sequence_number_for_group() > numbers[0]:
                break
        numbers.append(backend._get_sequence_number_for_group())
        told.set("copied", "")
        return to

    def handle(_signal: int, _frame: FrameType | None) -> None:
        handled.set()
        dist.all_reduce(y, async_op=True)

    before = signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=dist.all_gather, args=(outputs, rows))
    with copying_by(copy, "CUDA"):
        thread.start()
        in_copy.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        dist.all_reduce(x)
        thread.join()
    signal.signal(signal.SIGALRM, before)
    assert numbers[0] == numbers[1], "a collective comes between the operation and the copy of its rows"
    inner: list[Any] = []

    def call(to: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        inner.append(dist.all_reduce(y, async_op=True))
        return to

    with copying_by(call, "CUDA"):
        dist.all_gather(outputs, rows)
    inner.pop().wait()
    torch.cuda.synchronize()
    assert x.tolist() == [float(size) ** 2] * 1000, x
    assert y.tolist() == [float(size) ** 2] * 1000, y


def unwritten(rank: int, size: int, store: str) -> str:
    """Rank 0 cannot write an output. All ranks raise why."""
    join_group(rank, size, store, 0)
    x = torch.ones(1000, device="cuda")
    outputs = [torch.zeros(1000, 2, device="cuda")[:, 0], *(torch.zeros_like(x) for _ in range(size - 1))]
    dist.all_reduce(x)
    went_on = []

    def work() -> None:
        with without_copies(ValueError("no copies here"), "CUDA") if rank == 0 else contextlib.nullcontext():
            dist.all_gather(outputs, x)
        went_on.append(rank)
        for _ in range(10000):
            dist.all_reduce(x)
            torch.cuda.synchronize()

    text = raised(work)
    assert rank > 0 or not went_on, "the call whose output cannot be written returns"
    return text


def unwritten_in_a_capture(rank: int, size: int, store: str) -> None:
    """Rank 0 cannot write an output in a capture. Its graph is of no use, and the group goes on. When the group fails
    later, that is news."""
    join_group(rank, size, store, 0)
    x = torch.ones(1000, device="cuda")
    outputs = [torch.zeros(1000, 2, device="cuda")[:, 0], *(torch.zeros_like(x) for _ in range(size - 1))]
    dist.all_gather(outputs, x)
    torch.cuda.synchronize()
    for async_op in (False, True):
        text = ""
        with (
            torch.cuda.graph(torch.cuda.CUDAGraph()),
            without_copies(ValueError("no copies here"), "CUDA") if rank == 0 else contextlib.nullcontext(),
        ):
            try:
                dist.all_gather(outputs, x, async_op=async_op)  # the Work is dropped
            except dist.DistBackendError as error:
                text = str(error)
        why = "an output on cuda:0 cannot be written: ValueError: no copies here; the graph is of no use"
        assert why in text if rank == 0 else not text, (async_op, text)
    for _ in range(2):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    assert x.tolist() == [float(size) ** 2] * 1000, x
    told = c10d._get_default_store()
    if rank == 0:
        backend()._set_default_timeout(timedelta(seconds=1))
        dist.all_reduce(x)  # no other rank calls it
        torch.cuda.synchronize()
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.destroy_process_group()
        told.set("over", b"")
    else:
        told.wait(["over"])
        dist.destroy_process_group()
    fake_cuda.check()


def beside_a_capture(rank: int, size: int, store: str, engine: str) -> None:
    """Beside a capture, another thread asks whether operations have ended, begins the first p2p ones, and makes
    collectives, barriers and object collectives. Tensors of several segments take memory of the device, and so does the
    first collective of a group, but NCCL makes what its own groups need, which is not for the side of a capture."""
    join_group(rank, size, store, rank if engine == "nccl" else 0)
    x, y, z = torch.ones(1000, device="cuda"), torch.ones(1000, 2, device="cuda"), torch.zeros(4, device="cuda")
    sent = x.clone()
    w, gathered = torch.ones(1000, device="cuda"), torch.zeros(1000 * size, device="cuda")
    objects: list[Any] = [None] * size
    parts, v = [torch.zeros(50_000, device="cuda") for _ in range(size)], torch.full((50_000,), 3.0, device="cuda")
    u = v.clone()
    later = dist.new_group(backend="sagecomm")
    dist.all_reduce(x)
    dist.all_gather_into_tensor(gathered, sent)
    gathered.zero_()
    torch.cuda.synchronize()
    works: list[Any] = [dist.all_reduce(x, async_op=True), dist.all_reduce(y[:, 0], async_op=True)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    backend = c10d._get_default_group()._get_backend(torch.device("cuda"))
    of_device = dist.BarrierOptions()
    of_device.device_ids = [torch.cuda.current_device()]
    peer = (rank + 1) % size
    errors: list[Exception] = []

    def other() -> None:
        try:
            with torch.cuda.stream(side):
                works.append(dist.isend(sent, peer, tag=3))  # tags take torch's streams and pinned memory
                works.append(dist.irecv(z, (rank - 1) % size, tag=4))
            begun = time.monotonic()
            while not all(work.is_completed() for work in works[:2]):
                assert time.monotonic() < begun + 30, "operations that have ended are said to be under way"
                time.sleep(0.001)  # between two questions
            with torch.cuda.stream(side):
                works.append(dist.all_reduce(w, async_op=True))
                works.append(dist.all_gather_into_tensor(gathered, sent, async_op=True))
                works.append(dist.all_gather(parts, v, async_op=True))
                if engine != "nccl":
                    works.append(dist.all_reduce(u, group=later, async_op=True))
                backend.barrier(
                    of_device
                ).wait()  # dist.barrier() allocates a tensor on the device, which breaks a capture
                dist.barrier()
            dist.all_gather_object(objects, {"rank": rank})
        except Exception as error:
            errors.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        x2 = y * 2
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert not errors, errors
    for work in works[:2]:
        work.wait()
    graph.replay()
    dist.send(torch.full((4,), 7.0, device="cuda"), peer, tag=4)
    dist.recv(torch.empty_like(x), (rank - 1) % size, tag=3)
    for work in works[2:]:
        work.wait()
    torch.cuda.synchronize()
    assert z.tolist() == [7.0] * 4, z
    assert x2[0].tolist() == [2.0 * size, 2.0], x2[0]
    assert w.tolist() == [float(size)] * 1000, w
    assert gathered.tolist() == [1.0] * 1000 * size, gathered
    assert [part[-1].item() for part in parts] == [3.0] * size, parts
    assert u[-1].item() == 3.0 * (1 if engine == "nccl" else size), u
    assert objects == [{"rank": r} for r in range(size)], objects
    fake_cuda.check()


def first_beside_a_capture(rank: int, size: int, store: str) -> None:
    """Beside a capture, another thread makes the first operations on the device, and uses up the streams made ahead."""
    join_group(rank, size, store, 0)
    x, y = torch.ones(1000, device="cuda"), torch.ones(1000, 2, device="cuda")
    got = torch.zeros(6, 4, device="cuda")
    sent, doubled = got + rank, y * 2
    streams = [torch.cuda.Stream() for _ in got]
    torch.cuda.synchronize()
    errors: list[Exception] = []
    works: list[Any] = []

    def other() -> None:
        try:
            with torch.cuda.stream(streams[0]):
                works.append(dist.all_reduce(x, async_op=True))
                future = works[0].get_future()
            for tag, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    works.append(dist.isend(sent[tag], (rank + 1) % size, tag=tag))
                    works.append(dist.irecv(got[tag], (rank - 1) % size, tag=tag))
            future.wait()
        except Exception as error:
            errors.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        doubled = y * 2
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert not errors, errors
    graph.replay()
    for work in works:
        work.wait()
    torch.cuda.synchronize()
    assert x.tolist() == [float(size)] * 1000, x
    assert doubled[0].tolist() == [2.0, 2.0], doubled[0]
    assert got.tolist() == [[float((rank - 1) % size)] * 4] * 6, got
    fake_cuda.check()


def with_engine(name: str) -> dist.ProcessGroup:
    """A group with an engine of its own."""
    os.environ.pop("SAGECOMM_ENGINE", None)  # it would win over the options
    group: dist.ProcessGroup = dist.new_group(
        backend="sagecomm", pg_options=sagecomm.Options(settings={"engine": name})
    )
    return group


def engine_of(group: dist.ProcessGroup) -> str:
    """The engine that has carried out operations on the device."""
    [lane] = [lane for lane in sagecomm.get_stats(group)["lanes"] if lane["device"] == "cuda"]
    return str(lane["engine"])


def calls_that_wait(rank: int, size: int, store: str, engine: str) -> None:
    """To make a stream or to load a kernel waits for all streams of the device (EMULATOR_STREAM_WAITS=1). Recvs of
    rank 1 wait in streams for what rank 0 sends when it has got what rank 1 calls next."""
    join_group(rank, size, store, 0)
    staged, group = with_engine("staged"), with_engine(engine)
    x = [torch.zeros(1000, device="cuda") for _ in range(4)]
    y = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    if rank == 1:
        works = [dist.irecv(x[0], 0, group=group)]  # the first operation on the device: kernels, streams for a sender
        works.append(dist.irecv(x[1], 0, group=staged))
        dist.all_reduce(y, group=group)  # streams for collectives
        works.append(dist.irecv(x[2], 0, group=group, tag=1))  # torch's streams
        dist.send(y, 0, group=group, tag=2)  # streams for sends
        for work in works:
            work.wait()
    else:
        dist.all_reduce(y, group=group)
        dist.recv(x[3], 1, group=group, tag=2)
        for n, to in enumerate((group, staged)):
            dist.send(y + n, 1, group=to)
            x[n].fill_(size + n)
        dist.send(y + 2, 1, group=group, tag=1)
        x[2].fill_(size + 2)
    for n in range(3):
        assert x[n].tolist() == [size + float(n)] * 1000, (n, x[n])
    assert [engine_of(staged), engine_of(group)] == ["staged", engine]
    fake_cuda.check()


def interrupted_while_kernels_load(rank: int, size: int, store: str) -> None:
    """Kernels are loaded while a stream waits for a peer, and a signal ends the call. Once the stream goes on, the next
    call finds them."""
    join_group(rank, size, store, 0)
    staged, group = with_engine("staged"), with_engine("cuda")
    first, second = (torch.zeros(1000, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    told = c10d._get_default_store()
    if rank == 1:
        works = [dist.irecv(first, 0, group=staged)]
        interrupt(lambda: dist.irecv(second, 0, group=group))
        told.set("interrupted", "")
        works.append(dist.irecv(second, 0, group=group))
        for work in works:
            work.wait()
    else:
        told.wait(["interrupted"])
        for n, (x, to) in enumerate(((first, staged), (second, group))):
            dist.send(x + n + 1, 1, group=to)
            x.fill_(n + 1)
    assert [first.tolist(), second.tolist()] == [[1.0] * 1000, [2.0] * 1000]
    if rank == 1:
        told.set("received", "")
    told.wait(["received"])  # who leaves before fails the group
    fake_cuda.check()


def aborted_while_kernels_load(rank: int, size: int, store: str) -> None:
    """A call waits for kernels, which are loaded when a stream has gone on. Another thread's abort ends the call."""
    join_group(rank, size, store, 0)
    staged, group = with_engine("staged"), with_engine("cuda")
    first, second = (torch.zeros(1000, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    told = c10d._get_default_store()
    if rank == 1:
        work = dist.irecv(first, 0, group=staged)
        inside = threading.Event()

        def note(_: int, frame: Any) -> None:
            if frame.f_code.co_name == "irecv":
                inside.set()

        def abort() -> None:
            inside.wait()
            group._get_backend(torch.device("cuda")).abort()

        before = signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        aborting = threading.Thread(target=abort)
        aborting.start()
        try:
            dist.irecv(second, 0, group=group)
            raise AssertionError("nothing was raised")
        except dist.DistBackendError as error:
            assert "abort() was called" in str(error), error
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        aborting.join()
        told.set("aborted", "")
        work.wait()
        assert first.tolist() == [1.0] * 1000
        told.set("received", "")
    else:
        told.wait(["aborted"])
        dist.send(first + 1, 1, group=staged)
        told.wait(["received"])  # who leaves before fails the group
    fake_cuda.check()


def end_under_way(rank: int, size: int, store: str, end: Callable[[], None]) -> dist.Work:
    """Rank 0 calls `end` while an operation is on its way for which the stream of the last rank is held. Returns that
    operation: on these two ranks when `end` has returned, on others when they have called it."""
    join_group(rank, size, store, 0)
    told = c10d._get_default_store()
    x = torch.ones(256 << 10, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == size - 1:
        with fake_cuda.held(torch.cuda.current_stream()):
            x.fill_(5)
            work = dist.all_reduce(x, async_op=True)
            told.set("called", "")
            told.wait(["ended"])
    else:
        told.wait(["called"])
        work = dist.all_reduce(x, async_op=True)
        told.set(f"rank {rank} has called", "")
        if rank == 0:
            told.wait([f"rank {other} has called" for other in range(size - 1)])
            end()
            told.set("ended", "")
    return work


def is_void(rank: int, size: int, store: str) -> str:
    """Rank 0 aborts. Its stream goes on and gives rank 1 what it has not computed, which is no success there."""
    work = end_under_way(
        rank, size, store, lambda: c10d._get_default_group()._get_backend(torch.device("cuda")).abort()
    )
    return raised(lambda: work.wait(timedelta(seconds=30)))


def is_cut(rank: int, size: int, store: str) -> str:
    """Rank 0 destroys the group behind an error. The others raise that, each in its operation."""

    def destroy() -> None:
        try:
            raise ValueError
        except ValueError:  # it makes the wait of the end short
            dist.destroy_process_group()

    work = end_under_way(rank, size, store, destroy)
    return "destroyed" if rank == 0 else raised(lambda: work.wait(timedelta(seconds=30)))


NO_CALLS = ("cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync", "cuStreamWriteValue32", "cuStreamWaitValue32",
            "cuLaunchKernel", "cuMemAlloc", "cuMemCreate", "cuStreamCreateWithPriority", "ncclGroupEnd")  # fmt: skip


def calls_after_an_abort(rank: int, size: int, store: str) -> list[str]:
    """Calls on a group that was aborted raise the reason of the abort. None of them comes to the device, whose
    functions fail from then on."""
    join_group(rank, size, store)
    told = c10d._get_default_store()
    x, row = torch.ones(256, device="cuda"), torch.empty(256 * size, device="cuda")
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_reduce(x)
    torch.cuda.synchronize()
    told.set(f"rank {rank} is ready", "")
    told.wait([f"rank {other} is ready" for other in range(size)])
    c10d._get_default_group()._get_backend(torch.device("cuda")).abort()
    rules = ";".join(f"{name}@1+=invalid_value" for name in NO_CALLS)
    assert fake_cuda.emulator().emulator_plan(rules.encode()) == 0
    texts = []
    for call in (
        lambda: dist.all_reduce(x, async_op=True),
        lambda: dist.all_reduce(x),
        lambda: dist.all_gather_into_tensor(row, x),
        lambda: dist.all_gather(parts, x),
        lambda: dist.barrier(device_ids=[rank]),
        lambda: dist.isend(x, (rank + 1) % size),
        lambda: dist.irecv(x, (rank - 1) % size),
    ):
        begun = time.monotonic()
        try:
            call()
        except dist.DistBackendError as error:
            texts.append(f"{type(error).__name__}: {error}")
        assert time.monotonic() < begun + 5
    assert fake_cuda.emulator().emulator_plan(b"") == 0
    return texts


def used(rank: int, size: int, store: str, on: list[int]) -> str:
    """Operations are right whichever engine carries them out. Returns the engine's line of explain."""
    from device_nccl import falls_back

    return falls_back(rank, size, store, on)


def after_a_shortage(rank: int, size: int, store: str) -> list[str]:
    """What explain says of a group whose ranks cannot share memory, and of the next one."""
    join_group(rank, size, store, 0)
    texts = []
    for group in (dist.group.WORLD, dist.new_group(backend="sagecomm")):
        x = torch.ones(8, device="cuda")
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size] * 8
        texts.append(str(sagecomm.explain("all_reduce", 32, group, device=True)))
    return texts


def explained(rank: int, size: int, store: str, devices: int) -> list[str]:
    """What explain says before and after the first collective, in which the ranks tell each other their devices."""
    join_group(rank, size, store, rank % devices)
    tables = [sagecomm.explain("all_reduce", 8, device=True)["device_table"]]
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    assert x.tolist() == [size] * 8
    tables.append(sagecomm.explain("all_reduce", 8, device=True)["device_table"])
    dist.destroy_process_group()
    return tables


def memory_is_used_again(rank: int, size: int, store: str) -> bool:
    """Makes groups until one has the memory of an earlier one, which may still have it when the next one is made."""
    join_group(rank, size, store, 0)
    x = host(rank, torch.float32).to(device())
    dist.all_reduce(x)
    for _ in range(100):
        free = torch.cuda.mem_get_info()[0]
        group = dist.new_group(backend="sagecomm")
        dist.all_reduce(x, group=group)
        again = torch.tensor(int(torch.cuda.mem_get_info()[0] == free))
        dist.destroy_process_group(group)
        dist.all_reduce(again, op=dist.ReduceOp.MIN)
        if again:
            return True
        time.sleep(0.01)
    return False


def many_communicators(rank: int, size: int, store: str) -> int:
    """Groups that are destroyed give the memory of the device back. Returns the bytes that are in use afterwards."""
    join_group(rank, size, store, 0)
    x = host(rank, torch.float32).to(device())
    dist.all_reduce(x)
    free = torch.cuda.mem_get_info()[0]
    for _ in range(4):
        group = dist.new_group(backend="sagecomm")
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
    # A group's memory is given back when all ranks have closed it, and one of them makes or destroys another group.
    for _ in range(2000):
        if free - torch.cuda.mem_get_info()[0] <= ARENA:
            break
        time.sleep(0.005)
    return free - torch.cuda.mem_get_info()[0]
