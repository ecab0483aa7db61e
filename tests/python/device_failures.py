"""What ranks of test_device_failures.py do where operations on a device fail: with SAGECOMM_BLOCKING_WAIT, and without
it in programs that make no further call."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ErrorType
from torch.distributed import distributed_c10d as c10d

import cuda_holds
import sagecomm
from device_calls import MINUTE, take_device
from device_nccl_waits import interrupt
from device_programs import SUM, N, accelerator, expect, full, held, main_stream, mine
from device_waits import until
from older_torch import exception_of

SHORT = timedelta(seconds=1)


def join(rank: int, size: int, store: str, **how: Any) -> None:
    take_device(rank)
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, **how)


def leave() -> None:
    cuda_holds.check()
    dist.destroy_process_group()


def warm(group: Any = None) -> None:
    """Makes what the first collective of a group on a device makes, together with the peers."""
    dist.all_reduce(full(mine()), group=group)
    torch.accelerator.synchronize()


def hurry(*groups: Any) -> None:
    """Operations of the groups time out soon on this rank. Making and warming them has as long as the machine needs."""
    for group in groups:
        backend = (group or c10d._get_default_group())._get_backend(accelerator())
        backend._set_default_timeout(SHORT)


def meet(name: str) -> None:
    """Returns when all ranks have called it."""
    store = c10d._get_default_store()
    store.set(f"{name} {dist.get_rank()}", b"")
    store.wait([f"{name} {rank}" for rank in range(dist.get_world_size())], MINUTE)


# ---- SAGECOMM_BLOCKING_WAIT ----


def without_torchs_wait(group: Any) -> None:
    """torch's Python functions call wait() behind a synchronous call."""
    options = AllreduceOptions()
    options.asyncOp = False
    group.allreduce([full(mine())], options)


def batch(group: Any) -> None:
    x, peer = full(0), 1 - dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, peer, group)]):
        work.wait()


def window(group: Any) -> None:
    x, y = full(mine()), full(mine())
    with dist._coalescing_manager(group=group, device=accelerator()):
        dist.all_reduce(x, group=group)
        dist.all_reduce(y, group=group)


CALLS: dict[str, Callable[[Any], Any]] = {
    "synchronous": lambda group: dist.all_reduce(full(mine()), group=group),
    "without torch's wait": without_torchs_wait,
    "asynchronous": lambda group: dist.all_reduce(full(mine()), group=group, async_op=True).wait(),
    "synchronize": lambda group: dist.all_reduce(full(mine()), group=group, async_op=True).synchronize(),
    "list": lambda group: dist.all_gather([full(0), full(0)], full(mine()), group=group),
    "recv": lambda group: dist.recv(full(0), 1, group=group),
    "batch": batch,
    "window": window,
}


def a_peer_never_calls(rank: int, size: int, store: str) -> None:
    """The call that waits raises the timeout, and no later one has to."""
    join(rank, size, store)
    for name in CALLS:
        only_one_rank(name)
    leave()


def only_one_rank(name: str) -> None:
    """Rank 0 alone makes a call, in a group of its own."""
    group = dist.new_group(timeout=MINUTE)
    warm(group)
    if dist.get_rank() == 0:
        hurry(group)
        with pytest.raises(sagecomm.CollectiveTimeout, match="rank 1"):
            CALLS[name](group)
    meet(name)


def a_group_blocks(rank: int, size: int, store: str) -> None:
    """The option of one group. The other one goes on as without it."""
    settings = {"blocking_wait": "on"}
    join(rank, size, store, pg_options=sagecomm.Options(timeout=MINUTE, settings=settings), timeout=MINUTE)
    other = dist.new_group(timeout=MINUTE, pg_options=sagecomm.Options(timeout=MINUTE, settings={}))
    for group in (None, other):
        warm(group)
    if rank == 0:
        hurry(None)
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.all_reduce(full(mine()))
        x = full(0)
        torch.cuda.synchronize()
        with held(main_stream()):
            x += mine()
            dist.all_reduce(x, group=other)
            c10d._get_default_store().set("rank 0 has called it", b"")
        expect(x, SUM)
    else:
        c10d._get_default_store().wait(["rank 0 has called it"], MINUTE)
        dist.all_reduce(full(mine()), group=other)
    leave()


def a_peer_dies(rank: int, size: int, store: str, call: str) -> None:
    """Rank 1 dies when rank 0 is about to wait."""
    join(rank, size, store)
    warm()
    meet("all")
    if rank == 1:
        c10d._get_default_store().wait(["rank 0 waits"], MINUTE)
        os._exit(3)
    c10d._get_default_store().set("rank 0 waits", b"")
    with pytest.raises(sagecomm.PeerFailure, match="rank 1"):
        CALLS[call](None)
    leave()


def interrupted(rank: int, size: int, store: str) -> None:
    """Ctrl-C ends the wait, and the operation goes on."""
    join(rank, size, store)
    warm()
    x, y = full(mine()), full(mine())
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        interrupt(work.wait)
        interrupt(lambda: dist.all_reduce(y))
        c10d._get_default_store().set("interrupted", b"")
        work.wait()
    else:
        c10d._get_default_store().wait(["interrupted"], MINUTE)
        for each in (x, y):
            dist.all_reduce(each)
    expect(x, SUM)
    dist.barrier(device_ids=[accelerator().index])
    if not os.environ.get("EMULATOR_FAULTS"):  # else nothing orders the stream of the call that was interrupted
        expect(y, SUM)
    leave()


def waits_until_it_is_complete(rank: int, size: int, store: str) -> None:
    """wait() returns when the operation has ended on the host. The current stream is behind it then, and another one by
    a wait() of its own."""
    join(rank, size, store)
    ends_on_the_host()
    leave()


def ends_on_the_host() -> None:
    warm()
    for n in (N, 5_000_000):
        x = full(mine(), n)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert work.is_success()
        y = x + 1
        side = torch.Stream(accelerator())
        with side:
            work.wait()
            z = x + 2
        main_stream().wait_stream(side)
        expect(y, SUM + 1)
        expect(z, SUM + 2)
        dist.all_reduce(x)
        expect(x, 2 * SUM)


# ---- a failure that no call has raised ----


def read_what_is_undefined(group: Any = None) -> None:
    """A program's last operation, whose peer never calls."""
    x = full(mine())
    dist.all_reduce(x, group=group)
    assert x.sum().item() == N * mine()  # what it was: the stream has gone on


def ends_are_told(rank: int, size: int, store: str) -> None:
    """destroy_process_group() raises what nothing else has, and forgets its groups."""
    join(rank, size, f"{store}-first", timeout=MINUTE)
    for name in ("one", "two"):
        group = dist.new_group(timeout=MINUTE)
        warm(group)
        if rank == 0:
            hurry(group)
            read_what_is_undefined(group)
            with pytest.raises(sagecomm.CollectiveTimeout, match=r"all_reduce #2 .*rank 1"):
                dist.destroy_process_group(group)
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.destroy_process_group(group)
        meet(name)
    others = [dist.new_group(timeout=MINUTE) for _ in range(2)]
    for each in (None, *others):
        warm(each)
    meet("warm")
    if rank == 0:
        hurry(None, *others)
        for each in (None, *others):
            read_what_is_undefined(each)
        meet("over")
        with pytest.raises(sagecomm.CollectiveTimeout, match=r"all_reduce #2 .*rank 1"):
            dist.destroy_process_group()
    else:
        meet("over")
        dist.destroy_process_group()
    assert not dist.is_initialized()
    assert not c10d._world.pg_names
    join(rank, size, f"{store}-second")
    warm()
    leave()


HOW = ("next operation", "wait", "exception", "future", "error", "other group")


def hear(how: str, group: Any, other: Any) -> None:
    """An operation fails, and one call tells that."""
    backend = group._get_backend(accelerator())
    x = full(mine())
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    torch.cuda.synchronize()  # the stream goes on when the group has failed
    if how == "next operation":
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.all_reduce(x, group=group)
    elif how == "wait":
        with pytest.raises(sagecomm.CollectiveTimeout):
            work.wait()
    elif how == "exception":
        until(lambda: exception_of(work) is not None)
    elif how == "future":
        with pytest.raises(sagecomm.CollectiveTimeout):
            work.get_future().wait()
    elif how == "error":
        assert backend.get_error() == ErrorType.TIMEOUT
    else:
        read_what_is_undefined(other)
        with pytest.raises(sagecomm.CollectiveTimeout):
            dist.destroy_process_group(other)
        work.is_completed()
        with pytest.raises(sagecomm.CollectiveTimeout):
            work.wait()


def nothing_is_told_twice(rank: int, size: int, store: str) -> None:
    join(rank, size, store)
    for how in HOW:
        group, other = dist.new_group(timeout=MINUTE), dist.new_group(timeout=MINUTE)
        for each in (group, other):
            warm(each)
        if rank == 0:
            hurry(group, other)
            hear(how, group, other)
            dist.destroy_process_group(group)
        meet(how)
    leave()


def a_death_in_several_groups(rank: int, size: int, store: str) -> None:
    """Operations of three groups fail with one rank. A call of one of them raises that. The end raises it for the
    others, once."""
    join(rank, size, store)
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        warm(group)
    meet("all")
    if rank == 1:
        c10d._get_default_store().wait(["rank 0 has called"], MINUTE)
        os._exit(3)
    for group in groups:
        dist.all_reduce(full(mine()), group=group)
    c10d._get_default_store().set("rank 0 has called", b"")
    torch.cuda.synchronize()
    with pytest.raises(sagecomm.PeerFailure):
        dist.all_reduce(full(mine()), group=groups[0])
    dist.destroy_process_group(groups[0])
    with pytest.raises(sagecomm.PeerFailure, match="rank 1"):
        dist.destroy_process_group()
    assert not dist.is_initialized()
    assert not c10d._world.pg_names


def an_abort_by_a_peer(rank: int, size: int, store: str) -> None:
    """The rank that aborts knows. The other one, which has an operation in flight, is told."""
    join(rank, size, store)
    warm()
    if rank == 0:
        dist.all_reduce(full(mine()))
    meet("called")
    if rank == 1:
        c10d._get_default_group().abort()
        dist.destroy_process_group()
        return
    torch.cuda.synchronize()
    with pytest.raises(sagecomm.Aborted, match="aborted by rank 1"):
        dist.destroy_process_group()
    assert not dist.is_initialized()


def an_abort_is_no_news(rank: int, size: int, store: str) -> None:
    join(rank, size, store)
    warm()
    meet("warm")
    if rank == 0:
        dist.all_reduce(full(mine()))
        c10d._get_default_group().abort()
        torch.cuda.synchronize()
    meet("over")
    leave()


def users_exception_stays(rank: int, size: int, store: str) -> None:
    """Where an exception is being handled, destroy_process_group() raises none of its own."""
    join(rank, size, store, timeout=MINUTE)
    warm()
    meet("warm")

    def program() -> None:
        try:
            if rank == 0:
                hurry(None)
                read_what_is_undefined()
            meet("over")
            raise LookupError("the user's own")
        finally:
            dist.destroy_process_group()

    with pytest.raises(LookupError, match="the user's own") as raised:
        program()
    assert raised.value.__context__ is None
    assert not dist.is_initialized()
