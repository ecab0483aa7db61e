"""What ranks of test_device_tensors.py do with tensors of an accelerator.

Every function runs on two ranks in a group of its own, and leaves no report of the checker behind.

Functions know the accelerator by torch's generic names only. `hold` and `release` come from the test bed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

N = 1000
FEW = 3


ELSEWHERE: list[torch.device] = []  # the device of the programs, if it is not the current one


def accelerator() -> torch.device:
    if ELSEWHERE:
        return ELSEWHERE[0]
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, torch.accelerator.current_device_index())


def full(value: float, n: int = N, **how: Any) -> torch.Tensor:
    how.setdefault("dtype", torch.float32)
    return torch.full((n,), value, device=accelerator(), **how)


def mine() -> float:
    return float(dist.get_rank() + 1)


SUM = 3.0  # of mine() over the ranks


def main_stream() -> torch.Stream:
    return torch.accelerator.current_stream(accelerator())


def hold(stream: torch.Stream, holds: bool = True) -> None:
    """Nothing that is launched on the stream begins until it is released."""
    if accelerator().type == "cuda":
        import cuda_holds

        (cuda_holds.hold if holds else cuda_holds.release)(stream)
    else:
        import simdev

        (simdev.hold if holds else simdev.release)(stream)


@contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """Nothing that is launched on the stream begins inside."""
    stream.synchronize()
    hold(stream)
    try:
        yield
    finally:
        hold(stream, False)


def expect(tensor: torch.Tensor, value: float) -> None:
    assert tensor.min().item() == value, (tensor.min().item(), value)
    assert tensor.max().item() == value, (tensor.max().item(), value)


# ---- order ----


def producer_is_late() -> None:
    """The input is written behind a held stream."""
    x = full(0)
    with held(main_stream()):
        x += mine()
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
    work.wait()
    expect(x, SUM)
    x.fill_(mine())
    dist.all_reduce(x)
    expect(x, SUM)


def consumer_waits_for_the_copy_back() -> None:
    """The stream of the library that writes the output is held. wait() does not block the host, and what is launched
    behind it comes after the output."""
    before = torch.Stream(accelerator())
    x = full(mine())
    dist.all_reduce(x)
    after = torch.Stream(accelerator())
    kind = before.device_type
    streams = [
        torch.Stream(stream_id=i, device_index=0, device_type=kind)
        for i in range(before.stream_id + 1, after.stream_id)
    ]
    assert len(streams) == 2, "one for copies out of the device and one for copies into it"
    torch.accelerator.synchronize()
    hold(streams[1])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    y = x + 1
    assert not work.is_completed()
    future = work.get_future()
    assert future.done()
    z = future.then(lambda f: f.value()[0] + 2)
    hold(streams[1], False)
    expect(y, 2 * SUM + 1)
    expect(z.wait(), 2 * SUM + 2)
    work.wait()
    torch.accelerator.synchronize()
    assert work.is_completed()


def wait_on_another_stream() -> None:
    x = full(mine())
    work = dist.all_reduce(x, async_op=True)
    side = torch.Stream(accelerator())
    with side:
        work.wait()
        y = x * 2
    main_stream().wait_stream(side)
    expect(y, 2 * SUM)


def wait_twice() -> None:
    x = full(mine())
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    side = torch.Stream(accelerator())
    with side:
        work.wait()
        y = x * 2
    work.synchronize()
    z = x * 3
    main_stream().wait_stream(side)
    expect(y, 2 * SUM)
    expect(z, 3 * SUM)


def synchronous_call_without_a_wait() -> None:
    """The backend itself orders the stream of a synchronous call. Only torch's Python functions call wait() as well."""
    group = dist.distributed_c10d._get_default_group()
    options = AllreduceOptions()
    options.asyncOp = False
    x = full(mine())
    work = group.allreduce([x], options)
    y = x + 1
    expect(y, SUM + 1)
    del work


def wait_in_another_thread() -> None:
    x = full(mine())
    work = dist.all_reduce(x, async_op=True)
    got: list[float] = []

    def consume() -> None:
        work.wait()
        got.append((x * 2).max().item())

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join(60)
    assert got == [2 * SUM]
    work.wait()
    expect(x, SUM)


def issue_on_several_streams() -> None:
    """The current stream changes between operations of one group."""
    side = torch.Stream(accelerator())
    x, y = full(mine()), full(mine())
    side.wait_stream(main_stream())
    for _ in range(FEW):
        first = dist.all_reduce(x, async_op=True)
        with side:
            y += 1
            dist.all_reduce(y, async_op=True).wait()
        first.wait()
    main_stream().wait_stream(side)
    expect(x, SUM * 2 ** (FEW - 1))
    values = [1.0, 2.0]  # of y on each rank
    for _ in range(FEW):
        values = [sum(v + 1 for v in values)] * 2
    expect(y, values[0])


def two_groups_in_opposite_order() -> None:
    """Groups do not wait for each other's streams."""
    other = dist.new_group()
    first, second = (None, other) if dist.get_rank() == 0 else (other, None)
    x = {None: full(mine()), other: full(10 * mine())}
    works = [dist.all_reduce(x[g], group=g, async_op=True) for g in (first, second)]
    for work in reversed(works):
        work.wait()
    expect(x[None], SUM)
    expect(x[other], 10 * SUM)


def two_groups_that_have_met() -> None:
    """The first collectives of two groups come in one order, the next ones in opposite orders."""
    other = dist.new_group()
    y = full(mine())
    for group in (None, other):
        dist.all_reduce(y, group=group)
    first, second = (None, other) if dist.get_rank() == 0 else (other, None)
    for _ in range(FEW):
        x = {None: full(mine()), other: full(10 * mine())}
        works = [dist.all_reduce(x[g], group=g, async_op=True) for g in (first, second)]
        for work in reversed(works):
            work.wait()
        expect(x[None], SUM)
        expect(x[other], 10 * SUM)


def host_goes_on_beside_a_held_stream() -> None:
    """Operations on CPU tensors of the same group do not wait for a stream."""
    x = full(0)
    c = torch.full((N,), mine())
    with held(main_stream()):
        x += mine()
        work = dist.all_reduce(x, async_op=True)
        for _ in range(FEW):
            c.fill_(mine())
            dist.all_reduce(c)
            expect(c, SUM)
        assert not work.is_completed()
    work.wait()
    expect(x, SUM)


# ---- memory ----


def work_is_dropped() -> None:
    x = full(mine())
    dist.all_reduce(x, async_op=True)
    dist.distributed_c10d._get_default_group()._wait_for_pending_works()
    torch.accelerator.synchronize()
    expect(x, SUM)


def tensors_are_dropped() -> None:
    """Memory of a tensor that nobody has any more is not used again while the operation uses it."""
    for late in (False, True):
        x, out = full(0), full(0, 2 * N)
        main = main_stream()
        main.synchronize()
        if late:
            hold(main)
        x += mine()
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        del x
        others = [full(99) for _ in range(FEW)]
        if late:
            hold(main, False)
        work.wait()
        expect(out[:N], 1)
        expect(out[N:], 2)
        expect(others[0], 99)


def outputs_are_dropped() -> None:
    x, out = full(mine()), full(0, 2 * N)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    del out
    others = [full(99, 2 * N) for _ in range(FEW)]
    work.wait()
    del work
    for other in others:
        expect(other, 99)
    more = [full(7, 2 * N) for _ in range(FEW)]
    dist.all_reduce(x)
    for other in more:
        expect(other, 7)


def work_and_tensors_are_dropped() -> None:
    """Memory of which only a stream of the library makes use is not used again. Nobody waits for that stream."""
    group = dist.distributed_c10d._get_default_group()
    for i in range(4 * FEW):
        n = N * (i + 1)  # a block of its own each time
        dist.all_gather_into_tensor(full(0, 2 * n), full(mine(), n), async_op=True)
        group._wait_for_pending_works()  # copies are queued, perhaps not run
        expect(full(99, 2 * n), 99)
        expect(full(99, n), 99)


def input_is_written_after_the_wait() -> None:
    """On a rank that gets no output, the input is the caller's again."""
    for _ in range(FEW):
        x = full(mine())
        work = dist.reduce(x, 0, async_op=True)
        work.wait()
        if dist.get_rank() == 0:
            expect(x, SUM)
        x.fill_(99)
    expect(x, 99)


def not_contiguous() -> None:
    x = torch.zeros(N, 4, device=accelerator())
    x[:, ::2] = mine()
    for async_op in (False, True):
        x[:, ::2] = mine()
        work = dist.all_reduce(x[:, ::2], async_op=async_op)
        if work is not None:
            work.wait()
        expect(x[:, ::2], SUM)
        expect(x[:, 1::2], 0)
    outs = [torch.zeros(4, N, device=accelerator()).t() for _ in range(2)]
    ins = torch.full((4, N), mine(), device=accelerator()).t()
    work = dist.all_gather(outs, ins, async_op=True)
    del ins
    others = [full(99, 4 * N) for _ in range(FEW)]
    work.wait()
    expect(outs[0], 1)
    expect(outs[1], 2)
    expect(others[0], 99)


def several_in_flight() -> None:
    sizes = [1, 33, 5000, 70000, 300000, 7]
    xs = [full(mine() * i, n) for i, n in enumerate(sizes, 1)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    for i, x in enumerate(xs, 1):
        expect(x, SUM * i)
