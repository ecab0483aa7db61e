"""python -m sagecomm simulate: what collectives would take on a cluster that is only described.

The core predicts (sagecomm.h, simulate; docs/scaling.md has the description of a cluster). Here questions are made of
the command's arguments, one for each number of bytes and hosts, and answers become a table or a picture.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sagecomm._format import columns, duration, in_bytes, many


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
    title += f", {many(answer['ranks'], 'rank')}: "
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
        rows.append(
            (p["algorithm"], taken, str(p["messages"]), in_bytes(p["bytes"], answer["bytes"]), bus, chunk, p["method"])
        )
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
    several = len({answer[_other(key)] for answer in answers}) > 1
    lines = sorted(curves(answers, key).items())
    for ((name, other), points), style in zip(lines, itertools.cycle(("-", "--", "-.")), strict=False):
        label = f"{name}, {in_bytes(other) if key == 'ranks' else many(other, 'rank')}" if several else name
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=label, linestyle=style
        )
    axes.set_xscale("symlog" if key == "bytes" else "log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("ranks" if key == "ranks" else "bytes of the buffer, or of each rank's block")
    axes.set_ylabel("predicted time")
    of = many(answers[0]["ranks"], "rank") if key == "bytes" else in_bytes(answers[0]["bytes"])
    of = "" if several else f", {of}"
    cluster = answers[0]["cluster"].get("name", "cluster")
    # Over the whole figure and in two lines: over the axes alone, long names would be cut off.
    title = f"{answers[0]['op']}{of}: predicted, not measured\n{cluster}"
    figure.suptitle(title, fontsize="medium", wrap=True)
    _name_ticks(axes, sorted({answer[key] for answer in answers}), in_bytes if key == "bytes" else str)
    axes.grid(visible=True, alpha=0.3)
    # Beside the axes, where it hides no line.
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    try:
        figure.savefig(path, dpi=120)
    except OSError as err:
        raise RuntimeError(f"sagecomm: the picture cannot be written: {err}") from err


def _name_ticks(axes: Any, values: Sequence[int], write: Callable[[int], str]) -> None:
    """Ticks where predictions are, 12 at most, in units that people use: 8 B, 1 KiB, 20 us, 1 ms."""
    every = -(-len(values) // 12)
    axes.set_xticks(values[::every], labels=[write(value) for value in values[::every]], rotation=30, ha="right")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    decades = [10.0**n for n in range(-9, 6)]
    ticks = [d * m for d in decades for m in ((1, 2, 5) if high < 100 * low else (1,)) if low <= d * m <= high]
    axes.set_yticks(ticks, labels=[duration(tick) for tick in ticks])


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
