"""Outputs on the CPU that cannot be written when an operation ends, with the core: which rank learns of it, and how."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from members import backend
from torch_copies import copying_by
from worlds import World

WorldOf = Callable[[int], World]
DEADLINE_S = 60.0
WHY = "an output on cpu cannot be written: "


def failure_of_the_group() -> str:
    """Calls until the group has failed."""
    x = torch.zeros(4)
    try:
        while True:
            dist.all_reduce(x)
    except dist.DistBackendError as error:
        return str(error)


def the_work_is_dropped(hooked: bool) -> str:
    """Rank 0 loses the memory of a column before its operation ends, and nobody waits for that."""
    rung = threading.Event()
    if hooked:
        backend().register_abort_hook(11, rung.set)
    told = c10d._get_default_store()
    if dist.get_rank() == 0:
        column = torch.ones(4, 2)[:, 0]
        work = dist.all_reduce(column, async_op=True)
        column.resize_(3)
        del work
        told.set("resized", "")
    else:
        told.wait(["resized"])
        dist.all_reduce(torch.ones(4))
    text = failure_of_the_group()
    assert not hooked or rung.wait(DEADLINE_S)
    return text


@pytest.mark.parametrize("hooked", [False, True], ids=["", "with abort hooks"])
def test_all_ranks_raise_the_reason(world: WorldOf, hooked: bool) -> None:
    texts = world(2).run(the_work_is_dropped, hooked)
    for text in texts:
        assert "rank 0 (" in text
        assert f"cannot go on as its peers do in all_reduce #1: {WHY}" in text
        assert "peers hold the operation for complete, so make a new group" in text


def the_group_is_down_before(how: str) -> str:
    """Rank 0 aborts or destroys the group while an output is written, which then fails. Returns what is printed."""
    told = c10d._get_default_store()
    if dist.get_rank() > 0:
        told.wait(["called"])
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
        told.wait(["down"])
        return ""
    begun, down = threading.Event(), threading.Event()

    def copy(to: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        begun.set()
        assert down.wait(DEADLINE_S)
        raise ValueError("no copies here")

    with tempfile.TemporaryFile("w+") as printed, copying_by(copy, "CPU"):
        before = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            rows = [torch.ones(4, 2)[:, 0], torch.ones(4)]
            future = dist.all_gather(rows, torch.ones(4), async_op=True).get_future()
            told.set("called", "")  # the operation ends on a thread of the core
            assert begun.wait(DEADLINE_S)
            if how == "abort":
                backend().abort()
            else:
                dist.destroy_process_group()
            down.set()
            with pytest.raises(dist.DistBackendError):
                future.wait()
        finally:
            os.dup2(before, 2)
            os.close(before)
            told.set("down", "")
        printed.seek(0)
        return printed.read()


@pytest.mark.parametrize("how", ["abort", "destroy"])
def test_the_reason_is_logged_where_the_group_is_down(world: WorldOf, how: str) -> None:
    printed, _ = world(2).run(the_group_is_down_before, how)
    assert f"all_gather: rank 0: {WHY}ValueError: no copies here" in printed


def interrupted() -> None:
    """A copy back raises KeyboardInterrupt, on whichever thread it runs. The main thread raises it, once."""

    def copy(*_: object, **__: object) -> torch.Tensor:
        raise KeyboardInterrupt

    if dist.get_rank() == 0:
        rows = [torch.ones(4, 2)[:, 0], torch.ones(4)]
        with copying_by(copy, "CPU"):
            work = dist.all_gather(rows, torch.ones(4), async_op=True)
            c10d._get_default_store().set("called", "")
            with pytest.raises(KeyboardInterrupt):
                work.wait()
            with pytest.raises(dist.DistBackendError, match=WHY):
                work.wait()
    else:
        c10d._get_default_store().wait(["called"])
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
    assert WHY in failure_of_the_group()


def test_an_interrupt_while_an_output_is_written(world: WorldOf) -> None:
    world(2).run(interrupted)
