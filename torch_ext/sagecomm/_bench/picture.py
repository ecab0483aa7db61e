"""A picture of the rows: bus bandwidth over size, or time where there is no bandwidth to look at."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sagecomm._bench.launching import Report
from sagecomm._format import duration, in_bytes


def figure_module() -> Any:
    """Returns matplotlib.figure. Raises RuntimeError if matplotlib is not there."""
    try:
        # The object interface alone: it has no state of the process, and needs no display.
        return importlib.import_module("matplotlib.figure")
    except ImportError as err:
        raise RuntimeError("sagecomm: bench: --png needs matplotlib: pip install matplotlib") from err


def lines(rows: Sequence[dict[str, Any]], key: str) -> dict[str, list[tuple[int, float]]]:
    """Returns points (bytes, value) of each line: a backend, with what differs between cases beside the size."""
    kinds = {(row["type"], row["redop"], row["root"]) for row in rows}
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row[key] is None or not row["bytes"]:
            continue
        of = f" {row['type']} {row['redop']} {row['root']}" if len(kinds) > 1 else ""
        found.setdefault(row["backend"] + of, []).append((row["bytes"], row[key]))
    return found


def draw(report: Report, path: Path) -> None:
    """Draws a row of two axes for each operation: time and bus bandwidth, with the cost of a copy beside the times.

    Raises:
        RuntimeError: matplotlib is not there, nothing was measured, or the file cannot be written.
    """
    module = figure_module()
    ops = [op for op in dict.fromkeys(row["op"] for row in report.rows) if op != "barrier"]
    if not ops:
        raise RuntimeError("sagecomm: bench: there is nothing to draw: no size was measured")
    figure = module.Figure(figsize=(12, 4 * len(ops)), layout="constrained")
    grid = figure.subplots(len(ops), 2, squeeze=False)
    for (times, bandwidths), op in zip(grid, ops, strict=True):
        mine = [row for row in report.rows if row["op"] == op]
        for name, points in lines(mine, "time_us").items():
            _plot(times, [(x, y / 1e6) for x, y in points], name)
        copies = {row["bytes"]: row["copy_us"] for row in mine if row["copy_us"] is not None}
        _plot(times, [(x, y / 1e6) for x, y in sorted(copies.items())], "copy of the same bytes", linestyle=":")
        for name, points in lines(mine, "busbw_gb_s").items():
            _plot(bandwidths, points, name)
        for axes in (times, bandwidths):
            axes.set_xscale("log", base=2)
            sizes = sorted(copies)
            chosen = sizes[:: -(-len(sizes) // 8) or 1]
            axes.set_xticks(chosen, labels=[in_bytes(size) for size in chosen], rotation=30, ha="right")
            axes.minorticks_off()
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize="small")
        times.set_yscale("log")
        _name_times(times)
        times.set_title(f"{op}: time")
        bandwidths.set_title(f"{op}: bus bandwidth, GB/s")
        bandwidths.set_ylim(bottom=0)
    facts = report.as_dict()["machine"]
    figure.suptitle(f"{report.ranks} ranks, {facts['processor']}, {facts['cpus']} cpus", fontsize="medium")
    try:
        figure.savefig(path, dpi=120)
    except OSError as err:
        raise RuntimeError(f"sagecomm: bench: the picture cannot be written: {err}") from err


def _plot(axes: Any, points: Sequence[tuple[int, float]], label: str, linestyle: str = "-") -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, marker="o", markersize=3, label=label, linestyle=linestyle)


def _name_times(axes: Any) -> None:
    low, high = axes.get_ylim()
    ticks = [10.0**power for power in range(-9, 4) if low <= 10.0**power <= high]
    axes.set_yticks(ticks, labels=[duration(tick) for tick in ticks])
