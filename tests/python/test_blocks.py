"""Collectives whose buffers are a block for each rank: reduce_scatter, all_to_all, gather, scatter, and all_gather of
tensors that differ in length."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import reference as ref

SIZES = (1, pytest.param(2, marks=pytest.mark.smoke), 3, 4, 8)
SHORT = (0, 1, 7, 1021)
# Bytes of a block, around what the algorithms tell apart in groups of the sizes above.
LENGTHS = (0, 1, 1168, 4032, 4096, 8193, 65541, 300_001, (2 << 20) + 13)
LENGTH_TYPES = (torch.float32, torch.uint8, torch.bfloat16, torch.complex128)


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


def single(name: str) -> Callable[..., Any]:
    """torch's function for one tensor, which newer versions call by another name."""
    older = {"reduce_scatter_single": "reduce_scatter_tensor", "all_to_all_single": "all_to_all_single"}[name]
    return getattr(dist, name, None) or getattr(dist, older)


def finish(work: Any, async_op: bool) -> None:
    if async_op:
        work.wait()
    else:
        assert work is None


def every_reduction() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in ref.REDUCED:
        for count in SHORT:
            inputs = [ref.values(r, size * count, dtype) for r in range(size)]
            mine = [t[rank * count : (rank + 1) * count] for t in inputs]
            for reduction in ref.EVERY_REDUCTION:
                opts = dist.ReduceScatterOptions()
                opts.reduceOp = ref.reduce_op(reduction)
                for async_op in (False, True):
                    opts.asyncOp = async_op
                    what = f"{ref.name(dtype)} {reduction} x {count}, async {async_op}"
                    out = torch.empty(count, dtype=dtype)
                    if not ref.defined(reduction, dtype):
                        with pytest.raises(RuntimeError, match=f"reduce_scatter: {reduction} is not defined for"):
                            backend()._reduce_scatter_base(out, inputs[rank], opts)
                        continue
                    before = inputs[rank].clone()
                    backend()._reduce_scatter_base(out, inputs[rank], opts).wait()
                    ref.check_reduced(out, reduction, mine, what)
                    ref.check_same(inputs[rank], before, f"{what}: input")
                    listed = torch.empty(count, dtype=dtype)
                    backend().reduce_scatter([listed], [list(inputs[rank].view(size, count))], opts).wait()
                    ref.check_same(listed, out, f"{what}: list")


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter_of_every_type_and_reduction(world, size):
    world(size).run(every_reduction)


def every_length(kind: str) -> None:
    size = dist.get_world_size()
    for length in LENGTHS:
        for number, dtype in enumerate(LENGTH_TYPES):
            if length > 65541 and number != size % 4:
                continue
            count = ref.elements(length, dtype)
            # between[i][j]: what rank i has for rank j
            between = [[ref.values(i, count, dtype, j) for j in range(size)] for i in range(size)]
            for layout in ref.LAYOUTS if length <= 65541 else ("contiguous",):
                for async_op in (False, True):
                    what = f"{kind} of {count} {ref.name(dtype)}, {layout}, async {async_op}"
                    KINDS[kind](between, layout, async_op, what)


Between = list[list[torch.Tensor]]


def reduce_scattered(between: Between, layout: str, async_op: bool, what: str) -> None:
    rank = dist.get_rank()
    mine = ref.place(torch.cat(between[rank]), layout)
    out = ref.place(torch.empty_like(between[rank][rank]), layout)
    finish(single("reduce_scatter_single")(out.tensor, mine.tensor, async_op=async_op), async_op)
    ref.check_reduced(out.tensor.reshape(-1), "SUM", [row[rank] for row in between], what)
    out.check_surroundings(what)
    ref.check_same(mine.tensor, torch.cat(between[rank]), f"{what}: input")


def exchanged(between: Between, layout: str, async_op: bool, what: str) -> None:
    rank = dist.get_rank()
    inputs = [ref.place(t, layout) for t in between[rank]]
    outputs = [ref.place(torch.empty_like(t), layout) for t in between[rank]]
    finish(dist.all_to_all([o.tensor for o in outputs], [i.tensor for i in inputs], async_op=async_op), async_op)
    for r, out in enumerate(outputs):
        ref.check_same(out.tensor, between[r][rank], f"{what}: from rank {r}")
        out.check_surroundings(what)


def exchanged_single(between: Between, layout: str, async_op: bool, what: str) -> None:
    rank, size = dist.get_rank(), len(between)
    want = torch.cat([row[rank] for row in between])
    # Flat, or as many rows as ranks: the first dimension is what is split.
    mine, out = ref.place(torch.cat(between[rank]), "offset"), ref.place(torch.empty_like(want), layout)
    target = out.tensor if out.tensor.dim() == 1 else out.tensor.reshape(-1)
    splits = [want.numel() // size] * size if async_op else None
    finish(single("all_to_all_single")(target, mine.tensor, splits, splits, async_op=async_op), async_op)
    ref.check_same(target, want, what)
    out.check_surroundings(what)


def gathered(between: Between, layout: str, async_op: bool, what: str) -> None:
    rank, size = dist.get_rank(), len(between)
    root = between[0][0].numel() % size
    mine = ref.place(between[rank][root], layout)
    outputs = [ref.place(torch.empty_like(row[root]), layout) for row in between]
    tensors = [o.tensor for o in outputs] if rank == root else None
    finish(dist.gather(mine.tensor, tensors, dst=root, async_op=async_op), async_op)
    for r, out in enumerate(outputs if rank == root else []):
        ref.check_same(out.tensor, between[r][root], f"{what}: from rank {r}")
        out.check_surroundings(what)


def scattered(between: Between, layout: str, async_op: bool, what: str) -> None:
    rank, size = dist.get_rank(), len(between)
    root = between[0][0].numel() % size
    inputs = [ref.place(t, layout).tensor for t in between[root]] if rank == root else None
    out = ref.place(torch.empty_like(between[root][rank]), layout)
    finish(dist.scatter(out.tensor, inputs, src=root, async_op=async_op), async_op)
    ref.check_same(out.tensor, between[root][rank], what)
    out.check_surroundings(what)


KINDS: dict[str, Callable[[Between, str, bool, str], None]] = {
    "reduce_scatter": reduce_scattered,
    "all_to_all": exchanged,
    "all_to_all_single": exchanged_single,
    "gather": gathered,
    "scatter": scattered,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_every_length_and_layout(world, size, kind):
    world(size).run(every_length, kind)


def different_lengths(seed: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = random.Random(seed)  # the same on all ranks
    for number in range(25):
        most = draw.choice([0, 1, 50, 3000, 60_000])
        rows = [[draw.randint(0, most) for _ in range(size)] for _ in range(size)]
        async_op = number % 2 == 1
        what = f"seed {seed}, round {number}: {rows}"
        between = [
            [ref.values(i, 3 * n, torch.float32, j).view(n, 3) for j, n in enumerate(row)] for i, row in enumerate(rows)
        ]
        come = [between[r][rank] for r in range(size)]
        outputs = [torch.empty_like(t) for t in come]
        finish(dist.all_to_all(outputs, between[rank], async_op=async_op), async_op)
        for out, want in zip(outputs, come, strict=True):
            ref.check_same(out, want, what)
        out = torch.empty(sum(t.shape[0] for t in come), 3)
        splits = [t.shape[0] for t in come], rows[rank]
        finish(single("all_to_all_single")(out, torch.cat(between[rank]), *splits, async_op=async_op), async_op)
        ref.check_same(out, torch.cat(come), what)
        # All ranks know these lengths.
        outputs = [torch.empty_like(t) for t in between[0]]
        finish(dist.all_gather(outputs, between[0][rank].clone(), async_op=async_op), async_op)
        for out, want in zip(outputs, between[0], strict=True):
            ref.check_same(out, want, what)
        lists = [[ref.values(i, n, torch.int32, j) for j, n in enumerate(rows[0])] for i in range(size)]
        out = torch.empty(rows[0][rank], dtype=torch.int32)
        finish(dist.reduce_scatter(out, lists[rank], async_op=async_op), async_op)
        ref.check_reduced(out, "SUM", [row[rank] for row in lists], what)


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_different_lengths(world, size):
    world(size).run(different_lengths, 20260921)


def shared_memory() -> None:
    """Outputs that are one buffer, outputs among the inputs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (5, 30_000):
        one = torch.empty(count)
        dist.all_gather([one] * size, torch.full((count,), float(rank)))
        ref.check_same(one, torch.full((count,), float(size - 1)), "the last rank's has the last word")
        x = torch.arange(size * count, dtype=torch.float64).view(size, count) + rank
        want = sum(torch.arange(size * count, dtype=torch.float64).view(size, count)[rank] + r for r in range(size))
        for place in (rank, (rank + 1) % size):  # in place, and in the place of another rank's block
            y = x.clone()
            single("reduce_scatter_single")(y[place], y)
            ref.check_same(y[place], want, f"block {place}")
            y = x.clone()
            dist.reduce_scatter(y[place], list(y))
            ref.check_same(y[place], want, f"list, block {place}")
        y = x.clone().view(-1)
        single("all_to_all_single")(y, y)
        come = [torch.arange(size * count, dtype=torch.float64).view(size, count)[rank] + r for r in range(size)]
        ref.check_same(y, torch.cat(come), "all_to_all into its input")
        y = x.clone()
        dist.all_to_all(list(y), list(y))
        ref.check_same(y.view(-1), torch.cat(come), "lists")
        y = x.clone()
        dist.gather(y[0], list(y) if rank == 0 else None, dst=0)
        if rank == 0:
            want = torch.cat([torch.arange(count, dtype=torch.float64) + r for r in range(size)])
            ref.check_same(y.view(-1), want, "gather")
        y = x.clone()
        dist.scatter(y[1 % size], list(y) if rank == 0 else None, src=0)
        ref.check_same(y[1 % size], torch.arange(size * count, dtype=torch.float64).view(size, count)[rank], "scatter")


@pytest.mark.parametrize("size", SIZES)
def test_buffers_that_share_memory(world, size):
    world(size).run(shared_memory)


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = [{"rank": r, "text": "x" * r * 1000} for r in range(size)]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, everybody[rank])
    assert gathered == everybody
    at_root = [None] * size if rank == size - 1 else None
    dist.gather_object(everybody[rank], at_root, dst=size - 1)
    assert at_root == (everybody if rank == size - 1 else None)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, everybody if rank == 0 else None, src=0)
    assert mine == [everybody[rank]]
    shared = [everybody] if rank == 0 else [None]
    dist.broadcast_object_list(shared, src=0)
    assert shared == [everybody]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_objects(world, size):
    world(size).run(objects)


def refused_calls() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    four = [torch.ones(4) for _ in range(size)]
    for text, call in (
        ("takes one list of", lambda: backend().reduce_scatter([four[0]], [four[1:]], dist.ReduceScatterOptions())),
        ("the output has 3 elements, this rank's input has 4", lambda: dist.reduce_scatter(torch.ones(3), four)),
        ("the input has 5 elements", lambda: single("reduce_scatter_single")(torch.ones(4), torch.ones(5))),
        ("output tensors, got", lambda: backend().alltoall(four[1:], four, dist.AllToAllOptions())),
        ("bytes for itself and expects", lambda: dist.all_to_all([torch.ones(5 - size) for _ in four], four)),
        (
            "cannot be split into equal parts",
            lambda: single("all_to_all_single")(torch.ones(2 * size + 1), torch.ones(2 * size + 1)),
        ),
        (
            "split sizes of the output add up to",
            lambda: single("all_to_all_single")(torch.ones(4), torch.ones(size), [3] * size),
        ),
        (
            "split size of the input is negative",
            lambda: single("all_to_all_single")(torch.ones(4), torch.ones(4), None, [5, -1]),
        ),
        (
            "split sizes for the input, the group has",
            lambda: single("all_to_all_single")(torch.ones(4), torch.ones(4), None, [4]),
        ),
        ("takes one list of .* output tensors", lambda: dist.gather(four[0], four[1:], dst=rank)),
        ("output 0 has 4 elements, the input has 3", lambda: dist.gather(torch.ones(3), four, dst=rank)),
        ("input 0 has 4 elements, the output has 3", lambda: dist.scatter(torch.ones(3), four, src=rank)),
        ("elements that share memory", lambda: dist.scatter(torch.ones(1).expand(4), four, src=rank)),
    ):
        with pytest.raises((RuntimeError, ValueError), match=text) as error:
            call()
        assert not isinstance(error.value, dist.DistBackendError), error.value
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t[0].item() == size


def test_what_is_refused(world):
    world(2).run(refused_calls)


def splits_that_differ() -> str:
    splits = [3, 1] if dist.get_rank() == 0 else [2, 2]
    with pytest.raises(dist.DistBackendError) as error:
        single("all_to_all_single")(torch.ones(4), torch.ones(4), splits, splits)
    return str(error.value)


def test_splits_of_two_ranks_must_agree(fresh_world):
    texts = fresh_world(2).run(splits_that_differ)
    assert all("in all_to_all #1, which sends it" in text for text in texts), texts
