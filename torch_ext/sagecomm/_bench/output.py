"""Rows as text in the columns of nccl-tests, as JSON, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from sagecomm._bench.launching import Report
from sagecomm._format import many

Row = dict[str, Any]
Column = tuple[str, str, Callable[[Row], str]]  # name, unit, cell

_PERCENTILES = ("min", "p50", "p90", "p95", "p99", "max")
_NOT_IN_CSV = ("blocks_us",)


def as_json(report: Report) -> str:
    return json.dumps(report.as_dict())


def as_csv(report: Report) -> str:
    """Returns a line for each case and backend; what does not apply is empty."""
    text = io.StringIO()
    rows = [{name: value for name, value in row.items() if name not in _NOT_IN_CSV} for row in report.rows]
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _time(value: float | None) -> str:
    """Returns microseconds with four figures or more, as wide as 9,999,999."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.1f}" if value < 10000 else f"{value:.0f}"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _field(name: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
    return lambda row: "refused" if row["refused"] and name == "time_us" else write(row[name])


def _wrong(row: Row) -> str:
    return "N/A" if row["wrong"] is None else str(row["wrong"])


def _columns_of_a_backend(percentiles: bool, overlap: bool) -> list[Column]:
    if overlap:
        return [
            ("comm", "(us)", _field("time_us", _time)),
            ("both", "(us)", _field("both_us", _time)),
            ("hidden", "(%)", _field("hidden", _share)),
            ("effic.", "(%)", _field("efficiency", _share)),
            ("#wrong", "", _wrong),
        ]
    found: list[Column] = [
        ("time", "(us)", _field("time_us", _time)),
        ("algbw", "(GB/s)", _field("algbw_gb_s", _two)),
        ("busbw", "(GB/s)", _field("busbw_gb_s", _two)),
        ("#wrong", "", _wrong),
    ]
    if percentiles:
        found += [(name, "(us)", _field(f"{name}_us", _time)) for name in _PERCENTILES]
    return found


def as_text(report: Report, percentiles: bool) -> str:
    """Returns a table for each operation. The groups of columns are backends, where nccl-tests have out-of-place and
    in-place."""
    backends = report.job.backends
    lines = _header(report)
    for op in dict.fromkeys(row["op"] for row in report.rows):
        mine = [row for row in report.rows if row["op"] == op]
        lines += [
            "#",
            f"# {op}",
            *_table([mine[i : i + len(backends)] for i in range(0, len(mine), len(backends))], report, percentiles),
        ]
    lines += ["#", *_footer(report)]
    return "\n".join(lines)


def _table(cases: Sequence[Sequence[Row]], report: Report, percentiles: bool) -> list[str]:
    """Returns lines of equally wide columns: those of the case, of each backend, and of what they are compared with."""
    job = report.job
    rows: list[tuple[str, ...]] = []
    first = [("size", "(B)"), ("count", "(elements)"), ("type", ""), ("redop", ""), ("root", "")]
    of_backend = _columns_of_a_backend(percentiles, job.overlap)
    last = (
        [("x", _kind(backend)) for backend in job.backends[1:]]
        + ([("compute", "(us)")] if job.overlap else [])
        + [("copy", "(us)")]
    )
    heads = [*first, *[(name, unit) for _ in job.backends for name, unit, _ in of_backend], *last]
    for line in (0, 1):
        rows.append(tuple(head[line] for head in heads))
    for of_case in cases:
        ours = of_case[0]
        cells = [str(ours[name]) for name in ("bytes", "count", "type", "redop", "root")]
        cells += [cell(row) for row in of_case for _, _, cell in of_backend]
        cells += [_ratio(row, ours) for row in of_case[1:]]
        if job.overlap:
            cells.append(_time(ours["compute_us"]))
        rows.append((*cells, _time(ours["copy_us"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = [" ".join(cell.rjust(width + 1) for cell, width in zip(row, widths, strict=True)) for row in rows]
    names = " " * (sum(width + 2 for width in widths[: len(first)]) - 1)
    for number, backend in enumerate(job.backends):
        start = len(first) + number * len(of_backend)
        room = sum(width + 2 for width in widths[start : start + len(of_backend)]) - 2
        names += "  " + f" {_short(backend, report, room - 4)} ".center(room, "-")
    titles = [names, *lines[:2]]
    return [f"#{line.rstrip()}" for line in titles] + [f" {line}" for line in lines[2:]]


def _short(backend: str, report: Report, width: int) -> str:
    name = report.versions.get(backend, backend)
    return name if len(name) <= width else name[: max(1, width - 1)] + "~"


def _kind(backend: str) -> str:
    return backend.partition("?")[0].partition("=")[0]


def _ratio(row: Row, ours: Row) -> str:
    if row["time_us"] is None or ours["time_us"] is None:
        return "-"
    return _two(row["time_us"] / ours["time_us"])


def _header(report: Report) -> list[str]:
    job, facts = report.job, report.as_dict()
    machine = facts["machine"]
    launches = job.launches * (2 if job.pin == "both" else 1)
    block = many(job.iterations, "iteration") if job.iterations else f"{job.seconds * 1e3:.0f} ms"
    how = [
        f"{job.aggregate} operations an iteration" if job.aggregate > 1 else "",
        "coalesced" if job.coalesce else "",
        "asynchronous" if job.asynchronous else "synchronous",
        "beside computation" if job.overlap else "",
        "cold buffers" if job.cold else "hot buffers",
        {"no": "not pinned", "yes": "pinned", "both": "pinned and not, of which the better counts"}[job.pin],
    ]
    return [
        f"# sagecomm {facts['sagecomm']} bench, torch {facts['torch']}, {many(report.ranks, 'rank')}",
        f"# {machine['processor']}, {machine['cpus']} cpus, Linux {machine['kernel']}",
        f"# {', '.join(part for part in how if part)}",
        f"# in turns {many(job.rounds, 'block')} of {block} of each backend, {many(launches, 'launch', 'launches')}; "
        f"warmup iters: {job.warmup}; checks: {job.checks}",
        *[f"# {backend}: {version}" for backend, version in report.versions.items()],
    ]


def _footer(report: Report) -> list[str]:
    lines = []
    for backend, of in report.as_dict()["summary"].items():
        if of["wrong"] is not None:
            lines.append(f"# Out of bounds values : {backend}: {of['wrong']} {'FAILED' if of['wrong'] else 'OK'}")
        if of["average_busbw_gb_s"] is not None:
            lines.append(f"# Avg bus bandwidth    : {backend}: {of['average_busbw_gb_s']:.4g} GB/s")
    others = report.job.backends[1:]
    if others:
        lines.append(f"# x: time of {', '.join(others)} / time of {report.job.backends[0]}")
    lines.append("# copy: time in which every rank copies as many bytes as the size says")
    refusals = dict.fromkeys(
        f"# refused by {row['backend']}: {row['op']} of {row['type']}"
        + (f" with {row['redop']}" if row["redop"] != "none" else "")
        + f": {row['refused']}"
        for row in report.rows
        if row["refused"]
    )
    return [*lines, *refusals, *(["# interrupted"] if report.interrupted else [])]
