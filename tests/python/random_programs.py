"""Random programs: a seed determines the operations of all ranks and the expected contents of every tensor.

A program is a list of steps that all ranks of a group take in the same order; STEPS has one entry for each kind. Each
rank draws for itself when it waits for an asynchronous operation, if ever (program_rank.py). Results are compared bit
for bit with the documented ones. For algorithms that do not reduce in rank order, results must be within a bound, and a
later check compares the ranks (own_order.py).

    python tests/python/random_programs.py --programs 2000 --seed 1 [--hosts]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import operations as ops
import program_p2p
import program_windows
import programs
import sagecomm
from issued import Member, member
from operations import Call
from program_rank import Rank
from worlds import Hang, Pool, RankError, World

SIZES = (2, 3, 4, 5, 6, 7, 8)
SHAPES = ((1, 1), (2, 2), (2, 1), (1, 2), (1, 1, 1), (2, 2, 2))  # ranks of each host
LONG_SHAPES = (*SHAPES, (2, 2, 2, 2))  # of tests that run for long
MOST_BYTES = 4 << 20
MOST_GROUPS = 4
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
HIERARCHICAL = "hierarchical"
REDUCTIONS = frozenset(op for op in COLLECTIVES if "reduce" in op)
EDGES = (1600, 4032, 8 << 10, 64 << 10, 128 << 10)  # lengths at which the algorithm changes for some group size


@dataclass
class Draw:
    """The part of a program that has been drawn so far."""

    rng: random.Random
    groups: list[tuple[int, ...]]  # ranks in the world
    own_order: frozenset[str] = frozenset()  # collectives whose algorithm reduces in an order of its own
    even: tuple[int, ...] = ()  # ranks of each host, if each host of a group has equally many
    number: int = 0  # the number of the current step
    group: int = 0  # the group of the current step

    @property
    def size(self) -> int:
        return len(self.groups[self.group])

    def count(self, dtype: torch.dtype, blocks: int = 1) -> int:
        """Draws a number of elements: mostly few, and at most MOST_BYTES in that many blocks."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.1:
            return rng.randint(0, 1)
        if kind < 0.65:
            length = int(8 * 1024 ** rng.random())
        elif kind < 0.85:
            length = int((8 << 10) * 32 ** rng.random())
        elif kind < 0.97:
            length = rng.choice(EDGES) * rng.choice((1, 1, 2)) // rng.choice((1, max(1, self.size - 1)))
            length += rng.choice((-1, 0, 1)) * dtype.itemsize
        else:
            length = int((256 << 10) * 16 ** rng.random())
        return min(max(0, length), MOST_BYTES // blocks) // dtype.itemsize


@dataclass(frozen=True)
class Step:
    kind: str
    group: int
    what: Any  # the data that the kind of step has drawn

    def __str__(self) -> str:
        return f"{self.kind} on group {self.group}: {self.what}"


@dataclass(frozen=True)
class StepKind:
    weight: int
    draw: Callable[[Draw], Any]
    play: Callable[[Any, Rank, Member, str], None]  # on each rank of the group; the text says which step it is


@dataclass
class Program:
    seed: int
    size: int
    hosts: tuple[int, ...] = ()  # ranks of each host; empty: all are on one
    tune: str = ""  # SAGECOMM_TUNE of all its groups
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        steps = (f"  {number}: {step}" for number, step in enumerate(self.steps))
        by = f", {self.tune}" if self.tune else ""
        on = f" on hosts of {', '.join(map(str, self.hosts))}" if self.hosts else ""
        return "\n".join([f"program {self.seed}, {self.size} ranks{on}{by}", *steps])


# ---- the kinds of steps ----


def draw_collective(draw: Draw) -> Call:
    rng = draw.rng
    kind = rng.choice([kind for kind in ops.KINDS if kind != "send_recv"])  # p2p operations have steps of their own
    dtype, reduction = rng.choice(ops.cells(kind))
    one = kind in ("all_reduce", "reduce", "broadcast")
    count = draw.count(dtype, 1 if one else draw.size)
    place, async_op, root = rng.choice(ops.KINDS[kind].places), rng.random() < 0.6, rng.randrange(draw.size)
    salt, special, own_order = rng.randrange(1 << 30), rng.random() < 0.2, ops.KINDS[kind].name in draw.own_order
    return Call(kind, dtype, count, reduction, place, async_op, root, salt, special, own_order)


def play_collective(call: Call, rank: Rank, at: Member, what: str) -> None:
    issued = ops.KINDS[call.kind].issue(call, at)

    def check() -> None:
        rank.hold(what, call, issued)
        issued.check("checked")

    if call.async_op:
        rank.fly(what, issued.work, check, leave=issued.direct)
    else:
        assert issued.work is None
        rank.check(what, check)


def draw_barrier(draw: Draw) -> bool:
    return draw.rng.random() < 0.5


def play_barrier(async_op: bool, rank: Rank, at: Member, what: str) -> None:
    work = dist.barrier(at.group, async_op=async_op)
    if async_op:
        rank.fly(what, work, lambda: None, leave=True)


def draw_p2p(draw: Draw) -> program_p2p.P2P:
    return program_p2p.draw(draw.rng, draw.size, draw.number, draw.count)


def draw_window(draw: Draw) -> program_windows.Window:
    return program_windows.draw(draw.rng, draw.size, draw.count, draw.own_order)


def draw_objects(draw: Draw) -> tuple[str, int, int]:
    form = draw.rng.choice(("all_gather", "broadcast", "gather", "scatter"))
    return form, draw.rng.randrange(draw.size), draw.rng.randrange(1 << 30)


def play_objects(drawn: tuple[str, int, int], rank: Rank, at: Member, what: str) -> None:
    form, root, salt = drawn
    everybody = [{"rank": r, "text": "x" * (hash((salt, r)) % 20_000), "salt": salt} for r in range(at.size)]
    mine, at_root = everybody[at.rank], at.rank == root
    got: list[Any] = [None] * at.size
    if form == "all_gather":
        dist.all_gather_object(got, mine, at.group)
        want = everybody
    elif form == "broadcast":
        got, want = everybody if at_root else got, everybody
        dist.broadcast_object_list(got, group=at.group, group_src=root)
    elif form == "gather":
        dist.gather_object(mine, got if at_root else None, group=at.group, group_dst=root)
        want = everybody if at_root else got
    else:
        got, want = [None], [mine]
        dist.scatter_object_list(got, everybody if at_root else None, group=at.group, group_src=root)
    rank.check(what, lambda: same_objects(got, want))


def same_objects(got: list[Any], want: list[Any]) -> None:
    assert got == want, f"objects of ranks {[each and each['rank'] for each in got]}"


def draw_new_group(draw: Draw) -> tuple[int, ...] | None:
    draw.group = 0  # the world, so that all ranks make the call
    if len(draw.groups) == MOST_GROUPS:
        return None
    world = draw.groups[0]
    draw.groups.append(draw_even(draw) if draw.even else draw_some(draw.rng, world))
    return draw.groups[-1]


def draw_some(rng: random.Random, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(ranks, rng.randint(1, len(ranks)))))


def draw_even(draw: Draw) -> tuple[int, ...]:
    """Draws hosts and equally many ranks of each."""
    each = draw.even[0]
    number = draw.rng.randint(1, each)
    of_hosts = [range(host * each, (host + 1) * each) for host in draw_some(draw.rng, range(len(draw.even)))]
    return tuple(rank for ranks in of_hosts for rank in sorted(draw.rng.sample(ranks, number)))


def play_new_group(ranks: tuple[int, ...] | None, rank: Rank, at: Member, what: str) -> None:
    if ranks is not None:
        group = dist.new_group(list(ranks), pg_options=rank.options)
        rank.groups.append(member(group) if at.rank in ranks else None)


STEPS = {
    "collective": StepKind(60, draw_collective, play_collective),
    "barrier": StepKind(4, draw_barrier, play_barrier),
    "p2p": StepKind(20, draw_p2p, program_p2p.play),
    "window": StepKind(12, draw_window, program_windows.play),
    "objects": StepKind(4, draw_objects, play_objects),
    "new_group": StepKind(8, draw_new_group, play_new_group),
}


# ---- programs ----


@cache
def algorithms(hosts: int = 1) -> dict[str, list[tuple[str, bool]]]:
    """Returns the algorithms that support all calls of a collective, and whether each reduces in its own order."""
    ended = programs.run(explain_all(hosts))  # in a process of its own: ranks are started out of this one
    assert ended.status == 0, ended.errors
    answers = {}
    for op, candidates in json.loads(ended.said).items():
        usable = [c for c in candidates if "equal length" not in c["why"]]
        answers[op] = sorted({(c["algorithm"], "reduce" in op and c["transport"] != "slots") for c in usable})
    return answers


def explain_all(hosts: int) -> str:
    return f"""
import json
from sagecomm import _explain, _native
explain = _native.load().explain
answers = {{op: _explain.ask(explain, op=op, bytes=1 << 20, ranks=2, hosts={hosts}) for op in {COLLECTIVES!r}}}
say(json.dumps({{op: answer["candidates"] for op, answer in answers.items()}}))
"""


def draw_tune(seed: int, hosts: tuple[int, ...]) -> tuple[str, frozenset[str]]:
    """Returns SAGECOMM_TUNE and the collectives that then reduce in an algorithm's own order. Half of the programs have
    no rules and use the predicted choices, with reductions over slots on one host; the others have an algorithm for
    each collective: a hierarchical one only where all hosts have equally many ranks, as all groups then do."""
    rng = random.Random(f"tune {seed}")
    if rng.random() < 0.5:
        return "", REDUCTIONS if len(hosts) > 1 else frozenset()
    chunk, chosen = rng.choice(("", "@chunk=4K")), {}
    for op, candidates in algorithms(min(len(hosts) or 1, 2)).items():
        chosen[op] = rng.choice([c for c in candidates if c[0] != HIERARCHICAL or len(set(hosts)) == 1])
    tune = ";".join(f"{op}:{name}{chunk}" for op, (name, _) in chosen.items())
    return tune, frozenset(op for op, (_, own_order) in chosen.items() if own_order)


def program(seed: int, over_hosts: bool = False) -> Program:
    rng = random.Random(seed)
    drawn = Program(seed, rng.choice(SIZES))
    if over_hosts:
        drawn.hosts = random.Random(f"hosts {seed}").choice(LONG_SHAPES)
        drawn.size = sum(drawn.hosts)
    drawn.tune, own_order = draw_tune(seed, drawn.hosts)
    draw = Draw(rng, [tuple(range(drawn.size))], own_order)
    if HIERARCHICAL in drawn.tune:
        draw.even = drawn.hosts
    weights = [of.weight for of in STEPS.values()]
    for number in range(200 if rng.random() < 0.05 else rng.randint(10, 40)):
        draw.number, draw.group = number, rng.randrange(len(draw.groups))
        kind = rng.choices(list(STEPS), weights)[0]
        what = STEPS[kind].draw(draw)
        drawn.steps.append(Step(kind, draw.group, what))
    return drawn


def play(drawn: Program, options: Any) -> tuple[list[str], dict[str, str]]:
    """Runs the program on this rank and returns its errors, and the digests that must be equal on all ranks."""
    world = member()
    rank = Rank(drawn.seed, world.rank, options, [world])
    for number, step in enumerate(drawn.steps):
        at = rank.groups[step.group]
        if at is None:
            continue
        what = f"step {number}, {step}"
        try:
            STEPS[step.kind].play(step.what, rank, at, what)
        except Exception as error:
            error.add_note(what)
            raise
        rank.settle()
    rank.finish()
    return rank.wrong, rank.alike


def different(of_ranks: list[dict[str, str]]) -> Iterator[str]:
    """Yields the names of the digests that differ between ranks."""
    for what in {what: None for alike in of_ranks for what in alike}:
        ranks: dict[str, list[int]] = {}
        for rank, alike in enumerate(of_ranks):
            if what in alike:
                ranks.setdefault(alike[what], []).append(rank)
        if len(ranks) > 1:
            yield f"{what}: ranks have different bits, each of {', '.join(map(str, ranks.values()))} its own"


def failures(pool: Pool, seeds: Iterable[int], over_hosts: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the seed and the errors of each program that fails."""
    for seed in seeds:
        drawn = program(seed, over_hosts)
        yield from failures_of([drawn], pool.hosts(*drawn.hosts) if over_hosts else pool.world(drawn.size))


def failures_of(some: Iterable[Program], ranks: World, **how: Any) -> Iterator[tuple[int, str]]:
    """Yields the seed and the errors of each program that fails on these ranks. `how` as in World.run()."""
    for drawn in some:
        seed, over_hosts = drawn.seed, bool(drawn.hosts)
        options = sagecomm.Options(settings={"tune": drawn.tune}) if drawn.tune else None
        try:
            results = ranks.run(play, drawn, options, options=options, **how)
            wrong = [text for of_rank, _ in results for text in of_rank]
            wrong += different([alike for _, alike in results])
        except (RankError, Hang) as error:
            wrong = [str(error)]
        if wrong:
            yield seed, "\n".join([*wrong[:20], str(drawn), f"again: {replay(seed, over_hosts)}"])


def replay(seed: int, over_hosts: bool) -> str:
    return f"python tests/python/random_programs.py --programs 1 --seed {seed}{' --hosts' * over_hosts}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs random programs and prints the seeds of those that fail.")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next ones count up")
    parser.add_argument("--hosts", action="store_true", help="spread the ranks over several hosts")
    parser.add_argument("--show", action="store_true", help="print the programs instead")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.programs)
    if options.show:
        for seed in seeds:
            print(program(seed, options.hosts))
        return 0
    began, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as directory:
        pool = Pool(Path(directory))
        try:
            for seed, text in failures(pool, seeds, options.hosts):
                failed += 1
                print(f"program {seed} failed:\n{text}\n", flush=True)
        finally:
            pool.stop()
    took = time.monotonic() - began
    print(f"{failed} of {len(seeds)} programs failed, seeds {seeds[0]} to {seeds[-1]}, {took:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
