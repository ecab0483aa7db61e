"""Starts the ranks, or is one of torchrun's, and collects what they measured."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _launching
from sagecomm._bench import peers, rows
from sagecomm._bench.arguments import Job
from sagecomm._bench.cases import cases
from sagecomm._bench.measuring import Measuring
from sagecomm._progress import Progress
from sagecomm._registration import register
from sagecomm._version import __version__


@dataclass
class Report:
    """All that a run has measured."""

    job: Job
    ranks: int
    rows: list[dict[str, Any]]
    versions: dict[str, str] = field(default_factory=dict)  # of external peers
    interrupted: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "sagecomm": __version__,
            "torch": torch.__version__,
            "machine": machine(),
            "ranks": self.ranks,
            "options": self.job.as_dict(),
            "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("SAGECOMM_")},
            "peers": self.versions,
            "interrupted": self.interrupted,
            "rows": self.rows,
            "summary": rows.summary(self.rows),
        }


def machine() -> dict[str, Any]:
    """Returns what figures depend on most: the model of the processor, how many of them there are, the kernel."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"processor": model, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def run(job: Job, ranks: int | None) -> Report | None:
    """Measures a job on so many new ranks of this host; as one of torchrun's ranks if None.

    Returns:
        The report, on rank 0 only. Ctrl-C ends the ranks, and the report has the cases that were measured until then.

    Raises:
        RuntimeError: A backend is unknown, an external peer is not there, or a rank failed.
    """
    register()
    for name in job.torch_backends():
        _known(name)
    if ranks is None:
        return _as_rank_of_torchrun(job)
    kinds = {"no": [False], "yes": [True], "both": [True, False]}[job.pin]
    launches = [pinned for _ in range(job.launches) for pinned in kinds]
    contests = _contests(job, ranks)
    progress = Progress("bench", contests * len(launches))
    report = Report(job, ranks, [])
    with tempfile.TemporaryDirectory(prefix="sagecomm-bench-") as folder:
        samples = Path(folder) / "samples"
        samples.touch()
        try:
            for number, pinned in enumerate(launches):
                with peers.started(job.backends, ranks, pinned) as connections:
                    for backend, connection in connections[0].items():
                        report.versions[backend] = connection.version
                    store = Path(folder) / f"store-{number}"
                    arguments = (ranks, job, pinned, connections, progress, store, samples)
                    _launching.run_ranks("bench", ranks, _launched, arguments)
                progress.done += contests
        except KeyboardInterrupt:
            report.interrupted = True
        # A rank that is interrupted while it writes leaves a line without an end.
        lines = [line for line in samples.read_text().splitlines(keepends=True) if line.endswith("\n")]
    progress.end()
    report.rows = rows.rows([json.loads(line) for line in lines], job.backends, ranks, job.aggregate)
    return report


def _known(backend: str) -> None:
    name, _, settings = backend.partition("?")
    if name not in dist.Backend.backend_list or not dist.is_backend_available(name):
        there = [n for n in dist.Backend.backend_list if n != "undefined" and dist.is_backend_available(n)]
        raise RuntimeError(
            f"sagecomm: bench: there is no backend {name!r}: --compare takes {', '.join(there)}, mpi and vllm"
        )
    if settings and name != "sagecomm":
        raise RuntimeError(f"sagecomm: bench: {backend}: settings are for sagecomm, {name} has none")


def _contests(job: Job, ranks: int) -> int:
    return sum(len(list(cases(op, job.sizes, job.types, job.redops, job.root, ranks))) for op in job.ops)


def _of_coordination(job: Job) -> timedelta:
    """Returns the timeout of the group that only coordinates ranks. It is the longer one: between operations ranks make
    buffers and check data, and an operation that hangs is to end by its own timeout, which names it."""
    return timedelta(seconds=job.timeout + 60)


def _launched(
    rank: int,
    size: int,
    job: Job,
    pinned: bool,
    connections: Sequence[dict[str, peers.Connection]],
    progress: Progress,
    store: Path,
    samples: Path,
) -> None:
    """Is one rank of one launch. Rank 0 appends a line for each case."""
    if pinned:
        _launching.pin(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    kept = _launching.file_store(store, size)
    dist.init_process_group("gloo", store=kept, rank=rank, world_size=size, timeout=_of_coordination(job))
    with samples.open("a") as file:

        def keep(sample: dict[str, Any]) -> None:
            file.write(json.dumps(sample) + "\n")
            file.flush()

        Measuring(job, pinned, connections[rank], progress).all(keep)
    dist.barrier()
    dist.destroy_process_group()


def _as_rank_of_torchrun(job: Job) -> Report | None:
    dist.init_process_group("gloo", timeout=_of_coordination(job))
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    samples: list[dict[str, Any]] = []
    progress = Progress("bench", _contests(job, ranks))
    Measuring(job, False, {}, progress).all(samples.append)
    dist.barrier()
    dist.destroy_process_group()
    if not first:
        return None
    progress.end()
    return Report(job, ranks, rows.rows(samples, job.backends, ranks, job.aggregate))
