"""Measures the cost of making groups: init_process_group(), and further groups of all ranks, each used once.

    python bench/groups.py                                 2, 8 and 16 ranks, sagecomm and gloo
    python bench/groups.py --ranks 8 --launches 5 --backends sagecomm

Each launch takes new processes, which are forked from one that has imported torch and the Python part of sagecomm.
"init" is init_process_group(), which loads sagecomm's library too; gloo is part of torch. "new_group" makes one group
of all ranks, "first use" is the first all_reduce of one float on it. Milliseconds are those of the slowest rank, and
the processor time of all ranks together, which depends less on other load. "PSS" is the proportional set size
(proc_pid_smaps(5)) of the rank that gained most, in KiB a group. "fds" are open descriptors of the rank with most of
them, at the end. Medians over the launches, which take the backends in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sagecomm  # noqa: F401

COLUMNS = ("init ms", "init cpu ms", "new_group ms", "new_group cpu ms", "first use ms", "PSS KiB", "fds")
STARTER = multiprocessing.get_context("forkserver")
STARTER.set_forkserver_preload(["torch.distributed", "sagecomm"])


def clocks() -> tuple[float, float]:
    return 1e3 * time.monotonic(), 1e3 * time.process_time()


def proportional_set_size() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def use(group: Any) -> None:
    t = torch.ones(1)
    dist.all_reduce(t, group=group)
    assert t.item() == dist.get_world_size(group)


def rank_main(
    rank: int, size: int, backend: str, port: int, groups: int, start: Barrier, results: multiprocessing.Queue
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    start.wait()
    began = clocks()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    initialised = clocks()
    use(None)
    before = proportional_set_size()
    start.wait()
    again = clocks()
    made = [dist.new_group() for _ in range(groups)]
    all_made = clocks()
    for group in made:
        use(group)
    used = clocks()
    results.put(
        (
            *(b - a for a, b in zip(began, initialised, strict=True)),
            *((b - a) / groups for a, b in zip(again, all_made, strict=True)),
            (used[0] - all_made[0]) / groups,
            (proportional_set_size() - before) / groups,
            len(os.listdir("/proc/self/fd")),
        )
    )
    start.wait()
    dist.destroy_process_group()


def launch(backend: str, size: int, groups: int) -> dict[str, float]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start, results = STARTER.Barrier(size), STARTER.Queue()
    ranks = [
        STARTER.Process(target=rank_main, args=(rank, size, backend, store.port, groups, start, results))
        for rank in range(size)
    ]
    for each in ranks:
        each.start()
    columns = dict(zip(COLUMNS, zip(*[results.get(timeout=600) for _ in ranks], strict=True), strict=True))
    for each in ranks:
        each.join()
    return {name: sum(column) if "cpu" in name else max(column) for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="sagecomm,gloo")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--ranks", default="2,8,16")
    parser.add_argument("--groups", type=int, default=50, help="how many further groups each launch makes")
    args = parser.parse_args()
    backends = args.backends.split(",")
    print(f"{'ranks':>5} {'backend':>10}" + "".join(f"{column:>18}" for column in COLUMNS))
    for size in map(int, args.ranks.split(",")):
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(args.launches):
            for backend in backends:
                found[backend].append(launch(backend, size, args.groups))
        for backend in backends:
            medians = [statistics.median(row[column] for row in found[backend]) for column in COLUMNS]
            print(f"{size:5} {backend:>10}" + "".join(f"{figure:18.1f}" for figure in medians))


if __name__ == "__main__":
    main()
