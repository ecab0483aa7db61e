"""How much communication hides behind computing, and what slices cost where they cannot pay: two ranks.

    python bench/overlap.py                         both parts
    python bench/overlap.py hidden --link-ms 20     the hidden fraction, beside a link that is this slow
    python bench/overlap.py slices --threads 4      slices of linear_all_reduce that the cost model chooses, beside one

`hidden` measures an all_reduce beside products of matrices that take about as long, by measure_overlap(): once over
shared memory alone, where on two cores the communication takes its time from the computation, and once behind a link
that is slow without needing a processor: a thread waits for --link-ms before it passes a tensor on to the all_reduce
of a group of its own. --svg writes pictures.

`slices` runs linear_all_reduce with the number of slices of the cost model, with one slice, and with four, in turns.
"chosen / one" is the median over all turns of the ratio of their times on the slower rank. Where the model chooses one
slice, both sides do the same but for the question, which has a column of its own: the least of its means over blocks
of calls with nothing between them.

With --check the exit status is 1 if less than half is hidden beside the link, or if a ratio is over 1.02.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import sagecomm
from sagecomm._overlap import _linear, _slices

LEAST_HIDDEN, MOST_RATIO = 0.5, 1.02
SHAPES = ((64, 256, 256), (512, 512, 512), (512, 1024, 2048))  # rows, inputs, outputs


class Link:
    """An all_reduce behind a link that takes a fixed time for each tensor and needs no processor for it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._group = dist.new_group()
        self._sent: queue.SimpleQueue[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]] | None]
        self._sent = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        arrived: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._sent.put((tensor, arrived))
        return arrived

    def close(self) -> None:
        self._sent.put(None)
        self._thread.join()

    def _carry(self) -> None:
        while (item := self._sent.get()) is not None:
            tensor, arrived = item
            time.sleep(self._seconds)
            dist.all_reduce(tensor, group=self._group)
            arrived.set_result(tensor)


def products(seconds: float) -> Callable[[], torch.Tensor]:
    """A computation of about that time on the slowest rank."""
    a = torch.ones(256, 256)
    dist.barrier()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 0.2:
        torch.mm(a, a)
        done += 1
    mine = torch.tensor((time.perf_counter() - began) / done)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    count = max(1, round(seconds / mine.item()))

    def compute() -> torch.Tensor:
        for _ in range(count):
            out = torch.mm(a, a)
        return out

    return compute


def hidden(args: argparse.Namespace) -> dict[str, Any]:
    """Reports of both links."""
    buffer = torch.ones(args.kib << 8)
    link = Link(1e-3 * args.link_ms)
    ways: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {
        "shared memory": (lambda t: dist.all_reduce(t, async_op=True), 2e-3),
        f"a link of {args.link_ms:g} ms": (link.all_reduce, 1e-3 * args.link_ms),
    }
    told = {}
    for name, (communicate, seconds) in ways.items():
        other, first = products(1.2 * seconds), products(0.2 * seconds)
        report = sagecomm.measure_overlap(
            lambda first=first: (first(), buffer.fill_(1))[1], communicate, other, repetitions=args.repetitions
        )
        told[name] = {"table": report.table(), **report.as_dict()}
        if args.svg and dist.get_rank() == 0:
            report.save_timeline(f"{args.svg}-{name.replace(' ', '-')}.svg")
    link.close()
    return told


def slices(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each shape: the number of slices chosen, medians in seconds, the ratio, and the question's seconds."""
    return [_slices_of(shape, args.repetitions) for shape in SHAPES]


def _slices_of(shape: tuple[int, int, int], repetitions: int) -> dict[str, Any]:
    rows, inputs, outputs = shape
    x, weight = torch.ones(rows, inputs), torch.ones(outputs, inputs)
    ways: dict[str, int | None] = {"chosen": None, "one": 1, "four": 4}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(5 + repetitions):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for name in order:
            dist.barrier()
            began = time.perf_counter()
            sagecomm.linear_all_reduce(x, weight, slices=ways[name])
            took = torch.tensor(time.perf_counter() - began)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn >= 5:
                times[name].append(took.item())
    ask = partial(
        _slices.number_of_slices,
        "all_reduce",
        4 * rows * outputs,
        parts=rows,
        operations=_linear._operations(rows, weight),
        like=x,
        group=None,
    )
    medians = {name: statistics.median(list_) for name, list_ in times.items()}
    question = min(timeit.repeat(ask, number=1000, repeat=20)) / 1000
    ratio = statistics.median(a / b for a, b in zip(times["chosen"], times["one"], strict=True))
    return {"shape": shape, "slices": ask(), "ratio": ratio, "question": question, **medians}


def run_rank(rank: int, args: argparse.Namespace, directory: str) -> None:
    torch.set_num_threads(args.threads)
    dist.init_process_group("sagecomm", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    told: dict[str, Any] = {}
    if args.part in ("hidden", "both"):
        told["hidden"] = hidden(args)
    if args.part in ("slices", "both"):
        told["slices"] = slices(args)
    if rank == 0:
        with open(f"{directory}/told", "w") as f:
            json.dump(told, f)
    dist.destroy_process_group()


def holds(told: dict[str, Any]) -> bool:
    """Returns whether enough is hidden beside the link, and whether no choice of slices is a loss."""
    behind_a_link = [report for name, report in told.get("hidden", {}).items() if name != "shared memory"]
    enough = all(report["hidden_fraction"] >= LEAST_HIDDEN for report in behind_a_link)
    return enough and all(row["ratio"] <= MOST_RATIO for row in told.get("slices", []))


def show(told: dict[str, Any]) -> None:
    for name, report in told.get("hidden", {}).items():
        print(f"== all_reduce over {name}\n{report['table']}")
    if "slices" in told:
        print("== linear_all_reduce")
        print("   rows inputs outputs   slices     chosen        one       four  chosen / one  question")
        for row in told["slices"]:
            rows, inputs, outputs = row["shape"]
            times = "".join(f"{1e3 * row[name]:8.3f} ms" for name in ("chosen", "one", "four"))
            question = f"{1e6 * row['question']:7.2f} us"
            print(f"{rows:7}{inputs:7}{outputs:8}{row['slices']:9}{times}{row['ratio']:14.3f}{question}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("both", "hidden", "slices"), default="both")
    parser.add_argument("--link-ms", type=float, default=20.0, help="of a tensor over the slow link")
    parser.add_argument("--kib", type=int, default=4096, help="of the all_reduce")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="that compute, in each rank")
    parser.add_argument("--svg", help="write timelines to files that begin with this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail if what is promised does not hold")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run_rank, (args, directory), nprocs=2)
        with open(f"{directory}/told") as f:
            told = json.load(f)
    if args.json:
        print(json.dumps(told))
    else:
        show(told)
    return 1 if args.check and not holds(told) else 0


if __name__ == "__main__":
    sys.exit(main())
