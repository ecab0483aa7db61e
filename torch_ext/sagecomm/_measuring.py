"""What the ranks of `python -m sagecomm tune` do, all alike.

For each collective and length, candidates alternate in the same processes: a group for each, made with a rule that
sets it. Candidates that are far behind in the first round are left out of the others. A candidate counts by its ratio
to the choice of sagecomm itself in the same rounds, which cancels what else the machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from sagecomm import _explain, _interleave
from sagecomm._format import in_bytes
from sagecomm._operations import make_buffers, make_call, room_of, room_per_rank
from sagecomm._progress import Progress, say
from sagecomm.options import Options

_BEHIND = 1.5  # times the best one in the first round: such a candidate is measured no further
_SMALLEST_CHUNK = 4096  # of those that are tried beside the predicted one
_LEAST_CONFIRMING = 9  # rounds of a run that confirms


@dataclass(frozen=True)
class Job:
    """What is measured, and how thoroughly."""

    ops: Sequence[str]
    lengths: Sequence[int]
    launches: int
    blocks: int  # rounds of those that are not left out
    seconds: float  # of a block, at least
    pin: bool

    def contests(self) -> int:
        """Of a launch: pairs of a collective and a length."""
        return sum(1 if op == "barrier" else len(self.lengths) for op in self.ops)


class Candidate(NamedTuple):
    """An algorithm in chunks of a length, 0 for the predicted one."""

    algorithm: str
    chunk: int


@dataclass
class Turn:
    """What a candidate is measured with."""

    call: Callable[[], object]
    group: dist.ProcessGroup
    count: int = 0  # of calls in a block


class Measuring:
    """What the ranks of a launch do, all alike."""

    def __init__(self, job: Job, progress: Progress) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.progress = progress
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.room = room_per_rank()

    def all(self) -> list[dict[str, Any]]:
        rows = []
        for op in self.job.ops:
            for nbytes in [0] if op == "barrier" else self.job.lengths:
                if room_of(op, nbytes, self.size) > self.room:
                    self.say(f"{op} of {in_bytes(nbytes)} is left out: memory for it is not free")
                else:
                    rows += self.compete(op, nbytes)
                if self.rank == 0:
                    self.progress.step(op if op == "barrier" else f"{op} of {in_bytes(nbytes)}")
        return rows

    def confirm(self, op: str, nbytes: int, candidate: Candidate) -> list[float]:
        """Ratios of a candidate to the choice, round by round, in groups of their own."""
        buffers = make_buffers(op, nbytes, self.size)
        turns = [self.turn(op, candidate, False, buffers), self.turn(op, candidate, True, buffers)]
        for turn in turns:
            self.block(turn.call, 2)
            turn.count = self.calls(turn)
        runners = {number: _interleave.in_a_loop(turn.call) for number, turn in enumerate(turns)}
        counts = {number: turn.count for number, turn in enumerate(turns)}
        many = max(_LEAST_CONFIRMING, 2 * self.job.blocks)
        ratios = [taken[0][0] / taken[1][0] for taken in _interleave.rounds(runners, counts, many)]
        for turn in turns:
            dist.destroy_process_group(turn.group)
        return ratios

    def compete(self, op: str, nbytes: int) -> list[dict[str, Any]]:
        """Rows of all candidates of a length: seconds of each block; the first block is there for all of them."""
        candidates = _explain.explain(op, nbytes)["candidates"]
        buffers = make_buffers(op, nbytes, self.size)
        (chosen,) = (c["algorithm"] for c in candidates if c["chosen"])
        turns: dict[Candidate, Turn] = {}
        blocks: dict[Candidate, list[float]] = {}
        own = Candidate(chosen, 0)
        for one in variants(candidates, nbytes):
            turn = self.turn(op, one, one == own, buffers)
            self.block(turn.call, 2)
            turn.count = self.calls(turn)
            turns[one], blocks[one] = turn, [self.block(turn.call, turn.count)]
            best = min(first for (first,) in blocks.values())
            for other in [w for w in turns if w != own and blocks[w][0] > _BEHIND * best]:
                dist.destroy_process_group(turns.pop(other).group)
        # A second group like the chosen one: what differs between them is what the machine does.
        again = self.turn(op, own, True, buffers)
        again.count = turns[own].count
        repeated = [self.block(again.call, again.count)]
        for _ in range(self.job.blocks):
            for one, turn in turns.items():
                blocks[one].append(self.block(turn.call, turn.count))
            repeated.append(self.block(again.call, again.count))
        for turn in (*turns.values(), again):
            dist.destroy_process_group(turn.group)
        even = {c["algorithm"]: c["even"] for c in candidates}
        return [
            {
                "op": op,
                "bytes": nbytes,
                "algorithm": one.algorithm,
                "chunk": one.chunk,
                "chosen": one == own,
                "even": even[one.algorithm],
                "blocks": seconds,
                "again": repeated if one == own else [],
                "dropped": one not in turns,
                "confirmed": [],
            }
            for one, seconds in blocks.items()
        ]

    def calls(self, turn: Turn) -> int:
        """How many of them fill a block."""
        return _interleave.calls_in(self.job.seconds, _interleave.in_a_loop(turn.call))

    def turn(self, op: str, candidate: Candidate, chosen: bool, buffers: list[torch.Tensor]) -> Turn:
        """What is chosen goes through a group without a rule, but one of its own: torch takes about a microsecond to
        find the default group."""
        rule = f"{op}:{candidate.algorithm}" + (f"@chunk={candidate.chunk}" if candidate.chunk else "")
        group = dist.new_group(backend="sagecomm", pg_options=Options(settings={} if chosen else {"tune": rule}))
        assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
        return Turn(make_call(op, buffers, group), group)

    def block(self, call: Callable[[], object], count: int) -> float:
        """Seconds of a call, of the slowest rank, so that all ranks decide alike."""
        return _interleave.block(_interleave.in_a_loop(call), count)[0]

    def say(self, what: str) -> None:
        if self.rank == 0:
            say("tune", what)


def variants(candidates: Iterable[dict[str, Any]], nbytes: int) -> Iterator[Candidate]:
    """All algorithms in their predicted chunks, half and twice as long ones, where there are such and they make a
    difference."""
    for c in candidates:
        yield Candidate(c["algorithm"], 0)
        for chunk in (c["chunk"] // 128 * 64, 2 * c["chunk"]):
            if _SMALLEST_CHUNK <= chunk <= c["longest"] and nbytes > min(chunk, c["chunk"]):
                yield Candidate(c["algorithm"], chunk)
