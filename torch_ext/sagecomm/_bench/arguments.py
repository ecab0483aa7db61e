"""The options of bench, in the manner of nccl-tests, and the Job that they make. Nothing here imports torch."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sagecomm import _arguments
from sagecomm._bench.cases import POINT_TO_POINT, REDUCTIONS, TYPE_ALIASES, TYPE_NAMES

OPS = (*_arguments.COLLECTIVES, *POINT_TO_POINT)
COALESCED = ("all_reduce", "all_gather", "reduce_scatter")  # what torch's coalescing manager takes of every backend
PEERS = ("mpi", "vllm")  # libraries with processes of their own; peers.py
_FIRST, _LAST, _FACTOR = 8, 32 << 20, 4  # sizes by default
_COALESCED_BY_DEFAULT = 10


@dataclass(frozen=True)
class Job:
    """What is measured, and how thoroughly. The same on all ranks."""

    ops: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = (8,)
    types: tuple[str, ...] = ("float32",)
    redops: tuple[str, ...] = ("sum",)
    root: int | None = 0  # None: all of them in turn
    backends: tuple[str, ...] = ("sagecomm",)  # ratios are to the first
    iterations: int = 0  # in a block; 0: as many as fill `seconds`
    warmup: int = 1
    checks: int = 1
    aggregate: int = 1  # operations in an iteration
    asynchronous: bool = False
    coalesce: bool = False
    overlap: bool = False
    cold: bool = False
    rounds: int = 5  # in each of which every backend has one block
    launches: int = 1
    seconds: float = 0.01
    pin: str = "no"
    timeout: float = 300.0

    def torch_backends(self) -> list[str]:
        return [name for name in self.backends if peer_of(name) is None]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def peer_of(backend: str) -> str | None:
    """Returns the kind of an external peer, None of a backend of torch: "mpi" of "mpi=/opt/mpich/bin/mpiexec"."""
    kind = backend.partition("=")[0]
    return kind if kind in PEERS else None


def _one_of(choices: Sequence[str], what: str, text: str) -> str:
    if text in choices:
        return text
    near = difflib.get_close_matches(text, choices, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise argparse.ArgumentTypeError(f"{text!r} is no {what}{meant} (there are {', '.join(choices)})")


def operations(text: str) -> tuple[str, ...]:
    return OPS if text == "all" else tuple(_one_of(OPS, "operation", name) for name in text.split(","))


def types(text: str) -> tuple[str, ...]:
    names = [TYPE_ALIASES.get(name, name) for name in text.split(",")]
    return TYPE_NAMES if text == "all" else tuple(_one_of(TYPE_NAMES, "type", name) for name in names)


def reductions(text: str) -> tuple[str, ...]:
    names = tuple(REDUCTIONS)
    if set(text.split(",")) <= set(OPS):
        raise argparse.ArgumentTypeError(f"{text!r}: -o is for reductions; operations come first: bench {text}")
    return names if text == "all" else tuple(_one_of(names, "reduction", name) for name in text.split(","))


def root(text: str) -> int | None:
    return None if text == "all" else _arguments.whole(text)


def backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        settings = name.partition("?")[2]
        if not name or any("=" not in setting for setting in settings.split("&") if settings):
            raise argparse.ArgumentTypeError(
                f"{name!r}: expected the name of a backend, with settings as in sagecomm?tune=all_reduce:ring&spin=20"
            )
    for name in ("sagecomm", *names):
        if ("sagecomm", *names).count(name) > 1:
            raise argparse.ArgumentTypeError(f"{name} would be measured twice: leave it out once")
    return names


def ranks(text: str) -> int:
    number = _arguments.positive(text)
    if number > _arguments.MOST_RANKS:
        raise argparse.ArgumentTypeError(f"a group has at most {_arguments.MOST_RANKS} ranks, not {number}")
    return number


def add(command: argparse.ArgumentParser) -> None:
    sizes = "K and KiB are 1024 bytes, KB is 1000"
    command.usage = "%(prog)s [OPS] [-b SIZE -e SIZE -f N | -i SIZE] [--spawn N] [--compare BACKENDS] [options]"
    command.add_argument(
        "ops",
        type=operations,
        nargs="?",
        metavar="OPS",
        help=f"list of {', '.join(OPS)}, or all; all_reduce by default",
    )
    group = command.add_argument_group("sizes")
    option = group.add_argument
    first, last = _FIRST, _LAST >> 20
    option("-b", "--minbytes", type=_arguments.size, metavar="SIZE", help=f"smallest size; {first} by default; {sizes}")
    option("-e", "--maxbytes", type=_arguments.size, metavar="SIZE", help=f"largest size; {last}M by default")
    option("-f", "--stepfactor", type=_arguments.positive, metavar="N", help=f"factor; {_FACTOR} by default")
    option("-i", "--stepbytes", type=_arguments.size, metavar="SIZE", help="increment, in place of a factor")
    option("--bytes", type=_arguments.sizes, metavar="SIZES", help="a list in place of these: 8,64K,1M")
    group = command.add_argument_group("operations")
    option = group.add_argument
    option("-d", "--datatype", type=types, metavar="TYPES", help="list of torch's types, or all; float32 by default")
    option("-o", "--op", type=reductions, metavar="REDUCTIONS", help=f"list of {', '.join(REDUCTIONS)}, or all")
    option("-r", "--root", type=root, default=0, metavar="RANK", help="root, or all in turn; 0 by default")
    group = command.add_argument_group("measuring")
    option = group.add_argument
    option("-n", "--iters", type=_arguments.positive, metavar="N", help="iterations in a block; else --block-ms")
    option("-w", "--warmup_iters", type=_arguments.whole, default=1, metavar="N", help="not timed; 1 by default")
    option(
        "-m", "--agg_iters", type=_arguments.positive, metavar="N", help="operations in each iteration; 1 by default"
    )
    option("-c", "--check", type=_arguments.whole, default=1, metavar="N", help="checks of the data; 1 by default")
    option("-I", "--percentiles", action="store_true", help="print percentiles of single iterations")
    option("-T", "--timeout", type=_arguments.seconds, default=300.0, metavar="SECONDS", help="of each operation; 300")
    option("--rounds", type=_arguments.positive, default=5, metavar="N", help="blocks of each backend; 5 by default")
    option("--block-ms", type=_arguments.positive, default=10, metavar="MS", help="length of a block; 10 by default")
    option("--launches", type=_arguments.positive, default=1, metavar="N", help="times to start new processes; 1")
    option(
        "--pin", choices=["no", "yes", "both"], default="no", help="bind ranks to processors; both: the better counts"
    )
    group = command.add_argument_group("how operations are called")
    option = group.add_argument
    option("--async", dest="asynchronous", action="store_true", help="issue those of an iteration, then wait for them")
    option(
        "--coalesce", action="store_true", help=f"coalesce those of an iteration, {_COALESCED_BY_DEFAULT} by default"
    )
    option("--overlap", action="store_true", help="measure how much of it computation hides")
    option("--cold", action="store_true", help="other buffers for each iteration, which no cache has")
    group = command.add_argument_group("ranks and backends")
    option = group.add_argument
    option("--spawn", type=ranks, metavar="N", help="start N ranks on this host; 2 by default, none under torchrun")
    option(
        "--compare",
        type=backends,
        default=(),
        metavar="BACKENDS",
        help="measure these in the same run: gloo, sagecomm?tune=RULES, mpi[=MPIEXEC], vllm[=PYTHON]",
    )
    group = command.add_argument_group("output")
    option = group.add_argument
    option("--csv", action="store_true", help="print CSV")
    option("-J", "--output_file", type=Path, metavar="FILE", help="write JSON into a file as well")
    option("--png", type=_arguments.picture, metavar="FILE", help="draw times and bus bandwidths; needs matplotlib")


def job_of(parsed: argparse.Namespace) -> Job:
    """Raises RuntimeError for options that do not go together."""
    ops: tuple[str, ...] = parsed.ops or ("all_reduce",)
    _refuse_contradictions(parsed, ops)
    aggregate = parsed.agg_iters or (_COALESCED_BY_DEFAULT if parsed.coalesce else 1)
    job = Job(
        ops=ops,
        sizes=_sizes(parsed),
        types=parsed.datatype or ("float32",),
        redops=parsed.op or ("sum",),
        root=parsed.root,
        backends=("sagecomm", *parsed.compare),
        iterations=parsed.iters or 0,
        warmup=parsed.warmup_iters,
        checks=parsed.check,
        aggregate=aggregate,
        asynchronous=parsed.asynchronous or parsed.overlap,
        coalesce=parsed.coalesce,
        overlap=parsed.overlap,
        cold=parsed.cold,
        rounds=parsed.rounds,
        launches=parsed.launches,
        seconds=parsed.block_ms / 1e3,
        pin=parsed.pin,
        timeout=parsed.timeout,
    )
    peers = [name for name in job.backends if peer_of(name)]
    if peers and (job.asynchronous or job.coalesce or job.cold or job.aggregate > 1):
        refuse(
            f"--compare {peers[0]} has synchronous operations on one buffer only, no -m, --async, --coalesce, --cold"
        )
    return job


def refuse(why: str) -> None:
    raise RuntimeError(f"sagecomm: bench: {why}")


def _refuse_contradictions(parsed: argparse.Namespace, ops: tuple[str, ...]) -> None:
    if parsed.json and parsed.csv:
        refuse("--json or --csv, not both")
    scanned = (parsed.minbytes, parsed.maxbytes, parsed.stepfactor, parsed.stepbytes)
    if parsed.bytes is not None and any(option is not None for option in scanned):
        refuse("--bytes is a list of all sizes, so it goes with none of -b, -e, -f and -i")
    if parsed.stepfactor is not None and parsed.stepbytes is not None:
        refuse("-f or -i, not both: sizes grow by a factor or by an increment")
    for name, taken, known in (
        ("--coalesce", parsed.coalesce, COALESCED),
        ("--async and --overlap", parsed.asynchronous or parsed.overlap, _arguments.COLLECTIVES),
    ):
        others = [op for op in ops if op not in known]
        if taken and others:
            refuse(f"{name} cannot be measured for {', '.join(others)}: name OPS out of {', '.join(known)}")
    if parsed.overlap and parsed.percentiles:
        refuse("--overlap or -I, not both: the columns of --overlap are medians of blocks")


def _sizes(parsed: argparse.Namespace) -> tuple[int, ...]:
    if parsed.bytes is not None:
        sizes = tuple(parsed.bytes)
    else:
        first = _FIRST if parsed.minbytes is None else parsed.minbytes
        last = max(_LAST, first) if parsed.maxbytes is None else parsed.maxbytes
        if last < first:
            refuse(f"-e {last} is less than -b {first}")
        factor = parsed.stepfactor or _FACTOR
        if parsed.stepbytes == 0 or (parsed.stepbytes is None and factor < 2 and first != last):
            refuse("sizes must grow: -f is at least 2 and -i at least 1")
        sizes = tuple(_scan(max(first, 1), last, factor, parsed.stepbytes))
    if min(sizes) < 1:
        refuse("a size is at least 1 byte")
    return sizes


def _scan(size: int, last: int, factor: int, step: int | None) -> list[int]:
    found = []
    while size <= last:
        found.append(size)
        size = size + step if step else size * max(factor, 2)
    return found


def launched_ranks(spawn: int | None, backends: Sequence[str]) -> int | None:
    """Returns how many ranks to start; None under torchrun, which has started them. Raises RuntimeError."""
    if not _arguments.is_launched():
        return spawn or 2
    if spawn is not None:
        refuse("--spawn starts ranks, but a launcher has started this process as one")
    for name in backends:
        if peer_of(name):
            refuse(f"--compare {name} needs ranks that bench starts itself (--spawn)")
    return None
