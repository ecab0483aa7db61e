"""Every operation with every type, reduction, length, place of its tensors and number of ranks, synchronous and not.

TEST_MATRIX=full runs every cell. Otherwise each operation meets each type and reduction, and each pair of any two of
operation, type, reduction, length, place and way to wait occurs, in groups of every size.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import operations as ops
import reference as ref
from issued import Member, member
from operations import Call
from selection import quickly
from worlds import World

FULL = os.environ.get("TEST_MATRIX") == "full"
SIZES = (1, pytest.param(2, marks=[pytest.mark.smoke, pytest.mark.long]), 3, *quickly([], (4, 8)))
# The lengths in bytes at which an operation takes another path: those of a small slot and of a chunk of a large slot.
SMALL, CHUNK = 8 << 10, 128 << 10
# The same for operations with a block for each other rank, whose chunks share a slot.
IN_PIECES = ("reduce_scatter", "all_to_all", "scatter")
LENGTHS = ("none", "one", "odd", "small-1", "small", "small+1", "chunk-1", "chunk", "chunk+1", "many")
BATCH = 250  # how many cells the ranks run in one call


def elements(length: str, kind: str, dtype: torch.dtype, size: int) -> int:
    """How many elements a block of that length has."""
    small, chunk = SMALL, CHUNK
    if kind.startswith(IN_PIECES) and size > 1:
        small, chunk = (n // (size - 1) // 64 * 64 for n in (SMALL, CHUNK))
    if kind.startswith("all_to_all") and size > 1:  # a block begins in a small slot, behind a table of lengths
        small = (SMALL - (8 * (size + 1) + 63) // 64 * 64) // (size - 1) // 64 * 64
        chunk += small
    named, _, more = length.partition("-" if "-" in length else "+")
    fixed = {"none": 0, "one": 1, "odd": 77, "many": ref.elements(3 * chunk, dtype) + 5}
    if named in fixed:
        return fixed[named]
    return {"small": small, "chunk": chunk}[named] // dtype.itemsize + int(length[len(named) :] if more else 0)


# A cell: operation, type, reduction, length, place, asynchronous.
Cell = tuple[str, torch.dtype, str, str, str, bool]


def every_cell() -> Iterator[Cell]:
    for kind in ops.KINDS:
        for dtype, reduction in ops.cells(kind):
            yield from ways(kind, dtype, reduction)


def ways(kind: str, dtype: torch.dtype, reduction: str) -> list[Cell]:
    places = ops.KINDS[kind].places
    return [(kind, dtype, reduction, *way) for way in itertools.product(LENGTHS, places, (False, True))]


def pairs(cell: Cell) -> set[tuple[int, int, object, object]]:
    return {(i, k, cell[i], cell[k]) for i, k in itertools.combinations(range(len(cell)), 2)}


@functools.cache
def chosen_cells() -> list[Cell]:
    """One cell for each operation, type and reduction, the one with most pairs that no cell before it has; then what
    the remaining pairs need."""
    draw = random.Random(0)
    seen: set[tuple[int, int, object, object]] = set()
    chosen = []
    for kind in ops.KINDS:
        for dtype, reduction in ops.cells(kind):
            candidates = ways(kind, dtype, reduction)
            draw.shuffle(candidates)
            chosen.append(max(candidates, key=lambda cell: len(pairs(cell) - seen)))
            seen |= pairs(chosen[-1])
    for cell in every_cell():
        if pairs(cell) - seen:
            chosen.append(cell)
            seen |= pairs(cell)
    return chosen


def call_of(number: int, cell: Cell, size: int) -> Call:
    kind, dtype, reduction, length, place, async_op = cell
    count = elements(length, kind, dtype, size)
    # Drawn: the number of a cell goes with its type and reduction.
    draw = random.Random(number)
    special = reduction in ("MIN", "MAX") or draw.random() < 0.3
    root, salt = draw.randrange(size), draw.getrandbits(30)
    return Call(kind, dtype, count, reduction, place, async_op, root, salt, special)


def run_cells(calls: list[Call]) -> tuple[list[str], list[str]]:
    """Returns the errors of this rank, and a digest for each call whose results are the same on all ranks."""
    at = member()
    wrong, digests = [], []
    for call in calls:
        what = f"{call}, {at.size} ranks"
        try:
            issued = ops.KINDS[call.kind].issue(call, at)
            if call.async_op:
                issued.work.wait()
        except Exception as error:
            error.add_note(what)
            raise
        try:
            assert (issued.work is not None) == call.async_op, f"{what}: returned {issued.work}"
            issued.check(what)
        except AssertionError as error:
            wrong.append(str(error))
        digests.append(issued.digest() if ops.KINDS[call.kind].same else "")
    return wrong, digests


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("size", SIZES)
def test_matrix(world, size):
    run_matrix(world(size), list(every_cell()) if FULL else chosen_cells())


def run_matrix(ranks: World, cells: Sequence[Cell], own_order: bool = False, **how: Any) -> None:
    """With `own_order` reductions need not be in the order of ranks. `how` as in World.run()."""
    calls = [call_of(number, cell, ranks.size) for number, cell in enumerate(cells)]
    calls = [dataclasses.replace(call, own_order=own_order and ops.KINDS[call.kind].reduces) for call in calls]
    wrong: list[str] = []
    for start in range(0, len(calls), BATCH):
        batch = calls[start : start + BATCH]
        results = ranks.run(run_cells, batch, **how)
        wrong += [f"rank {rank}: {text}" for rank, (texts, _) in enumerate(results) for text in texts]
        for number, of_ranks in enumerate(zip(*(digests for _, digests in results), strict=True)):
            if len(set(of_ranks)) > 1:
                wrong.append(f"{batch[number]}, {ranks.size} ranks: ranks have different bits")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cells)} cells:", *wrong[:20]])


def refusals() -> None:
    """Every operation that reduces refuses an undefined reduction in the same words."""
    at = member()
    reducing = [kind for kind, of in ops.KINDS.items() if of.reduces]
    for kind, dtype, reduction, async_op in itertools.product(
        reducing, ref.EVERY_TYPE, ref.EVERY_REDUCTION, (False, True)
    ):
        if ref.defined(reduction, dtype):
            continue
        text = f"sagecomm: {ops.KINDS[kind].name}: {reduction} is not defined for {ref.name(dtype)}"
        error = refusal(Call(kind, dtype, 4, reduction, async_op=async_op), at)
        # A mistake of the caller does not make the group fail.
        assert text in str(error), f"{text!r} is not in: {error}"
        assert not isinstance(error, dist.DistBackendError), f"{type(error)}: {error}"
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == [float(at.size)] * 3


def refusal(call: Call, at: Member) -> Any:
    try:
        ops.KINDS[call.kind].issue(call, at)
    except RuntimeError as error:
        return error
    raise AssertionError(f"not refused: {call}")


@pytest.mark.parametrize("size", [1, 2])
def test_reductions_that_a_type_does_not_have(world, size):
    world(size).run(refusals)
