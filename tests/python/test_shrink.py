"""Groups that shrink: who stays, under which rank, also after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from members import Ranks, backend, gathered
from worlds import World


def shrink_default(excluded: Ranks) -> tuple[int, int] | None:
    other = dist.new_group([0, 1])
    if dist.get_rank() in excluded:
        return None
    dist.shrink_group(excluded)
    assert other not in c10d._world.pg_map, "torch drops the groups whose ranks have changed"
    t = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(t)
    assert t.item() == sum(range(1, dist.get_world_size() + 1))
    assert backend().options.global_ranks_in_group == [r for r in range(4) if r not in excluded]
    return dist.get_rank(), dist.get_world_size()


@pytest.mark.smoke
@pytest.mark.parametrize(("excluded", "ranks"), [([3], [0, 1, 2, None]), ([0, 2], [None, 0, None, 1])])
def test_shrinking_the_default_group(world: Callable[[int], World], excluded: Ranks, ranks: list[int | None]) -> None:
    size = 4 - len(excluded)
    assert world(4).run(shrink_default, excluded) == [rank if rank is None else (rank, size) for rank in ranks]


def shrink_twice() -> Ranks:
    rank = dist.get_rank()
    group, high = dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])
    if rank < 2:
        group = dist.shrink_group([2], group)
        assert gathered(group) == [0, 1]
    if rank == 0:
        group = dist.shrink_group([1], group)
        assert gathered(group) == [0]
    # The ranks to leave out are group ranks. The test calls the backend, because torch's function takes them for global
    # ranks when it registers the new group.
    if rank in (1, 3):
        made = backend(high).shrink([1])
        assert (made.rank(), made.size()) == ([1, 3].index(rank), 2)
        assert made.options.global_ranks_in_group == [1, 3]
        t = torch.tensor([rank])
        made.allreduce([t]).wait()
        assert t.item() == 4
    return gathered(None)


def test_subgroups_shrink(world: Callable[[int], World]) -> None:
    assert world(4).run(shrink_twice) == [[0, 1, 2, 3]] * 4


def shrink_one_group_often() -> list[str]:
    """Each smaller group has a name of its own, and its members meet in it and in no other."""
    rank, direct = dist.get_rank(), backend()
    names = []
    for excluded in (2, 1, 2, 2):
        if rank != excluded:
            made = direct.shrink([excluded])
            t = torch.tensor([rank])
            made.allreduce([t]).wait()
            assert t.item() == 3 - excluded
            names.append(f"{excluded} {made.options.group_name}")
    dist.barrier()
    return names


def test_groups_shrunk_from_one_have_names_of_their_own(world: Callable[[int], World]) -> None:
    first, second, third = world(3).run(shrink_one_group_often)
    assert len({name.split()[1] for name in first}) == 4
    assert second == [name for name in first if name.startswith("2 ")]
    assert third == [name for name in first if name.startswith("1 ")]


def shrink_with_abort() -> str:
    t = torch.ones(4)
    group = dist.new_group()
    if dist.get_rank() == 2:
        with pytest.raises(sagecomm.Aborted) as raised:
            dist.all_reduce(t, group=group)  # the other ranks never join it
        return str(raised.value)
    store = c10d._get_default_store()
    if dist.get_rank() == 0:
        work = dist.irecv(t, 1, group=group)
        store.set("posted", "")
        smaller = dist.shrink_group([2], group, c10d.SHRINK_ABORT)
        with pytest.raises(sagecomm.Aborted):
            work.wait()
    else:
        store.wait(["posted"])
        smaller = dist.shrink_group([2], group, c10d.SHRINK_ABORT)
    return str(gathered(smaller))


def test_shrinking_with_abort_ends_what_is_on_its_way(world: Callable[[int], World]) -> None:
    first, second, text = world(3).run(shrink_with_abort)
    assert (first, second) == ("[0, 1]", "[0, 1]")
    assert "it is shrunk" in text


def shrink_after_a_death() -> tuple[int, float]:
    t = torch.ones(1)
    dist.all_reduce(t)
    if dist.get_rank() == 1:
        os._exit(3)
    with pytest.raises(sagecomm.PeerFailure):
        dist.all_reduce(t)
    dist.shrink_group([1])
    t = torch.ones(1)
    dist.all_reduce(t)
    return dist.get_rank(), t.item()


def test_survivors_shrink_after_a_death(fresh_world: Callable[[int], World]) -> None:
    outcomes = fresh_world(3).outcomes(shrink_after_a_death)
    assert outcomes[1].exitcode == 3
    assert [outcome.value for outcome in outcomes] == [(0, 2.0), None, (1, 2.0)], outcomes


def bad_shrinks() -> None:
    direct = backend()
    for text, call in (
        ("only those that stay call it", lambda: direct.shrink([dist.get_rank()])),
        ("invalid excluded rank: 7", lambda: direct.shrink([7])),
        ("knows no flags 4", lambda: direct.shrink([1 - dist.get_rank()], 4)),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
    assert gathered(None) == [0, 1]


def test_shrinks_that_make_no_sense(world: Callable[[int], World]) -> None:
    world(2).run(bad_shrinks)
