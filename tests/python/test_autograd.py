"""The collectives with gradients, against gradients of a dense computation on one rank, in fp64.

The dense computation has the inputs of all ranks as one tensor of shape [ranks, ...]; each rank's part of its gradient
is what that rank must get. gradcheck compares with differences, gradgradcheck the second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from sagecomm import autograd
from selection import quickly
from worlds import World

Dense = Callable[[torch.Tensor], list[torch.Tensor]]


def dense_sum(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.sum(0)] * len(x)


def dense_all_to_all(x: torch.Tensor, scatter: int, gather: int) -> list[torch.Tensor]:
    n = len(x)
    return [torch.cat([x[s].chunk(n, scatter)[r] for s in range(n)], gather) for r in range(n)]


def dense_uneven(x: torch.Tensor) -> list[torch.Tensor]:
    """Rank s sends r + 1 rows to rank r, of those that it has."""
    n = len(x)
    splits = [r + 1 for r in range(n)]
    return [torch.cat([x[s][: sum(splits)].split(splits)[r] for s in range(n)]) for r in range(n)]


def uneven(x: torch.Tensor) -> torch.Tensor:
    size, rank = dist.get_world_size(), dist.get_rank()
    sent = [r + 1 for r in range(size)]
    return autograd.all_to_all_uneven(x[: sum(sent)], [rank + 1] * size, sent)


CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Dense]] = {
    "all_reduce": (autograd.all_reduce, dense_sum),
    "all_reduce avg": (lambda x: autograd.all_reduce(x, "avg"), lambda x: [x.mean(0)] * len(x)),
    "all_gather": (autograd.all_gather, lambda x: [x.flatten(0, 1)] * len(x)),
    "all_gather of columns": (lambda x: autograd.all_gather(x, -1), lambda x: [torch.cat(list(x), -1)] * len(x)),
    "reduce_scatter": (autograd.reduce_scatter, lambda x: list(x.sum(0).chunk(len(x)))),
    "reduce_scatter avg": (
        lambda x: autograd.reduce_scatter(x, "avg", dim=1),
        lambda x: list(x.mean(0).chunk(len(x), 1)),
    ),
    "broadcast": (lambda x: autograd.broadcast(x, dist.get_world_size() - 1), lambda x: [x[-1]] * len(x)),
    "all_to_all": (autograd.all_to_all, lambda x: dense_all_to_all(x, 0, 0)),
    "all_to_all of two dimensions": (
        lambda x: autograd.all_to_all(x, scatter_dim=1, gather_dim=0),
        lambda x: dense_all_to_all(x, 1, 0),
    ),
    "all_to_all_uneven": (uneven, dense_uneven),
}


def gradients(case: str) -> None:
    """Each rank has a loss of its own; the gradient is that of their sum."""
    collective, dense = CASES[case]
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(11)
    shape = (12, 24)  # divisible by 1, 2, 3 and 4
    inputs = torch.randn(size, *shape, dtype=torch.float64, generator=generator).requires_grad_()
    outputs = dense(inputs)
    weights = [torch.randn(o.shape, dtype=torch.float64, generator=generator) for o in outputs]

    def loss(output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (output.square() * weight).sum()

    whole = torch.stack([loss(o, w) for o, w in zip(outputs, weights, strict=True)]).sum()
    (expected,) = torch.autograd.grad(whole, inputs, create_graph=True)
    (second,) = torch.autograd.grad(expected.sin().sum(), inputs)

    x = inputs.detach()[rank].clone().requires_grad_()
    kept = x.detach().clone()
    y = collective(x)
    torch.testing.assert_close(y, outputs[rank])
    assert y.data_ptr() != x.data_ptr()
    (grad,) = torch.autograd.grad(loss(y, weights[rank]), x, create_graph=True)
    torch.testing.assert_close(grad, expected[rank])
    (twice,) = torch.autograd.grad(grad.sin().sum(), x)
    torch.testing.assert_close(twice, second[rank])
    assert torch.equal(x.detach(), kept)  # inputs stay as they are


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", quickly([2, 3], [1, 2, 3, 4]))
def test_gradients_equal_those_of_a_dense_computation(world: Callable[[int], World], case: str, size: int) -> None:
    world(size).run(gradients, case)


@pytest.mark.parametrize("case", CASES)
def test_gradients_on_gloo(world: Callable[[int], World], case: str) -> None:
    world(2).run(gradients, case, backend="gloo")


def one_input(case: str) -> None:
    """All ranks have one input: the gradients of all ranks add up to that of the sum of the losses by it."""
    collective, dense = CASES[case]
    size, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    outputs = dense(x.expand(size, 4, 4))
    (expected,) = torch.autograd.grad(torch.stack([o.sin().sum() for o in outputs]).sum(), x, retain_graph=True)
    torch.testing.assert_close(collective(x), outputs[rank])
    (mine,) = torch.autograd.grad(collective(x).sin().sum(), x)
    dist.all_reduce(mine)
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("case", CASES)
def test_ranks_with_one_input(world: Callable[[int], World], case: str) -> None:
    world(2).run(one_input, case)


def checked() -> None:
    """torch's own gradcheck, on one rank, where a function of its input is all that there is."""
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    functions: list[Any] = [collective for collective, _ in CASES.values()]
    functions += [autograd.copy_to_group, autograd.reduce_from_group]
    functions += [autograd.gather_from_group, autograd.scatter_to_group]
    for function in functions:
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,))


def test_gradcheck(world: Callable[[int], World]) -> None:
    world(1).run(checked)


def tensor_parallel() -> None:
    """Two layers of a transformer's MLP, parted by columns and then by rows: Shoeybi et al., figure 3a."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x, first, second, weight = random(5, 6), random(12, 6), random(4, 12), random(5, 4)
    x.requires_grad_()
    first.requires_grad_()
    second.requires_grad_()
    dense = F.linear(F.gelu(F.linear(x, first)), second)
    expected = torch.autograd.grad((dense * weight).sum(), [x, first, second])

    mine = x.detach().clone().requires_grad_()
    columns = first.detach().chunk(size, 0)[rank].clone().requires_grad_()
    rows = second.detach().chunk(size, 1)[rank].clone().requires_grad_()
    hidden = F.gelu(F.linear(autograd.copy_to_group(mine), columns))
    output = autograd.reduce_from_group(F.linear(hidden, rows))
    torch.testing.assert_close(output, dense)
    found = torch.autograd.grad((output * weight).sum(), [mine, columns, rows])
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1].chunk(size, 0)[rank])
    torch.testing.assert_close(found[2], expected[2].chunk(size, 1)[rank])

    # The output of a layer whose columns are parted, put together; and a replicated input that is parted by columns.
    mine = x.detach().clone().requires_grad_()
    gathered = autograd.gather_from_group(F.linear(autograd.copy_to_group(mine), columns))
    torch.testing.assert_close(gathered, F.linear(x, first))
    full = random(5, 12)
    torch.testing.assert_close(
        torch.autograd.grad((gathered * full).sum(), [mine, columns])[1],
        torch.autograd.grad((F.linear(x, first) * full).sum(), first)[0].chunk(size, 0)[rank],
    )
    wide = random(5, 12).requires_grad_()
    output = autograd.reduce_from_group(F.linear(autograd.scatter_to_group(wide), rows))
    torch.testing.assert_close(output, F.linear(wide, second))
    torch.testing.assert_close(
        torch.autograd.grad((output * weight).sum(), wide)[0],
        torch.autograd.grad((F.linear(wide, second) * weight).sum(), wide)[0],
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tensor_parallel_layers(world: Callable[[int], World], size: int) -> None:
    world(size).run(tensor_parallel)


def in_a_part_of_the_job() -> None:
    """The source is a rank of the job, as in torch.distributed; a reduction may be one of torch.distributed."""
    group = dist.new_group([1, 2])
    rank = dist.get_rank()
    x = torch.tensor([float(rank)], requires_grad=True)
    if rank == 0:
        with pytest.raises(ValueError, match=r"autograd\.broadcast: this rank is not in the group"):
            autograd.broadcast(x, 2, group)
        return
    y = autograd.broadcast(x, 2, group)
    assert y.item() == 2
    (y * rank).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == (1 + 2 if rank == 2 else 0)
    with pytest.raises(ValueError, match=r"autograd\.broadcast: rank 0 of the job is not in the group of the ranks"):
        autograd.broadcast(x, 0, group)
    assert autograd.all_reduce(x, dist.ReduceOp.AVG, group).item() == 1.5
    pair = torch.full((2,), float(rank))
    assert autograd.reduce_scatter(pair, dist.ReduceOp.SUM, group=group).item() == 3


@pytest.mark.parametrize("name", ["sagecomm", "gloo"])
def test_groups_of_a_part_of_the_job(world: Callable[[int], World], name: str) -> None:
    world(3).run(in_a_part_of_the_job, backend=name)


def changed_in_place() -> None:
    """Each function returns a tensor of its own: what is done to it reaches neither the input nor its gradient."""
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [collective for collective, _ in CASES.values()]
    functions += [autograd.copy_to_group, autograd.reduce_from_group, autograd.scatter_to_group]
    functions += [autograd.gather_from_group, lambda x: autograd.gather_from_group(x[:1])]
    for function in functions:
        x = torch.ones(4, 4, requires_grad=True)
        inner = x * 2
        y = function(inner)
        kept = y.detach().clone()
        y.mul_(3).relu_()
        assert torch.equal(inner.detach(), torch.full((4, 4), 2.0)), function
        assert torch.equal(y.detach(), kept * 3), function
        (mine,) = torch.autograd.grad(y.sum(), x)
        (plain,) = torch.autograd.grad(function(x * 2).sum(), x)
        assert torch.equal(mine, 3 * plain), function
        bare = torch.ones(4, 4)  # without autograd
        function(bare).zero_()
        assert bare.eq(1).all(), function


def test_outputs_may_be_changed_in_place(world: Callable[[int], World]) -> None:
    world(2).run(changed_in_place)


def refused() -> None:
    size = dist.get_world_size()
    for op in "max", "prod":
        with pytest.raises(ValueError, match=f"autograd.all_reduce: there is no gradient of '{op}' here"):
            autograd.all_reduce(torch.ones(2), op)
    with pytest.raises(ValueError, match=r"autograd.reduce_scatter: there is no gradient of .*MAX.* here"):
        autograd.reduce_scatter(torch.ones(2), dist.ReduceOp.MAX)
    with pytest.raises(ValueError, match=r"autograd\.all_reduce: unknown reduction 'mean'"):
        autograd.all_reduce(torch.ones(2), "mean")
    with pytest.raises(ValueError, match=r"autograd.reduce_scatter: dimension 0 of shape \[3\] is no multiple of 2"):
        autograd.reduce_scatter(torch.ones(3))
    with pytest.raises(ValueError, match=r"autograd.scatter_to_group: dimension 1 of shape \[2, 5\]"):
        autograd.scatter_to_group(torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"autograd.all_gather: there is no dimension 0 in shape \[\]"):
        autograd.all_gather(torch.ones(()))
    with pytest.raises(ValueError, match=r"autograd.all_to_all: there is no dimension 2 in shape \[2, 2\]"):
        autograd.all_to_all(torch.ones(2, 2), 0, 2)
    for output, sent in ([1, 1], [1, 1]), ([1], [3]), ([1, 2], [1, 1, 1]):
        with pytest.raises(ValueError, match=f"autograd.all_to_all_uneven: splits .* of 3 rows for {size} ranks"):
            autograd.all_to_all_uneven(torch.ones(3), output, sent)


def test_refusals(world: Callable[[int], World]) -> None:
    world(2).run(refused)
