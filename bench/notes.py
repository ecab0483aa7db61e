"""Measures the cost of the flight recorder and the statistics: a core with them against one compiled without.

    python bench/notes.py

Launches of the two take turns. At the C ABI: one all_reduce of 8 bytes of a rank alone, which is nothing but its own
cost, and of two ranks. Through torch: dist.all_reduce of 8 bytes, two ranks. It
prints the least of the launches, which is the time on an idle machine, and the median, which includes other load.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parent.parent
CALLS, BLOCKS = 3000, 21


def build(scratch: Path) -> dict[str, Path]:
    """The two cores and the program that measures them."""
    go = [str(ROOT / "tools" / "go"), "build", "-buildvcs=false", "-trimpath", "-buildmode=c-shared"]
    libraries = {}
    for name, flags in (("with", ""), ("without", "-DSCR_NO_NOTES")):
        libraries[name] = scratch / name / "libsagecomm.so"
        environment = {**os.environ, "CGO_CFLAGS": f"-O2 -g {flags}".strip()}
        command = [*go, "-ldflags", "-s -w", "-o", str(libraries[name]), "./export"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    source = ROOT / "bench" / "notes.c"
    subprocess.run([*compiler, "-O2", "-std=gnu11", str(source), "-o", str(scratch / "notes"), "-ldl"], check=True)
    return libraries


def at_the_abi(scratch: Path, library: Path, ranks: int) -> float:
    """Returns ns per call."""
    with tempfile.TemporaryDirectory(dir=scratch) as store:
        command = [str(scratch / "notes"), str(library), store, "8", str(ranks)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def worker(rank: int, library: str, store: str, out: str) -> None:
    from sagecomm import _native

    _native.CORE = Path(library)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    dist.init_process_group("sagecomm", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    t = torch.zeros(2)
    took = []
    for _ in range(BLOCKS + 1):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            dist.all_reduce(t)
        took.append((time.perf_counter_ns() - began) / CALLS)
    if rank == 0:
        Path(out).write_text(str(statistics.median(took[1:])))
    dist.destroy_process_group()


def through_torch(scratch: Path, library: Path) -> float:
    """Returns ns per call."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        out = os.path.join(directory, "out")
        mp.spawn(worker, (str(library), os.path.join(directory, "store"), out), nprocs=2)
        return float(Path(out).read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=9, help="of each core")
    launches = parser.parse_args().launches
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        libraries = build(scratch)
        ways = {
            "C ABI, 1 rank": lambda library: at_the_abi(scratch, library, 1),
            "C ABI, 2 ranks": lambda library: at_the_abi(scratch, library, 2),
            "dist.all_reduce, 2 ranks": lambda library: through_torch(scratch, library),
        }
        print(f"{'ns a call of 8 bytes':28}{'':8}{'with':>10}{'without':>10}{'difference':>12}{'share':>8}")
        for way, measure in ways.items():
            pairs = [(measure(libraries["with"]), measure(libraries["without"])) for _ in range(launches)]
            for name, of in (("least", min), ("median", statistics.median)):
                noted, plain = (of(side) for side in zip(*pairs, strict=True))
                print(
                    f"{way:28}{name:8}{noted:10.1f}{plain:10.1f}{noted - plain:12.1f}{(noted - plain) / plain:8.1%}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
