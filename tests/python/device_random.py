"""Random programs on tensors of an accelerator. A seed determines the operations of all ranks, their blocks, and which
of them share a window or a batch. Each rank draws for itself in which streams it writes inputs, issues, waits and
reads, which of these are late, how it waits, if ever, and when it drops tensors and Works.

Operations are those of device_each.py, and so are the values. No rank waits on the host for what comes later in the
program, and the program orders its own streams, so that only an order of the library can be missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from device_calls import MINUTE, run_under_fake_cuda, take_device
from device_each import OPERATIONS, Block, Call, contiguous, strided
from device_programs import ELSEWHERE, N, accelerator, expect, full, held, main_stream
from device_waits import until

STEPS = 24
MOST = 4  # calls under way
LENGTHS = [1, 33, N, 5000, 70_001]
WHOLE = [name for name in OPERATIONS if "coalesced" in name or "batch" in name]  # what no window can hold
PARTS = [name for name in OPERATIONS if name not in WHOLE]


def shifted(n: int) -> torch.Tensor:
    """Contiguous, at an odd place of a longer tensor."""
    return full(0, n + 7)[3 : n + 3]


def column(n: int) -> torch.Tensor:
    return torch.zeros(n, 3, device=accelerator())[:, 1]


LAYOUTS: list[Block] = [contiguous, strided, shifted, column]


def batch_of_all(chance: random.Random, own: random.Random) -> Call:
    """Each rank sends to each other one several times, and receives as often. The peers take turns."""
    rank, block, n = dist.get_rank(), chance.choice(LAYOUTS), chance.choice(LENGTHS)
    tags = chance.choice([[0, 0], [0, 0, 0], [0, 1], [1, 0, 0]])
    peers = [other for other in range(dist.get_world_size()) if other != rank for _ in tags]
    inputs, outputs, ops = list[tuple[torch.Tensor, float]](), list[tuple[torch.Tensor, float]](), list[dist.P2POp]()
    turns: list[tuple[Callable[..., Any], int]] = [(kind, peer) for kind in (dist.isend, dist.irecv) for peer in peers]
    own.shuffle(turns)
    for at, (kind, peer) in enumerate(turns):
        number = turns[:at].count((kind, peer))  # of the messages between the two
        x, (sender, receiver) = block(n), (rank, peer) if kind is dist.isend else (peer, rank)
        (inputs if kind is dist.isend else outputs).append((x, 100.0 * sender + 10 * receiver + number + 1))
        ops.append(dist.P2POp(kind, x, peer, tag=tags[number]))
    return Call(inputs, outputs, lambda: dist.batch_isend_irecv(ops))


@dataclass
class Issued:
    """A call, its device, the stream in which it was issued, and what it returned."""

    what: str
    call: Call
    device: torch.device
    issuer: torch.Stream
    works: Sequence[Any] = ()


@dataclass
class Program:
    seed: int
    devices: Sequence[torch.device] = ()  # on which calls are made in turns; none: the current one
    chance: random.Random = field(init=False)  # the same on all ranks
    own: random.Random = field(init=False)
    streams_on: dict[torch.device, list[torch.Stream]] = field(default_factory=dict)  # the first is the main one
    under_way: list[Issued] = field(default_factory=list)
    read: list[tuple[str, torch.Tensor, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance, self.own = random.Random(self.seed), random.Random(f"{self.seed} {dist.get_rank()}")
        for device in self.devices or [accelerator()]:
            self.turn_to(device)
            self.streams_on[device] = [main_stream(), *(torch.Stream(device) for _ in range(2))]

    def turn_to(self, device: torch.device) -> None:
        ELSEWHERE[:] = [device] if self.devices else []

    @property
    def streams(self) -> list[torch.Stream]:
        return self.streams_on[accelerator()]

    def run(self) -> None:
        for device in self.streams_on:
            self.turn_to(device)
            dist.all_reduce(full(0))  # the library makes its streams, while none is held
        for step in range(STEPS):
            self.turn_to(self.own.choice(list(self.streams_on)))
            self.issue(step)
            while self.under_way and (len(self.under_way) > MOST or self.own.random() < 0.4):
                self.end(self.under_way.pop(self.own.randrange(len(self.under_way))))
        while self.under_way:
            self.end(self.under_way.pop(self.own.randrange(len(self.under_way))))
        for main, *others in self.streams_on.values():
            for stream in others:
                main.wait_stream(stream)
        for what, copy, value in self.read:
            try:
                expect(copy, value)
            except AssertionError as error:
                raise AssertionError(f"{error} in {what}") from error

    # ---- what is called ----

    def draw(self) -> tuple[str, Call]:
        kind = self.chance.random()
        if kind < 0.2:
            return "batch of all", batch_of_all(self.chance, self.own)
        if kind < 0.55:
            parts = [self.one(PARTS) for _ in range(self.chance.randint(1, 4))]
            return f"window of {', '.join(what for what, _ in parts)}", self.window([call for _, call in parts])
        return self.one([*PARTS, *WHOLE])

    def one(self, names: Sequence[str]) -> tuple[str, Call]:
        name, block, n = self.chance.choice(names), self.chance.choice(LAYOUTS), self.chance.choice(LENGTHS)
        return f"{name} of {n}, {block.__name__}", OPERATIONS[name](block, max(n, 2) if name in WHOLE else n)

    def window(self, parts: Sequence[Call]) -> Call:
        """Calls of one window, each in a stream of its own."""
        group, streams = dist.distributed_c10d._get_default_group(), [self.own.choice(self.streams) for _ in parts]

        def issue() -> list[Any]:
            issuer = main_stream()
            group._start_coalescing(accelerator())
            for part, stream in zip(parts, streams, strict=True):
                stream.wait_stream(issuer)
                with stream:
                    part.issue()
            return [group._end_coalescing(accelerator())]

        inputs = [each for part in parts for each in part.inputs]
        return Call(inputs, [each for part in parts for each in part.outputs], issue)

    def issue(self, step: int) -> None:
        of, call = self.draw()
        what = f"seed {self.seed}, step {step}: {of}"
        main, producer, issuer = self.streams[0], self.own.choice(self.streams), self.own.choice(self.streams)
        producer.wait_stream(main)  # in which the tensors were made
        late = self.own.random() < 0.3
        with held(producer) if late else nullcontext():
            with producer:
                call.fill()
            issuer.wait_stream(producer)
            with issuer:
                issued = Issued(what, call, accelerator(), issuer, call.issue())
            if late:
                assert not any(work.is_completed() for work in issued.works), what
        self.under_way.append(issued)

    # ---- what becomes of it ----

    def end(self, issued: Issued) -> None:
        self.turn_to(issued.device)
        ends = self.own.choice(
            [self.wait, self.wait, self.wait_for_futures, self.wait_in_a_thread, self.ask, self.drop]
        )
        reader = self.own.choice(self.streams)
        ends(issued, reader)
        self.streams[0].wait_stream(reader)  # before memory is used again there

    def consume(self, issued: Issued) -> None:
        self.read += [(issued.what, out + 0, value) for out, value in issued.call.outputs]
        for x, _ in issued.call.inputs:
            x.fill_(-99)

    def wait(self, issued: Issued, reader: torch.Stream) -> None:
        """In the stream that reads, which has not issued. Perhaps on the host as well."""
        with reader:
            for work in issued.works:
                if self.own.random() < 0.2:
                    work.wait(MINUTE)
                else:
                    work.wait()
            self.consume(issued)

    def wait_for_futures(self, issued: Issued, reader: torch.Stream) -> None:
        with reader:
            for work in issued.works:
                work.get_future().wait()
            self.read += [(issued.what, out + 0, value) for out, value in issued.call.outputs]
            for work in issued.works:
                work.wait()

    def wait_in_a_thread(self, issued: Issued, reader: torch.Stream) -> None:
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                self.wait(issued, reader)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def ask(self, issued: Issued, reader: torch.Stream) -> None:
        """Outputs that are there can be read in any stream, without a wait."""
        for work in issued.works:
            until(work.is_completed)
        with reader:
            self.read += [(issued.what, out + 0, value) for out, value in issued.call.outputs]
            for work in issued.works:
                work.wait()

    def drop(self, issued: Issued, reader: torch.Stream) -> None:
        """Nobody waits. Memory of the tensors is not used again while an operation uses it."""
        reader.wait_stream(issued.issuer)
        self.streams[0].wait_stream(reader)
        sizes = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 4
            for t, _ in (*issued.call.inputs, *issued.call.outputs)
        }
        what = issued.what
        issued.call, issued.works = Call([], [], list), ()
        self.read += [(f"memory that {what} had", full(99, n), 99) for n in sizes.values()]


def programs(seeds: Sequence[int]) -> None:
    for seed in seeds:
        Program(seed).run()


def under_fake_cuda(rank: int, size: int, store: str, seeds: Sequence[int], devices: int) -> None:
    """With several devices, the current one is none of those of most calls."""
    take_device(rank)
    used = [torch.device("cuda", device) for device in range(devices)] if devices > 1 else []

    def random_programs() -> None:
        for seed in seeds:
            Program(seed, used).run()

    run_under_fake_cuda(rank, size, store, [random_programs])
