"""The p2p operations of a random program. A step has several channels; a channel has several messages from one rank to
another with one tag. Each rank posts the asynchronous ends in its own order. Then it makes the blocking calls in the
order that all ranks share, so the other end of each is posted or about to be posted."""

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
# Tags of receives from any source, one for each step and rank, so that such a receive meets no other messages.
FIRST_PRIVATE_TAG = 1_000_000


@dataclass(frozen=True)
class Channel:
    source: int
    to: int
    tag: int
    dtype: torch.dtype
    count: int
    messages: int
    sends_block: bool
    receives_block: bool
    any_source: bool
    salt: int

    def data(self, number: int) -> torch.Tensor:
        return ref.drawn(self.count, self.dtype, (self.salt, self.source, number))

    def __str__(self) -> str:
        how = ["blocking sends"] * self.sends_block + ["blocking receives"] * self.receives_block
        return (
            f"{self.messages} of {self.count} {ref.name(self.dtype)} {self.source}->{self.to}"
            f"{' from anybody' if self.any_source else ''} tag {self.tag} {' '.join(how)} salt {self.salt}"
        )


@dataclass(frozen=True)
class Messages:
    channels: tuple[Channel, ...]
    order: tuple[int, ...]  # the numbers of the channels with blocking ends, in the order of the calls
    batch: bool  # the ends that do not block are one batch_isend_irecv()

    def __str__(self) -> str:
        return f"{'batch of ' if self.batch else ''}messages: {'; '.join(map(str, self.channels))}; order {self.order}"


def draw(rng: random.Random, size: int, step: int, count_of: Callable[[torch.dtype], int]) -> Messages:
    channels: dict[tuple[int, int, int], Channel] = {}
    batch = rng.random() < 0.25
    for _ in range(rng.randint(1, 2 * size)):
        source, to, tag = rng.randrange(size), rng.randrange(size), rng.choice(TAGS)
        dtype, salt, messages = rng.choice(ref.EVERY_TYPE), rng.randrange(1 << 30), rng.choice((1, 1, 1, 2, 4))
        blocks = [not batch and source != to and rng.random() < 0.5 for _ in range(2)]
        channels[source, to, tag] = Channel(
            source, to, tag, dtype, count_of(dtype), messages, blocks[0], blocks[1], False, salt
        )
    for to in range(size):
        if not batch and size > 1 and rng.random() < 0.15:
            tag, dtype = FIRST_PRIVATE_TAG + step * size + to, rng.choice(ref.EVERY_TYPE)
            count, salt = count_of(dtype), rng.randrange(1 << 30)
            # Which message a receive gets is open, so only one side may block.
            blocks = list(rng.choice(((False, False), (True, False), (False, True))))
            for source in rng.sample([r for r in range(size) if r != to], rng.randint(1, size - 1)):
                channel = Channel(source, to, tag, dtype, count, rng.randint(1, 3), blocks[0], blocks[1], True, salt)
                channels[source, to, tag] = channel
    listed = tuple(channels.values())
    order = [number for number, channel in enumerate(listed) for _ in range(channel.messages)]
    rng.shuffle(order)
    return Messages(listed, tuple(order), batch)


@dataclass
class Receives:
    """The recvs of a rank from any source with one tag. Each must get the next message of its source."""

    channels: list[Channel]
    posted: list[tuple[ref.Placed, Callable[[], int]]]
    expected: int
    complete: int = 0

    def check(self) -> None:
        """Called after each recv. When all are complete, it checks them in the order of posting."""
        self.complete += 1
        if self.complete < self.expected:
            return
        by_source = {channel.source: channel for channel in self.channels}
        seen = dict.fromkeys(by_source, 0)
        for placed, source_of in self.posted:
            source = source_of()
            assert source in by_source, f"a message of rank {source}"
            assert seen[source] < by_source[source].messages, f"too many messages of rank {source}"
            ref.check_same(placed.tensor, by_source[source].data(seen[source]), f"message {seen[source]} of {source}")
            placed.check_surroundings(f"message {seen[source]} of {source}")
            seen[source] += 1


class Ends:
    """The ends of a step's messages on one rank."""

    def __init__(self, messages: Messages, at: Member, rank: Rank, what: str) -> None:
        self.messages, self.at, self.rank, self.what = messages, at, rank, what
        self.posted: dict[tuple[Channel, bool], int] = {}
        self.from_anybody: dict[int, Receives] = {}
        for channel in messages.channels:
            if channel.any_source and channel.to == at.rank:
                receives = self.from_anybody.setdefault(channel.tag, Receives([], [], 0))
                receives.channels.append(channel)
                receives.expected += channel.messages

    def mine(self) -> Iterator[tuple[Channel, bool]]:
        """Yields the channels of this rank in the common order, sends before recvs, and whether this is the sending
        end."""
        for number in self.messages.order:
            channel = self.messages.channels[number]
            if channel.source == self.at.rank:
                yield channel, True
            if channel.to == self.at.rank:
                yield channel, False

    def play(self) -> None:
        early = [(c, sends) for c, sends in self.mine() if not (c.sends_block if sends else c.receives_block)]
        self.rank.draw.shuffle(early)
        if self.messages.batch:
            self.post_batch(early)
        else:
            for channel, sends in early:
                self.post(channel, sends)
        for channel, sends in self.mine():
            if channel.sends_block if sends else channel.receives_block:
                self.block(channel, sends)

    def tensor(self, channel: Channel, sends: bool) -> tuple[int, ref.Placed]:
        """Returns the tensor of the channel's next message."""
        number = self.posted.get((channel, sends), 0)
        self.posted[channel, sends] = number + 1
        data = channel.data(number if sends else -1)
        return number, ref.place(data, ref.LAYOUTS[hash((channel.salt, number, sends)) % len(ref.LAYOUTS)])

    def check_of(self, channel: Channel, sends: bool, number: int, placed: ref.Placed) -> Callable[[], None]:
        def check() -> None:
            what = f"message {number} of {channel}"
            ref.check_same(placed.tensor, channel.data(number), what)
            placed.check_surroundings(what)

        return check

    def post(self, channel: Channel, sends: bool) -> None:
        number, placed = self.tensor(channel, sends)
        how: dict[str, Any] = {"group": self.at.group, "tag": channel.tag}
        what = f"{self.what}: {'send' if sends else 'receive'} {number} of {channel}"
        check = self.check_of(channel, sends, number, placed)
        if sends:
            work = dist.isend(placed.tensor, group_dst=channel.to, **how)
        elif channel.any_source:
            work = dist.irecv(placed.tensor, **how)
            receives = self.from_anybody[channel.tag]
            receives.posted.append((placed, lambda: work._source_rank()))  # type: ignore[union-attr]
            check = receives.check
        else:
            work = dist.irecv(placed.tensor, group_src=channel.source, **how)
        # The receiver checks a send. A recv can be checked only after its Work.
        self.rank.fly(what, work, check, leave=sends)

    def block(self, channel: Channel, sends: bool) -> None:
        number, placed = self.tensor(channel, sends)
        how: dict[str, Any] = {"group": self.at.group, "tag": channel.tag}
        check = self.check_of(channel, sends, number, placed)
        if sends:
            dist.send(placed.tensor, group_dst=channel.to, **how)
        elif channel.any_source:
            source = dist.get_group_rank(self.at.group, dist.recv(placed.tensor, **how))
            receives = self.from_anybody[channel.tag]
            receives.posted.append((placed, lambda: source))
            check = receives.check
        else:
            dist.recv(placed.tensor, group_src=channel.source, **how)
        self.rank.check(f"{self.what}: blocking {'send' if sends else 'receive'} {number} of {channel}", check)

    def post_batch(self, ends: list[tuple[Channel, bool]]) -> None:
        batch, checks = [], []
        for channel, sends in ends:
            number, placed = self.tensor(channel, sends)
            peer = channel.to if sends else channel.source
            function = dist.isend if sends else dist.irecv
            batch.append(dist.P2POp(function, placed.tensor, group=self.at.group, tag=channel.tag, group_peer=peer))
            checks.append(self.check_of(channel, sends, number, placed))
        if batch:
            works = Several(dist.batch_isend_irecv(batch))
            for check in checks:
                self.rank.batched(self.what, works, check)


def play(messages: Messages, rank: Rank, at: Member, what: str) -> None:
    Ends(messages, at, rank, what).play()
