"""What ranks of test_device_ends.py do: operations on a device are left when a rank ends the group, by
destroy_process_group(), reconfigure() or with its process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from device_calls import MINUTE
from device_failures import hurry, join, leave, meet, read_what_is_undefined, warm
from device_nccl_waits import interrupting
from device_programs import SUM, accelerator, expect, full, mine

LATE_S = 3.0  # longer than the end of a group waits where the wait is brief
SOON_S = 20.0  # far less than the timeout of operations: what ends by then has not waited for it


def common() -> Any:
    return c10d._get_default_store()


@contextmanager
def telling_of_the_end(backend: Any, key: str) -> Iterator[None]:
    """Sets the key when another thread has begun to end the group, inside the block."""
    store, over = common(), threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                backend.stats_json()
            except RuntimeError:
                store.set(key, b"")
                return
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_of(key: str) -> None:
    """Destroys all groups, and tells the other ranks when that is under way."""
    backend = c10d._get_default_group()._get_backend(accelerator())
    with telling_of_the_end(backend, key):
        dist.destroy_process_group()


def forgotten() -> bool:
    return not dist.is_initialized() and not c10d._world.pg_names


def a_peer_dies_in_the_end(rank: int, size: int, store: str) -> None:
    """An operation waits for it, so the end raises the death."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    if rank == 1:
        common().wait(["rank 0 ends the group"], MINUTE)
        os._exit(3)
    dist.all_reduce(full(mine()))
    with pytest.raises(sagecomm.PeerFailure, match=r"rank 1 .* died ") as raised:
        end_of("rank 0 ends the group")
    assert raised.value.rank == 1
    assert forgotten()


def a_peer_is_late(rank: int, size: int, store: str) -> None:
    """The end of a group waits for it longer than it waits for operations of the CPU."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    x = full(mine())
    if rank == 0:
        dist.all_reduce(x)
        began = time.monotonic()
        end_of("rank 0 ends the group")
        assert time.monotonic() - began > 2.0
    else:
        common().wait(["rank 0 ends the group"], MINUTE)
        time.sleep(LATE_S)  # how late it is
        dist.all_reduce(x)
        dist.destroy_process_group()
    expect(x, SUM)


def an_exception_is_handled(rank: int, size: int, store: str) -> None:
    """Then the end of a group waits briefly, and what it gives up does not replace the exception."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    told = common()
    if rank == 1:
        told.wait(["over"], MINUTE)
        leave()
        return
    began = time.monotonic()

    def program() -> None:
        try:
            dist.all_reduce(full(mine()))
            raise LookupError("the user's own")
        finally:
            dist.destroy_process_group()

    with pytest.raises(LookupError, match="the user's own") as raised:
        program()
    assert raised.value.__context__ is None
    assert time.monotonic() - began < SOON_S
    assert forgotten()
    told.set("over", b"")


def ctrl_c_in_the_end(rank: int, size: int, store: str) -> None:
    """It ends the wait, and torch forgets the groups. Handlers that raise nothing run meanwhile."""
    join(rank, size, f"{store}-first", timeout=MINUTE)
    others = [dist.new_group(timeout=MINUTE) for _ in range(2)]
    for each in (None, *others):
        warm(each)
    meet("warm")
    told = common()
    if rank == 0:
        for each in (None, *others):
            dist.all_reduce(full(mine()), group=each)
        with interrupting(after=4) as times, pytest.raises(KeyboardInterrupt):
            dist.destroy_process_group()
        assert len(times) >= 4
        assert time.monotonic() - times[3] < SOON_S
        assert forgotten()
        told.set("over", b"")
    else:
        told.wait(["over"], MINUTE)
        dist.destroy_process_group()
    join(rank, size, f"{store}-second", timeout=MINUTE)
    warm()
    leave()


def a_thread_ends_the_group(rank: int, size: int, store: str) -> None:
    """It outlives the main thread of rank 0. The wait is not brief, so the peer that is late comes in time."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    x = full(mine())
    told = common()
    if rank == 0:
        dist.all_reduce(x)

        def end() -> None:
            threading.main_thread().join()
            with telling_of_the_end(c10d._get_default_group()._get_backend(accelerator()), "rank 0 ends the group"):
                dist.destroy_process_group()
            expect(x, SUM)
            print("the sum is there", flush=True)

        threading.Thread(target=end).start()
    else:
        told.wait(["rank 0 ends the group"], MINUTE)
        time.sleep(LATE_S)  # how late it is
        dist.all_reduce(x)
        dist.destroy_process_group()
        expect(x, SUM)


def process_ends(rank: int, size: int, store: str, how: str) -> None:
    """The process of rank 0 ends while its stream waits for a peer: without the end of the group, or in an exit handler
    that ends it."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")
    if rank == 0:
        dist.all_reduce(full(mine()))
        if how == "exit handler":
            atexit.register(dist.destroy_process_group)
        print("the program is over", flush=True)
    else:
        common().wait(["nobody sets this"], MINUTE)  # the test ends it


# ---- reconfigure() ----


class Member:
    """This rank in a group whose members reconfigure() names."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        join(rank, size, store, timeout=MINUTE, enable_reconfigure=True)
        meet("begun")
        common().set(f"handle {rank}", dist._get_reconfigure_handle())
        self._handles = [common().get(f"handle {each}").decode() for each in range(size)]

    def reconfigure(self, uuid: int, *ranks: int) -> None:
        dist._reconfigure(uuid, [self._handles[rank] for rank in ranks]).wait()


def reconfigured_behind_a_failure(rank: int, size: int, store: str) -> None:
    """An operation of the old members has failed, and no call has raised that: reconfigure() does, when there are new
    members. Behind one that has, or while an exception is being handled, it does not."""
    me = Member(rank, size, store)
    reconfigures: tuple[Callable[[], None], ...] = (
        lambda: me.reconfigure(2, 0, 1),
        lambda: me.reconfigure(3, 0, 1),
        lambda: me.reconfigure(4, 0, 1),
    )
    me.reconfigure(1, 0, 1)
    for number, reconfigure in enumerate(reconfigures):
        warm()
        meet(f"warm {number}")
        if rank == 0:
            hurry(None)
            read_what_is_undefined()
        meet(f"failed {number}")
        if rank == 1:
            reconfigure()
        elif number == 0:
            with pytest.raises(sagecomm.CollectiveTimeout, match=r"all_reduce #2 .*rank 1"):
                reconfigure()
        elif number == 1:
            with pytest.raises(sagecomm.CollectiveTimeout):
                dist.all_reduce(full(mine()))
            reconfigure()
        else:
            try:
                raise LookupError
            except LookupError:
                reconfigure()
        c10d._get_default_group()._get_backend(accelerator())._set_default_timeout(MINUTE)
        x = full(mine())
        dist.all_reduce(x)  # the new members are there, whatever was raised
        expect(x, SUM)
    leave()


def reconfigured_in_vain_behind_a_failure(rank: int, size: int, store: str, call: bool) -> None:
    """An operation of the old members has failed, and no call has raised that. reconfigure() is aborted when they have
    gone, so the next one raises it, if no operation that is called meanwhile has."""
    me = Member(rank, size, store)
    me.reconfigure(1, 0, 1)
    warm()
    meet("warm")
    if rank == 0:
        backend = c10d._get_default_group()._get_backend(accelerator())

        def abort() -> None:
            with suppress(RuntimeError):  # there are no members
                for _ in range(60_000):
                    backend.stats_json()
                    time.sleep(0.001)
            backend.abort()

        backend.register_abort_hook(1, abort)  # the end of the old members waits for it
        hurry(None)
        read_what_is_undefined()
    meet("failed")
    if rank == 0:
        with pytest.raises(sagecomm.Aborted, match="before its next members had met"):
            me.reconfigure(2, 0, 1)
        backend.unregister_abort_hook(1)
    else:
        me.reconfigure(2, 0, 1)
    meet("aborted")
    if rank == 0:
        late = pytest.raises(sagecomm.CollectiveTimeout, match=r"all_reduce #2 .*rank 1")
        if call:
            with late:
                dist.all_reduce(full(mine()))
        with nullcontext() if call else late:
            me.reconfigure(3, 0, 1)
        backend._set_default_timeout(MINUTE)
    else:
        me.reconfigure(3, 0, 1)
    x = full(mine())
    dist.all_reduce(x)
    expect(x, SUM)
    leave()


def reconfigured_with_an_operation(rank: int, size: int, store: str, to: int) -> None:
    """Peers have not come to an operation of the old members. Where they have other members too, they do not come any
    more; where they have the old ones, it is given up. Either is raised, with operation and rank."""
    me = Member(rank, size, store)
    me.reconfigure(1, 0, 1)
    warm()
    meet("warm")
    told = common()
    if rank == 0:
        began = time.monotonic()
        dist.all_reduce(full(mine()))
        with pytest.raises((sagecomm.CollectiveTimeout, sagecomm.PeerFailure)) as raised:
            me.reconfigure(2, *range(to))
        assert time.monotonic() - began < SOON_S
        assert (raised.value.rank, raised.value.op, raised.value.sequence) == (1, "all_reduce", 2)
        text = str(raised.value)
        if to == 1:
            assert " at the end of the group, with a timeout of 1m0s, in all_reduce #2 " in text, text
            assert "not arrived: rank 1 (host " in text, text
        else:
            assert "rank 0 needs it in all_reduce #2 " in text, text
        told.set("raised", b"")
    elif to == 2:
        me.reconfigure(2, 0, 1)
    told.wait(["raised"], MINUTE)
    if to == 1:
        me.reconfigure(3, 0, 1)
    x = full(mine())
    dist.all_reduce(x)
    expect(x, SUM)
    leave()
