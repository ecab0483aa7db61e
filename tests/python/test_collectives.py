"""Every collective, type, reduction, length and memory layout gives what torch.distributed says, on every rank."""

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
# Elements. Odd lengths leave a tail for every vector width; the longest leaves the slots for small messages.
SHORT = (0, 1, 7, 1021, 5003)
# Bytes, around what the algorithms tell apart.
LENGTHS = (0, 1, 4095, 4096, 8191, 8192, 8193, 65536, 65541, 1 << 20, (5 << 20) + 13)
LENGTH_TYPES = (torch.float32, torch.uint8, torch.bfloat16, torch.complex128)


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


def reduce_to(t: torch.Tensor, reduction: str, root: int | None, async_op: bool) -> None:
    """all_reduce, or reduce to a root, asked of the backend: dist.all_reduce refuses the complex product itself."""
    opts = dist.AllreduceOptions() if root is None else dist.ReduceOptions()
    opts.reduceOp = ref.reduce_op(reduction)
    opts.asyncOp = async_op
    if root is None:
        backend().allreduce([t], opts).wait()
    else:
        opts.rootRank = root
        backend().reduce([t], opts).wait()


# ---- reductions ----


def every_reduction(rooted: bool) -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for number, dtype in enumerate(ref.REDUCED):
        for count in SHORT:
            inputs = [ref.values(r, count, dtype) for r in range(size)]
            for reduction in ref.EVERY_REDUCTION:
                if not ref.defined(reduction, dtype):
                    continue
                root = (number + count) % size if rooted else None
                for async_op in (False, True):
                    what = f"{ref.name(dtype)} {reduction} x {count}, root {root}, async {async_op}"
                    t = inputs[rank].clone()
                    reduce_to(t, reduction, root, async_op)
                    if root is None or root == rank:
                        ref.check_reduced(t, reduction, inputs, what)
                    else:
                        ref.check_same(t, inputs[rank], f"{what}: input of rank {rank}")
                    results.append(t)
    return ref.digest(results)


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_of_every_type_and_reduction(world, size):
    digests = world(size).run(every_reduction, False)
    assert len(set(digests)) == 1, f"ranks have different bits: {digests}"


@pytest.mark.parametrize("size", SIZES)
def test_reduce_of_every_type_and_reduction(world, size):
    world(size).run(every_reduction, True)


def ordered() -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for dtype in ref.FLOATS:
        for count in (5, 2048, 30011, 400_003):
            inputs = [ref.values(r, count, dtype, salt=1) for r in range(size)]
            for reduction in ref.ARITHMETIC:
                t = inputs[rank].clone()
                dist.all_reduce(t, ref.reduce_op(reduction))
                ref.check_same(t, ref.in_rank_order(reduction, inputs), f"{ref.name(dtype)} {reduction} x {count}")
                results.append(t)
    return ref.digest(results)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_floats_are_folded_in_rank_order_and_rounded_once(world, size):
    assert len(set(world(size).run(ordered))) == 1


def special_values(flush: bool) -> str:
    """NaN, infinities, zeros of both signs and denormals; a rank whose thread flushes denormals sees the same."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for dtype in ref.FLOATS:
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        tiny = torch.finfo(dtype).smallest_normal
        given = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, tiny / 4, -tiny / 2, tiny, 1.0, -3.5]
        plain = torch.tensor(given, dtype=torch.float64).to(dtype)
        # Every value of one rank meets every value of the next.
        inputs = [plain.repeat(10), plain.repeat_interleave(10), plain.roll(7).repeat(10)][:size]
        for reduction in ref.ARITHMETIC:
            want = ref.in_rank_order(reduction, inputs)
            t = inputs[rank].clone()
            torch.set_flush_denormal(flush and rank == 1)
            try:
                dist.all_reduce(t, ref.reduce_op(reduction))
            finally:
                torch.set_flush_denormal(False)
            nan = torch.isnan(want)
            assert torch.equal(torch.isnan(t), nan), f"{dtype} {reduction}: NaNs in other places"
            # By value: torch's minimum promises no sign of zero.
            assert torch.equal(t[~nan], want[~nan]), f"{dtype} {reduction}: {t} instead of {want}"
            results.append(torch.where(nan, -1, t.view(kind).long()))
    return ref.digest(results)


@pytest.mark.parametrize("size", [2, 3])
def test_special_values_and_flushed_denormals(world, size):
    plain = world(size).run(special_values, False)
    assert len(set(plain)) == 1
    assert world(size).run(special_values, True) == plain


# ---- lengths and layouts ----


def all_reduced(mine: ref.Placed, inputs: list[torch.Tensor], async_op: bool, what: str) -> list[torch.Tensor]:
    """Returns the tensors whose bits must be the same on all ranks, where the check itself leaves that open."""
    finish(dist.all_reduce(mine.tensor, async_op=async_op), async_op)
    ref.check_reduced(mine.tensor.reshape(-1), "SUM", inputs, what)
    return [mine.tensor]


def reduced(mine: ref.Placed, inputs: list[torch.Tensor], async_op: bool, what: str) -> list[torch.Tensor]:
    root = len(inputs) - 1
    finish(dist.reduce(mine.tensor, root, async_op=async_op), async_op)
    if dist.get_rank() == root:
        ref.check_reduced(mine.tensor.reshape(-1), "SUM", inputs, what)
    else:
        ref.check_same(mine.tensor, inputs[dist.get_rank()], what)
    return []


def broadcasted(mine: ref.Placed, inputs: list[torch.Tensor], async_op: bool, what: str) -> list[torch.Tensor]:
    root = mine.tensor.numel() % len(inputs)
    finish(dist.broadcast(mine.tensor, root, async_op=async_op), async_op)
    ref.check_same(mine.tensor, inputs[root], what)
    return []


def gathered(mine: ref.Placed, inputs: list[torch.Tensor], async_op: bool, what: str) -> list[torch.Tensor]:
    layouts = [ref.LAYOUTS[(r + mine.tensor.numel()) % len(ref.LAYOUTS)] for r in range(len(inputs))]
    outputs = [ref.place(torch.zeros_like(t), layout) for t, layout in zip(inputs, layouts, strict=True)]
    finish(dist.all_gather([o.tensor for o in outputs], mine.tensor, async_op=async_op), async_op)
    for r, output in enumerate(outputs):
        ref.check_same(output.tensor, inputs[r], f"{what}: block {r}")
        output.check_surroundings(what)
    return []


def gathered_single(mine: ref.Placed, inputs: list[torch.Tensor], async_op: bool, what: str) -> list[torch.Tensor]:
    want = torch.cat(inputs)
    output = ref.place(torch.zeros_like(want), "strided" if mine.tensor.numel() % 2 else "offset")
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    finish(call(output.tensor, mine.tensor, async_op=async_op), async_op)
    ref.check_same(output.tensor, want, what)
    output.check_surroundings(what)
    return []


def finish(work: Any, async_op: bool) -> None:
    if async_op:
        work.wait()
    else:
        assert work is None


Collective = Callable[[ref.Placed, list[torch.Tensor], bool, str], list[torch.Tensor]]
COLLECTIVES: dict[str, Collective] = {
    "all_reduce": all_reduced,
    "reduce": reduced,
    "broadcast": broadcasted,
    "all_gather": gathered,
    "all_gather_single": gathered_single,
}


def cases(length: int, size: int) -> list[tuple[torch.dtype, str, bool]]:
    """Types, layouts and ways to call for a length: all where they are cheap, each at least once elsewhere."""
    if length <= 65541:
        return [(d, layout, a) for d in LENGTH_TYPES for layout in ref.LAYOUTS for a in (False, True)]
    few = [(torch.float32, "contiguous", False), (torch.uint8, "offset", True), (torch.bfloat16, "strided", False)]
    return few if size < 4 else few[:1] if length > 1 << 20 else few[:2]


def every_length(kind: str) -> list[str]:
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    made: tuple[int, torch.dtype] | None = None
    for length in LENGTHS:
        for dtype, layout, async_op in cases(length, size):
            count = ref.elements(length, dtype)
            if made != (count, dtype):
                made = (count, dtype)
                inputs = [ref.values(r, count, dtype) for r in range(size)]
            what = f"{kind} of {count} {ref.name(dtype)}, {layout}, async {async_op}"
            mine = ref.place(inputs[rank], layout)
            results.append(ref.digest(COLLECTIVES[kind](mine, inputs, async_op, what)))
            mine.check_surroundings(what)
    return results


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("size", SIZES)
def test_every_length_and_layout(world, size, kind):
    digests = world(size).run(every_length, kind)
    assert all(d == digests[0] for d in digests), f"ranks have different bits: {digests}"


def scalars() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    t = torch.tensor(rank + 1.0)
    dist.all_reduce(t)
    assert t.shape == ()
    root = torch.tensor(rank + 5)
    dist.broadcast(root, size - 1)
    outputs = [torch.tensor(0.0) for _ in range(size)]
    dist.all_gather(outputs, torch.tensor(float(rank)))
    assert [o.item() for o in outputs] == list(range(size))
    dist.reduce(t, 0, op=dist.ReduceOp.MAX)
    return [t.item(), root.item()]


@pytest.mark.parametrize("size", SIZES)
def test_tensors_without_dimensions(world, size):
    assert world(size).run(scalars) == [[size * (size + 1) / 2, size + 4]] * size


def moved() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in ref.EVERY_TYPE:
        for count in (1, 333, 20011):
            inputs = [ref.values(r, count, dtype) for r in range(size)]
            t = inputs[rank].clone()
            dist.broadcast(t, size - 1)
            ref.check_same(t, inputs[-1], f"broadcast {dtype}")
            outputs = [torch.empty_like(t) for _ in range(size)]
            dist.all_gather(outputs, inputs[rank])
            single = torch.empty(size * count, dtype=dtype)
            dist.all_gather_into_tensor(single, inputs[rank])
            for r in range(size):
                ref.check_same(outputs[r], inputs[r], f"all_gather {dtype}")
                ref.check_same(single[r * count : (r + 1) * count], inputs[r], f"all_gather_into_tensor {dtype}")


@pytest.mark.parametrize("size", SIZES)
def test_every_type_is_moved_as_it_is(world, size):
    world(size).run(moved)


def in_place() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 5000, 300_000):
        whole = torch.full((size, count), -1.0)
        whole[rank] = rank
        dist.all_gather_into_tensor(whole, whole[rank])
        assert torch.equal(whole, torch.arange(size).float()[:, None].expand(size, count))
        parts = [torch.full((count,), -1.0) for _ in range(size)]
        parts[rank].fill_(rank)
        dist.all_gather(parts, parts[rank])
        assert torch.equal(torch.stack(parts), whole)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_into_the_input_s_own_memory(world, size):
    world(size).run(in_place)


# ---- many calls in a row ----


def overlapping() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    n = 100_000  # several chunks
    expected = torch.arange(size).repeat_interleave(n).float() + 1
    for async_op in (False, True):
        for shift in (n, 1):  # in the place of another rank, and a little beside the own one
            for single in (True, False):
                out = torch.zeros(size * n + 1)
                at = min((rank * n + shift) % (size * n), size * n + 1 - n)
                mine = out[at : at + n].fill_(rank + 1.0)
                results = out[: size * n]
                if single:
                    work = dist.all_gather_into_tensor(results, mine, async_op=async_op)
                else:
                    work = dist.all_gather(list(results.split(n)), mine, async_op=async_op)
                finish(work, async_op)
                assert torch.equal(results, expected), (async_op, shift, single)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_of_an_input_that_overlaps_the_output(world, size):
    world(size).run(overlapping)


def soak(seed: int, calls: int) -> str:
    """Calls in random order, up to 20 of them in flight, waited for in random order or never."""
    rank, size = dist.get_rank(), dist.get_world_size()
    common, mine = random.Random(seed), random.Random(seed * 100 + rank)
    flying: list[tuple[Any, Callable[[], None]]] = []
    results: list[torch.Tensor] = []

    def land(one: tuple[Any, Callable[[], None]]) -> None:
        one[0].wait()
        one[1]()

    for number in range(calls):
        kind = common.choice(["all_reduce", "broadcast", "all_gather", "reduce", "barrier"])
        count = common.choice([0, 1, 17, 1000, 2049, 16_384, 70_001])
        dtype = common.choice([torch.float32, torch.int64, torch.float16])
        root, async_op, what = common.randrange(size), common.random() < 0.5, f"seed {seed}: #{number} {kind}"
        inputs = [ref.values(r, count, dtype, salt=number) for r in range(size)]
        t = inputs[rank].clone()
        if kind == "all_reduce":
            work = dist.all_reduce(t, async_op=async_op)
            check = lambda t=t, i=inputs, w=what: ref.check_reduced(t, "SUM", i, w)  # noqa: E731
            results.append(t)
        elif kind == "broadcast":
            work = dist.broadcast(t, root, async_op=async_op)
            check = lambda t=t, i=inputs[root], w=what: ref.check_same(t, i, w)  # noqa: E731
            results.append(t)
        elif kind == "all_gather":
            out = torch.empty(size * count, dtype=dtype)
            work = dist.all_gather_into_tensor(out, t, async_op=async_op)
            check = lambda t=out, i=inputs, w=what: ref.check_same(t, torch.cat(i), w)  # noqa: E731
            results.append(out)
        elif kind == "reduce":
            work = dist.reduce(t, root, async_op=async_op)
            reduction = lambda t=t, i=inputs, w=what: ref.check_reduced(t, "SUM", i, w)  # noqa: E731
            check = reduction if rank == root else lambda: None
        else:
            work, check = dist.barrier(async_op=async_op), lambda: None
        if async_op:
            flying.append((work, check))
        else:
            check()
        while len(flying) > 20 or (flying and mine.random() < 0.3):
            land(flying.pop(mine.randrange(len(flying))))
    for one in flying:
        land(one)
    return ref.digest(results)


@pytest.mark.parametrize("size", SIZES)
def test_random_calls(world, size):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    digests = world(size).run(soak, seed, 250)
    assert len(set(digests)) == 1, f"seed {seed}: ranks have different bits"
