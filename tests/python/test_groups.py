"""Groups out of groups: split, merge, subgroups and meshes; who takes part, in which order, and with what."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # making a mesh imports it; here it is imported once, before the ranks are forked
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import sagecomm
from members import Ranks, backend, gathered
from sagecomm.options import LONGEST
from worlds import World

# ---- split ----


def split(parts: list[Ranks]) -> Ranks | None:
    made = dist.split_group(split_ranks=parts, group_desc="part")
    if made == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    assert made.group_desc == "part"
    assert backend(made).name() == "sagecomm"
    assert dist.get_process_group_ranks(made) == gathered(made)
    return gathered(made)


@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[3, 1], [2, 0]], [[0, 1, 2, 3]], [[2], [0]], [[1, 3]]])
def test_split_keeps_the_order_of_its_ranks(world: Callable[[int], World], parts: list[Ranks]) -> None:
    want = [next((part for part in parts if rank in part), None) for rank in range(4)]
    assert world(4).run(split, parts) == want


def only_members() -> Ranks:
    """Rank 2 never makes the call."""
    if dist.get_rank() == 2:
        return []
    made = dist.split_group(split_ranks=[[0, 1]])
    return gathered(made)


def test_split_needs_its_members_only(world: Callable[[int], World]) -> None:
    assert world(3).run(only_members) == [[0, 1], [0, 1], []]


def split_again() -> tuple[Ranks, Ranks]:
    half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    alone = dist.split_group(half, split_ranks=[[1], [0]])  # group ranks of the half
    pair = dist.split_group(half, split_ranks=[[1, 0]])
    assert gathered(alone) == [dist.get_rank()]
    assert dist.get_process_group_ranks(pair) == gathered(pair)
    dist.destroy_process_group(half)
    return gathered(pair), gathered(None)


def test_a_split_of_a_split_outlives_its_parent(world: Callable[[int], World]) -> None:
    assert world(4).run(split_again) == [([r % 2 + 2, r % 2], [0, 1, 2, 3]) for r in range(4)]


def split_options() -> None:
    parent = backend().options
    child = dist.split_group(split_ranks=[[0, 1]], timeout=timedelta(seconds=33))
    options = backend(child).options
    assert (options._timeout, options.settings) == (timedelta(seconds=33), {"debug": "WARN"})
    assert options.global_ranks_in_group == [0, 1]
    assert parent._timeout == timedelta(seconds=60), "the parent's options are its own"
    mine = parent.clone()
    mine.settings = {"spin": "7"}
    other = dist.split_group(split_ranks=[[1, 0]], pg_options=mine)
    assert backend(other).options.settings == {"spin": "7"}
    assert parent.settings == {"debug": "WARN"}
    store = dist.PrefixStore("foreign", c10d._get_default_store())
    with pytest.raises(RuntimeError, match="takes options of a sagecomm group"):
        backend().split(store, [0, 1], torch._C._distributed_c10d.Backend.Options("gloo"))


def test_options_of_a_split(world: Callable[[int], World]) -> None:
    world(2).run(split_options, options=sagecomm.Options(settings={"debug": "WARN"}))


def users_options() -> None:
    """sagecomm.Options are accepted wherever torch takes options."""
    for given, seconds in ((timedelta(seconds=44), 44), (None, 33), (timedelta.max, LONGEST.total_seconds())):
        mine = sagecomm.Options(timeout=given, settings={"spin": "7"})
        made = dist.split_group(split_ranks=[[1, 0]], timeout=timedelta(seconds=33), pg_options=mine)
        assert backend(made).options.settings == {"spin": "7"}
        assert backend(made).options._timeout.total_seconds() == seconds
    with pytest.raises(TypeError):
        dist.split_group(split_ranks=[[0, 1]], pg_options={"spin": "7"})
    described = backend().options.clone()
    described.group_desc = "mine"
    assert backend(dist.new_group(pg_options=described)).options.group_desc == "mine"
    rank, group = dist.get_rank(), dist.new_group(timeout=timedelta(seconds=60))
    for given, seconds in ((timedelta(seconds=44), 44), (None, 60)):
        mine = sagecomm.Options(timeout=given, settings={"spin": "8"})
        alone = backend(group).shrink([1 - rank], 0, mine)
        assert alone.options.settings == {"spin": "8"}
        assert alone.options._timeout == timedelta(seconds=seconds)
    if rank == 0:
        made = dist.shrink_group([1], group, pg_options=mine)
        assert backend(made).options.settings == {"spin": "8"}


def test_options_of_the_user(world: Callable[[int], World]) -> None:
    world(2).run(users_options)


def bound_to_a_device(name: str) -> list[Ranks | None]:
    """With a device, torch makes its nocolor call on the ranks that are left out of a group."""
    store = c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.PrefixStore(name, store)
    dist.init_process_group("sagecomm", store=store, rank=rank, world_size=size, device_id=torch.device("cpu", 0))
    assert c10d._get_split_source(c10d._get_default_group(), "sagecomm") is not None
    results = []
    for ranks in ([0, 1], [1, 2]):
        made = dist.new_group(ranks)
        results.append(gathered(made) if rank in ranks else None)
    return results


def test_the_nocolor_call_of_ranks_left_out(world: Callable[[int], World]) -> None:
    assert world(3).run(bound_to_a_device, "bound") == [[[0, 1], None], [[0, 1], [1, 2]], [None, [1, 2]]]


def under_debug() -> Ranks:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    assert type(backend()).__name__ == "_ProcessGroupWrapper"
    made = dist.split_group(split_ranks=[[1, 0]])
    again = dist.new_group([0, 1])
    assert gathered(again) == [0, 1]
    dist.set_timeout(timedelta(seconds=50), made)
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=1))
    return gathered(made)


def test_groups_under_torchs_debug_wrapper(fresh_world: Callable[..., World]) -> None:
    assert fresh_world(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(under_debug) == [[1, 0]] * 2


# ---- subgroups and meshes ----


def subgroups() -> tuple[Ranks, Ranks]:
    mine, groups = dist.new_subgroups(2)
    assert len(groups) == 2
    crossed, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return gathered(mine), gathered(crossed)


def test_subgroups(world: Callable[[int], World]) -> None:
    low, high, outer, inner = [0, 1], [2, 3], [0, 3], [1, 2]
    assert world(4).run(subgroups) == [(low, outer), (low, inner), (high, inner), (high, outer)]


def local() -> Ranks:
    """With local synchronization only the members make the call."""
    ranks = [0, 2] if dist.get_rank() != 1 else [1]
    return gathered(dist.new_group(ranks, use_local_synchronization=True))


def test_new_group_of_those_that_call(world: Callable[[int], World]) -> None:
    assert world(3).run(local) == [[0, 2], [1], [0, 2]]


def mesh() -> dict[str, Ranks]:
    whole = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    found = {name: gathered(whole.get_group(name)) for name in ("pp", "dp", "tp")}
    flat = whole["dp", "tp"]._flatten("dp_tp")
    found["dp_tp"] = gathered(flat.get_group())
    found["slice"] = gathered(whole["pp", "tp"].get_group("tp"))
    assert dist.get_process_group_ranks(flat.get_group()) == found["dp_tp"]
    return found


@pytest.mark.smoke
def test_mesh_slices_and_flattened_dimensions(world: Callable[[int], World]) -> None:
    for rank, found in enumerate(world(4).run(mesh)):
        dp, tp = rank // 2, rank % 2
        row = [2 * dp, 2 * dp + 1]
        assert found == {"pp": [rank], "dp": [tp, 2 + tp], "tp": row, "dp_tp": [0, 1, 2, 3], "slice": row}


# ---- merge ----


def merge() -> list[int]:
    """Two halves that share only a store can merge."""
    rank = dist.get_rank()
    half, _ = dist.new_subgroups(2)
    store = dist.PrefixStore("both", c10d._get_default_store())
    merged = half.merge_remote_group(store, 4, timedelta(seconds=60), "merged", "both halves")
    assert (merged.size(), merged.group_name, merged.group_desc) == (4, "merged", "both halves")
    out = torch.empty(4, dtype=torch.int64)
    merged._allgather_base(out, torch.tensor([rank])).wait()
    assert out[merged.rank()] == rank
    t = torch.ones(3)
    merged.allreduce([t]).wait()
    assert t.tolist() == [4.0] * 3
    return sorted(out.tolist())


@pytest.mark.smoke
def test_two_groups_become_one(world: Callable[[int], World]) -> None:
    assert world(4).run(merge) == [[0, 1, 2, 3]] * 4


# ---- backend strings ----


def strings() -> None:
    rank = dist.get_rank()
    assert gathered(dist.new_group(backend="cpu:sagecomm")) == [0, 1]
    mixed = dist.new_group(backend="cpu:sagecomm,meta:gloo")
    assert gathered(mixed) == [0, 1]
    assert backend(mixed).name() == "sagecomm"
    assert mixed._get_backend(torch.device("meta")).name() == "gloo"
    for text in ("xla:sagecomm", "cpu:gloo,xla:sagecomm", "cpu:sagecomm,xla:sagecomm"):
        with pytest.raises(ValueError, match="xla:sagecomm: there is no sagecomm for xla, only for cpu"):
            dist.new_group(backend=text)
    assert gathered(None) == [0, 1], rank
    options = torch._C._distributed_c10d.Backend.Options("gloo")
    with pytest.warns(UserWarning, match="no notice of pg_options of the backend gloo"):
        made = dist.new_group(backend="cpu:sagecomm", pg_options=options)
    assert gathered(made) == [0, 1]


@pytest.mark.smoke
def test_backend_strings(world: Callable[[int], World]) -> None:
    world(2).run(strings)


def what_torch_says(backend_string: str) -> tuple[str, str]:
    try:  # pytest.raises() would keep the frames, and with them the half of the group that was made
        dist.new_group(backend=backend_string)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"{backend_string} was accepted")


def without_the_other_device() -> Ranks:
    # Beside gloo torch says the same, unless a peer has closed its half of gloo by then.
    mixed, alone = what_torch_says("cpu:sagecomm,cuda:nccl"), what_torch_says("cuda:nccl")
    assert mixed == alone, (mixed, alone)
    return gathered(None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nccl finds devices")
def test_a_string_with_nccl_and_no_gpu_fails_as_nccl_alone(world: Callable[[int], World]) -> None:
    assert world(2).run(without_the_other_device) == [[0, 1]] * 2


# ---- the cost of groups ----


def descriptors() -> int:
    """Returns how many descriptors a rank holds after it has used six groups: four of two ranks, two of four."""
    names = ("pp", "dp", "cp", "tp")
    mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=names)
    groups = [mesh.get_group(name) for name in names]
    ranks = torch.arange(16).reshape(2, 2, 2, 2)
    for order in ((0, 3, 1, 2), (0, 1, 2, 3)):
        fours = ranks.permute(order).reshape(4, 4).tolist()
        groups.append(dist.new_subgroups_by_enumeration(fours)[0])
    for group in groups:
        t = torch.ones(5)
        dist.all_reduce(t, group=group)
        assert t[0] == dist.get_world_size(group)
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.long
def test_sixteen_ranks_with_six_kinds_of_groups_need_few_descriptors(fresh_world: Callable[[int], World]) -> None:
    assert max(fresh_world(16).run(descriptors)) < 200
