"""Data to send, and what must come out of it.

Each element is a small whole number that follows from its rank, its place and the number of the check, so that every
rank can compute what every other one sends. Most sums of them are exact in every type, and then the comparison is, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from sagecomm._bench.cases import Case

_PIECE = 1 << 20  # elements that are compared at a time: the reference takes 8 bytes and more for each

Wide = Callable[[int, int, int], torch.Tensor]
"""The elements [begin, end) that a rank sends, in a type that holds them exactly: (rank, begin, end)."""


def sent(case: Case, ranks: int, check: int) -> Wide:
    """Returns what each rank sends in check number `check`, in int64, float64 or complex128."""
    dtype: torch.dtype = getattr(torch, case.type)

    def of(rank: int, begin: int, end: int) -> torch.Tensor:
        at = torch.arange(begin, end, dtype=torch.int64)
        if dtype is torch.bool:
            return (at * 7 + rank * 13 + check * 33) % 7 % 2
        if case.redop == "prod":  # products stay 1 or 2, however many ranks there are
            number = 1 + ((at + rank + check) % (2 * ranks) == 0).long()
        else:
            number = (at * 5 + rank * 3 + check * 4) % 7
        if dtype.is_complex:
            imaginary = torch.zeros_like(number) if case.redop == "prod" else (number + 1) % 7
            return torch.complex(number.double(), imaginary.double())
        return number.double() if dtype.is_floating_point else number

    return of


def narrow(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype.itemsize == 1 and dtype.is_floating_point:  # no other type converts into these everywhere
        wide = wide.float()
    return wide.to(dtype)


def fill(case: Case, buffers: list[torch.Tensor], rank: int, ranks: int, check: int) -> None:
    """Writes this rank's input into the buffers of make_call, and something else into its output."""
    of = sent(case, ranks, check)
    x, *others = buffers
    inputs, outputs = [x], others
    if case.op == "reduce_scatter":
        inputs, outputs = others, [x]
    elif case.op == "scatter":
        inputs, outputs = (others if rank == case.root else []), [x]
    for output in outputs:
        output.view(torch.uint8).fill_(1)
    begin = 0
    for given in inputs:
        for start in range(0, given.numel(), _PIECE):
            end = min(start + _PIECE, given.numel())
            given[start:end] = narrow(of(rank, begin + start, begin + end), given.dtype)
        begin += given.numel()


def wrong(case: Case, buffers: list[torch.Tensor], rank: int, ranks: int, check: int) -> int:
    """Returns how many elements of this rank's output are not what fill() with the same numbers leads to."""
    return sum(
        _differ(case, output, expected, ranks) for output, expected in _outputs(case, buffers, rank, ranks, check)
    )


Expected = Callable[[int, int], torch.Tensor]


def _outputs(
    case: Case, buffers: list[torch.Tensor], rank: int, ranks: int, check: int
) -> Iterator[tuple[torch.Tensor, Expected]]:
    """Yields each output with a function that returns its elements [begin, end), exact or in a wide type."""
    of = sent(case, ranks, check)
    x, *others = buffers
    op, root, count = case.op, case.root, case.count

    def of_rank(source: int, offset: int = 0) -> Expected:
        return lambda begin, end: of(source, offset + begin, offset + end)

    def reduced(offset: int = 0) -> Expected:
        return lambda begin, end: _reduce(case, [of(r, offset + begin, offset + end) for r in range(ranks)])

    if op == "all_reduce" or (op == "reduce" and rank == root):
        yield x, reduced()
    elif op == "reduce_scatter":
        yield x, reduced(rank * count)
    elif op == "broadcast":
        yield x, of_rank(root)
    elif op == "scatter":
        yield x, of_rank(root, rank * count)
    elif op == "gather" and rank == root:
        for source, block in enumerate(others):
            yield block, of_rank(source)
    elif op in ("all_gather", "all_to_all"):
        offset = rank * count if op == "all_to_all" else 0
        for source in range(ranks):
            yield others[0][source * count : (source + 1) * count], of_rank(source, offset)
    elif op == "shift":
        yield others[0], of_rank((rank - 1) % ranks)
    elif op == "send_recv" and rank < 2:
        yield x, of_rank(0)


def _reduce(case: Case, operands: list[torch.Tensor]) -> torch.Tensor:
    if case.redop in ("sum", "avg") and case.type != "bool":
        total = torch.stack(operands).sum(0)
        if case.redop == "sum":
            return total
        if total.dtype != torch.int64:
            return total / len(operands)
        wrapped = narrow(total, getattr(torch, case.type)).to(torch.int64)
        return torch.div(wrapped, len(operands), rounding_mode="trunc")
    combine: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": torch.bitwise_or,  # of bool: it is true if any is
        "prod": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    result = operands[0]
    for operand in operands[1:]:
        result = combine[case.redop](result, operand)
    return result


def _differ(case: Case, output: torch.Tensor, expected: Expected, ranks: int) -> int:
    found = 0
    for begin in range(0, output.numel(), _PIECE):
        end = min(begin + _PIECE, output.numel())
        got, want = output[begin:end], expected(begin, end)
        if case.redop in ("sum", "avg") and (got.dtype.is_floating_point or got.dtype.is_complex):
            # Partial sums are whole numbers: the type holds those up to 2/eps exactly. Beyond, each of n-1 additions
            # rounds by half an eps at most; so does the division of an average.
            eps = torch.finfo(got.dtype).eps
            most = 6 * ranks
            near = got.to(want.dtype)
            allowed = (0.0 if most <= 2 / eps else (ranks - 1) * eps / 2 * most) / (ranks if case.redop == "avg" else 1)
            allowed += 2 * eps * 6 if case.redop == "avg" else 0.0
            found += int((~((near - want).abs() <= allowed)).sum())  # not >: a NaN is wrong
        elif got.dtype.is_floating_point or got.dtype.is_complex:
            found += int((got.to(want.dtype) != want).sum())
        else:
            found += int((got.to(torch.int64) != narrow(want, got.dtype).to(torch.int64)).sum())
    return found
