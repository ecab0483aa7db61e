"""Times DDP training of a 25 M-parameter MLP on 2 ranks, sagecomm against gloo, in one set of processes.

    python bench/ddp.py [--launches 3] [--steps 12] [--batch 32]

Every rank holds three copies of the model under DDP: one whose gradients go through sagecomm, one through gloo, and one
whose communication hook does nothing; their steps alternate. Printed per backend: the median step; the step without
communication (buckets are filled and emptied all the same); the communication alone (the same buckets all_reduced with
nothing else running); and the share of the communication that hides under the compute, (without + communication -
step) / communication. With as many computing
threads as cores, only waiting can hide: the progress engine takes its time from the compute. The last column shows the
whole cost: (step - without) / without.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH = 2048, 6
BACKENDS = ("sagecomm", "gloo")


def no_communication(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Training:
    """One copy of the model and its steps."""

    def __init__(self, batch: int, group: dist.ProcessGroup, communicates: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
        self.ddp = DistributedDataParallel(model, process_group=group)
        if not communicates:
            self.ddp.register_comm_hook(None, no_communication)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.x = torch.randn(batch, WIDTH)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.ddp(self.x).square().mean().backward()
        self.optimizer.step()

    def parameters(self) -> int:
        return sum(p.numel() for p in self.ddp.parameters())


def buckets_of(parameters: int) -> list[torch.Tensor]:
    """Returns DDP's buckets: 1 MiB first, then 25 MiB each."""
    buckets = []
    for limit in [1 << 18, *[25 << 18] * 100]:
        if parameters <= 0:
            break
        buckets.append(torch.ones(min(limit, parameters)))
        parameters -= limit
    return buckets


def worker(rank: int, args: argparse.Namespace, store_file: str, out_file: str) -> None:
    torch.set_num_threads(1)
    import sagecomm  # noqa: F401

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    trainings = {name: Training(args.batch, groups[name], True) for name in BACKENDS}
    trainings["nothing"] = Training(args.batch, groups["gloo"], False)
    parameters = trainings["gloo"].parameters()
    buckets = buckets_of(parameters)

    def communicate(name: str) -> None:
        for work in [dist.all_reduce(b, group=groups[name], async_op=True) for b in buckets]:
            work.wait()

    calls: dict[str, Callable[[], None]] = {f"step {name}": t.step for name, t in trainings.items()}
    calls |= {f"communication {name}": functools.partial(communicate, name) for name in BACKENDS}
    rows: dict[str, list[float]] = defaultdict(list)
    for i in range(3 + args.steps):
        for name, call in calls.items():
            dist.barrier()  # gloo's barrier sleeps while it waits
            begin = time.perf_counter()
            call()
            if i >= 3:
                rows[name].append((time.perf_counter() - begin) * 1e3)
    if rank == 0:
        with open(out_file, "w") as f:
            json.dump(rows | {"parameters": parameters}, f)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    samples: dict[str, list[float]] = defaultdict(list)
    parameters = 0
    for _ in range(args.launches):
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "out")
            mp.spawn(worker, (args, os.path.join(scratch, "store"), out), nprocs=2)
            with open(out) as f:
                got = json.load(f)
        parameters = got.pop("parameters")
        for name, values in got.items():
            samples[name] += values
    median = {name: statistics.median(values) for name, values in samples.items()}
    without = median["step nothing"]
    print(f"{parameters / 1e6:.1f} M parameters, batch {args.batch}, medians of {args.launches} launches, ms")
    print(f"{'backend':10}{'step':>10}{'without':>10}{'comm.':>10}{'hidden':>10}{'cost':>10}")
    for name in BACKENDS:
        step, communication = median[f"step {name}"], median[f"communication {name}"]
        hidden, cost = (without + communication - step) / communication, (step - without) / without
        print(f"{name:10}{step:10.1f}{without:10.1f}{communication:10.1f}{hidden:10.0%}{cost:10.0%}")
    print(f"gloo's step takes {median['step gloo'] / median['step sagecomm']:.2f}x as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
