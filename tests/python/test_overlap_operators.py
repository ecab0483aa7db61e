"""Operators that communicate one slice while the next one is computed: results, gradients, and the number of slices."""

from __future__ import annotations

import gc
import itertools
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import sagecomm
from sagecomm import _native
from sagecomm._overlap import _slices
from selection import quickly

ROWS, WIDTH, OUTPUTS = 8, 12, 6


def seeded(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's part, a leaf of its own."""
    own = tensor.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()]
    return own.clone().requires_grad_()


def near(got: torch.Tensor | None, want: torch.Tensor | None, dim: int | None = None) -> None:
    """The tensor is that of one process, or this rank's part of it along a dimension."""
    assert got is not None
    assert want is not None
    if dim is not None:
        want = want.chunk(dist.get_world_size(), dim)[dist.get_rank()]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def linears(slices: int | None) -> None:
    x, weight, bias = seeded(ROWS, 2, WIDTH), seeded(OUTPUTS * 2, WIDTH, seed=2), seeded(OUTPUTS * 2, seed=3)
    factors = seeded(ROWS, 2, OUTPUTS * 2, seed=4).detach()
    want = F.linear(x, weight, bias)
    (want * factors).sum().backward()

    mine, columns, whole_bias = part(x, 2), part(weight, 1), bias.detach().clone().requires_grad_()
    y = sagecomm.linear_all_reduce(mine, columns, whole_bias, slices=slices)
    (y * factors).sum().backward()
    near(y, want)
    near(mine.grad, x.grad, 2)
    near(columns.grad, weight.grad, 1)
    near(whole_bias.grad, bias.grad)

    mine, columns, whole_bias = part(x, 2), part(weight, 1), bias.detach().clone().requires_grad_()
    y = sagecomm.linear_reduce_scatter(mine, columns, whole_bias, slices=slices)
    (y * part(factors, 0).detach()).sum().backward()
    near(y, want, 0)
    near(mine.grad, x.grad, 2)
    near(columns.grad, weight.grad, 1)
    near(whole_bias.grad, bias.grad)

    mine, rows, own_bias = part(x, 0), part(weight, 0), part(bias, 0)
    y = sagecomm.all_gather_linear(mine, rows, own_bias, slices=slices)
    (y * part(factors, 2).detach()).sum().backward()
    near(y, want, 2)
    near(mine.grad, x.grad, 0)
    near(rows.grad, weight.grad, 0)
    near(own_bias.grad, bias.grad, 0)


LINEARS = list(itertools.product((1, 2, 4), (None, 1, 2, 3, 100)))


@pytest.mark.parametrize("case", quickly([(1, 2), (2, None), (2, 3), (4, 1), (4, 100)], LINEARS), ids=str)
def test_linears_equal_the_unsplit_one_with_gradients(world, case):
    size, slices = case
    world(size).run(linears, slices)


def convolution(images: int, slices: int | None) -> None:
    x, weight, bias = seeded(images, 8, 7, 6), seeded(6, 8, 3, 2, seed=2), seeded(6, seed=3)
    geometry: dict[str, Any] = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    want = F.conv2d(x, weight, bias, **geometry)
    factors = seeded(*want.shape, seed=4).detach()
    (want * factors).sum().backward()
    mine, channels, whole_bias = part(x, 1), part(weight, 1), bias.detach().clone().requires_grad_()
    y = sagecomm.conv2d_all_reduce(mine, channels, whole_bias, slices=slices, **geometry)
    (y * factors).sum().backward()
    near(y, want)
    near(mine.grad, x.grad, 1)
    near(channels.grad, weight.grad, 1)
    near(whole_bias.grad, bias.grad)
    with pytest.raises(ValueError, match="expected x"):
        sagecomm.conv2d_all_reduce(mine[0], channels)
    with pytest.raises(ValueError, match="expected an input of at least one dimension"):
        sagecomm.linear_all_reduce(torch.tensor(1.0), channels[:, :, 0, 0])


CONVOLUTIONS = list(itertools.product((1, 2, 4), (1, 5), (None, 1, 2)))
QUICK_CONVOLUTIONS = [(1, 5, 2), (2, 1, 2), (2, 5, None), (4, 5, 2)]


@pytest.mark.parametrize("case", quickly(QUICK_CONVOLUTIONS, CONVOLUTIONS), ids=str)
def test_a_convolution_equals_the_unsplit_one_with_gradients(world, case):
    size, images, slices = case
    world(size).run(convolution, images, slices)


def operations_of(slices: int) -> list[tuple[str, int]]:
    """Collectives of one call, by kind and size class."""
    sagecomm.linear_all_reduce(torch.ones(ROWS, WIDTH), torch.ones(OUTPUTS, WIDTH), slices=slices)
    rows = sagecomm.get_stats()["rows"]
    return [(row["op"], row["count"]) for row in rows]


def test_each_slice_is_one_collective(world):
    assert world(2).run(operations_of, 4) == [[("all_reduce", 4)]] * 2
    assert world(2).run(operations_of, 1) == [[("all_reduce", 1)]] * 2


def predicted(threads: int) -> list[int]:
    """Numbers of slices where the computations of both ranks keep so many processors busy."""
    weight = torch.ones(256, 256)
    ask = {"op": "all_reduce", "parts": 64, "like": weight, "group": dist.group.WORLD}
    sizes = [(8, 1000), (1 << 20, 1 << 28), (64 << 20, 1 << 33)]
    real, torch.get_num_threads = torch.get_num_threads, lambda: threads
    try:
        return [_slices.number_of_slices(nbytes=nbytes, operations=count, **ask) for nbytes, count in sizes]
    finally:
        torch.get_num_threads = real


def test_all_processors_busy_means_one_slice(world):
    """Ranks of one host communicate with its processors: where all of these compute, nothing could be hidden."""
    assert world(2).run(predicted, 512) == [[1, 1, 1]] * 2


def agreed() -> tuple[list[int], int, int]:
    """The ranks compute at different speeds, and the fast one must not choose other slices than the slow one."""
    real = _slices._time_of_a_product
    _slices._time_of_a_product = lambda *_: 1e-3 * (1 + dist.get_rank())
    before = sagecomm.get_stats()["all_reduce_count"]
    try:
        numbers = predicted(1 + dist.get_rank())
    finally:
        _slices._time_of_a_product = real
    ((_, threads),) = _slices._known[id(dist.group.WORLD)].speeds.values()
    return numbers, threads, sagecomm.get_stats()["all_reduce_count"] - before


def test_ranks_agree_on_the_number_of_slices_with_one_all_reduce(world):
    first, second = world(2).run(agreed)
    assert first == second
    assert first[1:] == (2, 1)


def remembered() -> tuple[list[int], bool]:
    """Answers, each asked for once, and whether they are dropped with their group."""
    group = dist.new_group()
    question: dict[str, Any] = {"op": "all_reduce", "nbytes": 1 << 20, "parts": 8, "like": torch.ones(4)}
    real, asked = _slices._ask, []

    def answer(op: str, nbytes: int, parts: int, operations: int, like: torch.Tensor, pg: Any) -> int:
        asked.append(operations)
        return operations // 10

    _slices._ask = answer
    try:
        found = [_slices.number_of_slices(**question, operations=n, group=group) for n in (10, 20, 10, 20)]
        assert asked == [10, 20]
        assert found == [1, 2, 1, 2]
        key = id(group)
        before = key in _slices._known
        dist.destroy_process_group(group)
        del group
        gc.collect()
    finally:
        _slices._ask = real
    return found, before and key not in _slices._known


def test_answers_are_remembered_as_long_as_their_group_lives(world):
    assert world(2).run(remembered) == [([1, 2, 1, 2], True)] * 2


def of_another_backend() -> int:
    group = dist.new_group(backend="gloo")
    like = torch.ones(4)
    return _slices.number_of_slices("all_reduce", 1 << 30, parts=64, operations=1 << 40, like=like, group=group)


def test_groups_without_a_cost_model_have_one_slice(world):
    assert world(2).run(of_another_backend) == [1, 1]


def under_autocast(dtype: torch.dtype) -> None:
    """Types are those of F.linear and F.conv2d, on the sum of all ranks' parts; float64 stays, as there."""
    x, weight, bias = seeded(ROWS, WIDTH).detach(), seeded(OUTPUTS, WIDTH, seed=2).detach(), torch.ones(OUTPUTS)
    image, kernel = seeded(2, 4, 5, 5).detach(), seeded(3, 4, 3, 3, seed=2).detach()
    for to in (torch.float32, torch.float64):
        whole, columns, whole_bias = (t.to(to) for t in (x, weight, bias))
        mine = part(whole, 1)
        with torch.autocast("cpu", dtype):
            want = F.linear(whole, columns, whole_bias)
            reduced = sagecomm.linear_all_reduce(mine, part(columns, 1), whole_bias)
            scattered = sagecomm.linear_reduce_scatter(mine, part(columns, 1), whole_bias)
            gathered = sagecomm.all_gather_linear(part(whole, 0), part(columns, 0), part(whole_bias, 0))
            convolved = F.conv2d(image.to(to), kernel.to(to))
            summed = sagecomm.conv2d_all_reduce(part(image.to(to), 1), part(kernel.to(to), 1))
        assert want.dtype == (torch.float64 if to == torch.float64 else dtype)
        bound = 1e-12 if to == torch.float64 else 8 * torch.finfo(dtype).eps
        for got, expected in [
            (reduced, want),
            (scattered, want.chunk(2)[dist.get_rank()]),
            (gathered, want.chunk(2, 1)[dist.get_rank()]),
            (summed, convolved),
        ]:
            torch.testing.assert_close(got, expected, rtol=bound, atol=bound * 4)
        reduced.sum().backward()
        assert mine.grad is not None
        assert mine.grad.dtype == to


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_that_of_the_unsplit_operators(world, dtype):
    world(2).run(under_autocast, dtype)


def complex_linear() -> None:
    x, weight = (seeded(4, 8, 2, seed=at).detach() for at in (1, 2))
    x, weight = torch.view_as_complex(x).requires_grad_(), torch.view_as_complex(weight).requires_grad_()
    want = F.linear(x, weight)
    (want * 1j).sum().abs().backward()
    mine, columns = part(x, 1), part(weight, 1)
    y = sagecomm.linear_all_reduce(mine, columns, slices=2)
    (y * 1j).sum().abs().backward()
    near(y, want)
    near(mine.grad, x.grad, 1)
    near(columns.grad, weight.grad, 1)


def test_gradients_of_complex_numbers_are_conjugate(world):
    world(2).run(complex_linear)


def without_elements(rows: int, inputs: int, outputs: int) -> None:
    """No rows, no inputs or no outputs: the shapes and gradients of F.linear, whose sum over no inputs is the bias."""
    size = dist.get_world_size()
    x, weight = seeded(rows * size, 2, inputs), seeded(outputs, inputs, seed=2)
    bias = seeded(outputs, seed=3)
    want = F.linear(torch.cat([x] * size, 2), torch.cat([weight] * size, 1), bias)

    def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [t.detach().clone().requires_grad_() for t in tensors]

    calls: list[tuple[Callable[..., torch.Tensor], torch.Tensor, list[torch.Tensor]]] = [
        (sagecomm.linear_all_reduce, want, leaves(x, weight, bias)),
        (sagecomm.linear_reduce_scatter, want[rows * dist.get_rank() :][:rows], leaves(x, weight, bias)),
        (sagecomm.all_gather_linear, F.linear(x, weight, bias), [part(x, 0), *leaves(weight, bias)]),
    ]
    for call, expected, arguments in calls:
        for slices in (None, 2):
            y = call(*arguments, slices=slices)
            near(y, expected)
            y.sum().backward()
        for tensor in arguments:
            assert tensor.grad is not None
            assert tensor.grad.shape == tensor.shape
        assert arguments[2].grad.eq(2 * 2 * rows * size).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)], ids=str)
def test_linears_take_tensors_without_elements(world, shape):
    world(2).run(without_elements, *shape)


def convolutions_without_elements() -> None:
    x, weight = torch.ones(0, 2, 5, 5, requires_grad=True), torch.ones(3, 2, 3, 3, requires_grad=True)
    y = sagecomm.conv2d_all_reduce(x, weight, torch.ones(3))
    assert y.shape == (0, 3, 3, 3)
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(0).all()
    for image, kernel in [
        ((2, 0, 5, 5), (3, 0, 3, 3)),
        ((2, 2, 5, 5), (0, 2, 3, 3)),
        ((2, 2, 0, 5), (3, 2, 3, 3)),
        ((2, 2, 2, 5), (3, 2, 3, 3)),
    ]:
        with pytest.raises(ValueError, match="conv2d_all_reduce: there is no result of x"):
            sagecomm.conv2d_all_reduce(torch.ones(image), torch.ones(kernel))


def test_convolutions_without_elements_are_right_or_refused(world):
    world(2).run(convolutions_without_elements)


def convolutions_of_no_geometry() -> None:
    for name, value in [("padding", "same"), ("padding", -1), ("stride", 0), ("stride", (1,)), ("dilation", (1, 0))]:
        with pytest.raises(ValueError, match=re.escape(f"conv2d_all_reduce: {name}={value!r}: expected a whole")):
            sagecomm.conv2d_all_reduce(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), **{name: value})


def test_a_convolution_refuses_what_is_no_number_for_each_side(world):
    world(1).run(convolutions_of_no_geometry)


def outside() -> None:
    """The second rank is not in the group."""
    group = dist.new_group([0])
    if dist.get_rank() == 1:
        with warnings.catch_warnings():
            refused_outside(group)
    dist.barrier()  # nothing was started that would come between


def refused_outside(group: dist.ProcessGroup) -> None:
    x, weight = torch.ones(2, 4), torch.ones(4, 4)
    parameter = nn.Parameter(x)
    parameter.grad = x
    nn_, parallel = sagecomm.nn, sagecomm.parallel

    def scope() -> None:
        with sagecomm.overlap(group):
            raise AssertionError("entered")

    def produce(*_: object) -> None:
        raise AssertionError("computed")

    calls: dict[str, Callable[[], object]] = {
        "linear_all_reduce": lambda: sagecomm.linear_all_reduce(x, weight, group=group, slices=2),
        "linear_reduce_scatter": lambda: sagecomm.linear_reduce_scatter(x, weight, group=group),
        "all_gather_linear": lambda: sagecomm.all_gather_linear(x, weight, group=group),
        "conv2d_all_reduce": lambda: sagecomm.conv2d_all_reduce(x[None, None], weight[None, None], group=group),
        "chunked_all_reduce": lambda: sagecomm.chunked_all_reduce(x, chunk_bytes=8, group=group, produce=produce),
        "fused_allreduce_gradients": lambda: sagecomm.fused_allreduce_gradients([parameter], group),
        "fused_all_reduce": lambda: sagecomm.fused_all_reduce([x], group=group),
        "overlap": scope,
        "OverlapScheduler": lambda: sagecomm.OverlapScheduler(nn.Linear(2, 2), group),
        "ColumnParallelLinear": lambda: nn_.ColumnParallelLinear(4, 4, group=group),
        "RowParallelLinear": lambda: nn_.RowParallelLinear(4, 4, group=group),
        "VocabParallelEmbedding": lambda: nn_.VocabParallelEmbedding(4, 4, group=group),
        "ring": lambda: parallel.ring(x, group),
        "ring_shift": lambda: parallel.ring_shift(x, group),
        "autograd.gather_from_group": lambda: sagecomm.autograd.gather_from_group(x, group=group),
        "autograd.scatter_to_group": lambda: sagecomm.autograd.scatter_to_group(x, group=group),
        "autograd.copy_to_group": lambda: sagecomm.autograd.copy_to_group(x, group=group),
        "autograd.broadcast": lambda: sagecomm.autograd.broadcast(x, 0, group=group),
    }
    warnings.simplefilter("ignore")  # torch warns as well
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"sagecomm: {name}: this rank is not in the group"):
            call()


def test_ranks_outside_the_group_are_refused(world):
    world(2).run(outside)


QUESTION = {"op": "all_reduce", "bytes": 64 << 20, "ranks": 2}


def answer(**overlap: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_native.load().explain(json.dumps({**QUESTION, "overlap": overlap})))
    return answer


def explained() -> None:
    communicate = answer(seconds=0, parts=64, threads=0)["overlap"]["whole_seconds"]
    hidden = answer(seconds=communicate, parts=64, threads=0)["overlap"]
    assert hidden["busy"] == 0
    assert hidden["whole_seconds"] == pytest.approx(2 * communicate, rel=1e-6)
    if hidden["processors"] >= 2:  # one for each rank's progress engine
        assert hidden["slices"] > 1
        assert hidden["seconds"] < hidden["whole_seconds"]
    busy = answer(seconds=0.05, parts=64, threads=512)["overlap"]
    assert (busy["slices"], busy["busy"]) == (1, 1024)
    assert "processors busy" in busy["why"]
    assert "overlap" not in json.loads(_native.load().explain(json.dumps(QUESTION)))
    for wrong in ({"seconds": -1}, {"parts": 0}, {"threads": -1}):
        told = answer(**{"seconds": 1, "parts": 2, "threads": 1, **wrong})
        assert "overlap: " in told["error"], told


def test_the_core_explains_the_number_of_slices(fresh_world):
    fresh_world(1).run(explained)


def test_rows_are_cut_into_equal_spans():
    assert _slices.spans(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert _slices.spans(2, 5) == [slice(0, 1), slice(1, 2)]
    assert _slices.spans(0, 5) == []
