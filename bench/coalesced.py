"""What packing ten small tensors into one collective saves, at the C ABI and through torch: two ranks.

    python bench/coalesced.py                     ten tensors of 2 KiB
    python bench/coalesced.py --bytes 64K --tensors 100

Each launch measures, in turn and several times: the calls one by one, all_reduce_coalesced, torch's coalescing manager
(with and without its window of the backend), each synchronous and asynchronous and then waited for, one all_reduce as
long as all of them, and the manager around nothing, which is its own cost. Figures are in us, of the slower rank:
medians over all blocks of all launches, of a block's median call and of its mean. The mean includes disturbances by
other processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm._arguments import size

CPU = torch.device("cpu")


def ways(group: dist.ProcessGroup, nbytes: int, count: int) -> dict[str, Callable[[], object]]:
    tensors = [torch.zeros(nbytes // 4) for _ in range(count)]
    whole = torch.zeros(count * (nbytes // 4))

    def one_by_one() -> None:
        for t in tensors:
            dist.all_reduce(t, group=group)

    def one_by_one_async() -> None:
        for work in [dist.all_reduce(t, group=group, async_op=True) for t in tensors]:
            work.wait()

    def coalesced_async() -> None:
        dist.all_reduce_coalesced(tensors, group=group, async_op=True).wait()

    def manager(device: torch.device | None, async_ops: bool, some: list[torch.Tensor]) -> Callable[[], None]:
        def window() -> None:
            with c10d._coalescing_manager(group, device, async_ops) as work:
                for t in some:
                    dist.all_reduce(t, group=group)
            if async_ops:
                work.wait()

        return window

    return {
        "one by one": one_by_one,
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(tensors, group=group),
        "manager": manager(None, False, tensors),
        "manager, device": manager(CPU, False, tensors),
        "one by one, asynchronous": one_by_one_async,
        "all_reduce_coalesced, asynchronous": coalesced_async,
        "manager, asynchronous": manager(None, True, tensors),
        "manager, device, asynchronous": manager(CPU, True, tensors),
        "one all_reduce of all bytes": lambda: dist.all_reduce(whole, group=group),
        "manager around nothing": manager(None, False, []),
    }


def worker(rank: int, args: argparse.Namespace, store_file: str, out_file: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    group = dist.new_group(backend="sagecomm")
    rows: dict[str, list[list[float]]] = defaultdict(list)
    calls = ways(group, args.bytes, args.tensors)
    for _ in range(args.blocks):
        for name, call in calls.items():
            for _ in range(20):
                call()
            dist.barrier()  # gloo's barrier sleeps while it waits
            at = [time.perf_counter()]
            for _ in range(args.calls):
                call()
                at.append(time.perf_counter())
            took = [end - begin for begin, end in itertools.pairwise(at)]
            figures = torch.tensor([statistics.median(took), statistics.mean(took)], dtype=torch.float64)
            dist.all_reduce(figures, op=dist.ReduceOp.MAX)
            rows[name].append((figures * 1e6).tolist())
    if rank == 0:
        with open(out_file, "w") as f:
            json.dump(rows, f)
    dist.barrier()
    dist.destroy_process_group()


def at_the_c_abi(args: argparse.Namespace) -> None:
    library = Path(sagecomm.__file__).parent / "lib" / "libsagecomm.so"
    with tempfile.TemporaryDirectory() as scratch:
        program = str(Path(scratch) / "coalesced")
        source = str(Path(__file__).with_suffix(".c"))
        compiler = shlex.split(os.environ.get("CC", "gcc"))
        subprocess.run([*compiler, "-std=c11", "-O2", source, "-o", program, "-ldl"], check=True)
        for launch in range(args.launches):
            directory = Path(scratch) / f"store-{launch}"
            directory.mkdir()
            command = [program, str(library), str(directory), str(args.bytes), str(args.tensors)]
            subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=size, default=2048, help="of one tensor")
    parser.add_argument("--tensors", type=int, default=10)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    args = parser.parse_args()
    at_the_c_abi(args)
    samples: dict[str, list[list[float]]] = defaultdict(list)
    for _ in range(args.launches):
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "rows")
            mp.spawn(worker, (args, os.path.join(scratch, "store"), out), nprocs=2)
            with open(out) as f:
                for name, values in json.load(f).items():
                    samples[name] += values
    apart: list[float] = []
    print(f"{'us':40}{'median call':>14}{'mean':>10}{'  against one by one'}")
    for name, blocks in samples.items():
        figures = [statistics.median(column) for column in zip(*blocks, strict=True)]
        if name.startswith("one by one"):
            apart = figures
        ratios = [theirs / mine for theirs, mine in zip(apart, figures, strict=True)]
        print(f"{name:40}{figures[0]:14.1f}{figures[1]:10.1f}{ratios[0]:10.2f}x{ratios[1]:8.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
