"""Every dense collective and p2p operation: the call, its tensors, and the expected result.

A Call describes an operation, the same on all ranks of a group. `KINDS[call.kind].issue(call, at)` makes the tensors of
one rank, calls torch and returns an Issued. Its check() compares the tensors with the expected values, bit for bit; for
reductions that are not in rank order it uses the bounds of own_order.py. Data follow from `call.salt`, so each rank can
compute every other rank's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import own_order
import reference as ref
from issued import Expected, Issued, Member

IN_PLACE = "in place"
PLACES = (*ref.LAYOUTS, IN_PLACE)
# The pieces of a flat tensor that an operation splits.
FLAT = ("contiguous", "offset", "strided")


@dataclass(frozen=True)
class Call:
    kind: str
    dtype: torch.dtype
    count: int  # elements of the longest block
    reduction: str = "SUM"
    place: str = "contiguous"
    async_op: bool = False
    root: int = 0
    salt: int = 0
    special: bool = False  # NaN, infinities and zeros of both signs among floats
    own_order: bool = False  # the algorithm does not reduce in the order of ranks

    def __str__(self) -> str:
        words = [f"{self.kind} of {self.count} {ref.name(self.dtype)}", self.place]
        words += [self.reduction] if KINDS[self.kind].reduces else []
        words += [f"root {self.root}"] if KINDS[self.kind].rooted else []
        words += ["asynchronous" if self.async_op else "synchronous", f"salt {self.salt}"]
        return ", ".join(words + ["special values"] * self.special)

    def data(self, rank: int, to: int = 0, count: int | None = None) -> torch.Tensor:
        """Returns a rank's contribution, or the block that it sends to rank `to`."""
        length, key = self.count if count is None else count, (self.salt, rank, to)
        if self.own_order:
            return own_order.drawn(length, self.dtype, key, self.reduction, self.exact, self.special)
        return ref.drawn(length, self.dtype, key, self.special)

    def empty(self, count: int, layout: str) -> ref.Placed:
        return ref.place(self.data(-1, 0, count), layout)

    def uneven(self, rank: int, to: int = 0) -> int:
        """Returns a length from 0 to `count`. At least one rank has `count`."""
        if rank == to == 0:
            return self.count
        draw = random.Random(hash((self.salt, rank, to)))  # the last bits of neighbours' hashes are never equal
        return draw.choice((0, self.count, self.count // 2, 2 * self.count // 3))

    def layout(self, number: int = 0) -> str:
        """Returns the layout of a tensor by its number in a list: all are contiguous, or all differ."""
        if self.place in ("contiguous", IN_PLACE):
            return "contiguous"
        return ref.LAYOUTS[(ref.LAYOUTS.index(self.place) + number) % len(ref.LAYOUTS)]

    @property
    def exact(self) -> bool:
        """Whether every order of the operands gives the same bits."""
        return own_order.exact(self.dtype, self.reduction, self.salt)

    @property
    def in_place(self) -> bool:
        return self.place == IN_PLACE


def single(name: str) -> Callable[..., Any]:
    """torch's function for one tensor, which newer versions call by another name."""
    older = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}[name]
    return getattr(dist, name, None) or getattr(dist, older)  # type: ignore[no-any-return]


# ---- reductions ----


def asks_backend(call: Call) -> bool:
    """Whether the call goes to the backend directly. Torch passes complex tensors as pairs of real numbers and refuses
    reductions that this would break, so every second such call goes directly."""
    sums = ("SUM", "AVG", "PREMUL_SUM")
    return call.dtype.is_complex and (call.reduction not in sums or call.salt % 2 == 1)


def asked(call: Call, options: Any, function: Callable[[Any], Any]) -> Any:
    options.reduceOp, options.asyncOp = ref.reduce_op(call.reduction), call.async_op
    work = function(options)
    if call.async_op:
        return work
    work.wait()
    return None


def reduced(call: Call, at: Member, placed: ref.Placed, inputs: list[torch.Tensor]) -> Expected:
    exact = call.special or call.dtype in (*ref.INTEGERS, torch.bool)
    return Expected(placed, inputs, call, near=not exact and call.salt % at.size == at.rank)


def all_reduce(call: Call, at: Member) -> Issued:
    inputs = [call.data(r) for r in range(at.size)]
    mine = ref.place(inputs[at.rank], call.layout())
    if asks_backend(call):
        work = asked(call, dist.AllreduceOptions(), lambda o: at.backend.allreduce([mine.tensor], o))
    else:
        work = dist.all_reduce(mine.tensor, ref.reduce_op(call.reduction), at.group, call.async_op)
    return Issued(work, [reduced(call, at, mine, inputs)])


def reduce(call: Call, at: Member) -> Issued:
    inputs = [call.data(r) for r in range(at.size)]
    mine = ref.place(inputs[at.rank], call.layout())
    if asks_backend(call):
        options = dist.ReduceOptions()
        options.rootRank = call.root
        work = asked(call, options, lambda o: at.backend.reduce([mine.tensor], o))
    else:
        op = ref.reduce_op(call.reduction)
        work = dist.reduce(mine.tensor, None, op, at.group, call.async_op, group_dst=call.root)
    if at.rank == call.root:
        return Issued(work, [reduced(call, at, mine, inputs)])
    return Issued(work, [], [mine])


def reduce_scatter_list(call: Call, at: Member) -> Issued:
    return reduce_blocks(call, at, [call.count] * at.size)


def reduce_scatter_uneven(call: Call, at: Member) -> Issued:
    return reduce_blocks(call, at, [call.uneven(r) for r in range(at.size)])


def reduce_blocks(call: Call, at: Member, counts: list[int]) -> Issued:
    blocks = [ref.place(call.data(at.rank, r, n), call.layout(r)) for r, n in enumerate(counts)]
    out = blocks[at.rank] if call.in_place else call.empty(counts[at.rank], call.layout())
    tensors = [block.tensor for block in blocks]
    if asks_backend(call):
        options = dist.ReduceScatterOptions()
        work = asked(call, options, lambda o: at.backend.reduce_scatter([out.tensor], [tensors], o))
    else:
        work = dist.reduce_scatter(out.tensor, tensors, ref.reduce_op(call.reduction), at.group, call.async_op)
    inputs = [call.data(r, at.rank, counts[at.rank]) for r in range(at.size)]
    return Issued(work, [reduced(call, at, out, inputs)], [block for block in blocks if block is not out])


def reduce_scatter_single(call: Call, at: Member) -> Issued:
    n = call.count
    whole = ref.place(torch.cat([call.data(at.rank, r) for r in range(at.size)]), call.layout())
    out = part_of(whole, at.rank * n, n) if call.in_place else call.empty(n, call.layout(1))
    if asks_backend(call):
        options = dist.ReduceScatterOptions()
        work = asked(call, options, lambda o: at.backend._reduce_scatter_base(out.tensor, whole.tensor, o))
    else:
        function = single("reduce_scatter_single")
        work = function(out.tensor, whole.tensor, ref.reduce_op(call.reduction), at.group, call.async_op)
    inputs = [call.data(r, at.rank) for r in range(at.size)]
    return Issued(work, [reduced(call, at, out, inputs)], [] if call.in_place else [whole])


def part_of(whole: ref.Placed, start: int, count: int) -> ref.Placed:
    """Some elements of a contiguous tensor."""

    def take(base: torch.Tensor) -> torch.Tensor:
        return base[start : start + count]

    return ref.Placed(take(whole.base), whole.base, whole.before, take)


# ---- moves ----


def broadcast(call: Call, at: Member) -> Issued:
    mine = ref.place(call.data(at.rank), call.layout())
    work = dist.broadcast(mine.tensor, None, at.group, call.async_op, group_src=call.root)
    return Issued(work, [Expected(mine, call.data(call.root), call)])


def all_gather_list(call: Call, at: Member) -> Issued:
    return gather_blocks(call, at, [call.count] * at.size)


def all_gather_uneven(call: Call, at: Member) -> Issued:
    return gather_blocks(call, at, [call.uneven(r) for r in range(at.size)])


def gather_blocks(call: Call, at: Member, counts: list[int]) -> Issued:
    data = [call.data(r, 0, n) for r, n in enumerate(counts)]
    outputs = [call.empty(n, call.layout(r)) for r, n in enumerate(counts)]
    if call.in_place:
        outputs[at.rank] = ref.place(data[at.rank], call.layout())
    mine = outputs[at.rank] if call.in_place else ref.place(data[at.rank], call.layout())
    work = dist.all_gather([out.tensor for out in outputs], mine.tensor, at.group, call.async_op)
    return Issued(work, expect(call, outputs, data), [] if call.in_place else [mine])


def all_gather_single(call: Call, at: Member) -> Issued:
    n, data = call.count, [call.data(r) for r in range(at.size)]
    whole = call.empty(n * at.size, call.layout())
    mine = part_of(whole, at.rank * n, n) if call.in_place else ref.place(data[at.rank], call.layout(1))
    if call.in_place:
        mine.tensor.copy_(data[at.rank])
    work = single("all_gather_single")(whole.tensor, mine.tensor, at.group, call.async_op)
    return Issued(work, expect(call, [whole], [torch.cat(data)]), [] if call.in_place else [mine])


def expect(call: Call, outputs: list[ref.Placed], data: list[torch.Tensor]) -> list[Expected]:
    return [Expected(out, want, call) for out, want in zip(outputs, data, strict=True)]


def all_to_all(call: Call, at: Member) -> Issued:
    # In place, a rank receives as many elements from a rank as it sends to it.
    length = (lambda i, j: call.uneven(min(i, j), max(i, j))) if call.in_place else call.uneven
    inputs = [ref.place(call.data(at.rank, r, length(at.rank, r)), call.layout(r)) for r in range(at.size)]
    data = [call.data(r, at.rank, length(r, at.rank)) for r in range(at.size)]
    outputs = inputs if call.in_place else [call.empty(t.numel(), call.layout(r + 1)) for r, t in enumerate(data)]
    tensors = [out.tensor for out in outputs], [each.tensor for each in inputs]
    work = dist.all_to_all(*tensors, at.group, call.async_op)
    return Issued(work, expect(call, outputs, data), [] if call.in_place else inputs)


def all_to_all_single(call: Call, at: Member) -> Issued:
    data = torch.cat([call.data(r, at.rank) for r in range(at.size)])
    mine = ref.place(torch.cat([call.data(at.rank, r) for r in range(at.size)]), call.layout())
    out = mine if call.in_place else call.empty(data.numel(), call.layout())
    splits = [call.count] * at.size if call.salt % 2 else None
    work = dist.all_to_all_single(out.tensor, mine.tensor, splits, splits, at.group, call.async_op)
    return Issued(work, [Expected(out, data, call)], [] if call.in_place else [mine])


def all_to_all_splits(call: Call, at: Member) -> Issued:
    """Rows of one or three elements: splits count rows."""
    row = 3 if call.salt % 2 else 1
    to = [call.uneven(at.rank, r) // row for r in range(at.size)]
    come = [call.uneven(r, at.rank) // row for r in range(at.size)]
    data = torch.cat([call.data(r, at.rank, row * n) for r, n in enumerate(come)])
    mine = ref.place(torch.cat([call.data(at.rank, r, row * n) for r, n in enumerate(to)]), call.layout())
    out = call.empty(data.numel(), call.layout())
    rows = [t.tensor if row == 1 else t.tensor.view(-1, row) for t in (out, mine)]
    work = dist.all_to_all_single(rows[0], rows[1], come, to, at.group, call.async_op)
    return Issued(work, [Expected(out, data, call)], [mine])


def gather(call: Call, at: Member) -> Issued:
    data = [call.data(r) for r in range(at.size)]
    mine, at_root = ref.place(data[at.rank], call.layout()), at.rank == call.root
    outputs = [call.empty(call.count, call.layout(r)) for r in range(at.size)] if at_root else []
    if at_root and call.in_place:
        outputs[at.rank] = mine
    tensors = [out.tensor for out in outputs] if at_root else None
    work = dist.gather(mine.tensor, tensors, None, at.group, call.async_op, group_dst=call.root)
    return Issued(work, expect(call, outputs, data[: len(outputs)]), [] if at_root and call.in_place else [mine])


def scatter(call: Call, at: Member) -> Issued:
    at_root = at.rank == call.root
    blocks = [ref.place(call.data(at.rank, r), call.layout(r)) for r in range(at.size)] if at_root else []
    out = blocks[at.rank] if at_root and call.in_place else call.empty(call.count, call.layout(1))
    tensors = [block.tensor for block in blocks] if at_root else None
    work = dist.scatter(out.tensor, tensors, None, at.group, call.async_op, group_src=call.root)
    return Issued(work, [Expected(out, call.data(call.root, at.rank), call)], [b for b in blocks if b is not out])


def send_recv(call: Call, at: Member) -> Issued:
    """Sends around a ring, or to this rank itself. In synchronous calls rank 0 sends first, all others receive
    first."""
    step = call.salt % at.size if call.async_op else 1 % at.size
    to, source, tag = (at.rank + step) % at.size, (at.rank - step) % at.size, call.salt % 3
    mine, out = ref.place(call.data(at.rank), call.layout()), call.empty(call.count, call.layout(1))
    work: Any = None
    if call.async_op or at.size == 1:
        works = [
            dist.isend(mine.tensor, group=at.group, tag=tag, group_dst=to),
            dist.irecv(out.tensor, group=at.group, tag=tag, group_src=source),
        ]
        several = Several(works[:: 1 if call.salt % 2 else -1])
        if call.async_op:
            work = several
        else:
            several.wait()
    else:
        calls: list[Callable[[], Any]] = [
            lambda: dist.send(mine.tensor, group=at.group, tag=tag, group_dst=to),
            lambda: dist.recv(out.tensor, group=at.group, tag=tag, group_src=source),
        ]
        for each in calls if at.rank == 0 else reversed(calls):
            each()
    return Issued(work, [Expected(out, call.data(source), call)], [mine])


@dataclass
class Several:
    """The Works of one call."""

    works: list[Any]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@dataclass(frozen=True)
class Kind:
    issue: Callable[[Call, Member], Issued]
    name: str = ""  # in messages
    reduces: bool = False
    rooted: bool = False
    same: bool = False  # all ranks get the same result
    places: tuple[str, ...] = PLACES


KINDS = {
    "all_reduce": Kind(all_reduce, "all_reduce", reduces=True, same=True, places=ref.LAYOUTS),
    "reduce": Kind(reduce, "reduce", reduces=True, rooted=True, places=ref.LAYOUTS),
    "reduce_scatter_list": Kind(reduce_scatter_list, "reduce_scatter", reduces=True),
    "reduce_scatter_uneven": Kind(reduce_scatter_uneven, "reduce_scatter", reduces=True),
    "reduce_scatter_single": Kind(reduce_scatter_single, "reduce_scatter", reduces=True),
    "broadcast": Kind(broadcast, rooted=True, same=True, places=ref.LAYOUTS),
    "all_gather_list": Kind(all_gather_list, same=True),
    "all_gather_uneven": Kind(all_gather_uneven, same=True),
    "all_gather_single": Kind(all_gather_single, same=True),
    "all_to_all": Kind(all_to_all),
    "all_to_all_single": Kind(all_to_all_single, places=("contiguous", "offset", IN_PLACE)),
    "all_to_all_splits": Kind(all_to_all_splits, places=("contiguous", "offset")),
    "gather": Kind(gather, rooted=True),
    "scatter": Kind(scatter, rooted=True),
    "send_recv": Kind(send_recv, places=ref.LAYOUTS),
}


def cells(kind: str) -> list[tuple[torch.dtype, str]]:
    """Types and reductions that a kind has."""
    if not KINDS[kind].reduces:
        return [(dtype, "SUM") for dtype in ref.EVERY_TYPE]
    return [(d, r) for d, r in itertools.product(ref.REDUCED, ref.EVERY_REDUCTION) if ref.defined(r, d)]
