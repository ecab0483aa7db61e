"""The operations that a rank of a random program has in flight. The rank draws for each whether it waits, polls, uses
the Future, never waits, or drops the Work."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

import operations as ops
from issued import Issued, Member

MOST_IN_FLIGHT = 20
DEADLINE_S = 60.0


@dataclass
class Flight:
    """An operation that was issued. `end` returns when it is complete; with None, it is checked at the end of the
    program."""

    what: str
    end: Callable[[], None] | None
    check: Callable[[], None]
    keeps: Any = None


@dataclass
class Rank:
    seed: int
    rank: int  # in the world
    options: Any = None  # of its groups
    groups: list[Member | None] = field(default_factory=list)  # None: this rank is not in it
    flying: list[Flight] = field(default_factory=list)
    left: list[Flight] = field(default_factory=list)  # to be checked at the end
    wrong: list[str] = field(default_factory=list)
    alike: dict[str, str] = field(default_factory=dict)  # digests that must be equal on all ranks that have them

    def __post_init__(self) -> None:
        self.draw = random.Random(1000 * self.seed + self.rank)  # each rank draws differently

    def fly(self, what: str, work: Any, check: Callable[[], None], leave: bool) -> None:
        """Adds an asynchronous operation. With `leave` the rank may not wait for it, if a later operation shows that it
        is complete."""
        fates = ["wait", "wait", "poll", "future", *["never", "forget"] * leave]
        fate = self.draw.choice(fates)
        what = f"{what}, {fate}"
        if fate == "wait":
            self.flying.append(Flight(what, work.wait, check))
        elif fate == "poll":
            self.flying.append(Flight(what, lambda: poll(work), check))
        elif fate == "future":
            future = work.get_future()  # the Work is dropped
            self.flying.append(Flight(what, future.wait, check))
        else:
            self.left.append(Flight(what, None, check, work if fate == "never" else None))

    def batched(self, what: str, works: Any, check: Callable[[], None]) -> None:
        """One of several operations that are waited for together."""
        self.flying.append(Flight(what, works.wait, check))

    def settle(self) -> None:
        """Waits for some of the operations in flight, in any order."""
        while len(self.flying) > MOST_IN_FLIGHT or (self.flying and self.draw.random() < 0.3):
            self.land(self.flying.pop(self.draw.randrange(len(self.flying))))

    def land(self, flight: Flight) -> None:
        if flight.end is not None:
            try:
                flight.end()
            except Exception as error:
                error.add_note(flight.what)
                raise
        self.check(flight.what, flight.check)

    def check(self, what: str, check: Callable[[], None]) -> None:
        """Checks a result and keeps an error, so that the rank goes on with the other operations."""
        try:
            check()
        except AssertionError as error:
            self.wrong.append(f"rank {self.rank}: {what}: {error}")

    def hold(self, what: str, call: ops.Call, issued: Issued) -> None:
        """Keeps the bits of a reduction that must be equal on all ranks and that no rank can compute alone."""
        if call.own_order and ops.KINDS[call.kind].same:
            self.alike[what] = issued.digest()

    def finish(self) -> None:
        """Waits for everything, and destroys the groups that the program has made."""
        self.draw.shuffle(self.flying)
        while self.flying:
            self.land(self.flying.pop())
        for at in self.groups:
            if at is not None:
                dist.barrier(at.group)
        for flight in self.left:
            self.land(flight)
        for at in self.groups[1:]:
            if at is not None:
                dist.destroy_process_group(at.group)


def poll(work: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not work.is_completed():
        assert time.monotonic() < deadline, "not complete, and nobody waits"
        os.sched_yield()  # gives the core to another rank: there may be more ranks than cores
