"""The p2p operations of a random program. A step has several routes; a route has several sends from one rank to another
with one tag. Each rank posts the asynchronous ends in its own order. Then it makes the blocking calls in the order that
all ranks share, so the other end of each is posted or about to be posted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import reference as ref
from issued import Member
from operations import Several
from program_rank import Rank

ANYBODY = -1
TAGS = (0, 0, 1, 7, 2_000_000_000)
# Tags of receives from any source, one for each step and rank, so that such a receive meets no other sends.
FIRST_PRIVATE_TAG = 1_000_000


@dataclass(frozen=True)
class Route:
    source: int
    to: int
    tag: int
    dtype: torch.dtype
    count: int
    sends: int
    sends_block: bool
    receives_block: bool
    any_source: bool
    salt: int

    def data(self, number: int) -> torch.Tensor:
        return ref.drawn(self.count, self.dtype, (self.salt, self.source, number))

    def __str__(self) -> str:
        how = ["blocking sends"] * self.sends_block + ["blocking receives"] * self.receives_block
        return (
            f"{self.sends} of {self.count} {ref.name(self.dtype)} {self.source}->{self.to}"
            f"{' from anybody' if self.any_source else ''} tag {self.tag} {' '.join(how)} salt {self.salt}"
        )


@dataclass(frozen=True)
class P2P:
    routes: tuple[Route, ...]
    order: tuple[int, ...]  # the numbers of the routes with blocking ends, in the order of the calls
    batch: bool  # the ends that do not block are one batch_isend_irecv()

    def __str__(self) -> str:
        return f"{'batch of ' if self.batch else ''}p2p: {'; '.join(map(str, self.routes))}; order {self.order}"


def draw(rng: random.Random, size: int, number: int, count_of: Callable[[torch.dtype], int]) -> P2P:
    routes: dict[tuple[int, int, int], Route] = {}
    batch = rng.random() < 0.25
    for _ in range(rng.randint(1, 2 * size)):
        source, to, tag = rng.randrange(size), rng.randrange(size), rng.choice(TAGS)
        dtype, salt, sends = rng.choice(ref.EVERY_TYPE), rng.randrange(1 << 30), rng.choice((1, 1, 1, 2, 4))
        blocks = [not batch and source != to and rng.random() < 0.5 for _ in range(2)]
        routes[source, to, tag] = Route(
            source, to, tag, dtype, count_of(dtype), sends, blocks[0], blocks[1], False, salt
        )
    for to in range(size):
        if not batch and size > 1 and rng.random() < 0.15:
            tag, dtype = FIRST_PRIVATE_TAG + number * size + to, rng.choice(ref.EVERY_TYPE)
            count, salt = count_of(dtype), rng.randrange(1 << 30)
            # Which send a receive gets is open, so only one side may block.
            blocks = list(rng.choice(((False, False), (True, False), (False, True))))
            for source in rng.sample([r for r in range(size) if r != to], rng.randint(1, size - 1)):
                route = Route(source, to, tag, dtype, count, rng.randint(1, 3), blocks[0], blocks[1], True, salt)
                routes[source, to, tag] = route
    listed = tuple(routes.values())
    order = [number for number, route in enumerate(listed) for _ in range(route.sends)]
    rng.shuffle(order)
    return P2P(listed, tuple(order), batch)


@dataclass
class Receives:
    """The recvs of a rank from any source with one tag. Each must get the next send of its source."""

    routes: list[Route]
    posted: list[tuple[ref.Placed, Callable[[], int]]]
    expected: int
    complete: int = 0

    def check(self) -> None:
        """Called after each recv. When all are complete, it checks them in the order of posting."""
        self.complete += 1
        if self.complete < self.expected:
            return
        by_source = {route.source: route for route in self.routes}
        seen = dict.fromkeys(by_source, 0)
        for placed, source_of in self.posted:
            source = source_of()
            assert source in by_source, f"a send of rank {source}"
            assert seen[source] < by_source[source].sends, f"too many sends of rank {source}"
            ref.check_same(placed.tensor, by_source[source].data(seen[source]), f"send {seen[source]} of {source}")
            placed.check_surroundings(f"send {seen[source]} of {source}")
            seen[source] += 1


class Ends:
    """The ends of a step's p2p operations on one rank."""

    def __init__(self, step: P2P, at: Member, rank: Rank, what: str) -> None:
        self.step, self.at, self.rank, self.what = step, at, rank, what
        self.posted: dict[tuple[Route, bool], int] = {}
        self.from_anybody: dict[int, Receives] = {}
        for route in step.routes:
            if route.any_source and route.to == at.rank:
                receives = self.from_anybody.setdefault(route.tag, Receives([], [], 0))
                receives.routes.append(route)
                receives.expected += route.sends

    def mine(self) -> Iterator[tuple[Route, bool]]:
        """Yields the routes of this rank in the common order, sends before recvs, and whether this is the sending
        end."""
        for number in self.step.order:
            route = self.step.routes[number]
            if route.source == self.at.rank:
                yield route, True
            if route.to == self.at.rank:
                yield route, False

    def play(self) -> None:
        early = [(c, sends) for c, sends in self.mine() if not (c.sends_block if sends else c.receives_block)]
        self.rank.draw.shuffle(early)
        if self.step.batch:
            self.post_batch(early)
        else:
            for route, sends in early:
                self.post(route, sends)
        for route, sends in self.mine():
            if route.sends_block if sends else route.receives_block:
                self.block(route, sends)

    def tensor(self, route: Route, sends: bool) -> tuple[int, ref.Placed]:
        """Returns the tensor of the route's next send or recv."""
        number = self.posted.get((route, sends), 0)
        self.posted[route, sends] = number + 1
        data = route.data(number if sends else -1)
        return number, ref.place(data, ref.LAYOUTS[hash((route.salt, number, sends)) % len(ref.LAYOUTS)])

    def check_of(self, route: Route, sends: bool, number: int, placed: ref.Placed) -> Callable[[], None]:
        def check() -> None:
            what = f"number {number} of {route}"
            ref.check_same(placed.tensor, route.data(number), what)
            placed.check_surroundings(what)

        return check

    def post(self, route: Route, sends: bool) -> None:
        number, placed = self.tensor(route, sends)
        how: dict[str, Any] = {"group": self.at.group, "tag": route.tag}
        what = f"{self.what}: {'send' if sends else 'receive'} {number} of {route}"
        check = self.check_of(route, sends, number, placed)
        if sends:
            work = dist.isend(placed.tensor, group_dst=route.to, **how)
        elif route.any_source:
            work = dist.irecv(placed.tensor, **how)
            receives = self.from_anybody[route.tag]
            receives.posted.append((placed, lambda: work._source_rank()))  # type: ignore[union-attr]
            check = receives.check
        else:
            work = dist.irecv(placed.tensor, group_src=route.source, **how)
        # The receiver checks a send. A recv can be checked only after its Work.
        self.rank.fly(what, work, check, leave=sends)

    def block(self, route: Route, sends: bool) -> None:
        number, placed = self.tensor(route, sends)
        how: dict[str, Any] = {"group": self.at.group, "tag": route.tag}
        check = self.check_of(route, sends, number, placed)
        if sends:
            dist.send(placed.tensor, group_dst=route.to, **how)
        elif route.any_source:
            source = dist.get_group_rank(self.at.group, dist.recv(placed.tensor, **how))
            receives = self.from_anybody[route.tag]
            receives.posted.append((placed, lambda: source))
            check = receives.check
        else:
            dist.recv(placed.tensor, group_src=route.source, **how)
        self.rank.check(f"{self.what}: blocking {'send' if sends else 'receive'} {number} of {route}", check)

    def post_batch(self, ends: list[tuple[Route, bool]]) -> None:
        batch, checks = [], []
        for route, sends in ends:
            number, placed = self.tensor(route, sends)
            peer = route.to if sends else route.source
            function = dist.isend if sends else dist.irecv
            batch.append(dist.P2POp(function, placed.tensor, group=self.at.group, tag=route.tag, group_peer=peer))
            checks.append(self.check_of(route, sends, number, placed))
        if batch:
            works = Several(dist.batch_isend_irecv(batch))
            for check in checks:
                self.rank.batched(self.what, works, check)


def play(step: P2P, rank: Rank, at: Member, what: str) -> None:
    Ends(step, at, rank, what).play()
