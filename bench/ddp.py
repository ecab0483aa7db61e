"""Times DDP training of a 25 M-parameter MLP on 2 ranks: sagecomm against gloo, alternating launches.

    python bench/ddp.py [--launches 3] [--steps 12]

Printed per backend: median step; the compute alone (the same step under no_sync); the communication alone (the same
buckets all_reduced with nothing else running); and the share of the communication that hides under the compute,
(compute + communication - step) / communication. What the progress thread costs the compute is the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, BATCH = 2048, 6, 64


def worker(rank: int, backend: str, steps: int, store_file: str, out_file: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if backend == "sagecomm":
        import sagecomm  # noqa: F401
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    model = nn.Sequential(*[m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    parameters = sum(p.numel() for p in model.parameters())
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()

    def timed(call) -> float:
        dist.barrier()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    buckets = []
    left = parameters
    for limit in [1 << 18, *[25 << 18] * 100]:  # DDP's: 1 MiB first, then 25 MiB, of floats
        if left <= 0:
            break
        buckets.append(torch.ones(min(limit, left)))
        left -= limit

    def communicate() -> None:
        for work in [dist.all_reduce(b, async_op=True) for b in buckets]:
            work.wait()

    def alone() -> None:
        with ddp.no_sync():
            step()

    for _ in range(3):
        step()
        alone()
        communicate()
    result = {"step": [], "compute": [], "communication": []}
    for _ in range(steps):
        result["step"].append(timed(step))
        result["compute"].append(timed(alone))
        result["communication"].append(timed(communicate))
    if rank == 0:
        with open(out_file, "w") as f:
            json.dump(result | {"parameters": parameters}, f)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=3, help="of each backend")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {}
    parameters = 0
    for launch in range(2 * args.launches):
        backend = ("sagecomm", "gloo")[launch % 2]
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "out")
            mp.spawn(worker, (backend, args.steps, os.path.join(scratch, "store"), out), nprocs=2)
            with open(out) as f:
                got = json.load(f)
        parameters = got.pop("parameters")
        for name, values in got.items():
            samples.setdefault(backend, {}).setdefault(name, []).extend(values)
    print(f"{parameters / 1e6:.1f} M parameters, batch {BATCH}, medians of {args.launches} launches, ms")
    print(f"{'backend':10}{'step':>10}{'compute':>10}{'comm.':>10}{'hidden':>10}")
    step = {}
    for backend, s in samples.items():
        m = {name: statistics.median(values) for name, values in s.items()}
        step[backend] = m["step"]
        hidden = (m["compute"] + m["communication"] - m["step"]) / m["communication"]
        print(f"{backend:10}{m['step']:10.1f}{m['compute']:10.1f}{m['communication']:10.1f}{hidden:10.0%}")
    print(f"gloo's step takes {step['gloo'] / step['sagecomm']:.2f}x as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
