"""What ranks of test_device_tensors.py do with communication backends, fusion and collectives with gradients on tensors
of an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import sagecomm
from device_calls import run_under_fake_cuda
from device_programs import SUM, N, accelerator, expect, full, held, main_stream, mine
from sagecomm import CommFusionBuffer, create_comm_backend


def value(result: Any) -> Any:
    return result.wait() if isinstance(result, torch.futures.Future) else result


def operations() -> None:
    backend = create_comm_backend("sagecomm")
    rank, dev = backend.rank, accelerator()
    for asynchronous in (False, True):
        expect(value(backend.all_reduce(full(mine()), async_op=asynchronous)), SUM)
        expect(value(backend.all_reduce(full(mine()), "avg", async_op=asynchronous)), SUM / 2)
        gathered = value(backend.all_gather(full(mine()), async_op=asynchronous))
        assert gathered.device == dev
        expect(gathered[:N], 1)
        expect(gathered[N:], 2)
        wide = torch.zeros(2 * N, 2, device=dev)
        value(backend.all_gather(full(mine()), wide[:, 0], asynchronous))
        expect(wide[N:, 0], 2)
        expect(wide[:, 1], 0)
        expect(value(backend.reduce_scatter(full(mine(), 2 * N), async_op=asynchronous)), SUM)
        expect(value(backend.broadcast(full(mine()), 1, async_op=asynchronous)), 2)
        received = value(backend.all_to_all([full(10 * rank), full(10 * rank + 1)], async_op=asynchronous))
        expect(received[0], rank)
        expect(received[1], 10 + rank)
    backend.barrier()
    assert backend.get_stats()["all_reduce_count"] == 4


def future_orders_the_stream() -> None:
    """The input is written late, and what is launched behind wait() comes after the result, in any stream."""
    backend = create_comm_backend("sagecomm")
    x = full(0)
    with held(main_stream()):
        x += mine()
        future = backend.all_reduce(x, async_op=True)
    assert future.wait() is x
    expect(x + 1, SUM + 1)
    # On another stream, without a wait in the one that issued.
    x = full(mine())
    future = backend.all_reduce(x, async_op=True)
    other = torch.Stream(accelerator())
    with other:
        z = future.wait() + 2
    other.synchronize()
    expect(z, SUM + 2)
    chained = backend.all_reduce(full(mine()), async_op=True).then(lambda done: done.value() * 2)
    expect(chained.wait(), 2 * SUM)


def received_rows_come_home() -> None:
    """What comes for rows that are not contiguous is copied there once, and whoever waits comes behind the copy."""
    backend = create_comm_backend("sagecomm")
    other = 1 - backend.rank
    x, rows = full(0), torch.zeros(N, 2, device=accelerator())
    torch.accelerator.synchronize()
    with held(main_stream()):
        x += mine()
        receiving = backend.irecv(rows[:, 1], other)
        sending = backend.isend(x, other)
        future = receiving.get_future()
    receiving.wait()
    y = rows * 2
    expect(y[:, 1], 2 * (3 - mine()))
    expect(y[:, 0], 0)
    expect(future.wait()[0], 3 - mine())
    sending.wait()


def fused() -> None:
    """Tensors of the device and of the host in one buffer, of several types, at once and asynchronously."""
    buffer = CommFusionBuffer()
    for asynchronous in (False, True):
        tensors = [
            full(mine(), 5),
            torch.full((3,), mine()),
            full(mine(), 70_000, dtype=torch.bfloat16),
            full(1, 0),
            full(dist.get_rank() + 1, 33, dtype=torch.int64),
            torch.full((2, 2), mine(), dtype=torch.float64),
            full(mine(), 9),
        ]
        for tensor in tensors:
            buffer.add_tensor(tensor)
        found = buffer.flush_and_all_reduce(async_op=asynchronous)
        assert isinstance(found, torch.futures.Future) is asynchronous
        assert [id(t) for t in value(found)] == [id(t) for t in tensors]
        for tensor in tensors:
            if tensor.numel():
                expect(tensor, SUM)


def staged_by_gloo() -> None:
    """A group of gloo takes tensors of any device: they go through the host here, and come back."""
    group = dist.new_group(backend="cpu:gloo")
    backend = create_comm_backend("gloo", group=group)
    for asynchronous in (False, True):
        x = full(0)
        x += mine()
        assert value(backend.all_reduce(x, "avg", asynchronous)) is x
        expect(x, SUM / 2)
        x = torch.zeros(N, 2, device=accelerator())
        x[:, 1] = mine()
        value(backend.all_reduce(x[:, 1], async_op=asynchronous))
        expect(x[:, 1], SUM)
        expect(x[:, 0], 0)
        gathered = value(backend.all_gather(full(mine()), async_op=asynchronous))
        assert gathered.device == accelerator()
        expect(gathered[N:], 2)
        both = value(backend.fused_all_reduce([full(mine(), 3), torch.full((4,), mine())], async_op=asynchronous))
        expect(both[0], SUM)
        expect(both[1], SUM)
    # The same for what overlaps, and for p2p.
    with sagecomm.overlap(group) as ov:
        total = ov.all_reduce(full(mine()), "avg")
        gathered, part = ov.all_gather(full(mine())), ov.reduce_scatter(full(mine(), 2 * N))
        exchanged = ov.all_to_all(full(mine(), 2 * N))
    expect(total, SUM / 2)
    expect(gathered[N:], 2)
    expect(part, SUM)
    expect(exchanged[N:], 2)
    expect(sagecomm.chunked_all_reduce(full(mine(), 100), chunk_bytes=128, op="avg", group=group), SUM / 2)
    other = 1 - backend.rank
    x, arrived = full(0), full(0)
    x += mine()
    receiving = sagecomm.irecv(arrived, other, group)
    sagecomm.isend(x, other, group).wait()
    receiving.wait()
    expect(arrived, 3 - mine())
    row = next(row for row in backend.get_stats()["rows"] if row["device"] == accelerator().type)
    assert row["engine"] == "gloo"


def refused() -> None:
    """A group that has no backend for the device, and no gloo that would stage it, says so."""
    group = dist.new_group(backend="cpu:sagecomm")
    backend = create_comm_backend("sagecomm", group=group)
    for call in (
        lambda: backend.all_reduce(full(1)),
        lambda: backend.fused_all_reduce([full(1)]),
        lambda: sagecomm.all_gather(full(1), group=group),
        lambda: sagecomm.isend(full(1), 0, group=group),
        lambda: sagecomm.irecv(full(1), 0, group=group),
    ):
        try:
            call()
        except ValueError as error:
            assert f"the group has no backend for tensors on {accelerator().type}: it has sagecomm for cpu" in str(
                error
            )
        else:
            raise AssertionError("not refused")


def gradients() -> None:
    x = full(mine()).requires_grad_()
    y = sagecomm.autograd.all_reduce(x)
    expect(y.detach(), SUM)
    (y * mine()).sum().backward()
    assert x.grad is not None
    expect(x.grad, SUM)
    x = full(mine()).requires_grad_()
    gathered = sagecomm.autograd.all_gather(x)
    (gathered * torch.cat([full(5), full(7)])).sum().backward()
    assert x.grad is not None
    expect(x.grad, [10, 14][dist.get_rank()])


PROGRAMS: list[Callable[[], Any]] = [
    operations,
    future_orders_the_stream,
    received_rows_come_home,
    fused,
    staged_by_gloo,
    refused,
    gradients,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)
