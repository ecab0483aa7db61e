"""The coalescing windows of a random program: operations that torch's manager passes to the backend together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed import distributed_c10d as c10d

import operations as ops
import reference as ref
from issued import Member
from operations import Call
from program_rank import Rank

# The kinds that torch collects itself and passes on in one call, of one kind and one reduction.
CAPTURED = ("all_reduce", "all_gather_single", "reduce_scatter_single")
MOST_OPERATIONS = 12


@dataclass(frozen=True)
class Window:
    calls: tuple[Call, ...]
    device: bool  # opens a window of the backend as well
    async_ops: bool

    def __str__(self) -> str:
        how = "asynchronous" if self.async_ops else "synchronous"
        return f"{how} window{' of the device' if self.device else ''}: {'; '.join(map(str, self.calls))}"


def draw(
    rng: random.Random, size: int, count_of: Callable[[torch.dtype, int], int], own_order: frozenset[str]
) -> Window:
    captured = rng.random() < 0.5
    kind = rng.choice(CAPTURED)
    reduction = rng.choice(("SUM", "AVG", "MAX", "PRODUCT", "PREMUL_SUM"))
    calls: list[Call] = []
    for _ in range(rng.randint(0, MOST_OPERATIONS)):
        if not captured and (not calls or rng.random() < 0.4):  # neighbours of one kind may share a collective
            kind = rng.choice([k for k in ops.KINDS if k not in (*CAPTURED, "send_recv")])
            reduction = rng.choice(("SUM", "MIN", "BOR"))
        choices = ops.cells(kind)
        if ops.KINDS[kind].reduces:
            choices = [(d, r) for d, r in choices if r == reduction]
        dtype, _ = rng.choice([(d, r) for d, r in choices if not (captured and d.is_complex)])
        name = reduction if ops.KINDS[kind].reduces else "SUM"
        count = count_of(dtype, size) // rng.choice((1, 4, 16))
        place, root = rng.choice(ops.KINDS[kind].places), rng.randrange(size) if rng.random() < 0.3 else 0
        salt, special, own = rng.randrange(1 << 30), rng.random() < 0.1, ops.KINDS[kind].name in own_order
        calls.append(Call(kind, dtype, count, name, place, False, root, salt, special, own))
    return Window(tuple(calls), not captured or rng.random() < 0.5, rng.random() < 0.5)


def play(window: Window, rank: Rank, at: Member, what: str) -> None:
    device = torch.device("cpu") if window.device else None
    with c10d._coalescing_manager(at.group, device, window.async_ops) as manager:
        issued = [ops.KINDS[call.kind].issue(call, at) for call in window.calls]

    def check() -> None:
        for number, (call, each) in enumerate(zip(window.calls, issued, strict=True)):
            rank.hold(f"{what}: operation {number}", call, each)
            each.check(f"operation {number} of the window, {ref.name(call.dtype)}")

    if window.async_ops and manager.works:
        rank.fly(what, manager.works[0], check, leave=all(each.direct for each in issued))
    else:
        rank.check(what, check)
