"""What ranks of test_device_catalogue.py do: cases of the table in docs/devices.md that no other module has."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import distributed_c10d as c10d

import fake_cuda
import sagecomm
from device_calls import MINUTE, run_under_fake_cuda
from device_programs import SUM, N, accelerator, expect, full, held, main_stream, mine
from device_waits import until

# ---- peers that call something else, or nothing ----


def a_rank_that_does_not_call() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    store = c10d._get_default_store()
    x = full(mine())
    dist.all_reduce(x, group=group)
    if dist.get_rank() == 1:
        store.wait(["the other rank has seen it"])
        return
    work = dist.all_reduce(x, group=group, async_op=True)
    with pytest.raises(sagecomm.CollectiveTimeout) as raised:
        work.wait(MINUTE)
    store.set("the other rank has seen it", b"")
    for word in ("all_reduce #2 (float32, SUM, 1000 elements)", "rank 1", "last called all_reduce #1"):
        assert word in str(raised.value), raised.value
    with pytest.raises(sagecomm.CollectiveTimeout):
        dist.all_reduce(x, group=group)
    assert work.is_completed()
    x.fill_(5)
    expect(x, 5)


def call_until_it_raises(call: Callable[[Any, Any], Any], x: torch.Tensor, group: Any) -> None:
    call(x, group)
    while True:
        torch.accelerator.synchronize()
        dist.all_reduce(x, group=group)


def different_calls() -> None:
    """Of each pair, one rank makes one call. Both get an error that names both calls, and streams go on."""
    most = dist.ReduceOp.MAX
    calls: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], str, str]] = [
        (
            lambda x, g: dist.broadcast(x, 0, group=g),
            lambda x, g: dist.reduce(x, 0, group=g),
            "broadcast (float32, 1000 elements, root 0)",
            "reduce (float32, SUM, 1000 elements, root 0)",
        ),
        (
            lambda x, g: dist.all_reduce(x, group=g),
            lambda x, g: dist.all_reduce(x.int(), group=g),
            "all_reduce (float32, SUM, 1000 elements)",
            "all_reduce (int32, SUM, 1000 elements)",
        ),
        (
            lambda x, g: dist.all_reduce(x, group=g),
            lambda x, g: dist.all_reduce(x, op=most, group=g),
            "all_reduce (float32, SUM, 1000 elements)",
            "all_reduce (float32, MAX, 1000 elements)",
        ),
        (
            lambda x, g: dist.broadcast(x, 0, group=g),
            lambda x, g: dist.broadcast(x, 1, group=g),
            "broadcast (float32, 1000 elements, root 0)",
            "broadcast (float32, 1000 elements, root 1)",
        ),
    ]
    for *both, one, other in calls:
        group = dist.new_group()
        x = full(mine())

        with pytest.raises(sagecomm.CollectiveMismatch) as raised:
            call_until_it_raises(both[dist.get_rank()], x, group)
        assert one in str(raised.value), raised.value
        assert other in str(raised.value), raised.value
        x.fill_(5)
        expect(x, 5)


def exchange(step: int, group: Any = None, sent: int = -1, expected: int = -1) -> None:
    """An all_to_all_single with splits that change with each step. With `sent`, rank 0 sends rank 1 so many elements,
    which expects another number."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    ins = [(step + rank + 2 * peer) % 5 for peer in ranks]
    outs = [(step + peer + 2 * rank) % 5 for peer in ranks]
    if sent >= 0 and rank == 0:
        ins[1] = sent
    if sent >= 0 and rank == 1:
        outs[0] = expected
    y = full(0, sum(outs))
    dist.all_to_all_single(y, full(mine(), sum(ins)), outs, ins, group=group)
    if sent < 0:
        assert y.tolist() == [float(peer + 1) for peer in ranks for _ in range(outs[peer])]


def unfit(sent: int, expected: int) -> str:
    """The error of rank 0, or of rank 1, where rank 0 sends so many bytes to rank 1. Each names where the other is."""
    where = r"( \([^)]*\))?"
    return rf"rank 1{where} expects {expected} bytes from rank 0{where} in all_to_all #\d+, which sends it {sent};"


SPLITS = [(5, 7), (5, 1_200_000), (1_200_000, 5), (3, 0)]


def splits_that_do_not_fit() -> None:
    """All steps before are right, and both ranks get an error with both lengths."""
    for sent, expected_ in SPLITS:
        group = dist.new_group()
        for step in range(4 if sent > 5 else 70):
            exchange(step, group)
        x = full(mine())

        def call(_: Any, group: Any, sent: int = sent, expected: int = expected_) -> None:
            exchange(0, group, sent, expected)

        with pytest.raises(sagecomm.CollectiveMismatch, match=unfit(4 * sent, 4 * expected_)):
            call_until_it_raises(call, x, group)
        x.fill_(5)
        expect(x, 5)


def splits_that_do_not_fit_are_raised() -> None:
    """In the call, with SAGECOMM_BLOCKING_WAIT: the stream may hang from then on."""
    for step in range(3):
        exchange(step)
    with pytest.raises(sagecomm.CollectiveMismatch, match=unfit(20, 28)):
        exchange(3, None, 5, 7)


def blocks_that_do_not_fit() -> None:
    """The same without splits: each rank cuts its tensors into equal blocks."""
    group = dist.new_group()
    x = full(mine())

    def call(_: Any, group: Any) -> None:
        n = 4 + 2 * dist.get_rank()
        dist.all_to_all_single(full(0, n), full(mine(), n), group=group)

    with pytest.raises(sagecomm.CollectiveMismatch, match=r"expects (8|12) bytes from .*, which sends it (12|8);"):
        call_until_it_raises(call, x, group)
    x.fill_(5)
    expect(x, 5)


# ---- operations that only another thread has seen to end ----


def complete_without_an_output() -> None:
    """A rank reads in another stream what it has sent, when the operation is complete. A thread of the library sees
    that end, and no stream has an event for it. It fails without the notes in DeviceWork::passed() and stream()."""
    side, reader = torch.Stream(accelerator()), torch.Stream(accelerator())
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: dist.broadcast(x, 0, async_op=True),
        lambda x: dist.isend(x, 1) if dist.get_rank() == 0 else dist.irecv(x, 0),
    ]
    finds: list[Callable[[Any], Any]] = [
        lambda work: until(work.is_completed),
        lambda work: work.get_future().wait(),
    ]
    for call, find in itertools.product(calls, finds):
        x, read, ended = full(0), full(0), threading.Event()
        for stream in (side, reader):
            stream.wait_stream(main_stream())
        with held(side), side:  # so that the call does not end the operation
            x += mine()
            work = call(x)
        work.get_future_result().add_done_callback(lambda _, ended=ended: ended.set())
        assert ended.wait(60)
        with reader:
            find(work)
            torch.add(x, 1, out=read)  # makes no memory, for which an allocator would ask for events
        main_stream().wait_stream(reader)
        expect(read, 2)


# ---- types, places in memory ----


def outcome(x: torch.Tensor, op: Any) -> list[Any]:
    try:
        dist.all_reduce(x, op=op)
    except RuntimeError as error:
        return [str(error)]
    return x.cpu().view(torch.uint8).tolist()


def reductions_and_types() -> None:
    """A device gives the bits, or the refusal, of the CPU."""
    op = dist.ReduceOp
    cases = [
        *((dtype, op.AVG) for dtype in (torch.float32, torch.bfloat16, torch.int32)),
        *((dtype, _make_nccl_premul_sum(0.5)) for dtype in (torch.float32, torch.float16)),
        *((dtype, op.SUM) for dtype in (torch.bool, torch.uint8, torch.float64, torch.float8_e5m2)),
        *((dtype, op.PRODUCT) for dtype in (torch.bfloat16, torch.int16)),
        (torch.uint8, op.BAND),
    ]
    numbers = (torch.arange(N) % 5) * mine()
    for dtype, how in cases:
        x = numbers.to(dtype)
        assert outcome(x.to(accelerator()), how) == outcome(x, how), (dtype, how)


def float8_is_moved() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        plain = ((torch.arange(N) % 7) * mine()).to(dtype)
        x, out = plain.to(accelerator()), torch.zeros(2 * N, dtype=torch.uint8, device=accelerator()).view(dtype)
        dist.all_gather_into_tensor(out, x)
        first, second = (((torch.arange(N) % 7) * by).to(dtype).view(torch.uint8) for by in (1.0, 2.0))
        assert torch.equal(out.cpu().view(torch.uint8), torch.cat([first, second]))
        dist.broadcast(x, 1)
        assert torch.equal(x.cpu().view(torch.uint8), second)


def odd_places() -> None:
    """Tensors that begin anywhere in their storage, that are part of each other, and that are empty."""
    for dtype, skip in ((torch.float32, 1), (torch.uint8, 3), (torch.float64, 5)):
        base = full(mine(), N + skip, dtype=dtype)
        dist.all_reduce(base[skip:])
        expect(base[skip:], SUM)
        expect(base[:skip], mine())
    rank, out = dist.get_rank(), full(0, 2 * N)
    own = out[rank * N : (rank + 1) * N]
    own += mine()
    dist.all_gather_into_tensor(out, own)
    expect(out[:N], 1)
    expect(out[N:], 2)
    dist.reduce_scatter_tensor(own, out)
    expect(own, 2 * mine())
    expect(out[(1 - rank) * N : (2 - rank) * N], 3 - mine())
    empty = torch.empty(0, device=accelerator())
    dist.all_gather_into_tensor(empty, empty)
    dist.broadcast(empty, 0)


# ---- life ----


def child_is_refused(*tensors: torch.Tensor) -> None:
    """Ends the process where it is not."""
    for each in (torch.ones(1), *tensors):
        try:
            dist.all_reduce(each)
            os._exit(1)
        except RuntimeError as error:
            if "this process was forked" not in str(error):
                print(error, flush=True)
                os._exit(2)


def child_cannot_wait(*works: dist.Work | None) -> None:
    for work in works:
        try:
            assert work is not None
            work.is_completed()
            work.wait()
            os._exit(3)
        except RuntimeError as error:
            if "this process was forked" not in str(error):
                print(error, flush=True)
                os._exit(4)


def child_of_a_fork() -> None:
    """A child drops what it has inherited and is refused. Its parent goes on."""
    x, y = full(0), full(mine())
    strided = x[::2]
    ended = dist.all_reduce(y, async_op=True)
    assert ended is not None
    ended.wait()
    torch.accelerator.synchronize()
    until(ended.is_success)
    gc.collect()  # torch aborts a child that frees a tensor of its parent which other streams have used
    with held(main_stream()):
        x += mine()
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future() if accelerator().type == "cuda" else None
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 30)  # it ends the child if that hangs
            child_is_refused(x, strided)
            child_cannot_wait(work, ended)
            del work, ended, future
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    work.wait()
    expect(x, SUM)


def collective_destroyed_in_flight() -> None:
    """The group is destroyed before anybody has waited."""
    group = dist.new_group()
    x = full(0)
    with held(main_stream()):
        x += mine()
        work = dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert "destroy" in str(error)
        x.fill_(SUM)
    expect(x, SUM)


PROGRAMS: list[Callable[[], Any]] = [
    a_rank_that_does_not_call,
    different_calls,
    splits_that_do_not_fit,
    blocks_that_do_not_fit,
    complete_without_an_output,
    reductions_and_types,
    float8_is_moved,
    odd_places,
    child_of_a_fork,
    collective_destroyed_in_flight,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)


# ---- devices that lack something, on fake CUDA ----


def without_devices(rank: int, size: int, store: str) -> None:
    """Collectives on the CPU need no device."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    assert not torch.cuda.is_available()
    x = torch.full((N,), mine())
    dist.all_reduce(x)
    expect(x, SUM)
    dist.destroy_process_group()


def without_a_symbol(rank: int, size: int, store: str) -> None:
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x = full(mine())
    dist.all_reduce(x)
    expect(x, SUM)
    dist.destroy_process_group()


POOL = 128  # streams of torch's CUDA build on a device
KEPT: list[torch.Tensor] = []  # torch's allocator needs an event to take back what other streams have used


def copies_run_out(rank: int, size: int, store: str) -> None:
    """The device takes no further copy in the middle of a long operation. Those that it has taken are made before the
    tensor is used again."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x = full(mine(), 5_000_000)
    with pytest.raises(RuntimeError, match="cannot queue a copy into the device: CUDA_ERROR_OUT_OF_MEMORY"):
        dist.all_reduce(x)
    x.fill_(5)
    expect(x, 5)
    fake_cuda.check()


def streams_run_out(rank: int, size: int, store: str) -> None:
    """P2p operations that no stream waits for take streams of torch's pool in each group, until it has none left."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    x, y = full(1), full(0)

    def go_on() -> None:
        for _ in range(POOL):
            group = dist.new_group([rank])._get_backend(accelerator())
            recv = group.recv([y], rank, 1)  # torch refuses the rank itself, but not a backend
            group.send([x], rank, 1).wait()
            recv.wait()

    with pytest.raises(RuntimeError, match=rf"torch has no stream of cuda:0 left .* \({POOL} are in use\)"):
        go_on()


def events_run_out(rank: int, size: int, store: str) -> None:
    """The device has no event left: the operation raises the device's text on the rank that it belongs to."""
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    KEPT.append(full(mine()))

    def go_on() -> None:
        while True:
            dist.all_reduce(KEPT[0])

    with pytest.raises(RuntimeError, match=r"all_reduce: .*out of memory"):
        go_on()


# ---- a device with fewer events than operations under way: a record waits until another one has run ----

MANY = 12  # operations under way


def _peer() -> int:
    return 1 - dist.get_rank()


def all_reduces_with_few_events() -> None:
    xs = [full(mine() + n) for n in range(MANY)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for n, (x, work) in enumerate(zip(xs, works, strict=True)):
        assert work is not None
        work.wait()
        expect(x, SUM + 2 * n)


def p2p_with_few_events() -> None:
    xs, ys = [full(mine() + n) for n in range(MANY)], [full(0) for _ in range(MANY)]
    works: list[dist.Work | None] = []
    for x, y in zip(xs, ys, strict=True):
        works += [dist.isend(x, _peer()), dist.irecv(y, _peer())]
    for work in works:
        assert work is not None
        work.wait()
    for n, y in enumerate(ys):
        expect(y, SUM - mine() + n)


def windows_with_few_events() -> None:
    xs = [[full(mine() + n + 10 * i) for i in range(3)] for n in range(MANY)]
    works: list[Any] = []
    for window in xs:
        with dist._coalescing_manager(device=accelerator(), async_ops=True) as manager:
            for x in window:
                dist.all_reduce(x)
        works += manager.works
    for work in works:
        work.wait()
    for n, window in enumerate(xs):
        for i, x in enumerate(window):
            expect(x, SUM + 2 * (n + 10 * i))


def a_timeout_with_few_events() -> None:
    """Where streams can wait, a call waits for an event that is free when a peer has called: until the timeout here."""
    group = dist.new_group(timeout=MINUTE)
    store = c10d._get_default_store()
    dist.all_reduce(full(mine()), group=group)
    torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        group._get_backend(accelerator())._set_default_timeout(timedelta(milliseconds=300))
        xs = [full(mine()) for _ in range(MANY)]

        def calls() -> None:
            works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
            works[-1].wait(MINUTE)

        with pytest.raises(sagecomm.CollectiveTimeout, match="rank 1"):
            calls()
        torch.accelerator.synchronize()
        store.set("the timeout has come", b"")
    else:
        store.wait(["the timeout has come"], MINUTE)


def a_record_waits() -> None:
    """Where the caller's stream is late, the events of its operations are used up."""
    xs = [full(mine() + n) for n in range(MANY)]
    dist.all_reduce(full(0))
    torch.accelerator.synchronize()
    before = fake_cuda.waited_records()
    with ThreadPoolExecutor(1) as pool, ExitStack() as late:
        late.enter_context(held(main_stream()))

        def release() -> None:
            with late:
                until(lambda: fake_cuda.waited_records() > before)

        released = pool.submit(release)
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        released.result()
    for n, (x, work) in enumerate(zip(xs, works, strict=True)):
        assert work is not None
        work.wait()
        expect(x, SUM + 2 * n)


FEW_EVENTS: list[Callable[[], Any]] = [
    a_record_waits,
    all_reduces_with_few_events,
    p2p_with_few_events,
    windows_with_few_events,
    a_timeout_with_few_events,
]


def few_events(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, FEW_EVENTS)
