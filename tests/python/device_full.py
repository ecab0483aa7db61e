"""What ranks of test_device_full.py do: so many operations are under way that they do not fit into the streams in which
they are queued. No call waits for a peer meanwhile: what peers need comes behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from device_calls import run_under_fake_cuda
from device_programs import SUM, accelerator, expect, full, held, main_stream, mine
from device_waits import copies_out, until

MANY = 300  # operations, of which a stream has room for about 75
ROWS = 80  # of a type in a window: two windows do not fit into one stream, and their producers into the caller's
MORE = 600  # of those with two commands in a stream
MOST = 2200  # of those with five, which do not fit into the streams that are made ahead
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


def rows_before_a_send() -> None:
    """Outputs that are not contiguous are copied once more, behind the operation."""
    xs = [full(mine() + n, 2 * FEW_ELEMENTS)[::2] for n in range(MANY)]
    y = full(7, FEW_ELEMENTS)
    torch.accelerator.synchronize()
    works: list[dist.Work | None] = []
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    works += [dist.all_reduce(x, async_op=True) for x in xs]
    if dist.get_rank() == 0:
        works.append(dist.isend(y, 1))
    wait_for(works)
    for n, x in enumerate(xs):
        expect(x, SUM + 2 * n)


def windows_of_rows() -> None:
    """Two windows write the same rows. The second one, which does not fit into the stream, is the last one."""
    rows = [full(0, 2 * FEW_ELEMENTS)[::2] for _ in range(ROWS)]
    parts = [full(0, 2 * FEW_ELEMENTS, dtype=torch.float64)[::2] for _ in range(ROWS)]
    y, side = full(7, FEW_ELEMENTS), torch.Stream(accelerator())
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    managers = []
    for factor in (1, 2):
        for x in (*rows, *parts):
            x.fill_(factor * mine())
        with dist._coalescing_manager(device=accelerator(), async_ops=True) as manager:
            for x in (*rows, *parts):
                dist.all_reduce(x)
        managers.append(manager)
        manager.wait()
    if dist.get_rank() == 0:
        with side:
            dist.isend(y, 1)
    torch.accelerator.synchronize()
    for x in (*rows, *parts):
        expect(x, 2 * SUM)


def rows_of_one_call() -> None:
    """Rows of one call are copied in one stream."""
    xs = [full(mine() + n, 1) for n in range(450)]
    rows = [[full(0, 2)[::2] for _ in range(2)] for _ in xs]
    y = full(7, FEW_ELEMENTS)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    with dist._coalescing_manager(device=accelerator(), async_ops=True) as manager:
        for x, row in zip(xs, rows, strict=True):
            dist.all_gather(row, x)
    if dist.get_rank() == 0:
        dist.isend(y, 1)
    manager.wait()
    for n, row in enumerate(rows):
        expect(row[0], 1 + n)
        expect(row[1], 2 + n)


def recvs_with_tags_before_a_send() -> None:
    """No stream waits for recvs with tags, but they come behind a stream that does. What it waits for is sent when rank
    0 has got what rank 1 sends in another stream."""
    u, y = full(mine(), FEW_ELEMENTS), full(0, FEW_ELEMENTS)
    zs = [full(0, FEW_ELEMENTS) for _ in range(MORE)]
    side = torch.Stream(accelerator())
    torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        dist.recv(y, 1, tag=2)
        works = [dist.isend(u, 1)]
        works += [dist.isend(u, 1, tag=1) for _ in zs]
    else:
        dist.recv(y, 0)
        works = [dist.irecv(z, 0, tag=1) for z in zs]
        with side:
            works.append(dist.isend(u, 0, tag=2))
    wait_for(works)
    expect(y, 3 - mine())
    if dist.get_rank() == 1:
        for z in zs:
            expect(z, 1)


def two_groups() -> None:
    """Full streams of one group do not hold up another one, which brings what they wait for."""
    xs = [full(mine() + n, FEW_ELEMENTS) for n in range(MANY)]
    b, y = full(mine(), FEW_ELEMENTS), full(7, FEW_ELEMENTS)
    other = dist.new_group([0, 1])
    side = torch.Stream(accelerator())
    torch.accelerator.synchronize()
    works: list[dist.Work | None] = []
    if dist.get_rank() == 1:
        dist.recv(y, 0)
    works += [dist.all_reduce(x, async_op=True) for x in xs]
    with side:
        dist.all_reduce(b, group=other)
        if dist.get_rank() == 0:
            dist.recv(y, 1)
            works.append(dist.isend(y, 1))
        else:
            works.append(dist.isend(b, 0))
    wait_for(works)
    for n, x in enumerate(xs):
        expect(x, SUM + 2 * n)
    side.synchronize()
    expect(b, SUM)
    expect(y, SUM)


def late_caller() -> None:
    """The current stream is late, and calls return meanwhile."""
    xs = [full(mine() + n, FEW_ELEMENTS) for n in range(MORE)]
    torch.accelerator.synchronize()
    with held(main_stream()):
        xs[0] += 1
        works: list[dist.Work | None] = [dist.all_reduce(x, async_op=True) for x in xs]
    wait_for(works)
    expect(xs[0], SUM + 2)
    for n, x in enumerate(xs[1:], 1):
        expect(x, SUM + 2 * n)


def late_receiver() -> None:
    """The same with recvs that the caller of the library ends."""
    x, zs = full(mine(), FEW_ELEMENTS), [full(0, FEW_ELEMENTS) for _ in range(MORE)]
    torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        wait_for([dist.isend(x, 1, tag=1) for _ in zs])
        return
    with held(main_stream()):
        for z in zs[:10]:
            z += 1
        works = [dist.irecv(z, 0, tag=1) for z in zs]
    wait_for(works)
    for z in zs:
        expect(z, 1)


def sends_that_wait() -> None:
    """Sends whose recvs come late fill no stream, so no stream is made for them: that may wait for a recv that is under
    way, for which the peer sends when it has got all of them."""
    x, y = full(mine(), FEW_ELEMENTS), full(0, FEW_ELEMENTS)
    dist.all_reduce(full(1, 1))
    torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        works, before = [dist.irecv(y, 1)], copies_out()
        for sends in range(1, MOST + 1):
            works.append(dist.isend(x, 1))
            if sends % 100 == 0:  # a device is never far behind with copies that wait for nobody
                until(lambda least=before + sends: copies_out() >= least)
        works.append(dist.isend(x, 1, tag=1))
        wait_for(works)
    else:
        dist.recv(y, 0, tag=1)
        for _ in range(MOST):
            dist.recv(y, 0)
        dist.send(x, 0)
    expect(y, 3 - mine())


PROGRAMS: list[Callable[[], Any]] = [
    recvs_before_sends,
    sends_before_recvs,
    batch,
    collectives_before_a_send,
    outputs_are_inputs,
    outputs_are_written_twice,
    more_tensors_than_a_stream_holds,
    rows_before_a_send,
    windows_of_rows,
    rows_of_one_call,
    recvs_with_tags_before_a_send,
    two_groups,
    late_caller,
    late_receiver,
]
WITHOUT_WAITS: list[Callable[[], Any]] = [recvs_before_sends, sends_before_recvs, batch, late_caller, late_receiver]


def run(rank: int, size: int, store: str, name: str) -> None:
    programs = [program for program in (*PROGRAMS, sends_that_wait) if program.__name__ == name]
    run_under_fake_cuda(rank, size, store, programs)
