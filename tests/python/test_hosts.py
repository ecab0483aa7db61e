"""Groups over several hosts do what groups on one host do: all operations, groups out of groups, training.

Ranks of one machine stand for those of several: ranks with different SAGECOMM_HOSTID share no memory, and exchange
frames over TCP. test_hosts_failures.py has what ranks are told of failures, test_hosts_life.py how groups over several
hosts begin and end, test_hosts_devices.py tensors of devices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

import random_programs
import reference as ref
import sagecomm
import test_ddp as ddp
import test_faults as faults
import test_groups as groups
import test_matrix as matrix
import test_monitored_barrier as monitored_barrier
import test_point_to_point as p2p
import test_sparse as sparse
from members import Ranks, gathered
from random_programs import LONG_SHAPES
from selection import quickly
from worlds import Pool, World, on_hosts

Hosts = Callable[..., World]
TWO, THREE, FOUR = (1, 1), (2, 1), (2, 2)  # ranks of each host
FEW_CELLS = 15  # one cell of so many is run by `make test`
PROGRAMS, AT_A_TIME = 40, 10
QUICK_PROGRAMS = 2

# ---- what makes a host ----


def mapped_arenas() -> int:
    """Returns the number of processes whose shared memory this one has, its own included."""
    dist.all_reduce(torch.ones(100_000))
    lines = Path("/proc/self/maps").read_text().splitlines()
    arenas = {line.split()[4] for line in lines if "/memfd:sagecomm" in line}  # inodes
    dist.barrier()
    return len(arenas)


@pytest.mark.parametrize("shape", quickly([(1, 2)], [FOUR, (1, 2)]))
def test_only_ranks_of_one_host_share_memory(fresh_world: Hosts, shape: tuple[int, ...]) -> None:
    mapped = fresh_world(sum(shape), on_hosts(*shape)).run(mapped_arenas)
    assert mapped == [size for size in shape for _ in range(size)]


# ---- operations ----


@pytest.mark.parametrize("shape", [TWO, THREE])
def test_some_operations(hosts: Hosts, shape: tuple[int, ...]) -> None:
    matrix.run_matrix(hosts(*shape), matrix.chosen_cells()[sum(shape) :: FEW_CELLS], own_order=True)


@pytest.mark.long
@pytest.mark.parametrize("shape", LONG_SHAPES)
def test_every_operation(hosts: Hosts, shape: tuple[int, ...]) -> None:
    matrix.run_matrix(hosts(*shape), matrix.chosen_cells(), own_order=True)


@pytest.mark.long
@pytest.mark.parametrize("shape", [FOUR, (2, 2, 2)])
def test_hierarchical_algorithms(hosts: Hosts, shape: tuple[int, ...]) -> None:
    ops = ("all_reduce", "broadcast", "all_gather", "reduce", "reduce_scatter")
    options = sagecomm.Options(settings={"tune": ";".join(f"{op}:hierarchical@chunk=4K" for op in ops)})
    cells = [cell for cell in matrix.chosen_cells() if cell[0].startswith(ops)]
    matrix.run_matrix(hosts(*shape), cells[sum(shape) :: FEW_CELLS], own_order=True, options=options)


@pytest.mark.long
def test_programs_with_hierarchical_algorithms() -> None:
    """They are drawn, and hosts of their groups have equally many ranks."""
    drawn = [random_programs.program(seed, over_hosts=True) for seed in range(PROGRAMS)]
    hierarchical = [p for p in drawn if random_programs.HIERARCHICAL in p.tune]
    assert hierarchical
    for program in hierarchical:
        (each,) = set(program.hosts)
        for step in program.steps:
            if step.kind == "new_group" and step.what is not None:
                of_hosts = Counter(rank // each for rank in step.what)
                assert len(set(of_hosts.values())) == 1, f"{program}"


@pytest.mark.long
def test_a_few_random_programs(pool: Pool) -> None:
    programs_succeed(pool, range(PROGRAMS, PROGRAMS + QUICK_PROGRAMS))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_A_TIME))
def test_random_programs(pool: Pool, first: int) -> None:
    programs_succeed(pool, range(first, first + AT_A_TIME))


def programs_succeed(pool: Pool, seeds: range) -> None:
    failed = list(random_programs.failures(pool, seeds, over_hosts=True))
    assert not failed, "\n\n".join(f"program {seed} failed:\n{text}" for seed, text in failed)


@pytest.mark.parametrize("shape", quickly([(1, 2)], [(1, 2), THREE, (1, 1, 1)]))
@pytest.mark.parametrize("call", quickly(["window", "works"], faults.CALLS))
def test_calls_that_consist_of_several(hosts: Hosts, shape: tuple[int, ...], call: str) -> None:
    for _ in range(3):
        hosts(*shape).run(faults.CALLS[call])


@pytest.mark.long
def test_sparse_tensors(hosts: Hosts) -> None:
    hosts(*FOUR).run(sparse.every_type)
    hosts(*THREE).run(sparse.sums, True)


# ---- p2p ----

OF_TWO: dict[str, tuple[Any, ...]] = {
    "every type": (p2p.every_type,),
    "short sends with tags crossed": (p2p.crossed_tags, 1000),
    "long sends with tags crossed": (p2p.crossed_tags, p2p.BIG),
    "blocking sends with tags crossed": (p2p.blocking_crossed_tags, 1000),
    "many sends of one tag": (p2p.posted_order, 1),
    "beside a short collective": (p2p.beside_a_collective, 4),
    "beside a long collective": (p2p.beside_a_collective, p2p.BIG),
    "nobody waits": (p2p.received_beside_computation,),
}
OF_MANY: dict[str, tuple[Any, ...]] = {
    "every length": (p2p.ring,),
    "from any source": (p2p.any_source, 3000),
    "long ones from any source": (p2p.any_source, 100_000),
    "any source and a named one": (p2p.any_source_beside_named,),
    "to oneself": (p2p.to_oneself,),
    "batches": (p2p.batches,),
    "all pairs": (p2p.all_pairs, 1, 7),
    "all pairs, long": (p2p.all_pairs, p2p.BIG, 8),
}


@pytest.mark.parametrize("program", quickly(["long sends with tags crossed", "nobody waits"], OF_TWO))
def test_p2p_of_two_hosts(hosts: Hosts, program: str) -> None:
    hosts(*TWO).run(*OF_TWO[program])


@pytest.mark.parametrize("shape", quickly([THREE], [THREE, (1, 2), (1, 1, 1), FOUR, (2, 2, 2)]))
@pytest.mark.parametrize("program", quickly(["every length", "from any source", "batches"], OF_MANY))
def test_p2p_inside_and_across_hosts(hosts: Hosts, shape: tuple[int, ...], program: str) -> None:
    hosts(*shape).run(*OF_MANY[program])


def sends_of_a_subgroup() -> None:
    p2p.in_a_subgroup()  # of ranks of both hosts
    rank = dist.get_rank()
    backwards = dist.split_group(split_ranks=[[3, 2, 1, 0]])
    t = torch.tensor([float(rank)])
    to, source = (rank - 1) % 4, (rank + 1) % 4
    got = torch.empty(1)
    works = [dist.irecv(got, source, group=backwards), dist.isend(t, to, group=backwards)]
    for work in works:
        assert work is not None
        work.wait()
    assert got.item() == source


def test_sends_in_subgroups(hosts: Hosts) -> None:
    hosts(*FOUR).run(sends_of_a_subgroup)


# ---- objects ----


def objects() -> None:
    p2p.objects()
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [{"rank": r, "text": "x" * (30_000 * r)} for r in range(size)]
    for root in range(size):
        got: list[Any] = [None] * size
        dist.gather_object(everybody[rank], got if rank == root else None, root)
        assert got == (everybody if rank == root else [None] * size)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, everybody if rank == root else None, root)
        assert mine == [everybody[rank]]


@pytest.mark.parametrize("shape", quickly([THREE], LONG_SHAPES))
def test_objects(hosts: Hosts, shape: tuple[int, ...]) -> None:
    hosts(*shape).run(objects)


# ---- groups ----


@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[3, 1], [2, 0]], [[3, 0, 2, 1]], [[2], [0]], [[1, 2]]])
def test_split_keeps_the_order_of_its_ranks(hosts: Hosts, parts: list[Ranks]) -> None:
    want = [next((part for part in parts if rank in part), None) for rank in range(4)]
    assert hosts(*FOUR).run(groups.split, parts) == want


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2)])
def test_groups_of_which_some_ranks_are_no_members(hosts: Hosts, shape: tuple[int, ...]) -> None:
    assert hosts(*shape).run(groups.only_members) == [[0, 1], [0, 1], []]
    assert hosts(*shape).run(groups.local) == [[0, 2], [1], [0, 2]]


def test_subgroups_meshes_and_splits_of_splits(hosts: Hosts) -> None:
    low, high, outer, inner = [0, 1], [2, 3], [0, 3], [1, 2]
    assert hosts(*FOUR).run(groups.subgroups) == [(low, outer), (low, inner), (high, inner), (high, outer)]
    assert hosts(*FOUR).run(groups.split_again) == [([r % 2 + 2, r % 2], [0, 1, 2, 3]) for r in range(4)]
    for rank, found in enumerate(hosts(*FOUR).run(groups.mesh)):
        assert (found["dp"], found["tp"]) == ([rank % 2, 2 + rank % 2], [low, high][rank // 2])
    assert hosts(*FOUR).run(groups.merge) == [[0, 1, 2, 3]] * 4


def many_groups_at_once(hosts_of_ranks: list[int], seed: int) -> None:
    """Groups of each host, of one rank of each host, of two neighbours, of all in reverse, with works of all of them in
    flight, waited for in any order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    names = sorted(set(hosts_of_ranks))
    inside = [[r for r in range(size) if hosts_of_ranks[r] == name] for name in names]
    across = [[ranks[k] for ranks in inside if len(ranks) > k] for k in range(max(map(len, inside)))]
    members = [*inside, *across, *([r, r + 1] for r in range(size - 1)), list(range(size))]
    made = [(ranks, dist.new_group(ranks)) for ranks in members]
    backwards = list(reversed(range(size)))
    made.append((backwards, dist.split_group(split_ranks=[backwards])))
    mine = [(ranks, group) for ranks, group in made if rank in ranks]
    for ranks, group in mine:
        assert gathered(group) == ranks
    draw = random.Random(1000 * seed + rank)
    for count in (1, 3000, 200_000):
        flying = []
        for number in range(3):
            for ranks, group in mine:
                t = torch.full((count,), rank + 1.0 + number)
                flying.append(
                    (dist.all_reduce(t, group=group, async_op=True), t, sum(ranks) + len(ranks) * (1.0 + number))
                )
        draw.shuffle(flying)
        for work, t, want in flying:
            assert work is not None
            work.wait()
            assert bool((t == want).all()), (count, t[0].item(), want)
    for _, group in mine:
        dist.destroy_process_group(group)
    assert gathered(None) == list(range(size))


@pytest.mark.parametrize("shape", quickly([FOUR], LONG_SHAPES))
def test_groups_inside_and_across_hosts_at_once(hosts: Hosts, shape: tuple[int, ...]) -> None:
    of_ranks = [host for host, size in enumerate(shape) for _ in range(size)]
    hosts(*shape).run(many_groups_at_once, of_ranks, 1)


def test_monitored_barrier(pool: Pool, mortals: Pool) -> None:
    pool.hosts(*THREE).run(monitored_barrier.together)
    mortals.hosts(*TWO).run(monitored_barrier.looks_once)


@pytest.mark.long
def test_a_monitored_barrier_names_all_who_are_missing(mortals: Pool) -> None:
    texts = mortals.hosts(*FOUR).run(monitored_barrier.some_stay_away)
    assert texts[0].startswith("Rank 1 failed to pass monitoredBarrier in 2000 ms; sagecomm: group ")
    for text in texts:
        assert "not arrived: rank 1" in text
        assert "; rank 3" in text


# ---- training ----


def train_in_one_process(size: int) -> list[torch.Tensor]:
    """What test_ddp.train() computes on `size` ranks."""
    torch.manual_seed(7)
    model = ddp.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(ddp.STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            x, y = ddp.batch(rank, step)
            (F.cross_entropy(model(x), y) / size).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def parameters_of_ddp(kind: str) -> list[torch.Tensor]:
    _, state = ddp.train(kind)
    names = list(ddp.Net().state_dict())
    trained = {name for name, _ in ddp.Net().named_parameters()}
    return [t for name, t in zip(names, state, strict=True) if name in trained]


@pytest.mark.parametrize("shape", quickly([THREE], LONG_SHAPES))
@pytest.mark.parametrize("kind", quickly(["small buckets"], ["plain", "small buckets", "hook that chains"]))
def test_ddp(pool: Pool, shape: tuple[int, ...], kind: str) -> None:
    ranks = pool.hosts(*shape)
    ours = ranks.run(parameters_of_ddp, kind)
    (alone,) = pool.world(1).run(train_in_one_process, ranks.size, backend=None)
    for rank, mine in enumerate(ours):
        for number, (t, of_rank_0, want) in enumerate(zip(mine, ours[0], alone, strict=True)):
            ref.check_same(t, of_rank_0, f"rank {rank}, parameter {number}")
            torch.testing.assert_close(t, want, rtol=1e-3, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("kind", ddp.TORCH_HOOKS)
def test_ddp_with_hooks_of_torch(hosts: Hosts, kind: str) -> None:
    ours = hosts(*FOUR).run(parameters_of_ddp, kind)
    for rank, mine in enumerate(ours):
        for number, (t, of_rank_0) in enumerate(zip(mine, ours[0], strict=True)):
            ref.check_same(t, of_rank_0, f"rank {rank}, parameter {number}")
