"""Times collectives of two checkouts against each other: the tree before a change and the tree with it.

    git worktree add ../before REVISION && make -C ../before build
    python bench/trees.py ../before .
    python bench/trees.py ../before . --ranks 4 --launches 7 --rows all_reduce:8,send_recv:64K,barrier

A launch starts the ranks of both trees, pinned to one core each. Blocks of calls alternate between the trees while the
other tree's ranks sleep, so that other load on the machine affects both alike. A block's time is the slowest rank's
mean, a launch's time the median of its blocks. The last columns are the median and the range of the launches' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Row = tuple[str, int]
OPS = ("all_reduce", "send_recv", "barrier")
SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_ROWS = "all_reduce:8,all_reduce:64K,all_reduce:1M,all_reduce:64M,barrier"


def parse_rows(text: str) -> list[Row]:
    rows = []
    for part in text.split(","):
        op, _, size = part.partition(":")
        unit = SUFFIXES.get(size[-1:], 1)
        digits = size.rstrip("KMG") or "0"
        if op not in OPS or not digits.isdecimal():
            raise argparse.ArgumentTypeError(f"{part}: a row is one of {', '.join(OPS)}, a colon and a size in bytes")
        rows.append((op, int(digits) * unit))
    return rows


def to_and_fro(tensor: torch.Tensor, peer: int, begins: bool) -> None:
    """Sends to the peer and receives from it: two ways of a message."""
    import torch.distributed as dist

    for send in (begins, not begins):
        if send:
            dist.send(tensor, peer)
        else:
            dist.recv(tensor, peer)


def rank_main(rank: int, ranks: int, store_file: str, tree: str) -> None:
    """Is one rank: reads `op bytes calls` from the standard input, prints the mean time of a call in microseconds."""
    import torch
    import torch.distributed as dist

    import sagecomm

    if not Path(sagecomm.__file__).is_relative_to(tree):
        raise SystemExit(f"{sagecomm.__file__} is not of {tree}")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("sagecomm", store=dist.FileStore(store_file, ranks), rank=rank, world_size=ranks)
    print("ready", flush=True)
    for line in sys.stdin:
        op, nbytes, calls = line.split()
        tensor = torch.zeros(max(int(nbytes) // 4, 1))
        calls_of: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, tensor),
            "send_recv": partial(to_and_fro, tensor, rank ^ 1, rank % 2 == 0),
            "barrier": dist.barrier,
        }
        call = calls_of[op]
        for _ in range(3):
            call()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(calls)):
            call()
        print((time.perf_counter() - begin) / int(calls) * 1e6, flush=True)
    dist.destroy_process_group()


class Side:
    """The ranks of one tree."""

    def __init__(self, tree: Path, ranks: int, scratch: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "torch_ext")}
        where = [str(ranks), str(scratch / f"store-{tree.name}-{id(self)}"), str(tree)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), *where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(ranks)
        ]
        self._answers("the start")

    def _answers(self, what: str) -> list[str]:
        answers = [rank.stdout.readline() for rank in self.ranks if rank.stdout]
        if not all(answers):
            raise SystemExit(f"a rank ended in {what}")
        return answers

    def block(self, row: Row, calls: int) -> float:
        """Returns the slowest rank's mean in microseconds."""
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.write(f"{row[0]} {row[1]} {calls}\n")
            rank.stdin.flush()
        return max(float(answer) for answer in self._answers(row[0]))

    def close(self) -> None:
        for rank in self.ranks:
            if rank.stdin:
                rank.stdin.close()
        for rank in self.ranks:
            rank.wait()


@contextmanager
def launch(trees: list[Path], ranks: int) -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory() as scratch:
        sides = [Side(tree, ranks, Path(scratch)) for tree in trees]
        try:
            yield sides
        finally:
            for side in sides:
                side.close()


def measure(sides: list[Side], row: Row, blocks: int, block_ms: float) -> list[float]:
    """Returns the median of each side's blocks."""
    fastest = min(side.block(row, 5) for _ in range(2) for side in sides)
    calls = max(2, int(block_ms * 1e3 / fastest))
    times: list[list[float]] = [[] for _ in sides]
    for block in range(blocks):
        for index in (0, 1) if block % 2 else (1, 0):
            times[index].append(sides[index].block(row, calls))
    return [statistics.median(of_side) for of_side in times]


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank_main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=lambda text: Path(text).resolve(), help="a checkout that is built")
    parser.add_argument("after", type=lambda text: Path(text).resolve(), help="another one")
    parser.add_argument("--ranks", type=int, default=2, help="of each tree, 2 by default")
    parser.add_argument("--launches", type=int, default=9, help="of the ranks of both trees, 9 by default")
    parser.add_argument("--blocks", type=int, default=7, help="of calls of each tree in a launch, 7 by default")
    parser.add_argument("--block-ms", type=float, default=40, help="that a block lasts about, 40 by default")
    parser.add_argument("--rows", type=parse_rows, default=DEFAULT_ROWS, help=f"{DEFAULT_ROWS} by default")
    arguments = parser.parse_args()
    medians: dict[Row, list[list[float]]] = {row: [] for row in arguments.rows}
    for number in range(arguments.launches):
        trees = [arguments.before, arguments.after]
        with launch(trees if number % 2 else trees[::-1], arguments.ranks) as sides:
            for row in arguments.rows:
                of_sides = measure(sides, row, arguments.blocks, arguments.block_ms)
                medians[row].append(of_sides if number % 2 else of_sides[::-1])
    print(f"{'op':12}{'bytes':>10}{'before us':>12}{'after us':>12}{'ratio':>8}   range")
    for (op, nbytes), pairs in medians.items():
        before, after = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        ratios = sorted(pair[1] / pair[0] for pair in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{op:12}{nbytes:>10}{before:12.2f}{after:12.2f}{statistics.median(ratios):8.3f}   {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
