"""create_comm_backend() and the operations of what it returns, on sagecomm and on gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from contributions import contribution
from sagecomm import create_comm_backend
from selection import quickly
from worlds import World

BACKENDS = ["sagecomm", "gloo"]
CPU = torch.device("cpu")


def all_ranks(i: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """What the ranks contribute."""
    n = torch.Size(shape).numel()
    return [contribution(rank, i, n, dtype).reshape(shape) for rank in range(dist.get_world_size())]


def mine(i: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return all_ranks(i, shape, dtype)[dist.get_rank()].clone()


REFERENCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stack: stack.sum(0),
    "avg": lambda stack: stack.mean(0),
    "prod": lambda stack: stack.prod(0),
    "min": lambda stack: stack.amin(0),
    "max": lambda stack: stack.amax(0),
}
BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reductions(name: str) -> None:
    backend = create_comm_backend(name)
    shape = (3, 5)
    for op, reference in REFERENCES.items():
        expected = reference(torch.stack(all_ranks(0, shape)))
        tensor = mine(0, shape)
        assert backend.all_reduce(tensor, op) is tensor
        torch.testing.assert_close(tensor, expected)
        tensor = mine(0, shape)
        future = backend.all_reduce(tensor, op=op, async_op=True)
        assert isinstance(future, torch.futures.Future)
        assert future.wait() is tensor
        torch.testing.assert_close(tensor, expected)
        assert future.done()
        assert future.value() is tensor
    for op, combine in BITWISE.items():
        whole = [t.to(torch.int64) for t in all_ranks(1, shape)]
        expected = whole[0]
        for other in whole[1:]:
            expected = combine(expected, other)
        assert torch.equal(backend.all_reduce(mine(1, shape, torch.int64), op), expected), op
    total = torch.stack(all_ranks(2, (7,), torch.int64)).sum(0)
    mean = backend.all_reduce(mine(2, (7,), torch.int64), "avg")
    assert torch.equal(mean, torch.div(total, dist.get_world_size(), rounding_mode="trunc"))
    assert torch.equal(backend.all_reduce(mine(2, (7,)), dist.ReduceOp.SUM), total.float())


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("size", quickly([3], [1, 2, 3]))
def test_reductions(world: Callable[[int], World], name: str, size: int) -> None:
    world(size).run(reductions, name, backend=name)


def shapes(name: str) -> None:
    """The documented shapes of all_gather and reduce_scatter, `output` honoured, and what does not fit refused."""
    backend = create_comm_backend(name)
    size, rank = backend.world_size, backend.rank
    for shape in [(4,), (2, 3), (2, 0), ()]:
        each = all_ranks(3, shape)
        joined = torch.cat(each) if shape else torch.stack(each)
        gathered = backend.all_gather(mine(3, shape))
        assert gathered.shape == joined.shape
        assert torch.equal(gathered, joined)
        for form in joined.shape, (size, *shape):
            for asynchronous in False, True:
                output = torch.full(form, -1.0)
                result = backend.all_gather(mine(3, shape), output, async_op=asynchronous)
                assert (result.wait() if isinstance(result, torch.futures.Future) else result) is output
                assert torch.equal(output, joined.reshape(form))
    strided = torch.full((2 * size, 6), -1.0)
    backend.all_gather(mine(4, (2, 3)), strided[:, ::2])
    assert torch.equal(strided[:, ::2], torch.cat(all_ranks(4, (2, 3))))
    assert strided[:, 1::2].eq(-1).all()
    assert torch.equal(backend.all_gather(mine(4, (3, 2)).t()), torch.cat([t.t() for t in all_ranks(4, (3, 2))]))

    for shape in [(2 * size,), (size, 3), (3 * size, 2, 2), (0, 4)]:
        total = torch.stack(all_ranks(5, shape)).sum(0)
        part = total.reshape(size, shape[0] // size, *shape[1:])[rank]
        given = mine(5, shape)
        scattered = backend.reduce_scatter(given)
        assert torch.equal(given, mine(5, shape))  # the input stays as it is
        assert torch.equal(scattered, part)
        output = torch.full_like(part, -1)
        assert backend.reduce_scatter(mine(5, shape), output=output) is output
        assert torch.equal(output, part)
        future = backend.reduce_scatter(mine(5, shape), "avg", async_op=True)
        torch.testing.assert_close(future.wait(), part / size)
    wide = torch.full((2, 6), -1.0)
    backend.reduce_scatter(mine(6, (2 * size, 3)), output=wide[:, 1::2])
    assert torch.equal(wide[:, 1::2], torch.stack(all_ranks(6, (2 * size, 3))).sum(0)[2 * rank : 2 * rank + 2])
    assert wide[:, ::2].eq(-1).all()

    with pytest.raises(ValueError, match=r"all_gather: output has shape \[5\], torch.float32 on cpu; expected"):
        backend.all_gather(torch.ones(3), torch.empty(5))
    with pytest.raises(ValueError, match=r"all_gather: output has shape .* torch.float64 on cpu; expected .*float32"):
        backend.all_gather(torch.ones(3), torch.empty(3 * size, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"reduce_scatter: output has shape \[3\]"):
        backend.reduce_scatter(torch.ones(2 * size), output=torch.empty(3))
    with pytest.raises(ValueError, match=r"reduce_scatter: the first dimension of shape \[\] is no multiple"):
        backend.reduce_scatter(torch.ones(()))
    if size > 1:
        with pytest.raises(ValueError, match=f"is no multiple of {size}"):
            backend.reduce_scatter(torch.ones(size + 1))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("size", quickly([3], [1, 2, 3]))
def test_shapes_of_blocks(world: Callable[[int], World], name: str, size: int) -> None:
    world(size).run(shapes, name, backend=name)


def other_operations(name: str) -> None:
    backend = create_comm_backend(name)
    size, rank = backend.world_size, backend.rank
    for asynchronous in False, True:

        def value(result: Any) -> Any:
            return result.wait() if isinstance(result, torch.futures.Future) else result

        root = size - 1
        tensor = mine(0, (3, 2))
        assert value(backend.broadcast(tensor, root, async_op=asynchronous)) is tensor
        assert torch.equal(tensor, all_ranks(0, (3, 2))[root])
        for op in "sum", "avg":
            tensor = mine(1, (4,))
            assert value(backend.reduce(tensor, root, op, async_op=asynchronous)) is tensor
            if rank == root:
                torch.testing.assert_close(tensor, REFERENCES[op](torch.stack(all_ranks(1, (4,)))))
        sent = [torch.full((2, 1 + r), float(10 * rank + r)) for r in range(size)]
        received = [torch.empty(2, 1 + rank) for _ in range(size)]
        assert value(backend.all_to_all(sent, received, async_op=asynchronous))[0] is received[0]
        assert all(torch.equal(received[r], torch.full((2, 1 + rank), float(10 * r + rank))) for r in range(size))
        equal = value(
            backend.all_to_all([torch.full((2,), float(10 * rank + r)) for r in range(size)], None, asynchronous)
        )
        assert [t.tolist() for t in equal] == [[10.0 * r + rank] * 2 for r in range(size)]

    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        wide = torch.zeros(2, 12)
        room = wide[:, ::2]
        for turn in 0, 1:
            if rank % 2 == turn:
                backend.send(torch.full((6, 2), float(rank)).t(), right, tag=3)
            else:
                assert backend.recv(room, left, tag=3) is room
        if size % 2 == 0:
            assert room.eq(left).all()
            assert wide[:, 1::2].eq(0).all()
    backend.barrier()

    for wrong in -1, size:
        with pytest.raises(ValueError, match=f"broadcast: src: rank {wrong} is not in the group of {size}"):
            backend.broadcast(torch.ones(1), wrong)
    with pytest.raises(ValueError, match=f"all_to_all: send_list has {size + 1} tensors for {size} ranks"):
        backend.all_to_all([torch.ones(1)] * (size + 1))
    with pytest.raises(ValueError, match="all_reduce: unknown reduction 'mean', there are: sum, avg, prod"):
        backend.all_reduce(torch.ones(1), "mean")
    with pytest.raises(TypeError, match="all_reduce: expected a reduction"):
        backend.all_reduce(torch.ones(1), 3)  # type: ignore[call-overload]
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)avg is not defined for bool"):
        backend.all_reduce(torch.ones(1, dtype=torch.bool), "avg")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("size", quickly([2], [1, 2, 4]))
def test_other_operations(world: Callable[[int], World], name: str, size: int) -> None:
    world(size).run(other_operations, name, backend=name)
