"""What each rank of a launch does, all alike.

The default group only coordinates the ranks: barriers between blocks, and the slowest rank's times. It is gloo's, whose
waiting ranks sleep. Where they spin instead, gloo's own threads wake late, and gloo looks slower than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _interleave
from sagecomm._barrier import monitored_barrier
from sagecomm._bench import checking
from sagecomm._bench.arguments import Job, peer_of
from sagecomm._bench.calls import (
    Sets,
    buffers_of,
    bytes_of,
    computation,
    copy,
    copy_buffers,
    iteration,
    last_level_cache,
)
from sagecomm._bench.cases import Case, cases
from sagecomm._bench.peers import Connection
from sagecomm._format import in_bytes
from sagecomm._interleave import Call, Runner
from sagecomm._operations import room_per_rank
from sagecomm._progress import Progress, say
from sagecomm.errors import Aborted, CollectiveMismatch, CollectiveTimeout, PeerFailure
from sagecomm.options import Options

_FAILURES = (Aborted, CollectiveMismatch, CollectiveTimeout, PeerFailure)
_DIAGNOSIS = timedelta(seconds=5)
Keep = Callable[[dict[str, Any]], None]


def make_group(backend: str, timeout: float) -> dist.ProcessGroup:
    """Makes a group of all ranks: "gloo", or "sagecomm?tune=all_reduce:ring&spin=20", whose settings are those of
    Options."""
    name, _, settings = backend.partition("?")
    options = Options(settings=dict(s.split("=", 1) for s in settings.split("&"))) if settings else None
    group = dist.new_group(backend=name, pg_options=options, timeout=timedelta(seconds=timeout))
    assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
    return group


def largest_cache() -> int:
    """Returns the bytes of the largest cache that any rank's processor has, so that all ranks make as many buffers."""
    cache = torch.tensor([last_level_cache()], dtype=torch.int64)
    dist.all_reduce(cache, op=dist.ReduceOp.MAX)
    return int(cache.item())


class Measuring:
    def __init__(self, job: Job, pinned: bool, peers: Mapping[str, Connection], progress: Progress) -> None:
        torch.set_num_threads(1)
        self.job, self.pinned, self.peers, self.progress = job, pinned, peers, progress
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.groups = {name: make_group(name, job.timeout) for name in job.torch_backends()}
        self.room = room_per_rank()
        self.cache = largest_cache() if job.cold else None
        self.now = "the start"
        if job.root is not None and job.root >= self.size:
            raise RuntimeError(f"sagecomm: bench: -r {job.root} is no rank of a group of {self.size}")

    def all(self, keep: Keep) -> None:
        """Measures all cases; on rank 0 `keep` is given each sample (rows.py).

        Raises:
            RuntimeError: An operation failed. The text says which one, and which rank was the cause if that is known.
        """
        try:
            for op in self.job.ops:
                for case in cases(op, self.job.sizes, self.job.types, self.job.redops, self.job.root, self.size):
                    sample = self.measure(case)
                    if self.rank == 0:
                        if sample is not None:
                            keep(sample)
                        self.progress.step(_name(case, self.size))
        except _FAILURES:
            raise  # they name operation and rank
        except RuntimeError as err:
            if str(err).startswith("sagecomm: bench: "):
                raise
            raise RuntimeError(f"sagecomm: bench: in {self.now}: {self.cause_of(err)}") from err

    def cause_of(self, err: RuntimeError) -> RuntimeError:
        """Returns which rank has died or does not come, where sagecomm knows: gloo only knows that a connection was
        closed, or that time has passed."""
        try:
            monitored_barrier(self.groups["sagecomm"], _DIAGNOSIS)
        except RuntimeError as cause:
            return cause
        return err

    def measure(self, case: Case) -> dict[str, Any] | None:
        nbytes, name = case.size(self.size), _name(case, self.size)
        self.now = name
        room = Sets.room(bytes_of(case, self.job, self.size), self.cache) + Sets.room(2 * nbytes, self.cache)
        if room > self.room:
            if self.rank == 0:
                say(
                    "bench", f"{name} is left out: it needs {in_bytes(room)} a rank, and {in_bytes(self.room)} are free"
                )
            return None
        sets = Sets(lambda: buffers_of(case, self.job, self.size), bytes_of(case, self.job, self.size), self.cache)
        results: dict[str, dict[str, Any]] = {}
        runners: dict[tuple[str, str], Runner] = {}
        for backend in self.job.backends:
            self.now = f"{name} through {backend}"
            prepare = self.of_peer if peer_of(backend) else self.of_group
            results[backend], run = prepare(backend, case, sets)
            if run is not None:
                runners[backend, "alone"] = run
        compute = self.add_computation(case, sets, runners) if self.job.overlap and runners else None
        if nbytes:
            copies = Sets(lambda: copy_buffers(nbytes), 2 * nbytes, self.cache)
            runners["", "copy"] = _interleave.one_by_one(copies.in_turn(copy), copies.padding_touched())
        if compute is not None:
            runners["", "compute"] = _interleave.in_a_loop(compute)
        return self.take_turns(case, results, runners)

    def of_peer(self, backend: str, case: Case, sets: Sets) -> tuple[dict[str, Any], Runner | None]:
        """Returns the first part of an external peer's result, and its runner unless it refuses the case."""
        run = self.peers[backend].runner(case)
        refused = self.refused(lambda: run(1))
        return ({"refused": refused}, None) if refused else ({"wrong": None}, run)

    def of_group(self, backend: str, case: Case, sets: Sets) -> tuple[dict[str, Any], Runner | None]:
        """Does the same for a backend of torch, whose data is checked."""
        group = self.groups[backend]
        once = iteration(case, self.job, sets.sets[0], group)
        refused = self.refused(once)
        if refused:
            return {"refused": refused}, None
        call = sets.in_turn(lambda buffers: iteration(case, self.job, buffers, group))
        run = _interleave.one_by_one(call, sets.padding_touched())
        return {"wrong": self.check(case, once, sets.sets[0])}, run

    def refused(self, call: Call) -> str:
        """Calls once, and returns why the backend refuses the operation on any rank; "" if it does not."""
        text = ""
        try:
            call()
        except _FAILURES:
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as err:
            if str(err).startswith("sagecomm: bench: "):  # a process of an external peer has ended
                raise
            text = str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
        texts: list[Any] = [None] * self.size
        dist.all_gather_object(texts, text)
        return next((str(said) for said in texts if said), "")

    def check(self, case: Case, once: Call, buffers: list[list[torch.Tensor]]) -> int | None:
        """Returns how many elements are wrong, on all ranks and in all checks together."""
        if self.job.checks == 0 or case.op == "barrier":
            return None
        found = 0
        for number in range(self.job.checks):
            for place, one in enumerate(buffers):
                checking.fill(case, one, self.rank, self.size, number + place)
            once()
            for place, one in enumerate(buffers):
                found += checking.wrong(case, one, self.rank, self.size, number + place)
        for one in buffers:
            for tensor in one:
                tensor.zero_()
        total = torch.tensor([found], dtype=torch.int64)
        dist.all_reduce(total)
        return int(total.item())

    def add_computation(self, case: Case, sets: Sets, runners: dict[tuple[str, str], Runner]) -> Call:
        """Adds a runner for each backend that computes between issue and wait. The computation takes about as long as
        the communication of the first backend."""
        backend, _ = next(iter(runners))
        alone = _interleave.block(runners[backend, "alone"], self.calls(runners[backend, "alone"]))[0]

        def timed(call: Call) -> float:
            run = _interleave.in_a_loop(call)
            return _interleave.block(run, self.calls(run))[0]

        compute = computation(alone, timed)
        for backend, _ in list(runners):
            group = self.groups[backend]
            call = sets.in_turn(lambda buffers: iteration(case, self.job, buffers, group, compute))  # noqa: B023
            runners[backend, "both"] = _interleave.one_by_one(call, sets.padding_touched())
        return compute

    def calls(self, run: Runner) -> int:
        return self.job.iterations or _interleave.calls_in(self.job.seconds, run)

    def take_turns(
        self, case: Case, results: dict[str, dict[str, Any]], runners: dict[tuple[str, str], Runner]
    ) -> dict[str, Any]:
        """Measures all runners round by round, and returns the sample."""
        self.now = _name(case, self.size)
        counts = {}
        for key, run in runners.items():
            if self.job.warmup:
                run(self.job.warmup)
            counts[key] = self.calls(run)
        sample: dict[str, Any] = {"case": case.fields(self.size), "pinned": self.pinned, "backends": results}
        sample |= {"copy": [], "compute": []}
        for (backend, what), _ in runners.items():
            if what == "alone":
                results[backend] |= {"blocks": [], "laps": [], "iterations": counts[backend, what]}
            elif what == "both":
                results[backend]["both"] = []
        for taken in _interleave.rounds(runners, counts, self.job.rounds if runners else 0):
            for (backend, what), (mean, laps) in taken.items():
                if what == "alone":
                    results[backend]["blocks"].append(mean)
                    results[backend]["laps"] += laps
                elif what == "both":
                    results[backend]["both"].append(mean)
                else:
                    sample[what].append(mean)
        return sample


def _name(case: Case, ranks: int) -> str:
    return case.op if case.op == "barrier" else f"{case.op} of {in_bytes(case.size(ranks))}"
