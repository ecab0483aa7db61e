"""One rank of an MPI library, for peers.py: repeats operations that it is told, and answers with their times.

It is run by mpiexec as a program of its own, and imports nothing of sagecomm.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "single"  # with more, MPICH leaves out its fastest collectives
from mpi4py import MPI  # noqa: E402

WORLD = MPI.COMM_WORLD
TYPES = {"bool": "bool_", **{name: name for name in ("float32", "float64", "complex64", "complex128")}}
TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
REDUCTIONS = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
    "none": MPI.OP_NULL,
}


def prepare(op: str, count: int, kind: str, redop: str, root: int) -> Callable[[], Any]:
    """Returns a function that makes one call. Raises LookupError where MPI has none."""
    dtype, reduction, size, rank = np.dtype(TYPES[kind]), REDUCTIONS[redop], WORLD.size, WORLD.rank
    block, blocks = np.zeros(max(count, 1), dtype), np.zeros(max(count, 1) * size, dtype)
    others = np.zeros_like(blocks) if op == "all_to_all" else np.zeros_like(block)
    at_root = rank == root

    def round_trip() -> None:
        if rank == 0:
            WORLD.Send(block, 1)
            WORLD.Recv(block, 1)
        elif rank == 1:
            WORLD.Recv(block, 0)
            WORLD.Send(block, 0)

    def reduce_here() -> None:
        WORLD.Reduce(MPI.IN_PLACE if at_root else block, block if at_root else None, reduction, root)

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: WORLD.Allreduce(MPI.IN_PLACE, block, reduction),
        "broadcast": lambda: WORLD.Bcast(block, root),
        "reduce": reduce_here,
        "all_gather": lambda: WORLD.Allgather(block, blocks),
        "reduce_scatter": lambda: WORLD.Reduce_scatter_block(blocks, block, reduction),
        "all_to_all": lambda: WORLD.Alltoall(blocks, others),
        "gather": lambda: WORLD.Gather(block, blocks if at_root else None, root),
        "scatter": lambda: WORLD.Scatter(blocks if at_root else None, block, root),
        "barrier": WORLD.Barrier,
        "send_recv": round_trip,
        "shift": lambda: WORLD.Sendrecv(block, (rank + 1) % size, recvbuf=others, source=(rank - 1) % size),
    }
    return calls[op]


def measure(request: dict[str, Any]) -> dict[str, Any]:
    case = [request[name] for name in ("op", "count", "type", "redop", "root")]
    try:
        call = prepare(*case)
    except LookupError as err:
        return {"refused": f"MPI has no {request['op']} of {request['type']} with {request['redop']}: {err}"}
    call()
    WORLD.Barrier()
    at = [time.perf_counter()]
    for _ in range(request["iterations"]):
        call()
        at.append(time.perf_counter())
    return {"laps": [end - begin for begin, end in itertools.pairwise(at)]}


def main() -> None:
    path, pinned = sys.argv[1:3]
    if pinned == "pinned":
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[WORLD.rank % len(processors)]})
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)
        for line in connected.makefile("r"):
            request, answer = json.loads(line), {}
            if request.get("phase") == "hello":
                name, version = MPI.get_vendor()
                answer = {"rank": WORLD.rank, "version": f"{name} {'.'.join(map(str, version))}"}
            elif "op" in request:
                answer = measure(request)
            connected.sendall(json.dumps(answer).encode() + b"\n")


main()
