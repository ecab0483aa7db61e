"""Ranks that a command starts on this host, for tune and bench."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes


def run_ranks(verb: str, size: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Runs function(rank, *arguments) in `size` new processes and returns when all have ended.

    They are forks: this process has loaded no core yet, and importing torch takes seconds.

    Raises:
        RuntimeError: A rank raised or died; the text names it. The other ranks have been killed then.
    """
    start: Any = start_processes  # it has no types
    context = start(function, arguments, nprocs=size, join=False, start_method="fork")
    try:
        while not context.join():
            pass
    except (ProcessRaisedException, ProcessExitedException) as err:
        # A rank that was killed is the first cause. torch raises what it sees first, which may be another rank's error,
        # and ends the other ranks by SIGTERM.
        for rank, process in enumerate(context.processes):
            if process.exitcode is not None and process.exitcode < 0 and -process.exitcode != signal.SIGTERM:
                name = signal.Signals(-process.exitcode).name
                raise RuntimeError(f"sagecomm: {verb}: rank {rank} (pid {process.pid}) was ended by {name}") from err
        raise RuntimeError(last_of_ours(str(err)) or f"sagecomm: {verb}: {err}") from err
    finally:
        for process in context.processes:
            process.kill()  # those that are left when this one is interrupted
            process.join()


def last_of_ours(trace: str) -> str | None:
    """Returns the message of a sagecomm exception at the end of a traceback, without the exception's name."""
    found = re.search(r"^(?:[\w.]+: )?(sagecomm: .*)\Z", trace.strip(), re.MULTILINE)
    return found[1] if found else None


def pin(rank: int) -> None:
    """Binds this process to one of the processors that it may use."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})


def file_store(path: Path, size: int) -> torch._C._distributed_c10d.Store:
    return torch._C._distributed_c10d.FileStore(str(path), size)
