"""Collectives on special values, tensors without dimensions, and an input that overlaps the output. All else about
types, reductions, lengths and places is in test_matrix.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import reference as ref

SIZES = (1, pytest.param(2, marks=pytest.mark.smoke), 3, 4, 8)


def special_values(flush: bool) -> str:
    """NaN, infinities, zeros and denormals give the same on all ranks, also where a rank's thread flushes denormals."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for dtype in ref.FLOATS:
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
            ref.check_reduced_bits(t, want, f"{dtype} {reduction}")
            results.append(ref.one_nan(t))
    return ref.digest(results)


@pytest.mark.parametrize("size", [2, 3])
def test_special_values_and_flushed_denormals(world, size):
    plain = world(size).run(special_values, False)
    assert len(set(plain)) == 1
    assert world(size).run(special_values, True) == plain


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


def overlapping() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    n = 100_000  # several chunks
    expected = torch.arange(size).repeat_interleave(n).float() + 1
    for async_op in (False, True):
        for shift in (
            n,
            1,
        ):  # the input lies in another rank's block of the output, then one element beside its own block
            for single in (True, False):
                out = torch.zeros(size * n + 1)
                at = min((rank * n + shift) % (size * n), size * n + 1 - n)
                mine = out[at : at + n].fill_(rank + 1.0)
                results = out[: size * n]
                if single:
                    work = dist.all_gather_into_tensor(results, mine, async_op=async_op)
                else:
                    work = dist.all_gather(list(results.split(n)), mine, async_op=async_op)
                if async_op:
                    work.wait()
                assert torch.equal(results, expected), (async_op, shift, single)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_of_an_input_that_overlaps_the_output(world, size):
    world(size).run(overlapping)
