"""Groups whose members change, as torch's fault-tolerance API asks of a backend."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from worlds import World

pytestmark = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="this torch's groups keep members"
)

CPU = torch.device("cpu")
DEADLINE = timedelta(seconds=60)


class Member:
    """This process in a group that was made without members."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size

    def handles(self, key: str) -> list[str]:
        """Returns the handles of all ranks, which pass them through the store."""
        self.store.set(f"{key}/{self.rank}", dist._get_reconfigure_handle())
        return [self.store.get(f"{key}/{rank}").decode() for rank in range(self.size)]

    def meet(self, key: str, ranks: tuple[int, ...]) -> None:
        """Waits for these ranks through the store and not by a collective, because the group may be about to fail."""
        self.store.set(f"{key}/{self.rank}", "")
        self.store.wait([f"{key}/{rank}" for rank in ranks])


def member(**how: Any) -> Member:
    """Replaces the group that the worker has made by one that can be reconfigured."""
    store, rank, size = c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        "sagecomm",
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=DEADLINE,
        enable_reconfigure=True,
        **how,
    )
    return Member(dist.PrefixStore("members", store), rank, size)


def backend() -> Any:
    return c10d._get_default_group()._get_backend(CPU)


def total() -> float:
    t = torch.tensor([1.0])
    dist.all_reduce(t)
    return t.item()


# ---- members ----


def before_the_first() -> None:
    me = member()
    assert dist._supports_reconfigure()
    assert backend().supports_reconfigure
    for call in (total, dist.barrier, lambda: dist.send(torch.ones(1), 1 - me.rank)):
        with pytest.raises(RuntimeError, match="has no members yet; name them with reconfigure"):
            call()
    with pytest.raises(RuntimeError, match="not initialized"):
        dist.split_group(split_ranks=[[0, 1]])
    assert "SUCCESS" in str(backend().get_error())
    handle = dist._get_reconfigure_handle()
    work = dist._reconfigure(1, me.handles("first"))
    assert work.wait()
    assert total() == 2.0
    assert dist._get_reconfigure_handle() == handle
    assert c10d._get_default_group()._get_sequence_number_for_group() == 1


def test_a_group_has_no_members_before_the_first_reconfigure(world: Callable[[int], World]) -> None:
    world(2).run(before_the_first)


def grow_and_shrink() -> list[tuple[int, int, float]]:
    me = member()
    states = []
    dist._reconfigure(100 + me.rank, [dist._get_reconfigure_handle()]).wait()
    states.append((dist.get_rank(), dist.get_world_size(), total()))
    handles = me.handles("all")
    dist._reconfigure(1, list(reversed(handles))).wait()
    states.append((dist.get_rank(), dist.get_world_size(), total()))
    dist._reconfigure(2, set(handles)).wait()
    states.append((dist.get_rank(), dist.get_world_size(), total()))
    assert backend().options.global_ranks_in_group == [0, 1, 2]
    if me.rank != 1:
        dist._reconfigure(3, [handles[0], handles[2]]).wait()
        states.append((dist.get_rank(), dist.get_world_size(), total()))
        assert backend().options.global_ranks_in_group == [0, 2]
        out = torch.empty(1)
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(out, 0)
            assert out.item() == 1
    return states


@pytest.mark.smoke
def test_a_list_gives_ranks_and_a_set_keeps_them(world: Callable[[int], World]) -> None:
    assert world(3).run(grow_and_shrink) == [
        [(0, 1, 1.0), (2, 3, 3.0), (0, 3, 3.0), (0, 2, 2.0)],
        [(0, 1, 1.0), (1, 3, 3.0), (1, 3, 3.0)],
        [(0, 1, 1.0), (0, 3, 3.0), (2, 3, 3.0), (1, 2, 2.0)],
    ]


def shrink_before_and_after() -> list[str]:
    """The names of the groups of ranks 0 and 1, who are others each time; one of the three has not made the first."""
    me = member()
    handles = me.handles("all")
    names = []
    for uuid, order in ((1, (0, 1, 2)), (2, (0, 2, 1))):
        dist._reconfigure(uuid, [handles[rank] for rank in order]).wait()
        if dist.get_rank() < 2:
            made = backend().shrink([2])
            t = torch.ones(1)
            made.allreduce([t]).wait()
            assert t.item() == 2
            names.append(made.options.group_name)
    return names


def test_a_group_shrinks_whoever_its_members_are(world: Callable[[int], World]) -> None:
    first, second, third = world(3).run(shrink_before_and_after)
    assert (first[0], first[1]) == (second[0], third[0])
    assert first[0] != first[1]


def after_a_death() -> tuple[int, float]:
    me = member()
    handles = me.handles("all")
    dist._reconfigure(1, handles).wait()
    assert total() == 3.0
    if me.rank == 1:
        os._exit(3)
    told = []
    backend().register_abort_hook(1, lambda: told.append(len(told)))
    with pytest.raises(sagecomm.PeerFailure):
        total()
    assert "REMOTE_ERROR" in str(backend().get_error())
    dist._reconfigure(2, [handles[0], handles[2]]).wait()
    assert "SUCCESS" in str(backend().get_error())
    assert total() == 2.0
    assert told == [0]
    me.meet("seen", (0, 2))
    if dist.get_rank() == 0:  # the hooks watch the new members as well
        backend().abort()
    else:
        while "SUCCESS" in str(backend().get_error()):
            time.sleep(0.01)
    deadline = time.monotonic() + DEADLINE.total_seconds()
    while len(told) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    dist._reconfigure(3, [handles[0], handles[2]]).wait()
    return dist.get_rank(), total()


def test_survivors_go_on_after_a_death(fresh_world: Callable[[int], World]) -> None:
    outcomes = fresh_world(3).outcomes(after_a_death)
    assert outcomes[1].exitcode == 3
    assert [outcome.value for outcome in outcomes] == [(0, 2.0), None, (1, 2.0)], outcomes


def after_abort() -> float:
    me = member()
    handles = me.handles("all")
    dist._reconfigure(1, handles).wait()
    work = dist.irecv(torch.ones(1), 1 - me.rank)
    me.store.set(f"posted/{me.rank}", "")
    me.store.wait([f"posted/{1 - me.rank}"])
    backend().abort()
    with pytest.raises(sagecomm.Aborted):
        work.wait()
    assert "SUCCESS" in str(backend().get_error()), "of the members that there are, none has failed"
    with pytest.raises(sagecomm.Aborted):
        total()
    dist._reconfigure(2, handles).wait()
    return total()


@pytest.mark.smoke
def test_after_an_abort(world: Callable[[int], World]) -> None:
    assert world(2).run(after_abort) == [2.0, 2.0]


def ended_while_waiting() -> float:
    """abort() ends a reconfigure() that no other rank joins."""
    me = member()
    handles = me.handles("all")
    if me.rank == 0:
        raised: list[BaseException] = []

        def waits() -> None:
            try:
                dist._reconfigure(1, handles)
            except BaseException as error:
                raised.append(error)

        thread, began = threading.Thread(target=waits), time.monotonic()
        thread.start()
        while thread.is_alive():  # repeated, because the call may not have begun
            backend().abort()
            thread.join(0.01)
        assert time.monotonic() - began < DEADLINE.total_seconds() / 2
        assert isinstance(raised[0], sagecomm.Aborted), raised
        me.store.set("ended", "")
    me.store.wait(["ended"])
    dist._reconfigure(2, handles).wait()
    return total()


def test_abort_ends_a_reconfigure_that_nobody_joins(world: Callable[[int], World]) -> None:
    assert world(2).run(ended_while_waiting) == [2.0, 2.0]


def any_group() -> float:
    """A group that was made as usual and has failed can be reconfigured."""
    store, rank = c10d._get_default_store(), dist.get_rank()
    store.set(f"handle/{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle/{r}").decode() for r in range(2)]
    dist.barrier()
    if rank == 0:
        backend().abort()
        assert "COMM_ERROR" in str(backend().get_error())
    with pytest.raises(sagecomm.Aborted):
        total()
    dist._reconfigure(7, handles).wait()
    return total()


def test_a_group_that_was_made_as_usual(world: Callable[[int], World]) -> None:
    assert world(2).run(any_group) == [2.0, 2.0]


def settings_and_timeout() -> None:
    me = member(pg_options=sagecomm.Options(settings={"debug": "WARN"}))
    dist.set_timeout(timedelta(seconds=40))
    handles = me.handles("all")
    if me.rank == 0:
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="1 of 2 ranks have not arrived"):
            dist._reconfigure(1, handles, timeout=timedelta(seconds=1))
        assert 0.9 < time.monotonic() - began < 40, "the group's timeout counted"
        me.store.set("late", "")
    else:
        me.store.wait(["late"])
    dist._reconfigure(2, handles, timeout=timedelta(seconds=55), hints={"spin": "9"}).wait()
    assert backend().options._timeout == timedelta(seconds=40), "that of the call is for the call"
    assert backend().options.settings == {"debug": "WARN", "spin": "9"}, "hints stay"
    assert dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert total() == 2.0
    with pytest.raises(RuntimeError, match='option spin="no number" is not accepted'):
        dist._reconfigure(3, handles, hints={"spin": "no number"})
    assert total() == 2.0, "what was there stays"
    assert backend().options.settings["spin"] == "9"


def test_timeout_and_hints(world: Callable[[int], World]) -> None:
    world(2).run(settings_and_timeout)


def refusals() -> None:
    me = member()
    handles = me.handles("all")
    mine, other = handles[me.rank], handles[1 - me.rank]
    for text, given in (
        ("is not among those of the members", [other]),
        ("a handle is given twice", [mine, mine]),
        ('"gloo:0" is not a handle', [mine, "gloo:0"]),
        ("names rank 2147483648 of the job", [mine, "sagecomm:2147483648:1:0"]),
    ):
        with pytest.raises(RuntimeError, match=text):
            dist._reconfigure(1, given)
    dist._reconfigure(1, handles).wait()
    with pytest.raises(RuntimeError, match="uuid 1 was already used"):
        dist._reconfigure(1, handles)
    if me.rank == 0:
        dist._reconfigure(5, [mine]).wait()
        me.store.set("taken", "")
    else:
        me.store.wait(["taken"])
        with pytest.raises(RuntimeError, match="uuid 5 was already used, for other members"):
            dist._reconfigure(5, handles)
    backend().shutdown()
    with pytest.raises(sagecomm.Aborted, match="has shut group"):
        dist._reconfigure(9, handles)


def test_what_makes_no_sense_is_refused(world: Callable[[int], World]) -> None:
    world(2).run(refusals)
