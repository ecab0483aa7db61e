"""python -m sagecomm simulate: what collectives would take on a cluster that is only described.

The core predicts (sagecomm.h, simulate; docs/scaling.md has the description of a cluster). Here questions are made of
the command's arguments, one for each number of bytes and hosts, and answers become a table or a picture.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def size(text: str) -> int:
    """Bytes: "100MB", "64KiB", "8". Raises ValueError, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]i?)?B?", text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2] or ""])


def sizes(text: str) -> list[int]:
    """A list, or a range in steps of four times as much: "8,64KiB", "8-100MB"."""
    if "-" not in text:
        return [size(part) for part in text.split(",")]
    first, last = (size(part) for part in text.split("-"))
    if first < 1:
        raise ValueError(text)
    return list(_steps(first, last, 4))


def counts(text: str) -> list[int]:
    """Numbers of hosts: "512", "64,512", "1-8192", which is in steps of twice as many."""
    if "-" not in text:
        return [int(part) for part in text.split(",")]
    first, last = (int(part) for part in text.split("-"))
    if first < 1:
        raise ValueError(text)
    return list(_steps(first, last, 2))


def _steps(first: int, last: int, factor: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= factor
    yield last


def ask(
    simulate: Callable[[str], str], cluster: Path, op: str, of_bytes: Sequence[int], hosts: Sequence[int], method: str
) -> list[dict[str, Any]]:
    """An answer for each number of bytes, of each number of hosts (0: as described). Raises RuntimeError."""
    try:
        text = cluster.read_text()
    except (OSError, UnicodeDecodeError) as err:
        raise RuntimeError(f"sagecomm: the cluster's description cannot be read: {err}") from err
    answers = []
    for count in hosts:
        for number in of_bytes:
            question = {"cluster": text, "op": op, "bytes": number, "hosts": count, "method": method}
            answer = json.loads(simulate(json.dumps(question)))
            if "error" in answer:
                raise RuntimeError(f"sagecomm: {cluster}: {answer['error']}")
            answers.append(answer)
    return answers


def table(answer: dict[str, Any]) -> str:
    """For people."""
    cluster = answer["cluster"]
    title = answer["op"] + (f" of {in_bytes(answer['bytes'])}" if answer["op"] != "barrier" else "")
    title += f", {answer['ranks']} ranks: "
    title += f"{cluster['hosts']} x {cluster['ranks_per_host']}, {cluster['inside']}"
    if cluster["hosts"] > 1:
        title += f" and {cluster['between']}"
    rows = [("algorithm", "time", "steps", "bytes per rank", "bus GB/s", "chunk", "method")]
    notes = []
    for p in answer["predictions"]:
        if "why" in p:
            notes.append(f"  {p['algorithm']}: {p['why']}")
            continue
        chunk = in_bytes(p["chunk"]) if "chunk" in p else "whole"
        taken, bus = duration(p["seconds"]), f"{p['bus_gb_per_s']:.2f}"
        rows.append((p["algorithm"], taken, str(p["messages"]), in_bytes(p["bytes"]), bus, chunk, p["method"]))
    return "\n".join([title, *columns(rows, range(1, 6)), *notes])


def text(answers: Sequence[dict[str, Any]]) -> str:
    """A table of one answer, or the times of several: a row for each, * marks closed forms, - where there is none."""
    if len(answers) == 1:
        return table(answers[0])
    names = [p["algorithm"] for p in answers[-1]["predictions"]]
    rows = [("ranks", "bytes", *names)]
    for answer in answers:
        found = {p["algorithm"]: p for p in answer["predictions"]}
        rows.append((str(answer["ranks"]), in_bytes(answer["bytes"]), *(_brief(found[name]) for name in names)))
    return "\n".join([f"{answers[0]['op']}: times (* by closed form)", *columns(rows, range(len(rows[0])))])


def _brief(prediction: dict[str, Any]) -> str:
    if "why" in prediction:
        return "- "
    return duration(prediction["seconds"]) + ("*" if prediction["method"] == "closed form" else " ")


def columns(rows: Sequence[tuple[str, ...]], numbers: range) -> list[str]:
    """Lines of cells below each other; numbers stand on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        padded = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    return lines


def duration(seconds: float) -> str:
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s"


def in_bytes(number: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"


def draw(answers: Sequence[dict[str, Any]], path: Path) -> None:
    """Time against ranks, if there are several, else against bytes; a line for each algorithm. Raises RuntimeError."""
    try:
        # The object interface alone: it has no state of the process, and needs no display.
        figure_module: Any = importlib.import_module("matplotlib.figure")
    except ImportError as err:
        raise RuntimeError("sagecomm: --png needs matplotlib: pip install matplotlib") from err
    key = "ranks" if len({answer["ranks"] for answer in answers}) > 1 else "bytes"
    figure = figure_module.Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    for (name, other), points in sorted(curves(answers, key).items()):
        several = len({answer[_other(key)] for answer in answers}) > 1
        label = f"{name}, {in_bytes(other)}" if several else name
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=label)
    axes.set_xscale("symlog" if key == "bytes" else "log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(key)
    axes.set_ylabel("seconds")
    what = f"{answers[0]['ranks']} ranks" if key == "bytes" else in_bytes(answers[0]["bytes"])
    axes.set_title(f"{answers[0]['op']}, {answers[0]['cluster'].get('name', 'cluster')}, {what}", fontsize="medium")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as err:
        raise RuntimeError(f"sagecomm: the picture cannot be written: {err}") from err


def _other(key: str) -> str:
    return "bytes" if key == "ranks" else "ranks"


def curves(answers: Sequence[dict[str, Any]], key: str) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Points (key, seconds) of each algorithm, for each value of what is not the key."""
    found: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for answer in answers:
        for p in answer["predictions"]:
            if "why" not in p:
                found.setdefault((p["algorithm"], answer[_other(key)]), []).append((answer[key], p["seconds"]))
    return found
