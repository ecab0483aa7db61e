"""ProcessGroupManager: which ranks form which group, and what it costs to make them."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from promises import most
from sagecomm.nn import ColumnParallelLinear
from sagecomm.parallel import DIMENSIONS, JOINT, Layout, get_process_group_manager, setup_process_group_manager
from sagecomm.parallel import ProcessGroupManager as Manager

RANKS = 16
FACTORISATIONS = [
    dict(zip(DIMENSIONS, sizes, strict=True))
    for sizes in itertools.product((1, 2, 4, 8, 16), repeat=4)
    if torch.tensor(sizes).prod() == RANKS
]


def brute_force(sizes: dict[str, int], kind: str) -> set[tuple[int, ...]]:
    """Groups by their definition: ranks are together if their places agree outside the kind's dimensions."""
    places = {
        rank: dict(zip(DIMENSIONS, place, strict=True))
        for rank, place in enumerate(itertools.product(*(range(sizes[name]) for name in DIMENSIONS)))
    }
    outside = [name for name in DIMENSIONS if name not in JOINT.get(kind, (kind,))]
    return {
        tuple(other for other in places if all(places[other][name] == places[rank][name] for name in outside))
        for rank in places
    }


def test_all_factorisations_of_sixteen_ranks_equal_brute_force():
    assert len(FACTORISATIONS) == 35
    for sizes in FACTORISATIONS:
        layout = Layout(**sizes)
        for kind in (*DIMENSIONS, *JOINT):
            groups = layout.groups(kind)
            assert set(map(tuple, groups)) == brute_force(sizes, kind), (sizes, kind)
            assert sorted(itertools.chain(*groups)) == list(range(RANKS))
        for rank in range(RANKS):
            assert layout.rank(*layout.place(rank)) == rank
            assert all(rank in layout.group_of(kind, rank) for kind in DIMENSIONS)


def test_the_fastest_dimension_is_tensor_parallelism():
    layout = Layout(tp=2, cp=2, pp=2, dp=2)
    assert layout.groups("tp")[0] == [0, 1]
    assert layout.groups("cp")[0] == [0, 2]
    assert layout.groups("pp")[0] == [0, 4]
    assert layout.groups("dp")[0] == [0, 8]
    assert layout.groups("cp_dp")[0] == [0, 2, 8, 10]
    assert layout.groups("pp_dp")[0] == [0, 4, 8, 12]


def test_wrong_layouts_are_refused():
    with pytest.raises(ValueError, match="tp=0: expected a whole number from 1"):
        Layout(tp=0)
    with pytest.raises(ValueError, match=r"rank 4 is not in tp=2 x cp=1 x pp=1 x dp=2"):
        Layout(tp=2, dp=2).place(4)
    with pytest.raises(ValueError, match="'ep' is no group: there are dp, pp, cp, tp, cp_dp, pp_dp"):
        Layout().groups("ep")


def seen(sizes: dict[str, int]) -> dict[str, Any]:
    """All that a manager says, and for each group the sum of its ranks as a collective makes it."""
    with pytest.raises(RuntimeError, match="call setup_process_group_manager"):
        get_process_group_manager()
    manager = setup_process_group_manager(**sizes)
    assert get_process_group_manager() is manager
    rank = dist.get_rank()
    sums = {}
    for kind in (*DIMENSIONS, *JOINT):
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=getattr(manager, f"{kind}_group"))
        sums[kind] = int(total)
        ids = getattr(manager, f"{kind}_group_ids")
        assert dist.get_process_group_ranks(getattr(manager, f"{kind}_group")) == ids
        assert getattr(manager, f"{kind}_world_size") == len(ids) == dist.get_world_size(group_of(manager, kind))
    for kind in DIMENSIONS:
        ids = getattr(manager, f"{kind}_group_ids")
        assert getattr(manager, f"{kind}_rank") == ids.index(rank) == dist.get_rank(group_of(manager, kind))
        assert (getattr(manager, f"{kind}_first_rank"), getattr(manager, f"{kind}_last_rank")) == (ids[0], ids[-1])
        assert manager.device_mesh.get_group(kind) is group_of(manager, kind)
        assert manager.device_mesh[kind].mesh.tolist() == ids
    assert manager.device_mesh.mesh_dim_names == DIMENSIONS
    assert manager.device_mesh.mesh.flatten().tolist() == list(range(dist.get_world_size()))
    assert manager.world_group is dist.group.WORLD
    neighbours = (manager.cp_send_rank, manager.cp_recv_rank, manager.pp_prev_rank, manager.pp_next_rank)
    ends = (manager.pp_is_first_stage, manager.pp_is_last_stage)
    info = manager.get_info()
    manager.destroy()
    return {"sums": sums, "info": info, "neighbours": neighbours, "ends": ends}


def group_of(manager: Manager, kind: str) -> dist.ProcessGroup:
    group: dist.ProcessGroup = getattr(manager, f"{kind}_group")
    return group


def test_groups_of_eight_ranks_reduce_over_their_own_ranks(fresh_world):
    sizes = {"tp": 2, "cp": 2, "pp": 2, "dp": 1}
    layout = Layout(**sizes)
    for rank, answer in enumerate(fresh_world(8).run(seen, sizes)):
        ids = {kind: layout.group_of(kind, rank) for kind in (*DIMENSIONS, *JOINT)}
        assert answer["sums"] == {kind: sum(group) for kind, group in ids.items()}
        assert answer["info"]["cp_dp"] == {"rank": ids["cp_dp"].index(rank), "world_size": 2, "ranks": ids["cp_dp"]}
        assert answer["info"]["rank"] == rank
        other = rank ^ 2  # the other rank of a ring of two
        assert answer["neighbours"][:2] == (other, other)
        assert answer["neighbours"][2:] == ((None, rank + 4) if rank < 4 else (rank - 4, None))
        assert answer["ends"] == (rank < 4, rank >= 4)


def ring_and_stages() -> tuple[list[int], list[int | None]]:
    wide = Manager(cp=4)
    long = Manager(pp=4)
    return [wide.cp_recv_rank, wide.cp_send_rank], [long.pp_prev_rank, long.pp_next_rank]


def test_neighbours_on_a_ring_and_in_a_pipeline_of_four(world):
    answers = world(4).run(ring_and_stages)
    assert [ring for ring, _ in answers] == [[3, 1], [0, 2], [1, 3], [2, 0]]
    assert [stages for _, stages in answers] == [[None, 1], [0, 2], [1, 3], [2, None]]


def groups_that_are_the_same() -> tuple[bool, bool, bool]:
    manager = Manager(tp=2)
    same = manager.cp_dp_group is manager.cp_group, manager.tp_group is dist.group.WORLD
    with pytest.raises(ValueError, match=r"tp=3 x cp=1 x pp=1 x dp=1 are 3 ranks, but the job has 2"):
        Manager(tp=3)
    for name in "nosuch", "cpu:0":
        with pytest.raises(ValueError, match=f"'{name}' is no type of device of this torch"):
            Manager(tp=2, device_type=name)
    return *same, manager.device_mesh.device_type == "cpu"


def mesh_beside_a_model_on_meta() -> list[int]:
    with torch.device("meta"):  # as programs make a model whose parameters come later
        manager = Manager(tp=2)
    return manager.device_mesh.mesh.flatten().tolist()


def test_groups_may_be_made_where_another_device_is_the_default(world):
    assert world(2).run(mesh_beside_a_model_on_meta) == [[0, 1]] * 2


def test_groups_with_the_same_ranks_are_one_group(world):
    assert world(2).run(groups_that_are_the_same) == [(True, True, True)] * 2


def one_manager_at_a_time() -> None:
    first = setup_process_group_manager(dp=2)
    with pytest.raises(ValueError, match=r"there is tp=1 x cp=1 x pp=1 x dp=2, rank \d already: destroy\(\) it first"):
        setup_process_group_manager(tp=2)
    assert get_process_group_manager() is first
    first.destroy()
    first.destroy()  # nothing is left to do
    second = setup_process_group_manager(tp=2)
    assert get_process_group_manager() is second

    # The end of the job is the end of its groups and of the manager.
    layer = ColumnParallelLinear(4, 8, group=second.tp_group)
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="call setup_process_group_manager"):
        get_process_group_manager()
    assert "out_features=4, bias=True, ranks=2" in repr(layer)
    second.destroy()
    dist.init_process_group("sagecomm", store=dist.HashStore(), rank=0, world_size=1)
    third = setup_process_group_manager()
    second.destroy()  # no business of another manager's
    assert get_process_group_manager() is third
    third.destroy()


def test_a_job_has_one_manager_and_outlives_none(world):
    world(2).run(one_manager_at_a_time)


def destroyed_after_the_job() -> None:
    manager = Manager(dp=2)  # its groups of one rank are not the job's
    dist.destroy_process_group()
    manager.destroy()


def test_groups_of_a_job_that_was_destroyed_are_gone(world):
    world(2).run(destroyed_after_the_job)


def with_a_backend_of_their_own() -> None:
    kept = Manager(tp=2)
    assert {dist.get_backend(group_of(kept, kind)) for kind in DIMENSIONS} == {"sagecomm"}
    manager = Manager(tp=2, backend="gloo")
    assert {dist.get_backend(group_of(manager, kind)) for kind in (*DIMENSIONS, *JOINT)} == {"gloo"}
    assert manager.tp_group is not dist.group.WORLD
    assert dist.get_process_group_ranks(manager.tp_group) == [0, 1]
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total, group=manager.tp_group)
    assert total.item() == 3
    manager.destroy()

    options = sagecomm.Options(settings={"tune": "all_reduce:0-inf:ring"})
    manager = setup_process_group_manager(tp=2, pg_options=options)
    assert manager.tp_group is not dist.group.WORLD
    dist.all_reduce(torch.ones(8), group=manager.tp_group)
    (row,) = sagecomm.get_stats(manager.tp_group)["rows"]
    assert row["algorithm"] == "ring"
    manager.destroy()


def test_groups_have_the_backend_and_the_options_that_are_asked_for(world):
    world(2).run(with_a_backend_of_their_own)


def cost_of_all_groups() -> tuple[float, int]:
    dist.barrier()
    started = time.monotonic()
    manager = Manager(tp=2, cp=2, pp=2, dp=2)
    dist.barrier()
    seconds = time.monotonic() - started
    for kind in (*DIMENSIONS, *JOINT):
        dist.all_reduce(torch.ones(1), group=group_of(manager, kind))
    return seconds, len(os.listdir("/proc/self/fd"))


@pytest.mark.long
def test_sixteen_ranks_make_all_groups_fast_and_with_few_descriptors(fresh_world):
    costs = fresh_world(RANKS).run(cost_of_all_groups)
    assert max(descriptors for _, descriptors in costs) < 200, costs
    assert max(seconds for seconds, _ in costs) < most(5), costs
