"""Expected results of collectives: inputs that every rank can compute for every other rank, and results computed with
numpy in more precision than the library uses. Nothing here communicates."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
REDUCED = (*INTEGERS, *FLOATS, *COMPLEX, torch.bool)
EVERY_TYPE = (*REDUCED, *FLOAT8)

FACTOR = 0.37
ARITHMETIC = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
EVERY_REDUCTION = (*ARITHMETIC, *BITWISE, "PREMUL_SUM")


def defined(reduction: str, dtype: torch.dtype) -> bool:
    """Whether the library defines the reduction for the type. It refuses every other combination."""
    if dtype in INTEGERS:
        return reduction != "PREMUL_SUM"
    if dtype in FLOATS:
        return reduction not in BITWISE
    if dtype in COMPLEX:
        return reduction in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    return dtype is torch.bool and reduction in ("SUM", "PRODUCT", "MIN", "MAX", *BITWISE)


def reduce_op(reduction: str) -> Any:
    return dist._make_nccl_premul_sum(FACTOR) if reduction == "PREMUL_SUM" else getattr(dist.ReduceOp, reduction)


def values(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Returns the input of one rank: integers of the whole range, normally distributed floats, random bits for fp8."""
    rng = np.random.default_rng((rank, count, EVERY_TYPE.index(dtype), salt))
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count).astype(bool))
    if dtype in INTEGERS:
        kind = np.dtype(name(dtype))
        limits = np.iinfo(kind)
        return torch.from_numpy(rng.integers(limits.min, limits.max, count, kind, endpoint=True))
    if dtype in FLOAT8:
        return torch.from_numpy(rng.integers(0, 255, count, np.uint8, endpoint=True)).view(dtype)
    if dtype in COMPLEX:
        return torch.from_numpy(rng.standard_normal(count) + 1j * rng.standard_normal(count)).to(dtype)
    return torch.from_numpy(rng.standard_normal(count)).to(dtype)


ROW = 100_003  # a prime, so that data from a wrong chunk differs


@functools.cache
def _row(dtype: torch.dtype, special: bool) -> torch.Tensor:
    row = values(0, ROW, dtype)
    if special and dtype in (*FLOATS, *COMPLEX):
        rng = np.random.default_rng(ROW)
        parts = torch.view_as_real(row) if dtype.is_complex else row
        limits = torch.finfo(parts.dtype)
        tiny = limits.smallest_normal
        given = [math.nan, math.inf, -math.inf, limits.max, tiny / 4, -tiny / 2, tiny, *[0.0, -0.0] * 4]
        which = torch.from_numpy(rng.integers(0, 3 * len(given), parts.numel())).view(parts.shape)
        for number, value in enumerate(given):
            parts[which == number] = value
    return row


def drawn(count: int, dtype: torch.dtype, key: tuple[int, ...], special: bool = False) -> torch.Tensor:
    """Like values(), but quick: returns a piece of one row, at an offset that follows from the key. With `special`, a
    third of the floats are NaN, infinities, the largest number, denormals, and zeros of either sign."""
    return piece(_row(dtype, special), count, key)


def piece(row: torch.Tensor, count: int, key: tuple[int, ...]) -> torch.Tensor:
    """Returns `count` elements of the repeated row, from an offset that follows from the key."""
    start, size = hash(key) % ROW, row.dtype.itemsize
    raw = row.view(torch.uint8)  # fp8 has no repeat()
    longer = raw.repeat(math.ceil((start + count) / ROW)) if start + count > ROW else raw
    return longer[start * size : (start + count) * size].clone().view(row.dtype)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bits(t: torch.Tensor) -> torch.Tensor:
    # A copy: tensors of no or one element count as contiguous with any stride, which view() does not take.
    return t.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Returns one text for the bits of many tensors. Tests compare it between ranks."""
    sha = hashlib.sha256()
    for t in tensors:
        sha.update(bits(t).numpy().tobytes())
    return sha.hexdigest()


def check_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert torch.equal(bits(got), bits(want)), f"{what}: other bits than expected in {_first(got, want)}"


def _first(got: torch.Tensor, want: torch.Tensor) -> str:
    size = got.element_size()
    wrong = (bits(got) != bits(want)).nonzero().flatten() // size
    where = int(wrong[0])
    return (
        f"{len(wrong.unique())} of {got.numel()} elements, first at {where}: "
        f"{got.reshape(-1)[where].item()} instead of {want.reshape(-1)[where].item()}"
    )


def check_reduced(got: torch.Tensor, reduction: str, inputs: list[torch.Tensor], what: str) -> None:
    """Compares with the true result; floats within the rounding that the arithmetic allows, all else exactly."""
    dtype = got.dtype
    if dtype is torch.bool:
        check_same(got, _reduce_bool(reduction, inputs), what)
    elif dtype in INTEGERS:
        check_same(got, _reduce_integer(reduction, inputs), what)
    else:
        _check_near(got, reduction, inputs, what)


def _reduce_bool(reduction: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    stack = torch.stack(inputs)
    if reduction in ("PRODUCT", "MIN", "BAND"):
        return stack.all(0)
    if reduction == "BXOR":
        return stack.sum(0) % 2 == 1
    return stack.any(0)


def _reduce_integer(reduction: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    combine: dict[str, Callable[..., Any]] = {
        "SUM": np.add,
        "AVG": np.add,
        "PRODUCT": np.multiply,
        "MIN": np.minimum,
        "MAX": np.maximum,
        "BAND": np.bitwise_and,
        "BOR": np.bitwise_or,
        "BXOR": np.bitwise_xor,
    }
    total = inputs[0].numpy().copy()
    for each in inputs[1:]:
        total = combine[reduction](total, each.numpy())  # wraps around, as the library does
    if reduction == "AVG":
        count = total.dtype.type(len(inputs))
        quotient = total // count  # // rounds towards minus infinity, the library truncates
        total = quotient + ((total < 0) & (total % count != 0)).astype(total.dtype)
    return torch.from_numpy(total)


def wide(t: torch.Tensor) -> Any:
    """Converts exactly to a type with at least 11 more bits of precision."""
    kinds = {torch.complex64: np.complex128, torch.complex128: np.clongdouble, torch.float64: np.longdouble}
    kind = kinds.get(t.dtype, np.float64)
    return t.numpy().astype(kind) if t.dtype in kinds else t.double().numpy()


def _check_near(got: torch.Tensor, reduction: str, inputs: list[torch.Tensor], what: str) -> None:
    operands = [wide(t) for t in inputs]
    if reduction in ("MIN", "MAX"):
        want = np.minimum.reduce(operands) if reduction == "MIN" else np.maximum.reduce(operands)
        assert np.array_equal(wide(got), want), f"{what}: wrong value"
        return
    if reduction == "PREMUL_SUM":
        operands = [x * FACTOR for x in operands]
    if reduction == "PRODUCT":
        want = np.multiply.reduce(operands)
        magnitude = np.abs(want) * 4
    else:
        want = np.add.reduce(operands)
        magnitude = np.add.reduce([np.abs(x) for x in operands])
        if reduction == "AVG":
            want, magnitude = want / len(operands), magnitude / len(operands)
    limits = torch.finfo(got.dtype)
    accumulated = torch.finfo(torch.float32) if got.dtype in (torch.float16, torch.bfloat16) else limits
    # The result is rounded once; sums and products on the way, and a factor's products, in their own precision.
    bound = limits.eps * np.abs(want) + 2 * limits.smallest_normal * limits.eps
    bound = bound + (len(operands) + 1) * accumulated.eps * magnitude
    if reduction == "PREMUL_SUM":
        bound = bound + limits.eps * magnitude
    wrong = ~(np.abs(wide(got) - want) <= bound)  # written so that a NaN counts as wrong
    if wrong.any():
        where = int(np.argmax(wrong))
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {got.numel()} elements are off, first at {where}: "
            f"{got.reshape(-1)[where].item()} instead of {want[where]} (allowed: {bound[where]})"
        )


def in_rank_order(reduction: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Returns the bits of a reduction over slots: reduced from the left in rank order, fp16 and bf16 in fp32 and
    rounded once at the end. PREMUL_SUM multiplies in the type first. Of zeros of either sign MIN and MAX return the
    first."""
    dtype = inputs[0].dtype
    if dtype is torch.bool:
        return _reduce_bool(reduction, inputs)
    if dtype in INTEGERS:
        return _reduce_integer(reduction, inputs)
    parts = [as_real(t) for t in inputs]
    if dtype in (torch.float16, torch.bfloat16):
        parts = [t.float() for t in parts]
    if reduction == "PREMUL_SUM":
        own = as_real(inputs[0]).dtype
        parts = [(t * FACTOR).to(own).to(t.dtype) for t in parts]
    total = parts[0]
    for each in parts[1:]:
        total = _reduce_floats(reduction, dtype.is_complex, total, each)
    if reduction == "AVG":
        total = total / len(inputs)
    return torch.view_as_complex(total.contiguous()) if dtype.is_complex else total.to(dtype)


def as_real(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t) if t.is_complex() else t


def _reduce_floats(reduction: str, pairs: bool, total: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if reduction == "PRODUCT" and pairs:  # in steps: torch's own may fuse a product with a sum
        (a, b), (c, d) = total.unbind(-1), other.unbind(-1)
        return torch.stack((a * c - b * d, a * d + b * c), -1)
    if reduction == "PRODUCT":
        return total * other
    if reduction in ("MIN", "MAX"):
        better = other < total if reduction == "MIN" else other > total
        return torch.where((better | other.isnan()) & ~total.isnan(), other, total)
    return total + other


def check_reduced_bits(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Compares with the bits of in_rank_order(). Any NaN equals any other."""
    check_same(one_nan(got), one_nan(want), what)


def one_nan(t: torch.Tensor) -> torch.Tensor:
    """Replaces every NaN by one NaN."""
    t = as_real(t)
    return torch.where(t.isnan(), math.nan, t) if t.is_floating_point() else t


# ---- where a tensor lies ----

LAYOUTS = ("contiguous", "offset", "strided", "transposed")


@dataclass
class Placed:
    """A tensor that is part of a larger one. Only the part may be written."""

    tensor: torch.Tensor
    base: torch.Tensor
    before: torch.Tensor
    take: Callable[[torch.Tensor], torch.Tensor]

    def check_surroundings(self, what: str) -> None:
        now, before = self.base.clone(), self.before
        self.take(now).zero_()
        self.take(before).zero_()
        assert torch.equal(bits(now), bits(before)), f"{what}: bytes outside the tensor were written"


def place(flat: torch.Tensor, layout: str) -> Placed:
    """Puts the values of a flat tensor into memory of that layout."""
    count = flat.numel()
    if layout == "contiguous":
        room, take = count, lambda base: base
    elif layout == "offset":  # not aligned to more than an element
        room, take = count + 3, lambda base: base[1 : count + 1]
    elif layout == "strided":
        room, take = 2 * count + 1, lambda base: base[1::2]
    else:
        rows = next(r for r in range(min(7, max(count, 1)), 0, -1) if count % r == 0)
        room, take = count, lambda base: base.reshape(count // rows, rows).t()
    base = drawn(room, flat.dtype, (99, count))
    part = take(base)
    part.copy_(flat.reshape(part.shape))
    return Placed(part, base, base.clone(), take)


def elements(size_bytes: int, dtype: torch.dtype) -> int:
    return math.ceil(size_bytes / dtype.itemsize)
