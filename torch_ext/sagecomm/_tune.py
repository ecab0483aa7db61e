"""python -m sagecomm tune: measures every algorithm, and writes what is best into a file for SAGECOMM_TUNE_FILE.

Of each collective and length all candidates take turns: a group for each, made with a rule that sets it, in the same
processes. Those that are far behind in the first round are left out of the others. A candidate counts by its ratio to
what sagecomm chooses by itself in the same rounds, so that what else the machine does hits both; launches are new
processes, whose memory lies elsewhere. What follows from the ratios is for the core to say (sagecomm.h, tune).
"""

from __future__ import annotations

import json
import os
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from sagecomm import _explain, _native, _observe
from sagecomm._simulate import columns, counts, duration, in_bytes, sizes
from sagecomm.options import Options

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
LENGTHS = [8, 64, 256, *(1 << n for n in range(10, 27))]  # 8 B to 64 MiB

_BEHIND = 1.5  # times the best one in the first round: such a candidate is measured no further
_SMALLEST_CHUNK = 4096  # of those that are tried beside the predicted one


@dataclass(frozen=True)
class Job:
    """What is measured, and how thoroughly."""

    ops: Sequence[str]
    lengths: Sequence[int]
    launches: int
    blocks: int  # rounds of those that are not left out
    seconds: float  # of a block, at least
    pin: bool


class Way(NamedTuple):
    """A candidate: an algorithm in chunks of a length, 0 for the predicted one."""

    algorithm: str
    chunk: int


@dataclass
class Turn:
    """What a candidate is measured with."""

    call: Callable[[], object]
    group: dist.ProcessGroup
    count: int = 0  # of calls in a block


def tune(job: Job, ranks: Sequence[int], path: Path) -> list[dict[str, Any]]:
    """Measures groups of these sizes on this host and writes the file, after each launch. In a process that torchrun
    has started the group is that of all its processes instead. Returns a summary of each group, on rank 0 only.

    Raises:
        RuntimeError: The file is none, or cannot be written, or a rank failed.
    """
    for name in ("SAGECOMM_TUNE", "SAGECOMM_TUNE_FILE"):  # here all candidates are tried, against what is predicted
        if os.environ.pop(name, ""):
            _say(f"{name} is not looked at")
    _read(path)
    _write(path, "")  # fails before an hour is spent
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("sagecomm")
        return _as_a_rank(job, path, lambda measured: [measured])
    summaries = []
    for size in ranks:
        with tempfile.TemporaryDirectory(prefix="sagecomm-tune-") as folder:
            for launch in range(job.launches):
                _say(f"{size} ranks, launch {launch + 1} of {job.launches}")
                _launch(size, launch, job, Path(folder), path)
            summaries.append(json.loads((Path(folder) / "summary").read_text()))
    return summaries


def _launch(size: int, launch: int, job: Job, folder: Path, path: Path) -> None:
    """Runs the ranks of one launch to their ends. They are forks: this process has loaded no core yet, and importing
    torch takes seconds."""
    start: Any = start_processes  # it has no types
    context = start(_launched, (size, launch, job, folder, path), nprocs=size, join=False, start_method="fork")
    try:
        while not context.join():
            pass
    except (ProcessRaisedException, ProcessExitedException) as err:
        last = str(err).strip().rpartition("\n")[2]
        of_ours = last.startswith("RuntimeError: sagecomm")
        raise RuntimeError(last.removeprefix("RuntimeError: ") if of_ours else f"sagecomm: tune: {err}") from err
    finally:
        for process in context.processes:
            process.kill()  # those that are left when this one is interrupted
            process.join()


def _launched(rank: int, size: int, launch: int, job: Job, folder: Path, path: Path) -> None:
    """One rank of one launch. Rank 0 keeps what was measured."""
    if job.pin:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})

    def with_those_before(measured: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        (folder / f"launch-{launch}").write_text(json.dumps(measured))
        return [json.loads((folder / f"launch-{i}").read_text()) for i in range(launch + 1)]

    store = torch._C._distributed_c10d.FileStore(str(folder / f"store-{launch}"), size)
    dist.init_process_group("sagecomm", store=store, rank=rank, world_size=size)
    for summary in _as_a_rank(job, path, with_those_before):
        (folder / "summary").write_text(json.dumps(summary))


def _as_a_rank(
    job: Job, path: Path, launches: Callable[[list[dict[str, Any]]], list[list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Measures the default group. Rank 0 draws the conclusion when the others have left: it may take a while."""
    measured = _measure(job, path)
    dist.barrier()
    summary = [_conclude(launches(measured), path)] if dist.get_rank() == 0 else []
    dist.destroy_process_group()
    return summary


def _measure(job: Job, path: Path) -> list[dict[str, Any]]:
    if dist.get_rank() == 0:
        _tuned(path, [])  # refuses a file that is none before an hour is spent
    return Measuring(job).all()


class Measuring:
    """What the ranks of a launch do, all alike."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Ranks that share a host share what is free there; the least of all hosts counts.
        free = torch.tensor([free_memory()], dtype=torch.int64)
        dist.all_reduce(free, op=dist.ReduceOp.MIN)
        self.room = int(free.item()) // 2 // self.size

    def all(self) -> list[dict[str, Any]]:
        rows = []
        for op in self.job.ops:
            for nbytes in [0] if op == "barrier" else self.job.lengths:
                if room_of(op, nbytes, self.size) > self.room:
                    self.say(f"{op} of {in_bytes(nbytes)} is left out: memory for it is not free")
                    continue
                rows += self.compete(op, nbytes)
            self.say(f"{op} done")
        return rows

    def compete(self, op: str, nbytes: int) -> list[dict[str, Any]]:
        """Rows of all candidates of a length: seconds of each block; the first block is there for all of them."""
        candidates = _explain.explain(op, nbytes)["candidates"]
        buffers = make_buffers(op, nbytes, self.size)
        (chosen,) = (c["algorithm"] for c in candidates if c["chosen"])
        turns: dict[Way, Turn] = {}
        blocks: dict[Way, list[float]] = {}
        for way in ways(candidates, nbytes):
            turn = self.turn(op, way, way == Way(chosen, 0), buffers)
            self.block(turn.call, 2)
            turn.count = max(2, min(20000, int(self.job.seconds / self.block(turn.call, 3))))
            turns[way], blocks[way] = turn, [self.block(turn.call, turn.count)]
            best = min(first for (first,) in blocks.values())
            for other in [w for w in turns if w != Way(chosen, 0) and blocks[w][0] > _BEHIND * best]:
                dist.destroy_process_group(turns.pop(other).group)
        # A second group like the chosen one: what differs between them is what the machine does.
        again = self.turn(op, Way(chosen, 0), True, buffers)
        again.count = turns[Way(chosen, 0)].count
        repeated = [self.block(again.call, again.count)]
        for _ in range(self.job.blocks):
            for way, turn in turns.items():
                blocks[way].append(self.block(turn.call, turn.count))
            repeated.append(self.block(again.call, again.count))
        for turn in (*turns.values(), again):
            dist.destroy_process_group(turn.group)
        even = {c["algorithm"]: c["even"] for c in candidates}
        return [
            {
                "op": op,
                "bytes": nbytes,
                "algorithm": way.algorithm,
                "chunk": way.chunk,
                "chosen": way == Way(chosen, 0),
                "even": even[way.algorithm],
                "blocks": seconds,
                "again": repeated if way == Way(chosen, 0) else [],
            }
            for way, seconds in blocks.items()
        ]

    def turn(self, op: str, way: Way, chosen: bool, buffers: list[torch.Tensor]) -> Turn:
        """What is chosen goes through a group without a rule, but one of its own: torch takes about a microsecond to
        find the default group."""
        rule = f"{op}:{way.algorithm}" + (f"@chunk={way.chunk}" if way.chunk else "")
        group = dist.new_group(backend="sagecomm", pg_options=Options(settings={} if chosen else {"tune": rule}))
        assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
        return Turn(make_call(op, buffers, group), group)

    def block(self, call: Callable[[], object], count: int) -> float:
        """Seconds of a call, of the slowest rank, so that all ranks decide alike."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        taken = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return taken.item()

    def say(self, what: str) -> None:
        if self.rank == 0:
            _say(what)


def ways(candidates: Iterable[dict[str, Any]], nbytes: int) -> Iterator[Way]:
    """All algorithms in their predicted chunks, half and twice as long ones, where there are such and they make a
    difference."""
    for c in candidates:
        yield Way(c["algorithm"], 0)
        for chunk in (c["chunk"] // 128 * 64, 2 * c["chunk"]):
            if _SMALLEST_CHUNK <= chunk <= c["longest"] and nbytes > min(chunk, c["chunk"]):
                yield Way(c["algorithm"], chunk)


def free_memory() -> int:
    """Bytes that processes of this host can still have, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def make_buffers(op: str, nbytes: int, size: int) -> list[torch.Tensor]:
    """Of one call: nbytes are those of one rank's tensor, or of one block. Zeros, which sums leave as they are; memory
    is touched before."""
    counts = {
        "all_gather": [1, size],
        "reduce_scatter": [1, size],
        "all_to_all": [size, size],
        "gather": [1] * (1 + size),
        "scatter": [1] * (1 + size),
    }.get(op, [1])
    return [torch.zeros(count * max(nbytes // 4, 1)).fill_(0) for count in counts]


def room_of(op: str, nbytes: int, size: int) -> int:
    """Bytes of a rank's buffers."""
    blocks = {"all_gather": 1 + size, "reduce_scatter": 1 + size, "all_to_all": 2 * size}
    return nbytes * blocks.get(op, 1 + size if op in ("gather", "scatter") else 1)


def make_call(op: str, buffers: list[torch.Tensor], group: dist.ProcessGroup | None) -> Callable[[], object]:
    """A function that makes one call with buffers of [make_buffers]. Roots are rank 0."""
    x, *others = buffers
    blocks = others if dist.get_rank() == 0 else None
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(others[0], x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, others[0], group=group),
        "all_to_all": lambda: dist.all_to_all_single(others[0], x, group=group),
        "gather": lambda: dist.gather(x, blocks, 0, group=group),
        "scatter": lambda: dist.scatter(x, blocks, 0, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    return calls[op]


def _conclude(launches: Sequence[Sequence[dict[str, Any]]], path: Path) -> dict[str, Any]:
    """Writes the file. In a process that has the group still."""
    rows = combine(launches)
    if not rows:
        raise RuntimeError("sagecomm: tune: nothing was measured: there is no memory for any of these lengths")
    answer = _tuned(path, rows)
    _write(path, answer["file"])
    return {"ranks": dist.get_world_size(), "entry": answer["entry"], "rows": rows}


def _tuned(path: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the file says with these rows, which the core makes of them."""
    number = _observe._backend(None, "tune").group_number()
    return _explain.ask(_native.load().tune, group=number, name=str(path), file=_read(path), rows=rows)


def combine(launches: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each candidate: medians over the launches of `seconds`, and of `ratio` to what was chosen, block by
    block. `spread`, of what was chosen, is by how much two groups that do the same differ in a launch, as a part of the
    shorter time: the most of all launches, since it decides for whole launches where memory lies."""
    found: dict[tuple[str, int, str, int], list[tuple[float, float, float]]] = {}
    kept = {}
    for rows in launches:
        chosen = {(row["op"], row["bytes"]): row["blocks"] for row in rows if row["chosen"]}
        for row in rows:
            against = chosen[row["op"], row["bytes"]]
            ratio = statistics.median(a / b for a, b in zip(row["blocks"], against, strict=False))
            key = (row["op"], row["bytes"], row["algorithm"], row["chunk"])
            same = statistics.median(a / b for a, b in zip(row["again"], against, strict=False)) if row["again"] else 1
            found.setdefault(key, []).append((statistics.median(row["blocks"]), ratio, max(same, 1 / same) - 1))
            kept[key] = {name: row[name] for name in ("op", "bytes", "algorithm", "chunk", "chosen", "even")}
    out = []
    for key, of in found.items():
        seconds, ratios, spreads = zip(*of, strict=True)
        medians = {"seconds": statistics.median(seconds), "ratio": statistics.median(ratios), "spread": max(spreads)}
        out.append(kept[key] | medians)
    return out


def text(summary: dict[str, Any]) -> str:
    """A table for people: what is chosen against the best candidate that takes blocks of any length."""
    rows = [("collective", "bytes", "chosen", "time", "spread", "best", "time", "chosen/best")]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in summary["rows"]:
        at = (row["op"], row["bytes"])
        if not row["even"] and (at not in best or row["ratio"] < best[at]["ratio"]):
            best[at] = row
    for row in summary["rows"]:
        if row["chosen"]:
            other = best[row["op"], row["bytes"]]
            name = other["algorithm"] + (f"@{other['chunk'] // 1024}K" if other["chunk"] else "")
            times = duration(row["seconds"]), f"{100 * row['spread']:.0f} %", name, duration(other["seconds"])
            rows.append((row["op"], str(row["bytes"]), row["algorithm"], *times, f"{1 / other['ratio']:.2f}"))
    entry = summary["entry"]
    told = ["rules:", *(f"  {rule}" for rule in entry["rules"]), "parameters:"]
    told += [f"  {name}={value}" for name, value in entry.get("params", {}).items()]
    return "\n".join([f"{summary['ranks']} ranks", *columns(rows, range(1, 2)), *told])


def _read(path: Path) -> str:
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


def _say(what: str) -> None:
    print(f"sagecomm: tune: {what}", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """For argparse."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def lengths(text: str) -> list[int]:
    """For argparse. Tensors are of float32."""
    found = sizes(text)
    if any(n < 4 or n % 4 for n in found):
        raise ValueError(text)
    return found


def sizes_of_groups(text: str) -> list[int]:
    """For argparse. A rank alone has nothing to choose."""
    if min(found := counts(text)) < 2:
        raise ValueError(text)
    return found


def powers() -> list[int]:
    """2, 4, 8, as far as each rank has a processor."""
    return [n for n in (2, 4, 8) if n <= max(2, len(os.sched_getaffinity(0)))]
