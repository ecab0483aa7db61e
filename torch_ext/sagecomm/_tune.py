"""python -m sagecomm tune: measures every algorithm, and writes what is best into a file for SAGECOMM_TUNE_FILE.

_measuring.py measures; the core says what follows from the ratios (sagecomm.h, tune): first which candidates would
change a choice. Each of those meets the choice once more, alone, in groups of its own, and gets a rule only if that run
confirms it: the best of many measurements is in part the luckiest one. Launches are new processes, whose memory lies
elsewhere.
"""

from __future__ import annotations

import json
import os
import stat
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sagecomm import _arguments, _explain, _native, _observe
from sagecomm._format import columns, duration, in_bytes
from sagecomm._launching import file_store, pin, run_ranks
from sagecomm._measuring import Candidate, Job, Measuring
from sagecomm._progress import Progress, say
from sagecomm._registration import register

_PROPOSALS = 3  # how often the core may name candidates to be confirmed: after a refusal it may name the next best one


def tune(job: Job, ranks: Sequence[int], path: Path) -> list[dict[str, Any]]:
    """Measures groups of these sizes on this host and writes the file, after each launch. In a process that torchrun
    has started the group is that of all its processes instead. Returns a summary of each group, on rank 0 only.

    Raises:
        RuntimeError: The file is none, or cannot be written, or a rank failed.
    """
    for name in ("SAGECOMM_TUNE", "SAGECOMM_TUNE_FILE"):  # here all candidates are tried, against what is predicted
        if os.environ.pop(name, ""):
            say("tune", f"{name} is not looked at")
    register()
    _read(path)
    _write(path, "")  # fails before an hour is spent
    if _arguments.is_launched():
        dist.init_process_group("sagecomm")
        return _as_a_rank(job, path, Progress("tune", job.contests()), [], lambda measured: None)
    progress = Progress("tune", job.contests() * job.launches * len(ranks))
    summaries = []
    for size in ranks:
        with tempfile.TemporaryDirectory(prefix="sagecomm-tune-") as folder:
            for launch in range(job.launches):
                say("tune", f"{size} ranks, launch {launch + 1} of {job.launches}")
                _launch(size, launch, job, progress, Path(folder), path)
                progress.done += job.contests()
            summaries.append(json.loads((Path(folder) / "summary").read_text()))
    return summaries


def _launch(size: int, launch: int, job: Job, progress: Progress, folder: Path, path: Path) -> None:
    """Runs the ranks of one launch to their ends."""
    run_ranks("tune", size, _launched, (size, launch, job, progress, folder, path))


def _launched(rank: int, size: int, launch: int, job: Job, progress: Progress, folder: Path, path: Path) -> None:
    """One rank of one launch. Rank 0 keeps what was measured."""
    if job.pin:
        pin(rank)
    before = [json.loads((folder / f"launch-{i}").read_text()) for i in range(launch)]
    store = file_store(folder / f"store-{launch}", size)
    dist.init_process_group("sagecomm", store=store, rank=rank, world_size=size)

    def keep(measured: list[dict[str, Any]]) -> None:
        (folder / f"launch-{launch}").write_text(json.dumps(measured))

    for summary in _as_a_rank(job, path, progress, before, keep):
        (folder / "summary").write_text(json.dumps(summary))


def _as_a_rank(
    job: Job,
    path: Path,
    progress: Progress,
    before: list[list[dict[str, Any]]],
    keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Measures the default group; `before` are the rows of other launches. Rank 0 draws the conclusion when the others
    have left: it may take a while."""
    if dist.get_rank() == 0:
        _tuned(path, [])  # refuses a file that is none before an hour is spent
    measuring = Measuring(job, progress)
    measured = measuring.all()
    _confirm(measuring, measured, before, path)
    dist.barrier()
    summary = []
    if dist.get_rank() == 0:
        keep(measured)
        summary = [_conclude([*before, measured], path)]
    dist.destroy_process_group()
    return summary


def _confirm(measuring: Measuring, rows: list[dict[str, Any]], before: list[list[dict[str, Any]]], path: Path) -> None:
    """Measures what would make a rule once more, alone against the choice; `confirmed` of its row has the ratios."""
    for _ in range(_PROPOSALS):
        open_rules: list[Any] = [[]]
        if measuring.rank == 0:
            # What an earlier launch has confirmed meets the choice in this one too.
            earlier = [[row | {"confirmed": []} for row in launch] for launch in before]
            open_rules = [_tuned(path, combine([*earlier, rows]), propose=True)["unconfirmed"] if rows else []]
        dist.broadcast_object_list(open_rules, 0)
        if not open_rules[0]:
            return
        measuring.say(f"{len(open_rules[0])} candidates for a rule meet the choice once more")
        for rule in open_rules[0]:
            key = (rule["op"], rule["bytes"], rule["algorithm"], rule["chunk"])
            for row in rows:
                if (row["op"], row["bytes"], row["algorithm"], row["chunk"]) == key:
                    row["confirmed"] = measuring.confirm(key[0], key[1], Candidate(*key[2:]))


def _conclude(launches: Sequence[Sequence[dict[str, Any]]], path: Path) -> dict[str, Any]:
    """Writes the file. In a process that has the group still."""
    rows = combine(launches)
    if not rows:
        raise RuntimeError("sagecomm: tune: nothing was measured: there is no memory for any of these lengths")
    answer = _tuned(path, rows)
    _write(path, answer["file"])
    return {"ranks": dist.get_world_size(), "entry": answer["entry"], "rows": rows}


def _tuned(path: Path, rows: Sequence[dict[str, Any]], propose: bool = False) -> dict[str, Any]:
    """What the file says with these rows, which the core makes of them, or which of them it wants to be confirmed."""
    number = _observe._backend(None, "tune").group_number()
    question = {"group": number, "name": str(path), "file": _read(path), "rows": rows, "propose": propose}
    return _explain.ask(_native.load().tune, **question)


def combine(launches: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each candidate: medians over the launches of `seconds`, and of `ratio` to what was chosen, block by
    block. `dropped`: it had one block in some launch; its ratio there is to the median of the choice, since one block
    of each may be an outlier. `confirmed`: the most of all launches that ran it once more, of the ratio that
    three quarters of the rounds stay below; 0 without one. `spread`, of what was chosen, is by how much two groups that
    do the same differ in a launch, as a part of the shorter time: the most of all launches, since it decides for whole
    launches where memory lies."""
    found: dict[tuple[str, int, str, int], list[tuple[float, float, float, float, bool]]] = {}
    kept = {}
    for rows in launches:
        chosen = {(row["op"], row["bytes"]): row["blocks"] for row in rows if row["chosen"]}
        for row in rows:
            against = chosen[row["op"], row["bytes"]]
            usual = [statistics.median(against)] if row["dropped"] else against
            ratio = statistics.median(a / b for a, b in zip(row["blocks"], usual, strict=False))
            key = (row["op"], row["bytes"], row["algorithm"], row["chunk"])
            same = statistics.median(a / b for a, b in zip(row["again"], against, strict=False)) if row["again"] else 1
            sure = statistics.quantiles(row["confirmed"], n=4)[2] if row["confirmed"] else 0
            seconds = statistics.median(row["blocks"])
            found.setdefault(key, []).append((seconds, ratio, max(same, 1 / same) - 1, sure, row["dropped"]))
            kept[key] = {name: row[name] for name in ("op", "bytes", "algorithm", "chunk", "chosen", "even")}
    out = []
    for key, of in found.items():
        seconds_of, ratios, spreads, confirmed, dropped = zip(*of, strict=True)
        medians = {"seconds": statistics.median(seconds_of), "ratio": statistics.median(ratios), "spread": max(spreads)}
        out.append(kept[key] | medians | {"confirmed": max(confirmed), "dropped": any(dropped)})
    return out


def text(summary: dict[str, Any]) -> str:
    """A table for people: what is chosen against the best candidate that takes blocks of any length and was measured to
    the end. `confirmed` is chosen/best once more, as three quarters of the rounds of the run that confirms have it."""
    rows = [("collective", "bytes", "chosen", "time", "spread", "best", "time", "chosen/best", "confirmed")]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in summary["rows"]:
        at = (row["op"], row["bytes"])
        if not row["even"] and not row["dropped"] and (at not in best or row["ratio"] < best[at]["ratio"]):
            best[at] = row
    for row in summary["rows"]:
        if row["chosen"]:
            other = best[row["op"], row["bytes"]]
            name = other["algorithm"] + (f"@{in_bytes(other['chunk'])}" if other["chunk"] else "")
            times = duration(row["seconds"]), f"{100 * row['spread']:.0f} %", name, duration(other["seconds"])
            gains = f"{1 / other['ratio']:.2f}", f"{1 / other['confirmed']:.2f}" if other["confirmed"] else "-"
            length = in_bytes(row["bytes"]) if row["op"] != "barrier" else ""
            rows.append((row["op"], length, row["algorithm"], *times, *gains))
    entry = summary["entry"]
    told = ["rules:", *(f"  {rule}" for rule in entry["rules"]), "parameters:"]
    told += [f"  {name}={value}" for name, value in entry.get("params", {}).items()]
    return "\n".join([f"{summary['ranks']} ranks", *columns(rows, range(1, 2)), *told])


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a fifo may wait for ever, and _write() would replace a device
        raise RuntimeError(f"sagecomm: the tuning file cannot be read: {path} is no regular file")
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as err:
        raise RuntimeError(f"sagecomm: the tuning file cannot be read: {err}") from err


def _write(path: Path, content: str) -> None:
    """All of it or nothing: groups may be reading the file. An empty one is not written, only tried."""
    path = path.resolve()  # the file that a link means
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as err:
        raise RuntimeError(f"sagecomm: the tuning file cannot be written: {err}") from err
    try:
        with open(number, "w") as file:
            file.write(content)
        if content:
            os.chmod(name, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
            os.replace(name, path)
    except OSError as err:
        raise RuntimeError(f"sagecomm: the tuning file cannot be written: {err}") from err
    finally:
        Path(name).unlink(missing_ok=True)
