"""What the groups of a job cost: 16 ranks, a 2x2x2x2 mesh, six kinds of groups, each used once.

    python bench/groups.py                      sagecomm, and gloo beside it
    python bench/groups.py --launches 5 --backends sagecomm

Each launch takes new processes, which are forked from one that has imported what torch imports lazily for meshes: that
takes several seconds, with any backend. "init" is init_process_group(); "groups" makes groups of four dimensions and
of two flattened ones, and all_reduces one float on each of them and on the default group. Seconds: of the slowest rank,
and of processor time of all ranks together, which other work on the machine changes less. "fds" are open descriptors
of the rank with most of them, at the end. Medians over the launches, which take the backends in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from multiprocessing.synchronize import Barrier

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import sagecomm  # noqa: F401

NAMES = ("pp", "dp", "cp", "tp")
FLAT = (("dp", "cp"), ("dp", "cp", "tp"))
COLUMNS = ("init s", "groups s", "init cpu s", "groups cpu s", "fds")
STARTER = multiprocessing.get_context("forkserver")
STARTER.set_forkserver_preload(["torch.distributed.device_mesh", "torch._dynamo", "sagecomm"])


def clocks() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def rank_main(rank: int, size: int, backend: str, port: int, start: Barrier, results: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    start.wait()
    began = clocks()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    initialised = clocks()
    mesh = init_device_mesh("cpu", (2, size // 8, 2, 2), mesh_dim_names=NAMES)
    groups = [mesh.get_group(name) for name in NAMES]
    groups += [mesh[names]._flatten("_".join(names)).get_group() for names in FLAT]
    for group in [*groups, dist.group.WORLD]:
        t = torch.ones(1)
        dist.all_reduce(t, group=group)
        assert t.item() == dist.get_world_size(group)
    ended = clocks()
    descriptors = len(os.listdir("/proc/self/fd"))
    spans = [
        *(b - a for a, b in zip(began, initialised, strict=True)),
        *(b - a for a, b in zip(initialised, ended, strict=True)),
    ]
    results.put((*spans, descriptors))
    start.wait()
    dist.destroy_process_group()


def launch(backend: str, size: int) -> dict[str, float]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start, results = STARTER.Barrier(size), STARTER.Queue()
    ranks = [
        STARTER.Process(target=rank_main, args=(rank, size, backend, store.port, start, results))
        for rank in range(size)
    ]
    for each in ranks:
        each.start()
    rows = [results.get(timeout=600) for _ in ranks]
    for each in ranks:
        each.join()
    init, init_cpu, groups, groups_cpu, descriptors = zip(*rows, strict=True)
    figures = (max(init), max(groups), sum(init_cpu), sum(groups_cpu), max(descriptors))
    return dict(zip(COLUMNS, figures, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="sagecomm,gloo")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=16, help="a multiple of 8")
    args = parser.parse_args()
    backends = args.backends.split(",")
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(args.launches):
        for backend in backends:
            found[backend].append(launch(backend, args.ranks))
    print(f"{'backend':>12}" + "".join(f"{column:>14}" for column in COLUMNS))
    for backend in backends:
        medians = [statistics.median(row[column] for row in found[backend]) for column in COLUMNS]
        print(f"{backend:>12}" + "".join(f"{figure:14.2f}" for figure in medians[:-1]) + f"{medians[-1]:14.0f}")


if __name__ == "__main__":
    main()
