"""Compares measured times of collectives over several hosts with what the simulator predicts from probed links.

Run it with as many ranks on each host. On one machine, for two hosts of two ranks:

    torchrun --no-python --nproc-per-node 4 bash -c 'SAGECOMM_HOSTID=h$((RANK/2)) exec python bench/between_hosts.py'

Rank 0 prints, for each collective and length, what the group's algorithm takes (the slowest rank's mean of a block of
calls, of several blocks the median), what `simulate` predicts for that algorithm on a cluster of the probed links, and
what the group predicted for itself, from rounded parameters and with its chunks. --cluster FILE writes the cluster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sagecomm
from sagecomm import _arguments, _native
from sagecomm._format import columns, duration, in_bytes

WITHIN = 0.25  # the error of a prediction that counts as good


def cluster(answer: dict[str, Any], nics: int) -> dict[str, Any]:
    """The description of a cluster like that of an explanation, for `python -m sagecomm simulate`."""
    p, between = answer["parameters"], answer["probed_links"]
    if not between["measured"]:
        raise RuntimeError("the links between the hosts were not measured: is SAGECOMM_PROBE off?")

    def link(latency: float, step: float, byte: float) -> dict[str, float]:
        return {"latency_us": latency * 1e6, "step_us": step * 1e6, "gb_per_s": 1e-9 / byte}

    return {
        "name": "as probed",
        "hosts": answer["hosts"],
        "ranks_per_host": answer["ranks"] // answer["hosts"],
        "nics_per_host": nics,
        "inside": "channel",
        "between": "probed",
        "links": {
            "channel": link(p["channel.latency"], p["channel.step"], p["channel.byte"]),
            "probed": link(between["latency"], between["step"], between["byte"]),
        },
        # A channel's time of a byte has the copies and the reduction in it.
        "reduce_gb_per_s": min(1e6, 1e-9 / max(p["rank.reduce"], 1e-15)),
        "copy_gb_per_s": min(1e6, 1e-9 / max(p["rank.copy"], 1e-15)),
    }


def simulated(described: dict[str, Any], op: str, nbytes: int) -> dict[str, float]:
    """What each algorithm is predicted to take, in seconds."""
    question = {"cluster": json.dumps(described), "op": op, "bytes": nbytes, "hosts": 0, "method": ""}
    answer = json.loads(_native.load().simulate(json.dumps(question)))
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return {p["algorithm"]: p["seconds"] for p in answer["predictions"] if "why" not in p}


def call(op: str, nbytes: int) -> Callable[[], object]:
    """One collective on buffers, or blocks, of so many bytes."""
    ranks, elements = dist.get_world_size(), max(1, nbytes // 4)
    block, blocks, of_all = torch.ones(elements), torch.zeros(ranks * elements), torch.ones(ranks * elements)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(block),
        "broadcast": lambda: dist.broadcast(block, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(blocks, block),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(block, blocks),
        "all_to_all": lambda: dist.all_to_all_single(blocks, of_all),
    }
    if op not in calls:
        raise SystemExit(f"between_hosts.py: {op}: expected one of {', '.join(calls)}")
    return calls[op]


def measured(once: Callable[[], object], blocks: int, seconds: float) -> float:
    """Seconds of one call: the median of blocks, each the mean on the slowest rank."""

    def block(iterations: int) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            once()
        taken = torch.tensor([(time.perf_counter() - began) / iterations], dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return float(taken)

    block(2)
    iterations = max(3, int(seconds / block(3)))
    return statistics.median(block(iterations) for _ in range(blocks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="all_reduce,broadcast,all_gather", help="list of collectives")
    parser.add_argument("--bytes", type=_arguments.sizes, default=_arguments.sizes("8,1K,16K,64K,256K,1M,4M"))
    parser.add_argument("--blocks", type=int, default=7, help="of calls, for each length")
    parser.add_argument("--block-ms", type=float, default=50.0)
    parser.add_argument("--nics", type=int, default=1, help="links that the ranks of a host share; 1 by default")
    parser.add_argument("--cluster", type=Path, help="write the cluster's description to a file")
    parsed = parser.parse_args()
    dist.init_process_group("sagecomm")
    torch.set_num_threads(1)
    rows = [("collective", "algorithm", "bytes", "measured", "simulated", "ratio", "group's own")]
    good = 0
    for op in parsed.ops.split(","):
        for nbytes in parsed.bytes:
            took = measured(call(op, nbytes), parsed.blocks, parsed.block_ms / 1e3)
            answer = sagecomm.explain(op, nbytes)
            described = cluster(answer, parsed.nics)
            (chosen,) = (c for c in answer["candidates"] if c["chosen"])
            predicted = simulated(described, op, nbytes)[chosen["algorithm"]]
            good += abs(predicted / took - 1) <= WITHIN
            times = (duration(took), duration(predicted), f"{predicted / took:.2f}", duration(chosen["seconds"]))
            rows.append((op, chosen["algorithm"], in_bytes(nbytes), *times))
    if dist.get_rank() == 0:
        probed = answer["probed_links"]
        print(
            f"{answer['hosts']} hosts, {answer['ranks']} ranks; probed: latency {duration(probed['latency'])}, "
            f"step {duration(probed['step'])}, {probed['byte'] * 1e12:.4g} ps a byte"
        )
        print("\n".join(columns(rows, range(2, 7))))
        print(f"{good} of {len(rows) - 1} predictions are within {WITHIN:.0%} of the measured times")
        if parsed.cluster is not None:
            parsed.cluster.write_text(json.dumps(described, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
