"""python -m sagecomm tune: measures every algorithm, and writes what is best into a file for SAGECOMM_TUNE_FILE.

For each collective and length, candidates alternate in the same processes: a group for each, made with a rule that
sets it. Candidates that are far behind in the first round are left out of the others. A candidate counts by its ratio to
what sagecomm chooses by itself in the same rounds, which cancels what else the machine does; launches are new processes,
whose memory lies elsewhere. The core says what follows from the ratios (sagecomm.h, tune): first which candidates would
change a choice. Each of those meets the choice once more, alone, in groups of its own, and gets a rule only if that run
confirms it: the best of many measurements is in part the luckiest one.
"""

from __future__ import annotations

import json
import os
import re
import stat
import statistics
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
from sagecomm._format import columns, duration, in_bytes
from sagecomm._progress import Progress, say
from sagecomm._registration import register
from sagecomm.options import Options

_BEHIND = 1.5  # times the best one in the first round: such a candidate is measured no further
_SMALLEST_CHUNK = 4096  # of those that are tried beside the predicted one
_LEAST_CONFIRMING = 9  # rounds of a run that confirms
_PROPOSALS = 3  # how often the core may name candidates to be confirmed: after a refusal it may name the next best one


@dataclass(frozen=True)
class Job:
    """What is measured, and how thoroughly."""

    ops: Sequence[str]
    lengths: Sequence[int]
    launches: int
    blocks: int  # rounds of those that are not left out
    seconds: float  # of a block, at least
    pin: bool

    def contests(self) -> int:
        """Of a launch: pairs of a collective and a length."""
        return sum(1 if op == "barrier" else len(self.lengths) for op in self.ops)


class Candidate(NamedTuple):
    """An algorithm in chunks of a length, 0 for the predicted one."""

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
            say(f"{name} is not looked at")
    register()
    _read(path)
    _write(path, "")  # fails before an hour is spent
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("sagecomm")
        return _as_a_rank(job, path, Progress(job.contests()), [], lambda measured: None)
    progress = Progress(job.contests() * job.launches * len(ranks))
    summaries = []
    for size in ranks:
        with tempfile.TemporaryDirectory(prefix="sagecomm-tune-") as folder:
            for launch in range(job.launches):
                say(f"{size} ranks, launch {launch + 1} of {job.launches}")
                _launch(size, launch, job, progress, Path(folder), path)
                progress.done += job.contests()
            summaries.append(json.loads((Path(folder) / "summary").read_text()))
    return summaries


def _launch(size: int, launch: int, job: Job, progress: Progress, folder: Path, path: Path) -> None:
    """Runs the ranks of one launch to their ends. They are forks: this process has loaded no core yet, and importing
    torch takes seconds."""
    start: Any = start_processes  # it has no types
    context = start(
        _launched, (size, launch, job, progress, folder, path), nprocs=size, join=False, start_method="fork"
    )
    try:
        while not context.join():
            pass
    except (ProcessRaisedException, ProcessExitedException) as err:
        raise RuntimeError(first_line_of_ours(str(err)) or f"sagecomm: tune: {err}") from err
    finally:
        for process in context.processes:
            process.kill()  # those that are left when this one is interrupted
            process.join()


def first_line_of_ours(trace: str) -> str | None:
    """What an exception of ours says at the end of a traceback, without the exception's name before it."""
    found = re.search(r"^(?:[\w.]+: )?(sagecomm: .*)\Z", trace.strip(), re.MULTILINE)
    return found[1] if found else None


def _launched(rank: int, size: int, launch: int, job: Job, progress: Progress, folder: Path, path: Path) -> None:
    """One rank of one launch. Rank 0 keeps what was measured."""
    if job.pin:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})

    before = [json.loads((folder / f"launch-{i}").read_text()) for i in range(launch)]
    store = torch._C._distributed_c10d.FileStore(str(folder / f"store-{launch}"), size)
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
    measuring.confirm_rules(measured, before, path)
    dist.barrier()
    summary = []
    if dist.get_rank() == 0:
        keep(measured)
        summary = [_conclude([*before, measured], path)]
    dist.destroy_process_group()
    return summary


class Measuring:
    """What the ranks of a launch do, all alike."""

    def __init__(self, job: Job, progress: Progress) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.progress = progress
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
                else:
                    rows += self.compete(op, nbytes)
                if self.rank == 0:
                    self.progress.step(op if op == "barrier" else f"{op} of {in_bytes(nbytes)}")
        return rows

    def confirm_rules(self, rows: list[dict[str, Any]], before: list[list[dict[str, Any]]], path: Path) -> None:
        """Measures once more, alone against the choice, what would make a rule; `confirmed` of its row has the ratios."""
        for _ in range(_PROPOSALS):
            open_rules: list[Any] = [[]]
            if self.rank == 0:
                # What an earlier launch has confirmed meets the choice in this one too.
                earlier = [[row | {"confirmed": []} for row in launch] for launch in before]
                open_rules = [_tuned(path, combine([*earlier, rows]), propose=True)["unconfirmed"] if rows else []]
            dist.broadcast_object_list(open_rules, 0)
            if not open_rules[0]:
                return
            self.say(f"{len(open_rules[0])} candidates for a rule meet the choice once more")
            for rule in open_rules[0]:
                key = (rule["op"], rule["bytes"], rule["algorithm"], rule["chunk"])
                for row in rows:
                    if (row["op"], row["bytes"], row["algorithm"], row["chunk"]) == key:
                        row["confirmed"] = self.confirm(key[0], key[1], Candidate(*key[2:]))

    def confirm(self, op: str, nbytes: int, candidate: Candidate) -> list[float]:
        """Ratios of a candidate to the choice, round by round, in groups of their own."""
        buffers = make_buffers(op, nbytes, self.size)
        turns = [self.turn(op, candidate, False, buffers), self.turn(op, candidate, True, buffers)]
        for turn in turns:
            self.block(turn.call, 2)
            turn.count = self.calls(turn)
        ratios = []
        for number in range(max(_LEAST_CONFIRMING, 2 * self.job.blocks)):
            # Each goes first in half of the rounds: what the one leaves in the caches meets the other.
            order = turns if number % 2 == 0 else turns[::-1]
            taken = {id(turn): self.block(turn.call, turn.count) for turn in order}
            ratios.append(taken[id(turns[0])] / taken[id(turns[1])])
        for turn in turns:
            dist.destroy_process_group(turn.group)
        return ratios

    def compete(self, op: str, nbytes: int) -> list[dict[str, Any]]:
        """Rows of all candidates of a length: seconds of each block; the first block is there for all of them."""
        candidates = _explain.explain(op, nbytes)["candidates"]
        buffers = make_buffers(op, nbytes, self.size)
        (chosen,) = (c["algorithm"] for c in candidates if c["chosen"])
        turns: dict[Candidate, Turn] = {}
        blocks: dict[Candidate, list[float]] = {}
        own = Candidate(chosen, 0)
        for one in variants(candidates, nbytes):
            turn = self.turn(op, one, one == own, buffers)
            self.block(turn.call, 2)
            turn.count = self.calls(turn)
            turns[one], blocks[one] = turn, [self.block(turn.call, turn.count)]
            best = min(first for (first,) in blocks.values())
            for other in [w for w in turns if w != own and blocks[w][0] > _BEHIND * best]:
                dist.destroy_process_group(turns.pop(other).group)
        # A second group like the chosen one: what differs between them is what the machine does.
        again = self.turn(op, own, True, buffers)
        again.count = turns[own].count
        repeated = [self.block(again.call, again.count)]
        for _ in range(self.job.blocks):
            for one, turn in turns.items():
                blocks[one].append(self.block(turn.call, turn.count))
            repeated.append(self.block(again.call, again.count))
        for turn in (*turns.values(), again):
            dist.destroy_process_group(turn.group)
        even = {c["algorithm"]: c["even"] for c in candidates}
        return [
            {
                "op": op,
                "bytes": nbytes,
                "algorithm": one.algorithm,
                "chunk": one.chunk,
                "chosen": one == own,
                "even": even[one.algorithm],
                "blocks": seconds,
                "again": repeated if one == own else [],
                "dropped": one not in turns,
                "confirmed": [],
            }
            for one, seconds in blocks.items()
        ]

    def calls(self, turn: Turn) -> int:
        """How many of them fill a block."""
        return max(2, min(20000, int(self.job.seconds / self.block(turn.call, 3))))

    def turn(self, op: str, candidate: Candidate, chosen: bool, buffers: list[torch.Tensor]) -> Turn:
        """What is chosen goes through a group without a rule, but one of its own: torch takes about a microsecond to
        find the default group."""
        rule = f"{op}:{candidate.algorithm}" + (f"@chunk={candidate.chunk}" if candidate.chunk else "")
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
            say(what)


def variants(candidates: Iterable[dict[str, Any]], nbytes: int) -> Iterator[Candidate]:
    """All algorithms in their predicted chunks, half and twice as long ones, where there are such and they make a
    difference."""
    for c in candidates:
        yield Candidate(c["algorithm"], 0)
        for chunk in (c["chunk"] // 128 * 64, 2 * c["chunk"]):
            if _SMALLEST_CHUNK <= chunk <= c["longest"] and nbytes > min(chunk, c["chunk"]):
                yield Candidate(c["algorithm"], chunk)


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


def _tuned(path: Path, rows: Sequence[dict[str, Any]], propose: bool = False) -> dict[str, Any]:
    """What the file says with these rows, which the core makes of them, or which of them it wants to be confirmed."""
    number = _observe._backend(None, "tune").group_number()
    question = {"group": number, "name": str(path), "file": _read(path), "rows": rows, "propose": propose}
    return _explain.ask(_native.load().tune, **question)


def combine(launches: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each candidate: medians over the launches of `seconds`, and of `ratio` to what was chosen, block by
    block. `dropped`: it had one block in some launch; its ratio there is to the median of the choice, of whose own first
    block an outlier may have been part. `confirmed`: the most of all launches that ran it once more, of the ratio that
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
