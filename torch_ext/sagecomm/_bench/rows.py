"""Figures from samples. Pure functions: nothing here reads a clock or communicates.

A sample is what rank 0 writes for each case of a launch:

    case      fields of the row: op, bytes, count, type, redop, root
    pinned    whether ranks were bound to processors
    backends  for each backend: blocks and laps in seconds of an iteration, of the slowest rank; iterations of a block;
              wrong elements or None; `refused` with the reason, in place of these; with overlap also blocks of `both`
    copy      blocks, in seconds
    compute   blocks, with overlap
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from sagecomm._bench.cases import bus_factor
from sagecomm._overlap._formula import hidden

PERCENTILES = (50, 75, 90, 95, 99)


def operations_in(op: str, aggregate: int) -> int:
    """Returns by what the time of an iteration is divided. The time of send_recv is that of one way of its two."""
    return aggregate * (2 if op == "send_recv" else 1)


def bandwidths(op: str, nbytes: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Returns algorithm and bus bandwidth in GB/s (10^9 bytes a second)."""
    algorithm = nbytes / seconds / 1e9
    return algorithm, algorithm * bus_factor(op, ranks)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns the nearest-rank percentile of values in ascending order."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def rows(
    samples: Sequence[dict[str, Any]], backends: Sequence[str], ranks: int, aggregate: int
) -> list[dict[str, Any]]:
    """Returns a row for each case and backend, in the order of the first launch's cases. Times are in microseconds.

    The time is the median over the blocks of all launches of one kind, pinned or not: of the kind that is better for
    this backend.
    """
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for sample in samples:
        cases.setdefault(tuple(sample["case"].values()), []).append(sample)
    found = []
    for of_case in cases.values():
        case = of_case[0]["case"]
        for backend in backends:
            kinds = [[s for s in of_case if s["pinned"] == pinned] for pinned in (True, False)]
            candidates = [_row(case, backend, kind, ranks, aggregate) for kind in kinds if kind]
            found.append(min(candidates, key=lambda row: (row["refused"] is not None, row["time_us"] or 0.0)))
    return found


def _row(
    case: dict[str, Any], backend: str, samples: Sequence[dict[str, Any]], ranks: int, aggregate: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        **case,
        "backend": backend,
        "pinned": samples[0]["pinned"],
        "time_us": None,
        "algbw_gb_s": None,
        "busbw_gb_s": None,
        "wrong": None,
        **dict.fromkeys(("min_us", *(f"p{p}_us" for p in PERCENTILES), "max_us")),
        "iterations": None,
        "blocks_us": [],
        "copy_us": None,
        "compute_us": None,
        "both_us": None,
        "hidden": None,
        "efficiency": None,
        "refused": None,
    }
    results = [sample["backends"][backend] for sample in samples]
    for result in results:
        if "refused" in result:
            return row | {"refused": result["refused"]}
    scale = 1e6 / operations_in(case["op"], aggregate)
    blocks = [block * scale for result in results for block in result["blocks"]]
    laps = sorted(lap * scale for result in results for lap in result["laps"])
    time = statistics.median(blocks)
    row |= {"time_us": time, "blocks_us": blocks, "iterations": results[0]["iterations"]}
    row |= {"min_us": laps[0], **{f"p{p}_us": percentile(laps, p) for p in PERCENTILES}, "max_us": laps[-1]}
    checked = [result["wrong"] for result in results if result["wrong"] is not None]
    if checked:
        row["wrong"] = sum(checked)
    if case["bytes"]:
        row["algbw_gb_s"], row["busbw_gb_s"] = bandwidths(case["op"], case["bytes"], time / 1e6, ranks)
        row["copy_us"] = _median_us(samples, "copy")
    if any("both" in result for result in results):
        both = statistics.median(b for result in results for b in result["both"])
        alone = statistics.median(b for result in results for b in result["blocks"])
        compute = statistics.median(b for sample in samples for b in sample["compute"])
        part = hidden(both, communicate=alone, overlappable=compute)
        row["hidden"], row["efficiency"] = part.fraction, part.efficiency
        row |= {"compute_us": compute * 1e6, "both_us": both * 1e6}
    return row


def _median_us(samples: Sequence[dict[str, Any]], name: str) -> float | None:
    blocks = [block for sample in samples for block in sample[name]]
    return statistics.median(blocks) * 1e6 if blocks else None


def summary(of: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns for each backend its wrong elements and its average bus bandwidth over all rows, as nccl-tests do."""
    found: dict[str, dict[str, Any]] = {}
    for backend in dict.fromkeys(row["backend"] for row in of):
        mine = [row for row in of if row["backend"] == backend]
        buses = [row["busbw_gb_s"] for row in mine if row["busbw_gb_s"] is not None]
        checked = [row["wrong"] for row in mine if row["wrong"] is not None]
        found[backend] = {
            "wrong": sum(checked) if checked else None,
            "average_busbw_gb_s": statistics.mean(buses) if buses else None,
        }
    return found
