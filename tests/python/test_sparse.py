"""all_reduce of sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from programs import Programs
from worlds import World


def contribution(rank: int, salt: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of (50, 7, 3) with two sparse dimensions; some indices twice."""
    generator = torch.Generator().manual_seed(rank * 100 + salt)
    indices = torch.stack(
        [torch.randint(50, (elements,), generator=generator), torch.randint(7, (elements,), generator=generator)]
    )
    values = torch.randint(-9, 9, (elements, 3), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (50, 7, 3))


def summed(salt: int, elements: Callable[[int], int], dtype: torch.dtype) -> torch.Tensor:
    size = dist.get_world_size()
    return torch.stack([contribution(r, salt, elements(r), dtype).to_dense() for r in range(size)]).sum(0).to(dtype)


SHAPES: list[Callable[[int], int]] = [lambda _: 20, lambda r: 5 * r, lambda _: 0, lambda r: 40_000 if r == 1 else 1]


def sums(asynchronous: bool) -> None:
    rank = dist.get_rank()
    for dtype in torch.float32, torch.float64, torch.int64, torch.bfloat16:
        tensors = [contribution(rank, i, shape(rank), dtype) for i, shape in enumerate(SHAPES)]
        works = [dist.all_reduce(t, async_op=asynchronous) for t in tensors]
        between = torch.ones(3)
        dist.all_reduce(between)  # neither operation waits for the other
        assert between.eq(dist.get_world_size()).all()
        for work in reversed(works):
            if work is not None:
                assert work.get_future().wait()[0].is_sparse
                work.wait()
                assert work.is_success()
        for i, (t, shape) in enumerate(zip(tensors, SHAPES, strict=True)):
            assert t.is_coalesced()
            assert torch.equal(t.to_dense(), summed(i, shape, dtype)), (dtype, i)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_sums(world: Callable[[int], World], asynchronous: bool) -> None:
    for n in 1, 2, 3, 8:
        world(n).run(sums, asynchronous)


def rounded_once(dtype: torch.dtype) -> torch.Tensor:
    """As much on rank 0 that one more is lost in the type itself; ones of the others, once and twice at a place."""
    rank = dist.get_rank()
    large = 2.0 / torch.finfo(dtype).eps
    at = torch.tensor([[1, 3]]) if rank == 0 else torch.tensor([[1, 1, 3, 5]])
    t = torch.sparse_coo_tensor(at, torch.tensor([large] * 2 if rank == 0 else [1.0] * 4, dtype=dtype), (8,))
    dist.all_reduce(t)
    return t.to_dense().float() - torch.tensor([0, large, 0, large, 0, 0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(world: Callable[[int], World], dtype: torch.dtype) -> None:
    for differences in world(5).run(rounded_once, dtype):
        # The type can tell even numbers apart at `large`.
        assert differences.tolist() == [0, 8, 0, 4, 0, 4, 0, 0]


def in_rank_order() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    all_values = torch.randn(size, 500) * 10.0 ** torch.randint(-3, 4, (size, 500))
    t = torch.sparse_coo_tensor(torch.arange(500)[None], all_values[rank], (500,))
    dist.all_reduce(t)
    want = torch.zeros(500)
    for values in all_values:
        want += values
    assert torch.equal(t.to_dense(), want)
    assert t.is_coalesced()


def test_ranks_are_added_in_order(world: Callable[[int], World]) -> None:
    world(4).run(in_rank_order)


def every_type() -> None:
    at = torch.tensor([[0, 2], [1, 0]])
    unsigned = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    for dtype in (*unsigned, torch.int8, torch.int16, torch.int64, torch.bool):
        t = torch.sparse_coo_tensor(at, torch.ones(2).to(dtype), (3, 2), is_coalesced=True)
        dist.all_reduce(t)
        want = 1 if dtype is torch.bool else dist.get_world_size()
        assert t._values().tolist() == [want, want], dtype
        assert t._values().dtype == dtype
        assert t._indices().tolist() == at.tolist()
    t = torch.sparse_coo_tensor(at, torch.ones(2).to(torch.float8_e5m2), (3, 2), is_coalesced=True)
    with pytest.raises(RuntimeError, match="all_reduce: SUM is not defined for sparse tensors of Float8_e5m2"):
        dist.all_reduce(t)
    dist.barrier()


def test_types(world: Callable[[int], World]) -> None:
    world(3).run(every_type)


def refused() -> None:
    t = contribution(0, 0, 4, torch.float32)
    with pytest.raises(RuntimeError, match="only the sum is defined"):
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
    window = c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with window, pytest.raises(RuntimeError, match="sparse tensors cannot be coalesced"):
        backend.allreduce([t])
    with pytest.raises(RuntimeError, match="only dense tensors are supported"):
        backend.broadcast([t])


def test_refusals(world: Callable[[int], World]) -> None:
    world(2).run(refused)


def index_outside() -> None:
    """Makes an invalid sparse tensor on rank 1, which torch does not check by default."""
    t = torch.sparse_coo_tensor(torch.tensor([[0 if dist.get_rank() == 0 else 10]]), torch.ones(1), (5,))
    dist.all_reduce(t)


def test_indices_are_looked_at(world: Callable[[int], World]) -> None:
    first, second = world(2).outcomes(index_outside)
    assert not first.ok
    assert "rank 1" in first.trace
    assert not second.ok
    assert "sagecomm: all_reduce: size is inconsistent with indices" in second.trace
    assert "most recent call first" not in second.trace.partition("size is inconsistent")[2]


def late() -> str:
    store = c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["given up"])
        return ""
    t = torch.eye(3).to_sparse()
    with pytest.raises(sagecomm.CollectiveTimeout) as raised:
        dist.all_reduce(t)
    store.set("given up", "")
    assert raised.value.op == "all_reduce"
    return str(raised.value)


def test_timeout(world: Callable[[int], World]) -> None:
    text, _ = world(2).run(late, operations_timeout=timedelta(seconds=1))
    assert "timed out after its timeout of 1s in all_reduce #1 of a sparse tensor; not arrived: rank 1" in text


def different_shapes() -> list[tuple[object, ...]]:
    """The work and later operations fail for the same reason."""
    t = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (50 + dist.get_rank(),))
    work = dist.all_reduce(t, async_op=True)
    told: list[tuple[object, ...]] = []
    for call in work.wait, lambda: dist.all_reduce(torch.ones(1)):
        with pytest.raises(sagecomm.CollectiveMismatch, match="rank 0 gave a sparse tensor of Float") as raised:
            call()
        told.append((str(raised.value), raised.value.rank, raised.value.pid, raised.value.op))
    assert not work.is_success()
    return told


def test_different_shapes(world: Callable[[int], World]) -> None:
    told = [reason for of_rank in world(3).run(different_shapes) for reason in of_rank]
    assert told == [told[0]] * 6
    text, culprit, pid, op = told[0]
    assert "ranks disagree in #1 of group 0: rank 0 gave a sparse tensor of Float (50), 1 dimension sparse" in text
    assert ", rank 1 one of Float (51), 1 dimension sparse;" in text
    assert culprit == 1
    assert pid
    assert op == "all_reduce"


def sparse_against_dense() -> str:
    t = torch.eye(3)
    with pytest.raises(sagecomm.CollectiveMismatch) as raised:
        dist.all_reduce(t.to_sparse() if dist.get_rank() == 1 else t)
    return str(raised.value)


def test_sparse_against_dense(world: Callable[[int], World]) -> None:
    for text in world(3).run(sparse_against_dense):
        assert "rank 1 called all_reduce of a sparse tensor" in text
        assert "called all_reduce (float32, SUM, 9 elements)" in text


def destroyed_early() -> list[list[float]]:
    """Destroys the group while peers may not have begun, or have sent only the numbers of their elements."""
    t = torch.eye(200).to_sparse()
    works = [dist.all_reduce(t.clone(), async_op=True) for _ in range(8)]
    dist.destroy_process_group()
    return [work.result()[0].to_dense().diagonal().tolist() for work in works if work.is_success()]


def test_destroying_waits_for_sparse_sums(world: Callable[[int], World]) -> None:
    for results in world(3).run(destroyed_early):
        assert results == [[3.0] * 200] * 8


ENDS_EARLY = """
    dist.init_process_group("sagecomm")
    works = [dist.all_reduce(torch.eye(300).to_sparse(), async_op=True) for _ in range(4)]
    if dist.get_rank() == 0:
        say("ends")
    else:
        for work in works:
            work.wait()
        say(work.result()[0].to_dense().sum().item())
"""


def test_a_script_that_ends_leaves_its_peers_what_it_owes() -> None:
    with Programs(ENDS_EARLY, 3) as ranks:
        assert ranks.lines() == ["ends", "900.0", "900.0"]
        ranks.end_well()


def known_to_torch() -> None:
    t = contribution(dist.get_rank(), 0, 4, torch.float32)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        works = [dist.all_reduce(t.clone(), async_op=True) for _ in range(2)]
        for work in works:
            assert work.get_future_result().wait() == 0
    if hasattr(works[0], "_get_sequence_number"):
        first, second = (work._get_sequence_number() for work in works)
        assert second == first + 1
    assert sum(event.name == "record_param_comms" for event in profile.events()) == 2


def test_futures_numbers_and_profiles(world: Callable[[int], World]) -> None:
    world(2).run(known_to_torch)


def embedding() -> torch.Tensor:
    """DistributedDataParallel with sparse gradients."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(20, 4, sparse=True))
    model(torch.tensor([dist.get_rank(), 7])).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    return gradient.to_dense()


def test_gradients(world: Callable[[int], World]) -> None:
    first, second = world(2).run(embedding)
    assert torch.equal(first, second)
    assert first[7].eq(1).all()
    assert first[0].eq(0.5).all()
    assert first[2].eq(0).all()
