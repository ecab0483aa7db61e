"""A rank of the tests: a process that lives for the whole session and runs one function after another.

It is a module of its own so that spawned processes import nothing but what they need.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

STACKS_SIGNAL = signal.SIGUSR1

# Groups of gloo, for as long as the process lives: whose last reference a callback drops on a thread of the group ends
# the process, because that thread then joins itself.
_kept: list[Any] = []


@dataclass(frozen=True)
class Job:
    """One function on one rank."""

    name: str  # unique in the session: prefix of the keys in the store
    function: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    size: int
    backend: str | None  # None if no process group is made
    options: Any  # pg_options
    timeout: timedelta
    operations_timeout: timedelta | None  # for operations of the default group; None: the timeout of its init
    store: Callable[[Any, int, int], Any] | None  # makes the store of the group, out of the one of all, rank and size


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job on one rank."""

    rank: int
    value: Any = None
    error: BaseException | None = None  # the exception itself if it can be pickled, else a RuntimeError with its text
    trace: str = ""
    exitcode: int | None = None  # of a process that ended instead of answering; -9 after SIGKILL

    @property
    def ok(self) -> bool:
        return self.error is None and self.exitcode is None


def main(connection: Connection, stacks: str, port: int, environment: dict[str, str]) -> None:
    """Body of the process: answers jobs until the connection closes. `stacks` is where STACKS_SIGNAL writes."""
    os.environ.update(environment)
    # Kept open: the handler writes to its descriptor.
    with open(stacks, "w") as stacks_file:
        faulthandler.register(STACKS_SIGNAL, file=stacks_file, all_threads=True)

        import torch
        import torch.distributed as dist

        import sagecomm  # noqa: F401

        torch.set_num_threads(1)
        dist.set_debug_level_from_env()  # torch read its variable before this process had its own
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        if namespace := environment.get("TEST_NETWORK_NAMESPACE"):
            enter(namespace)  # connections that are there stay
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            connection.send(_run(job, store))


def enter(namespace: str) -> None:
    """Moves this thread, and those that it will start, into a network namespace."""
    import ctypes

    new_net = 0x40000000  # CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), new_net) != 0:
            raise OSError(ctypes.get_errno(), f"enter the network namespace {namespace}")


def _run(job: Job, store: Any) -> Outcome:
    import torch
    import torch.distributed as dist

    # torch names groups by a count that an init_process_group() which raised leaves raised, on that rank alone.
    dist.distributed_c10d._world.group_count = 0
    try:
        try:
            if job.backend is not None:
                common = dist.PrefixStore(job.name, store)
                dist.init_process_group(
                    job.backend,
                    store=job.store(common, job.rank, job.size) if job.store else common,
                    rank=job.rank,
                    world_size=job.size,
                    timeout=job.timeout,
                    pg_options=job.options,
                )
                if job.backend == "gloo":
                    _kept.append(dist.distributed_c10d._get_default_group())
                if job.operations_timeout is not None:
                    group: Any = dist.distributed_c10d._get_default_group()
                    group._get_backend(torch.device("cpu"))._set_default_timeout(job.operations_timeout)
            value = job.function(*job.args)
            pickle.dumps(value)
        finally:
            if dist.is_initialized():
                with contextlib.suppress(Exception):  # the job has raised the error that counts already
                    dist.destroy_process_group()
        left = _groups()
        assert not left, f"destroy_process_group() left groups alive: {left}"
    except BaseException as err:
        return Outcome(job.rank, error=_picklable(err), trace=traceback.format_exc())
    return Outcome(job.rank, value=value)


def _groups() -> list[str]:
    """Names of our groups that live in this process."""
    native = sys.modules.get("sagecomm._C")  # not there until a first group was made
    return [group["group"] for group in json.loads(native.flight_records())["groups"]] if native else []


def _picklable(err: BaseException) -> BaseException:
    try:
        if type(pickle.loads(pickle.dumps(err))) is type(err):
            return err
    except Exception:
        pass
    return RuntimeError(f"{type(err).__name__}: {err}")
