"""Processes that run a script each, as torchrun would start them: for tests that kill, signal or fork ranks, check how
a process ends, or need a fresh one.

    with Programs("dist.init_process_group('sagecomm'); print(dist.get_rank())", 2) as ranks:
        assert ranks.line(1) == "1"
        assert ranks.ends(1) == 0
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist

from sagecomm import _status
from starter import Started
from worker import Outcome
from worlds import Environment, World, of_each

# Seconds after which a line or the end of a process counts as missing.
DEADLINE_S = 90.0

# Numbers of futex, nanosleep and clock_nanosleep, on x86-64 and on arm64.
SLEEPS = {"x86_64": {"202", "35", "230"}, "aarch64": {"98", "101", "115"}}[platform.machine()]

PREAMBLE = """\
import os, signal, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
torch.set_num_threads(1)
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
"""


class Programs:
    """`size` processes that run PREAMBLE and a script. say() in the script answers line(), tell() answers hear().

    With `fresh` they import torch themselves, which takes seconds: for tests of what an import does. The environment
    may be a list, with one for each rank.
    """

    def __init__(self, script: str, size: int = 1, environment: Environment | None = None, fresh: bool = False) -> None:
        # The launcher holds the store, so that it outlives every rank.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._files = [tempfile.TemporaryFile("w+") for _ in range(size)]  # noqa: SIM115
        self._lines: list[queue.Queue[str]] = [queue.Queue() for _ in range(size)]
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
        }
        text = PREAMBLE + textwrap.dedent(script)
        self.processes: list[subprocess.Popen[str] | Started] = []
        for rank, (errors, own) in enumerate(zip(self._files, of_each(environment, size), strict=True)):
            variables = {**os.environ, **common, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(_exec(text, variables, errors) if fresh else Started(text, variables, errors))
        for process, lines in zip(self.processes, self._lines, strict=True):
            assert process.stdout is not None
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def line(self, rank: int) -> str:
        """The next line that the rank says."""
        try:
            said = self._lines[rank].get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"rank {rank} says nothing; its standard error:\n{self.errors(rank)}") from None
        assert said != "", f"rank {rank} has ended with {self.processes[rank].wait()}:\n{self.errors(rank)}"
        return said.rstrip("\n")

    def lines(self) -> list[str]:
        """The next line of every rank."""
        return [self.line(rank) for rank in range(len(self.processes))]

    def tell(self, rank: int, text: str = "go") -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write(text + "\n")
        stdin.flush()

    def ends(self, rank: int, deadline_s: float = DEADLINE_S) -> int:
        """The exit status; below zero after a signal."""
        try:
            return self.processes[rank].wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} does not end; its standard error:\n{self.errors(rank)}") from None

    def end_well(self, deadline_s: float = DEADLINE_S) -> None:
        for rank in range(len(self.processes)):
            status = self.ends(rank, deadline_s)
            assert status == 0, f"rank {rank} ended with {status}:\n{self.errors(rank)}"

    def errors(self, rank: int) -> str:
        self._files[rank].seek(0)
        return self._files[rank].read()

    def rest(self, rank: int) -> str:
        """Returns the unread lines of a rank that has ended."""
        return "".join(iter(self._lines[rank].get, ""))

    def await_sleep(self, rank: int) -> None:
        """Returns when the main thread of a rank sleeps, in a wait of the core or between two looks for signals."""
        try:
            await_sleep(self.processes[rank].pid)
        except AssertionError as error:
            raise AssertionError(f"rank {rank}: {error}; its standard error:\n{self.errors(rank)}") from None

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> float:
        """Sends a signal and returns the time, by the clock that all processes of a machine share."""
        at = time.monotonic()
        self.processes[rank].send_signal(number)
        return at


@dataclass(frozen=True)
class Ended:
    status: int
    said: str
    errors: str


def run(script: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a script without ranks to its end."""
    with Programs(script, 1, environment) as process:
        return Ended(process.ends(0), process.rest(0), process.errors(0))


def command(*arguments: str, **environment: str) -> Ended:
    """`python -m sagecomm ARGUMENTS`."""
    return run(command_line(*arguments), environment)


def command_line(*arguments: str) -> str:
    """Returns the script that runs `python -m sagecomm ARGUMENTS`."""
    return f"import runpy\nsys.argv = {['sagecomm', *arguments]!r}\nrunpy.run_module('sagecomm', run_name='__main__')"


def await_sleep(pid: int | None) -> None:
    """Returns when the main thread of a process sleeps."""
    of = Path(f"/proc/{pid}")
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            asleep = (of / "syscall").read_text().split()[0] in SLEEPS
        except PermissionError:  # a hardened system hides the system call and shows only that the thread sleeps
            asleep = (of / "stat").read_text().rpartition(")")[2].split()[0] == "S"
        if asleep:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} does not sleep")


def await_stop(pid: int) -> None:
    """Returns when SIGSTOP has taken effect: SIGCONT before that would be lost."""
    deadline = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.01)


def _exec(text: str, environment: Mapping[str, str], errors: IO[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", text], env=dict(environment), stdin=pipe, stdout=pipe, stderr=errors, text=True
    )


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    for text in stream:
        lines.put(text)
    lines.put("")


class Signals:
    """A way for ranks of a World to report to the test that they have reached a point."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR)

    def close(self) -> None:
        os.close(self._fd)

    def await_many(self, count: int) -> None:
        seen, deadline = 0, time.monotonic() + DEADLINE_S
        while seen < count:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{seen} of {count} ranks have reported"
            seen += len(os.read(self._fd, count - seen))


def report(path: str) -> None:
    """A rank calls it to be counted by the test's await_many()."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b".")
    os.close(fd)


def await_calls(number: int, *ranks: int) -> None:
    """Called in a rank: returns when this process sees that these ranks of the default group have made their collective
    call of that number."""
    (name,) = (each for each in _status.sockets() if each.split("-")[3] == str(os.getpid()))
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for group in (_status.ask(name).status or {}).get("groups", []):
            if group["desc"] == "default_pg" and all(group["ranks"][rank]["issued"] >= number for rank in ranks):
                return
        assert time.monotonic() < deadline, f"ranks {ranks} do not all come to collective #{number}"
        time.sleep(0.01)


def in_background(world: World, *args: Any, **how: Any) -> Future[list[Outcome]]:
    """Starts world.outcomes() on a thread, so that the test can act on the ranks meanwhile."""
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(world.outcomes, *args, **how)
    finally:
        executor.shutdown(wait=False)


# ---- what processes may leave behind ----


def abstract_sockets() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@sagecomm-" in line}


def abstract_sockets_of_others() -> set[str]:
    """Returns the names of sockets of processes that this test has not started: other processes have their inodes
    open."""
    held = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            held.add(os.readlink(fd))
        except OSError:
            continue
    return {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "@sagecomm-" in line and f"socket:[{line.split()[6]}]" in held
    }
