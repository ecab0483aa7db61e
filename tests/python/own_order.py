"""The expected results of reductions by sendrecv algorithms: each contribution counts once, in the algorithm's order,
which is the same on all ranks; halves are rounded at each step. Nothing here communicates.

Most drawn operands give the same bits in every order. The results of the others must be within a bound.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

import reference as ref

RANKS = 8  # the size of the largest group: sums of this many operands are exact
HALVES = (torch.float16, torch.bfloat16)


def exact(dtype: torch.dtype, reduction: str, salt: int) -> bool:
    """Reports whether drawn() returns operands whose result has the same bits in every order: always where no order
    matters, else for three salts of four, never for PREMUL_SUM of floats."""
    if dtype not in (*ref.FLOATS, *ref.COMPLEX) or reduction in ("MIN", "MAX"):
        return True
    return reduction != "PREMUL_SUM" and salt % 4 > 0


def drawn(
    count: int, dtype: torch.dtype, key: tuple[int, ...], reduction: str, exactly: bool, special: bool
) -> torch.Tensor:
    """Like ref.drawn(), but leaves out special values whose result depends on the order: numbers that overflow in some
    orders, and all of them in a PRODUCT of inexact or complex factors."""
    if dtype not in (*ref.FLOATS, *ref.COMPLEX) or reduction in ("MIN", "MAX"):
        return ref.drawn(count, dtype, key, special)
    product = reduction == "PRODUCT"
    if product and (dtype.is_complex or not exactly):
        special = False
    return ref.piece(_row(dtype, product, exactly, special), count, key)


@functools.cache
def _row(dtype: torch.dtype, product: bool, exactly: bool, special: bool) -> torch.Tensor:
    rng = np.random.default_rng(ref.ROW + 1)
    shape = (ref.ROW, 2) if dtype.is_complex else (ref.ROW,)
    real = dtype.to_real()
    limits = torch.finfo(real)
    if not exactly:
        numbers = rng.standard_normal(shape)
    elif product:
        numbers = rng.choice((-1.0, 1.0), shape) * 2.0 ** rng.integers(-1, 1, shape, endpoint=True)
    else:  # integers up to 2 / eps have no rounding
        most = int(2 / limits.eps) // RANKS
        numbers = rng.integers(-most, most, shape, endpoint=True).astype(np.float64)
    parts = torch.from_numpy(numbers).to(real)
    if special:
        tiny = limits.smallest_normal
        given = [math.nan, math.inf, -math.inf, *[0.0, -0.0] * 4, *([] if exactly else [tiny / 4, -tiny / 2, tiny])]
        which = torch.from_numpy(rng.integers(0, 3 * len(given), shape))
        for number, value in enumerate(given):
            parts[which == number] = value
    return torch.view_as_complex(parts) if dtype.is_complex else parts


def check(got: torch.Tensor, reduction: str, inputs: list[torch.Tensor], exactly: bool, what: str) -> None:
    if not exactly:
        _check_within(got, reduction, inputs, what)
        return
    want = ref.in_rank_order(reduction, inputs)
    if reduction in ("MIN", "MAX") or (reduction == "PRODUCT" and got.dtype.is_complex):
        got, want = _one_zero(got), _one_zero(want)  # the sign of a zero depends on the order
    ref.check_reduced_bits(got, want, what)


def _one_zero(t: torch.Tensor) -> torch.Tensor:
    t = ref.as_real(t)
    return torch.where(t == 0, torch.zeros_like(t), t)


def _check_within(got: torch.Tensor, reduction: str, inputs: list[torch.Tensor], what: str) -> None:
    if reduction != "PRODUCT":  # real and imaginary parts have nothing to do with each other
        got, inputs = ref.as_real(got), [ref.as_real(t) for t in inputs]
    with np.errstate(invalid="ignore"):  # of infinities and NaN
        want, bound = _bound(reduction, got.dtype, [ref.wide(t) for t in inputs])
        result = ref.wide(got).reshape(want.shape)
        same = (result == want) | (np.isnan(result) & np.isnan(want))
        wrong = ~np.where(np.isfinite(want), np.abs(result - want) <= bound, same)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {got.numel()} elements are off, first at {where}: "
            f"{result[where]} instead of {want[where]} (allowed: {bound[where]})"
        )


def _bound(reduction: str, dtype: torch.dtype, operands: list[Any]) -> tuple[Any, Any]:
    """Returns the true result and the largest error in any order.

    Each operand passes n roundings, which change it by a factor within 1 +- n u / (1 - n u) (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., lemma 3.1; a complex product counts as three, lemma 3.5). Each denormal
    product or quotient adds up to half the distance of two denormals. Sums of denormals are exact."""
    steps = len(operands) - 1
    limits = torch.finfo(dtype)
    unit, between = limits.eps / 2, limits.smallest_normal * limits.eps
    if dtype in HALVES:  # each step is computed in fp32 and then rounded
        unit += torch.finfo(torch.float32).eps / 2

    def change(n: int) -> float:
        return n * unit / (1 - n * unit)

    if reduction == "PRODUCT":
        want = np.multiply.reduce(operands)
        others = np.multiply.reduce([np.maximum(np.abs(x), 1) for x in operands])
        return want, change((3 if dtype.is_complex else 1) * steps) * np.abs(want) + 2 * steps * between * others
    if reduction == "PREMUL_SUM":  # the factor is rounded to the type, then each product
        operands = [x * ref.FACTOR for x in operands]
    want, magnitude = np.add.reduce(operands), np.add.reduce([np.abs(x) for x in operands])
    if reduction == "SUM":
        return want, change(steps) * magnitude
    if reduction == "PREMUL_SUM":
        return want, change(steps + 2) * magnitude + len(operands) * between
    return want / len(operands), change(steps + 1) * magnitude / len(operands) + between
