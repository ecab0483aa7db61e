"""Times collectives of several backends against each other in one set of processes.

    python bench/compare.py                                     2 ranks, all_reduce and barrier, sagecomm and gloo
    python bench/compare.py --ranks 8 --sizes 8,64K,1M --ops all_reduce,barrier
    python bench/compare.py --json out.json
    python bench/compare.py --backends 'sagecomm,sagecomm?tune=all_reduce:8K-inf:one_shot&spin=20,gloo'

A backend may carry settings: the variables of docs/environment.md that concern a group rather than the process, in
lower case and without the prefix. In each launch every rank makes one group per backend; blocks of calls alternate
between the backends, so that other load on the machine affects all of them alike. A block is a batch of back-to-
back calls of at least --batch-ms; its time is the slowest rank's mean. Launches alternate between ranks pinned to one
core each and not pinned. The figure of a backend is the median over all blocks of one kind of launch, and of the two
kinds the better one for that backend, which favours gloo: pinning puts its threads on the rank's core.

Sizes are those of one rank's tensor: of all_gather's input, of reduce_scatter's output, of one block of all_to_all. The
time of send_recv is half a round trip.
"""

from __future__ import annotations

import argparse
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

from sagecomm import Options
from sagecomm._arguments import COLLECTIVES, positive, size
from sagecomm._measuring import make_buffers, make_call

DEFAULT_SIZES = "8,1K,64K,1M,16M,64M"


OPS = (*COLLECTIVES, "send_recv")


def ops(text: str) -> list[str]:
    """Parses a list of operations for argparse."""
    if unknown := [op for op in text.split(",") if op not in OPS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(OPS)}")
    return text.split(",")


def size_name(n: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{name}"
    return str(n)


def make_group(backend: str) -> dist.ProcessGroup:
    name, _, settings = backend.partition("?")
    if not settings:
        return dist.new_group(backend=name)
    options = Options(settings=dict(s.split("=", 1) for s in settings.split("&")))
    return dist.new_group(backend=name, pg_options=options)


def prepare(op: str, nbytes: int, size: int) -> Callable[[dist.ProcessGroup], Callable[[], object]]:
    """Makes a function of a group that makes one call. All groups use the same buffers."""
    buffers = make_buffers(op, nbytes, size)
    if op != "send_recv":
        return lambda group: make_call(op, buffers, group)
    (x,) = buffers

    def there_and_back(group: dist.ProcessGroup) -> None:  # two half trips
        if dist.get_rank() == 0:
            dist.send(x, 1, group=group)
            dist.recv(x, 1, group=group)
        elif dist.get_rank() == 1:
            dist.recv(x, 0, group=group)
            dist.send(x, 0, group=group)

    return lambda group: lambda: there_and_back(group)


def worker(rank: int, args: argparse.Namespace, pinned: bool, store_file: str, out_file: str) -> None:
    torch.set_num_threads(1)
    if pinned:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(store_file, args.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    groups = {name: make_group(name) for name in args.backends}
    rows: dict[str, list[float]] = defaultdict(list)
    for op in args.ops:
        for nbytes in [0] if op == "barrier" else args.sizes:
            prepared = prepare(op, nbytes, args.ranks)
            calls = {name: prepared(group) for name, group in groups.items()}
            counts = {}
            for name, call in calls.items():
                for _ in range(5):
                    call()
                begin = time.perf_counter()
                for _ in range(5):
                    call()
                took = torch.tensor([(time.perf_counter() - begin) / 5])
                dist.all_reduce(took, op=dist.ReduceOp.MAX)  # the same count on all ranks
                counts[name] = max(2, min(50000, int(args.batch_ms / 1e3 / took.item())))
            for _ in range(args.blocks):
                for name, call in calls.items():
                    dist.barrier()  # gloo's barrier sleeps while it waits
                    begin = time.perf_counter()
                    for _ in range(counts[name]):
                        call()
                    mean = torch.tensor([(time.perf_counter() - begin) / counts[name]], dtype=torch.float64)
                    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
                    rows[f"{op} {nbytes} {name}"].append(mean.item() / (2 if op == "send_recv" else 1) * 1e6)
    if rank == 0:
        with open(out_file, "w") as f:
            json.dump(rows, f)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=positive, default=2, help="processes on this host, 2 by default")
    parser.add_argument(
        "--backends",
        type=lambda text: text.split(","),
        default=["sagecomm", "gloo"],
        help="the last one is compared with the first; sagecomm,gloo by default",
    )
    parser.add_argument(
        "--ops", type=ops, default=["all_reduce", "barrier"], help=f"of {', '.join(OPS)}; all_reduce,barrier by default"
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: [size(part) for part in text.split(",")],
        default=DEFAULT_SIZES,
        help=f"in bytes, with K, M or G for powers of 1024; {DEFAULT_SIZES} by default",
    )
    parser.add_argument(
        "--launches",
        type=positive,
        default=3,
        help="of each kind, so twice as many in all: pinned and not; 3 by default",
    )
    parser.add_argument("--blocks", type=positive, default=5, help="of calls in a launch; 5 by default")
    parser.add_argument("--batch-ms", type=float, default=30, help="that a block lasts at least; 30 by default")
    parser.add_argument("--json", metavar="FILE", help="that the table is written into as well")
    args = parser.parse_args()

    samples: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for launch in range(2 * args.launches):
        pinned = launch % 2 == 0
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "rows")
            mp.spawn(worker, (args, pinned, os.path.join(scratch, "store"), out), nprocs=args.ranks)
            with open(out) as f:
                for key, values in json.load(f).items():
                    samples[pinned, key] += values
        print(f"launch {launch + 1} of {2 * args.launches} done", file=sys.stderr)

    table = []
    for op in args.ops:
        for nbytes in [0] if op == "barrier" else args.sizes:
            row: dict[str, object] = {"op": op, "bytes": nbytes, "ranks": args.ranks}
            for name in args.backends:
                best = min(statistics.median(samples[p, f"{op} {nbytes} {name}"]) for p in (True, False))
                row[name] = best
                row[f"{name}_min"] = min(min(samples[p, f"{op} {nbytes} {name}"]) for p in (True, False))
            table.append(row)
    width = [max(15, len(name) + 4) for name in args.backends]
    head = "".join(f"{name + ' us':>{w}}{'min':>10}" for name, w in zip(args.backends, width, strict=True))
    print(f"{'op':12}{'bytes':>8}{head}{'ratio':>10}")
    for row in table:
        pairs = zip(args.backends, width, strict=True)
        cells = "".join(f"{row[name]:{w}.2f}{row[f'{name}_min']:10.2f}" for name, w in pairs)
        ratio = row[args.backends[-1]] / row[args.backends[0]]  # type: ignore[operator]
        print(f"{row['op']:12}{size_name(row['bytes']):>8}{cells}{ratio:9.1f}x")  # type: ignore[arg-type]
    if args.json:
        with open(args.json, "w") as f:
            json.dump(table, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
