"""What ranks of test_device_full.py do: so many operations are under way that they do not fit into the streams in which
they are queued. No call waits for a peer meanwhile: what peers need comes behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from device_calls import run_under_fake_cuda
from device_programs import SUM, accelerator, expect, full, mine

MANY = 300  # operations, of which a stream has room for about 85
FEW_ELEMENTS = 10


def peer() -> int:
    return 1 - dist.get_rank()


def wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def recvs_before_sends() -> None:
    """Both ranks post all recvs, and then all sends."""
    xs = [full(100 * mine() + n, FEW_ELEMENTS) for n in range(MANY)]
    ys = [full(0, FEW_ELEMENTS) for _ in range(MANY)]
    works = [dist.irecv(y, peer()) for y in ys]
    works += [dist.isend(x, peer()) for x in xs]
    wait_for(works)
    for n, y in enumerate(ys):
        expect(y, 100 * (3 - mine()) + n)


def sends_before_recvs() -> None:
    """Each send waits for its recv."""
    xs = [full(100 * mine() + n, FEW_ELEMENTS) for n in range(MANY)]
    ys = [full(0, FEW_ELEMENTS) for _ in range(MANY)]
    works = [dist.isend(x, peer()) for x in xs]
    works += [dist.irecv(y, peer()) for y in ys]
    wait_for(works)
    for n, y in enumerate(ys):
        expect(y, 100 * (3 - mine()) + n)


def batch() -> None:
    """The same in one call, and once more in the streams that were full."""
    for _ in range(2):
        x, ys = full(mine(), FEW_ELEMENTS), [full(0, FEW_ELEMENTS) for _ in range(MANY)]
        ops = [dist.P2POp(dist.irecv, y, peer()) for y in ys]
        ops += [dist.P2POp(dist.isend, x, peer()) for _ in ys]
        wait_for(dist.batch_isend_irecv(ops))
        for y in ys:
            expect(y, 3 - mine())


def collectives_before_a_send() -> None:
    """The stream of rank 1 waits for what rank 0 sends behind many collectives."""
    xs = [full(mine() + n, FEW_ELEMENTS) for n in range(MANY)]
    y = full(7, FEW_ELEMENTS)
    torch.accelerator.synchronize()
    works: list[dist.Work | None] = []
    if dist.get_rank() == 1:
        dist.recv(y, 0)
        xs[0] += y - 7
    works += [dist.all_reduce(x, async_op=True) for x in xs]
    if dist.get_rank() == 0:
        works.append(dist.isend(y, 1))
    wait_for(works)
    for n, x in enumerate(xs):
        expect(x, SUM + 2 * n)


def outputs_are_inputs() -> None:
    """Each operation reads the output of the one before, also where that is in other streams. Nobody waits for it."""
    x, y = torch.full((FEW_ELEMENTS,), float(mine()), dtype=torch.float64, device=accelerator()), full(7, FEW_ELEMENTS)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
        x += y - 7
    works: list[dist.Work | None] = [dist.all_reduce(x, async_op=True) for _ in range(MANY)]
    if dist.get_rank() == 0:
        works.append(dist.isend(y, 1))
    wait_for(works)
    expect(x, SUM * 2.0 ** (MANY - 1))


def outputs_are_written_twice() -> None:
    """The last one of several operations with one output is the last one that writes it."""
    y, out = full(7, FEW_ELEMENTS), full(0, 2 * FEW_ELEMENTS)
    xs = [full(mine() + n, FEW_ELEMENTS) for n in range(MANY)]
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    works: list[dist.Work | None] = [dist.all_gather_into_tensor(out, x, async_op=True) for x in xs]
    if dist.get_rank() == 0:
        works.append(dist.isend(y, 1))
    wait_for(works)
    expect(out[:FEW_ELEMENTS], MANY)
    expect(out[FEW_ELEMENTS:], MANY + 1)


def more_tensors_than_a_stream_holds() -> None:
    """One operation has more commands than a stream has room for."""
    xs = [full(mine() + n, 3) for n in range(4 * MANY)]
    y = full(7, FEW_ELEMENTS)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    with dist._coalescing_manager(device=accelerator(), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.isend(y, 1)
    manager.wait()
    for n, x in enumerate(xs):
        expect(x, SUM + 2 * n)


PROGRAMS: list[Callable[[], Any]] = [
    recvs_before_sends,
    sends_before_recvs,
    batch,
    collectives_before_a_send,
    outputs_are_inputs,
    outputs_are_written_twice,
    more_tensors_than_a_stream_holds,
]


def run(rank: int, size: int, store: str, name: str) -> None:
    run_under_fake_cuda(rank, size, store, [program for program in PROGRAMS if program.__name__ == name])
