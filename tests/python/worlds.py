"""Worlds of ranks for tests: processes that are started once and reused, watched for hangs.

def sums() -> float:
    t = torch.ones(3)
    dist.all_reduce(t)
    return t[0].item()

def test_sum(world):
    assert world(4).run(sums) == [4.0] * 4
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

import worker
from worker import Job, Outcome

# Far above what any test needs, with eight ranks on two busy cores.
HANG_BOUND_S = float(os.environ.get("TEST_HANG_BOUND_S", "120"))
COLLECTIVE_TIMEOUT = timedelta(seconds=60)

# Ranks are forked from a process that has imported torch and nothing more: the core is loaded in the rank itself, as in
# a process that was started anew, and a start takes milliseconds instead of seconds.
STARTER = multiprocessing.get_context("forkserver")
PRELOADED = ("torch.distributed", "sagecomm")
# Parts of torch that take seconds to import. They are preloaded too if files of collected tests have imported them.
PRELOADED_IF_USED = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "torch._inductor.compile_fx",
)


Environment = Mapping[str, str] | Sequence[Mapping[str, str]]  # of all ranks, or one for each rank


def on_hosts(*sizes: int, **common: str) -> list[dict[str, str]]:
    """Returns the environment of each rank where hosts have that many ranks: on_hosts(2, 1) is for three ranks, the
    first two on one host. `common` goes to all of them. Payloads have checksums, which find buffers that are used too
    early or too long."""
    common = {"SAGECOMM_CHECKSUMS": "always", **common}
    return [{**common, "SAGECOMM_HOSTID": f"h{host}"} for host, size in enumerate(sizes) for _ in range(size)]


def of_each(environment: Environment | None, size: int) -> list[Mapping[str, str]]:
    """Returns an environment for each of `size` ranks."""
    if environment is None or isinstance(environment, Mapping):
        return [environment or {}] * size
    assert len(environment) == size, f"{len(environment)} environments for {size} ranks"
    return list(environment)


class RankError(AssertionError):
    """A function raised, or its process ended, on some ranks. `outcomes` has one entry per rank."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        failed = [outcome for outcome in outcomes if not outcome.ok]
        parts = [f"{len(failed)} of {len(outcomes)} ranks failed"]
        for outcome in failed:
            parts.append(f"---- rank {outcome.rank} ----\n{_what_failed(outcome)}")
        super().__init__("\n".join(parts))


def _what_failed(outcome: Outcome) -> str:
    return outcome.trace if outcome.exitcode is None else f"process ended with exit code {outcome.exitcode}"


def results_of(outcomes: list[Outcome]) -> list[Any]:
    """Results by rank; RankError if any rank failed."""
    if not all(outcome.ok for outcome in outcomes):
        raise RankError(outcomes)
    return [outcome.value for outcome in outcomes]


class Hang(AssertionError):
    """Ranks did not answer in time. The message holds the stacks of all their threads."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, number: int, directory: Path, port: int, environment: Mapping[str, str]) -> None:
        self.stacks = directory / f"stacks-{number}.txt"
        self.connection, theirs = STARTER.Pipe()
        self.process = STARTER.Process(
            target=worker.main,
            args=(theirs, str(self.stacks), port, {"OMP_NUM_THREADS": "1", **environment}),
            name=f"rank process {number}",
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def finish(self) -> None:
        """Lets the process end by itself, as a user's would, and kills it after a while."""
        self.connection.close()
        self.process.join(20)
        self.kill()

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


class World:
    """`size` ranks. Every call runs in a process group of its own."""

    def __init__(self, size: int, workers: list[Worker], names: Callable[[], str]) -> None:
        self.size = size
        self._workers = workers
        self._names = names

    def run(self, function: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        """Results of `function(*args)` by rank; RankError if any rank failed. `how` as in outcomes()."""
        return results_of(self.outcomes(function, *args, **how))

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        backend: str | None = "sagecomm",
        options: Any = None,
        timeout: timedelta = COLLECTIVE_TIMEOUT,
        operations_timeout: timedelta | None = None,
        store: Callable[[Any, int, int], Any] | None = None,
        hang_bound_s: float = HANG_BOUND_S,
    ) -> list[Outcome]:
        """Runs `function(*args)`, a function at module level, on all ranks and returns the outcome on each.

        With a backend's name the function finds torch.distributed initialised; with None it initialises it itself. A
        test of a timeout sets `operations_timeout`. It does not apply to the init, which may be slow on a busy machine.
        `store(common, rank, size)`, also at module level, makes another store for the group than `common`, that of all.
        """
        name = self._names()
        outcomes: dict[int, Outcome] = {}
        for rank, each in enumerate(self._workers):
            try:
                job = Job(name, function, args, rank, self.size, backend, options, timeout, operations_timeout, store)
                each.connection.send(job)
            except BrokenPipeError:
                outcomes[rank] = self._ended(rank)
        deadline = time.monotonic() + hang_bound_s
        while len(outcomes) < self.size:
            ranks = {each.connection: rank for rank, each in enumerate(self._workers) if rank not in outcomes}
            ready = wait(list(ranks), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Hang(self._hang_report(sorted(ranks.values()), list(outcomes.values()), hang_bound_s))
            for connection in ready:
                assert isinstance(connection, Connection)
                outcomes[ranks[connection]] = self._answer(connection, ranks[connection])
        return [outcomes[rank] for rank in range(self.size)]

    def pids(self) -> list[int]:
        return [each.process.pid or 0 for each in self._workers]

    def kill(self, rank: int) -> None:
        """SIGKILL; returns when the process is gone."""
        self._workers[rank].kill()

    def _answer(self, connection: Connection, rank: int) -> Outcome:
        try:
            answer = connection.recv()
            assert isinstance(answer, Outcome)
            return answer
        except (EOFError, ConnectionResetError):
            return self._ended(rank)

    def _ended(self, rank: int) -> Outcome:
        process = self._workers[rank].process
        process.join()
        return Outcome(rank, exitcode=process.exitcode)

    def _hang_report(self, silent: list[int], answers: list[Outcome], bound_s: float) -> str:
        """Stacks of the ranks that have not answered, and errors of the others. The ranks are ended: nothing can be run
        on them any more."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "a test")
        parts = [f"{test}: ranks {silent} of {self.size} did not answer within {bound_s:g} s"]
        for rank in silent:
            each = self._workers[rank]
            parts.append(f"---- rank {rank}, pid {each.process.pid} ----\n{_stacks_of(each)}")
        for outcome in answers:
            if not outcome.ok:
                parts.append(f"---- rank {outcome.rank} ----\n{_what_failed(outcome)}")
        for each in self._workers:
            each.kill()
        return "\n".join(parts)


def _stacks_of(each: Worker) -> str:
    """Asks a process for the stacks of its threads and waits until the text stops growing."""
    if each.process.pid is None or not each.process.is_alive():
        return f"process ended with exit code {each.process.exitcode}"
    os.kill(each.process.pid, worker.STACKS_SIGNAL)
    text, deadline = "", time.monotonic() + 5
    while time.monotonic() < deadline:
        grown = each.stacks.read_text()
        if grown and grown == text:
            break
        text = grown
        time.sleep(0.1)
    return text or "no stacks: the process does not run signal handlers"


class Pool:
    """The session's processes. Worlds of all sizes share them. One that has ended is replaced in its place: a process
    has the same rank as long as it lives, since torch keeps results of DTensor that depend on it."""

    def __init__(self, directory: Path) -> None:
        # Takes effect with the first process.
        used = [name for name in PRELOADED_IF_USED if name in sys.modules]
        STARTER.set_forkserver_preload([*PRELOADED, *used, "frozen"])
        self._directory = directory
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._numbers = itertools.count()
        self._workers: dict[tuple[int, str], Worker] = {}  # by rank and host; "" is the host as it is
        self._private: list[Worker] = []

    def world(self, size: int) -> World:
        return self._shared([{}] * size)

    def hosts(self, *sizes: int) -> World:
        """Ranks on hosts that have that many each. Processes with different SAGECOMM_HOSTID share no memory."""
        return self._shared(on_hosts(*sizes))

    def fresh_world(self, size: int, environment: Environment | None = None) -> World:
        """Processes for one test: those that it kills, or whose environment the core must see when it starts."""
        workers = [self._start(each) for each in of_each(environment, size)]
        self._private += workers
        return World(size, workers, self._name)

    def stop_private(self) -> None:
        _finish(self._private)

    def stop(self) -> None:
        self.stop_private()
        _finish(list(self._workers.values()))
        self._workers.clear()

    def _shared(self, environments: Sequence[Mapping[str, str]]) -> World:
        workers = []
        for rank, environment in enumerate(environments):
            key = rank, environment.get("SAGECOMM_HOSTID", "")
            if key not in self._workers or not self._workers[key].process.is_alive():
                self._workers[key] = self._start(environment)
            workers.append(self._workers[key])
        return World(len(workers), workers, self._name)

    def _start(self, environment: Mapping[str, str]) -> Worker:
        return Worker(next(self._numbers), self._directory, self._store.port, environment)

    def _name(self) -> str:
        return f"run-{next(self._numbers)}"


def _finish(workers: list[Worker]) -> None:
    for each in workers:
        each.connection.close()
    while workers:
        workers.pop().finish()
