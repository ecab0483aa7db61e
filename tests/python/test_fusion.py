"""fused_all_reduce() and CommFusionBuffer: one collective for each type, no tensor lost, results as without fusion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import sagecomm
from contributions import contribution, sequence, summed
from sagecomm import CommFusionBuffer, create_comm_backend, fused_all_reduce
from worlds import World

SUMMED = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
LENGTHS = [5, 0, 1000, 1, 70_001, 33]
GLOO = [torch.int64, torch.float32, torch.float64, torch.uint8, torch.int32, torch.float16, torch.bfloat16]


def inputs(dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    """Every length in every type, types alternating."""
    pairs = [(n, dtype) for n in LENGTHS for dtype in dtypes]
    return [contribution(dist.get_rank(), i, n, dtype) for i, (n, dtype) in enumerate(pairs)]


def expected(dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    return [summed(i, n, dtype) for i, (n, dtype) in enumerate((n, dtype) for n in LENGTHS for dtype in dtypes)]


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.dtype == b.dtype, i
        assert torch.equal(a, b), i


def every_type(name: str, dtypes: list[torch.dtype]) -> None:
    """All types mixed, one collective for each: asked for as a list, through a buffer, at once and asynchronously."""
    backend = create_comm_backend(name)
    wanted = expected(dtypes)
    before = sequence()
    tensors = inputs(dtypes)
    found = backend.fused_all_reduce(tensors)
    assert [id(t) for t in found] == [id(t) for t in tensors]
    equal(found, wanted)
    assert sequence() - before == len(dtypes)
    equal(backend.fused_all_reduce(inputs(dtypes), async_op=True).wait(), wanted)
    equal(fused_all_reduce(inputs(dtypes)), wanted)
    equal(fused_all_reduce(inputs(dtypes), async_op=True).wait(), wanted)
    buffer = CommFusionBuffer()
    for target in backend, None, dist.group.WORLD:
        tensors = inputs(dtypes)
        assert all(buffer.add_tensor(t) for t in tensors)
        assert len(buffer) == len(tensors)
        assert buffer.nbytes == sum(t.nbytes for t in tensors)
        before = sequence()
        found = buffer.flush_and_all_reduce(target)
        assert sequence() - before == len(dtypes)
        assert [id(t) for t in found] == [id(t) for t in tensors]
        equal(found, wanted)
        assert len(buffer) == buffer.nbytes == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_type(world: Callable[[int], World], size: int) -> None:
    world(size).run(every_type, "sagecomm", SUMMED)


def test_every_type_on_gloo(world: Callable[[int], World]) -> None:
    world(2).run(every_type, "gloo", GLOO, backend="gloo")


def mixed_with_bool() -> None:
    """The sum of bool is "any", as in an all_reduce alone; max of bool, int64 and bfloat16 beside each other."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def make() -> list[torch.Tensor]:
        flags = torch.zeros(size + 1, dtype=torch.bool)
        flags[rank] = True
        return [
            flags,
            torch.arange(3) * (rank + 1),
            torch.full((2, 2), float(rank), dtype=torch.bfloat16),
            flags.clone(),
        ]

    for op in "sum", "max":
        alone = [sagecomm.all_reduce(t, op) for t in make()]
        equal(fused_all_reduce(make(), op), alone)
        assert alone[0].tolist() == [True] * size + [False]
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)avg is not defined for bool"):
        fused_all_reduce(make(), "avg")
    assert fused_all_reduce([torch.ones(1)])[0].item() == size


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_bool_beside_others(world: Callable[[int], World], name: str) -> None:
    world(3).run(mixed_with_bool, backend=name)


def all_forms(name: str) -> None:
    """Strided tensors, scalars, nothing at all, the same tensor among views of others, other reductions."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = torch.zeros(6, 4)
    wide[:, 1] = rank + 1.0
    row, scalar, transposed = wide[:, 1], torch.tensor(float(rank)), (torch.arange(6.0).reshape(2, 3) + rank).t()
    fused_all_reduce([row, scalar, torch.empty(0, 3), transposed])
    assert wide[:, 1].eq(sum(range(1, size + 1))).all()
    assert wide[:, [0, 2, 3]].eq(0).all()
    assert scalar.item() == sum(range(size))
    assert torch.equal(transposed, (size * torch.arange(6.0).reshape(2, 3) + sum(range(size))).t())
    before = sequence()
    assert fused_all_reduce([]) == []
    assert fused_all_reduce([], async_op=True).wait() == []
    assert CommFusionBuffer().flush_and_all_reduce() == []
    assert sequence() == before
    assert [t.shape for t in fused_all_reduce([torch.empty(0), torch.empty(2, 0)])] == [(0,), (2, 0)]
    ones = [torch.full((3,), float(rank + 1)), torch.full((2,), 2.0 * rank)]
    mean, least = fused_all_reduce(ones, "avg")
    torch.testing.assert_close(mean, torch.full((3,), (size + 1) / 2))
    torch.testing.assert_close(least, torch.full((2,), float(size - 1)))
    assert fused_all_reduce([torch.full((2,), rank)], dist.ReduceOp.MAX)[0].tolist() == [size - 1] * 2
    with pytest.raises(ValueError, match="fused_all_reduce: unknown reduction 'mean'"):
        fused_all_reduce([torch.ones(1)], "mean")


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_forms_of_tensors(world: Callable[[int], World], name: str, size: int) -> None:
    world(size).run(all_forms, name, backend=name)


def grows() -> None:
    """A buffer that is smaller than a tensor takes it, and what is full goes on to take more: nothing is lost."""
    rank, size = dist.get_rank(), dist.get_world_size()
    buffer = CommFusionBuffer(max_size_mb=1 / 1024)
    assert not buffer.full
    tensors = [torch.full((n,), float(rank + i)) for i, n in enumerate([100, 400, 3, 256])]
    full = []
    for tensor in tensors:
        assert buffer.add_tensor(tensor)
        full.append(buffer.full)
    assert full == [False, True, True, True]
    tensors[0] += 1  # what counts is the content when the buffer is flushed
    found = buffer.flush_and_all_reduce(op="sum")
    offsets = [1, 1, 2, 3]
    for tensor, offset in zip(found, offsets, strict=True):
        assert tensor.eq(sum(range(size)) + offset * size).all()
    assert not buffer.full

    # As a training loop uses it: flushed whenever it is full.
    gradients = [torch.full((200 + i,), float(i + rank)) for i in range(21)]
    flushes = 0
    for gradient in gradients:
        buffer.add_tensor(gradient)
        if buffer.full:
            buffer.flush_and_all_reduce(op="avg")
            flushes += 1
    assert flushes == 10  # 1 KiB is reached with every second one
    assert len(buffer) == 1
    buffer.flush_and_all_reduce(op="avg")
    for i, gradient in enumerate(gradients):
        torch.testing.assert_close(gradient, torch.full((200 + i,), i + (size - 1) / 2))

    buffer.add_tensor(gradients[0])
    buffer.reset()
    assert len(buffer) == 0
    before = gradients[0].clone()
    assert buffer.flush_and_all_reduce() == []
    assert torch.equal(gradients[0], before)

    first = torch.full((4,), float(rank))
    buffer.add_tensor(first)
    with pytest.raises(ValueError, match="unknown reduction"):
        buffer.flush_and_all_reduce(op="summe")
    assert len(buffer) == 1  # what was refused is still there
    future = buffer.flush_and_all_reduce(async_op=True)
    buffer.add_tensor(torch.full((4,), 2.0))
    assert future.wait() == [first]
    assert first.eq(sum(range(size))).all()
    assert buffer.flush_and_all_reduce(op="max")[0].eq(2).all()


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_a_buffer_grows(world: Callable[[int], World], name: str) -> None:
    world(2).run(grows, backend=name)


def test_what_is_no_buffer_is_refused() -> None:
    for wrong in 0, -1, float("nan"):
        with pytest.raises(ValueError, match="max_size_mb must be above 0"):
            CommFusionBuffer(wrong)
    with pytest.raises(TypeError, match="max_size_mb must be a number, got str"):
        CommFusionBuffer("5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        CommFusionBuffer().add_tensor([1.0])  # type: ignore[arg-type]
    buffer = CommFusionBuffer(25)
    buffer.add_tensor(torch.ones(3))
    assert repr(buffer) == "<CommFusionBuffer: 1 tensors, 12 of 26214400 bytes>"
    with pytest.raises(ValueError, match="flush_and_all_reduce: call init_process_group first"):
        buffer.flush_and_all_reduce()
    with pytest.raises(ValueError, match="fused_all_reduce: call init_process_group first"):
        fused_all_reduce([torch.ones(1)])


def sparse() -> None:
    """Refused before the dense tensors before it are sent."""
    first = torch.ones(2)
    with pytest.raises(ValueError, match=r"fused_all_reduce: tensor 1 has the layout torch\.sparse_coo"):
        fused_all_reduce([first, torch.sparse_coo_tensor([[0]], [1.0], (5,))])
    assert first.eq(1).all()


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_sparse_tensors_are_refused(world: Callable[[int], World], name: str) -> None:
    world(2).run(sparse, backend=name)


def differing() -> None:
    """Ranks that pass other lengths get a mismatch, from the call and from the future."""
    tensors = [torch.ones(3), torch.ones(2 + dist.get_rank())]
    with pytest.raises(sagecomm.CollectiveMismatch):
        fused_all_reduce(tensors, async_op=True).wait()


def test_ranks_that_differ(world: Callable[[int], World]) -> None:
    world(2).run(differing)
