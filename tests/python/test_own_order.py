"""own_order.py accepts the results of reductions in random orders, which are computed here, and refuses wrong ones."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import operations as ops
import own_order
import random_programs
import reference as ref
import sagecomm
from issued import member
from selection import quickly

COUNT = 600
CALLS = [
    (dtype, reduction, exactly, special)
    for dtype, reduction in itertools.product(ref.REDUCED, ref.EVERY_REDUCTION)
    if ref.defined(reduction, dtype)
    for exactly in {own_order.exact(dtype, reduction, salt) for salt in range(4)}
    for special in (False, True)
]


def operands(dtype: torch.dtype, reduction: str, exactly: bool, special: bool, size: int) -> list[torch.Tensor]:
    return [own_order.drawn(COUNT, dtype, (7, rank), reduction, exactly, special) for rank in range(size)]


def two(reduction: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One step of a reduction, rounded to the type."""
    return ref.in_rank_order({"AVG": "SUM", "PREMUL_SUM": "SUM"}.get(reduction, reduction), [a, b])


def in_some_order(reduction: str, inputs: list[torch.Tensor], draw: random.Random) -> torch.Tensor:
    dtype = inputs[0].dtype
    if dtype in ref.INTEGERS or dtype is torch.bool:
        return ref.in_rank_order(reduction, draw.sample(inputs, len(inputs)))
    parts = [ref.in_rank_order(reduction, [x]) for x in inputs] if reduction == "PREMUL_SUM" else list(inputs)
    while len(parts) > 1:
        a = parts.pop(draw.randrange(len(parts)))
        b = parts.pop(draw.randrange(len(parts)))
        parts.append(two(reduction, a, b))
    if reduction != "AVG":
        return parts[0]
    total = ref.as_real(parts[0])
    average = ((total.float() if dtype in own_order.HALVES else total) / len(inputs)).to(total.dtype)
    return torch.view_as_complex(average) if dtype.is_complex else average


@pytest.mark.parametrize("size", [2, 3, own_order.RANKS])
def test_every_order_is_right(size):
    draw = random.Random(size)
    for dtype, reduction, exactly, special in CALLS:
        inputs = operands(dtype, reduction, exactly, special, size)
        for _ in range(5):
            what = f"{reduction} of {ref.name(dtype)}, exact {exactly}, special {special}"
            own_order.check(in_some_order(reduction, inputs, draw), reduction, inputs, exactly, what)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ref.REDUCED, ids=ref.name)
def test_a_contribution_that_is_missing_or_counts_twice_is_noticed(dtype):
    draw = random.Random(1)
    for exactly, reduction in itertools.product((True, False), ("SUM", "AVG", "PREMUL_SUM", "PRODUCT")):
        if (dtype, reduction, exactly, False) not in CALLS or dtype is torch.bool:
            continue
        inputs = operands(dtype, reduction, exactly, False, 5)
        for wrong in (inputs[:4], [*inputs, inputs[2]]):
            got = in_some_order(reduction, wrong, draw)
            with pytest.raises(AssertionError, match="elements"):
                own_order.check(got, reduction, inputs, exactly, "wrong")


@pytest.mark.long
def test_one_wrong_element_is_noticed():
    for exactly in (True, False):
        inputs = operands(torch.float32, "SUM", exactly, False, 4)
        for bad in (float("nan"), float("inf"), 1e6):
            got = ref.in_rank_order("SUM", inputs)
            got[77] = bad if exactly or bad != 1e6 else 100.0
            with pytest.raises(AssertionError, match="1 of 600 elements"):
                own_order.check(got, "SUM", inputs, exactly, "wrong")


@pytest.mark.long
def test_a_rounding_too_many_is_noticed():
    """fp32 contributions that were rounded to bfloat16 before they were added."""
    inputs = operands(torch.float32, "SUM", False, False, 4)
    got = ref.in_rank_order("SUM", [x.bfloat16() for x in inputs]).float()
    with pytest.raises(AssertionError, match="are off"):
        own_order.check(got, "SUM", inputs, False, "wrong")


@pytest.mark.long
def test_ranks_that_differ_are_named():
    of_ranks = [{"step 1": "a", "step 2": "b"}, {"step 1": "a"}, {"step 2": "c", "step 1": "a"}]
    assert list(random_programs.different(of_ranks)) == ["step 2: ranks have different bits, each of [0], [2] its own"]
    assert not list(random_programs.different([{"step 1": "a"}, {"step 2": "b"}]))


@pytest.mark.long
def test_programs_draw_reductions_in_an_order_of_their_own():
    drawn = [random_programs.program(seed) for seed in range(40)]
    own = []
    for each in drawn:
        calls = [step.what for step in each.steps if step.kind == "collective" and step.what.own_order]
        assert each.tune or not calls
        own += calls
    assert {call.kind for call in own} >= {"all_reduce", "reduce", "reduce_scatter_single"}
    assert {call.exact for call in own} == {True, False}


# pgbackend/sendrecv_test.go tests what all types have in common; the tests below are slow,
# because they go through torch.
FLOATING = [call for call in CALLS if call[0] in (*ref.FLOATS, *ref.COMPLEX)]
KINDS = {"all_reduce": "all_reduce", "reduce": "reduce", "reduce_scatter": "reduce_scatter_uneven"}


def reduced(kind: str) -> tuple[list[str], dict[str, str]]:
    """Returns the errors of this rank in reductions of floats, and the bits that must be equal on all ranks."""
    at = member()
    wrong, alike = [], {}
    for number, (dtype, reduction, exactly, special) in enumerate(FLOATING):
        salt = 4 * number + exactly  # as own_order.exact() has it
        call = ops.Call(kind, dtype, 700, reduction, root=number % at.size, salt=salt, special=special, own_order=True)
        issued = ops.KINDS[kind].issue(call, at)
        if ops.KINDS[kind].same:
            alike[str(call)] = issued.digest()
        try:
            issued.check(str(call))
        except AssertionError as error:
            wrong.append(str(error))
    return wrong, alike


@pytest.mark.parametrize("size", quickly([3], [3, 4]))
@pytest.mark.parametrize("op", quickly(["reduce_scatter"], KINDS))
def test_every_algorithm_with_an_order_of_its_own(world, op, size):
    """For all_reduce this fails where two ranks reduce the same operands in another order (`message_first`)."""
    for name, in_own_order in random_programs.algorithms()[op]:
        if not in_own_order:
            continue
        options = sagecomm.Options(settings={"tune": f"{op}:{name}@chunk=1K"})
        results = world(size).run(reduced, KINDS[op], options=options)
        wrong = [f"rank {rank}: {text}" for rank, (texts, _) in enumerate(results) for text in texts]
        wrong += random_programs.different([alike for _, alike in results])
        assert not wrong, "\n".join([f"{name}:", *wrong[:20]])
