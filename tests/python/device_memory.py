"""What ranks of test_device_memory.py do on fake CUDA: how much memory operations take, and what a process keeps of a
peer that has died."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import cuda_holds
import fake_cuda
import sagecomm
from device_calls import MINUTE
from device_failures import join, meet, warm
from device_programs import expect, full, mine

MB = 1 << 20
OF_HOST = ("pinned", "registered")


def taken(kinds: Sequence[str]) -> int:
    """The most bytes of these kinds that the process has had at a time."""
    return sum(fake_cuda.most_bytes_of(kind) for kind in kinds)


def pinned_in_flight(rank: int, size: int, store: str, flights: int, length: int) -> list[int]:
    """Operations are in flight together: rank 0 has issued all of them before another rank issues one. Returns the
    pinned memory that they take, of the first round and of two."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    xs = [full(mine(), length // 4) for _ in range(flights)]
    expect(xs[0], mine())  # torch has pinned memory of its own for a number that it reads
    before, after = taken(OF_HOST), list[int]()
    for number in (1, 2):
        if rank != 0:
            c10d._get_default_store().wait([f"issued {number}"], MINUTE)
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        if rank == 0:
            c10d._get_default_store().set(f"issued {number}", b"")
        for work in works:
            assert work is not None
            work.wait()
        torch.cuda.synchronize()
        after.append(taken(OF_HOST) - before)
        meet(f"round {number}")
    for x in xs:
        expect(x, size * size * (size + 1) / 2)
    cuda_holds.check()
    dist.destroy_process_group()
    return after


# ---- a peer dies ----

SETTLES_S = 20.0  # until memory and files that goroutines give back are given back


def open_files() -> Counter[str]:
    """What this process has open, by kind."""
    kinds = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself
            kinds[re.sub("[0-9]+", "N", os.readlink(f"/proc/self/fd/{number}"))] += 1
    return kinds


def shared_files() -> list[int]:
    """The inodes of the memory of the host that this process shares with others and has made itself."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:sagecomm"):
                found.append(os.stat(f"/proc/self/fd/{number}").st_ino)
    return found


def mapped(inodes: Sequence[int]) -> int:
    """The bytes of these files that this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split(maxsplit=5)[:5]
        if "/memfd:" in line and int(inode) in inodes:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            total += end - begin
    return total


def work(size: int, ends: bool) -> None:
    """Operations of each kind are under way when the last rank ends itself."""
    x, sent, received = (full(mine(), 100_000) for _ in range(3))
    parts = full(0, 100_000 * size)
    after, before = (dist.get_rank() + 1) % size, (dist.get_rank() - 1) % size
    for i in range(6):
        if ends and i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
        dist.all_gather_into_tensor(parts, x, async_op=True)
        ops = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for each in dist.batch_isend_irecv(ops):
            each.wait(MINUTE)
        torch.cuda.synchronize()  # so that as many operations are under way in each round


def lives(rank: int, size: int, store: str, dies: bool) -> None:
    """A group from its beginning to its end, in which the last rank may die."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    if dies:
        with pytest.raises(sagecomm.PeerFailure, match=f"rank {size - 1}"):
            work(size, ends=rank == size - 1)
    else:
        work(size, ends=False)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def settle(told: dist.Store, rank: int, ranks: int, store: str, name: str) -> None:
    """Returns when a group has ended on all ranks and this one has given back what it has kept for those that ended it
    later: at the end of its next group."""
    told.set(f"{name} {rank}", b"")
    told.wait([f"{name} {other}" for other in range(ranks)], MINUTE)
    join(0, 1, f"{store}-alone-{name}-{rank}")
    dist.destroy_process_group()


def left_behind(rank: int, size: int, store: str, most: dict[str, int]) -> dict[str, int]:
    """A group ends in order, and one in which the last rank dies. Then the others make one of their own, and end it.
    Returns what they have left then, when it is within `most` or does not come to that."""
    told = dist.FileStore(f"{store}-told", size)
    lives(rank, size, f"{store}-first", dies=False)
    settle(told, rank, size, store, "first")
    told.set(str(rank), json.dumps(shared_files()))
    of_the_dead = json.loads(told.get(str(size - 1)))
    assert of_the_dead
    files, host = open_files(), sum(fake_cuda.bytes_of(kind) for kind in OF_HOST)
    lives(rank, size, f"{store}-second", dies=True)
    lives(rank, size - 1, f"{store}-third", dies=False)
    settle(told, rank, size - 1, store, "third")
    cuda_holds.check()

    def left() -> dict[str, int]:
        return {
            **{f"more files {kind}": number for kind, number in (open_files() - files).items()},
            "host memory of the dead": mapped(of_the_dead),
            "memory of the device that others share": fake_cuda.bytes_of("imported"),
            "memory of the device": fake_cuda.bytes_of("device") - torch.cuda.memory_reserved(),
            "more pinned memory": sum(fake_cuda.bytes_of(kind) for kind in OF_HOST) - host,
        }

    until_s = time.monotonic() + SETTLES_S
    while any(bytes_left > most.get(what, 0) for what, bytes_left in left().items()) and time.monotonic() < until_s:
        time.sleep(0.01)
    return left()
