"""Runs functions in processes under fake CUDA, or on a GPU (gpu_check.py): forks of a process that has imported torch.

The process that forks has made no CUDA call, so each child has an emulator of its own, with its own schedule and seed.
Run by itself, this file is that process; CudaBed is the other side. The functions stand in modules of this folder.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulator"))

import fake_cuda

BOUND_S = float(os.environ.get("TEST_HANG_BOUND_S", "90"))  # of one child; they take less than ten on a busy machine
CONCURRENT = 2
SEEDS = int(os.environ.get("SEEDS", "2"))  # of the random schedule; `make test-streams` runs more
# Parts of torch that take seconds to import. The process that forks imports them if files of collected tests have.
IMPORTED_IF_USED = ("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel")


def emulated() -> bool:
    """Returns whether this process is under fake CUDA."""
    return str(fake_cuda.DRIVER) in os.environ.get("LD_PRELOAD", "").split(":")


def on_hosts(hosts: Sequence[int]) -> list[dict[str, str]]:
    """Returns settings for each rank: with them the ranks are on hosts that have that many each, also to NCCL."""
    names = [f"h{host}" for host, ranks in enumerate(hosts) for _ in range(ranks)]
    return [{"SAGECOMM_HOSTID": name, "NCCL_HOSTID": name} for name in names]


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped, as by SIGSTOP of somebody else."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    return False


class Child:
    """A function that runs in a child: `module:name`, called with the arguments, which are of JSON as its result is."""

    def __init__(self, bed: CudaBed, function: str, arguments: Sequence[Any], settings: dict[str, str]) -> None:
        self._bed = bed
        self._reader, writer = os.pipe()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by result()
        self._what = " ".join([function, *map(str, arguments), *(f"{k}={v}" for k, v in settings.items())])
        with tempfile.TemporaryFile("w+") as request:
            json.dump([function, list(arguments), settings], request)
            request.flush()
            socket.send_fds(bed.control, [b"."], [request.fileno(), writer, self._errors.fileno()])
        os.close(writer)

    def result(self) -> Any:
        """Waits for the function. Raises AssertionError if it raised, or if the child died or did not start."""
        text, hung, bound = b"", False, time.monotonic() + BOUND_S
        while not hung:
            hung = not select.select([self._reader], [], [], max(0, bound - time.monotonic()))[0]
            part = b"" if hung else os.read(self._reader, 1 << 16)
            if not part:
                break
            text += part
        pid, started, answer = text.partition(b"\n")
        if not started:
            within = f" within {BOUND_S:.0f} s" if hung else ""
            answer = f"has not started{within}: {self._bed.state()}".encode()
        elif hung:
            # Of a child that is stopped nobody knows whether it did anything wrong.
            answer = b"stopped by a signal" if is_stopped(int(pid)) else b"hung"
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGABRT)  # Python prints what its threads do
                os.kill(int(pid), signal.SIGCONT)
            select.select([self._reader], [], [], 10)
        self._bed.started += bool(started)
        os.close(self._reader)  # a child that starts later ends then
        self._errors.seek(0)
        with self._errors:
            errors = self._errors.read()
        if not answer.startswith(b"{"):
            raise AssertionError(f"{self._what}: {answer.decode() or 'died'}\n{errors[-6000:]}")
        return json.loads(answer)["result"]


class CudaBed:
    """Children under fake CUDA, with further libraries (`preload`); or in the given environment."""

    def __init__(self, preload: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        used = [name for name in IMPORTED_IF_USED if name in sys.modules]
        command = [sys.executable, __file__, str(theirs.fileno()), *used]
        if environment is None:
            environment = fake_cuda.environment(preload=preload)
        environment = {**environment, "PYTHONFAULTHANDLER": "1"}
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.started = 0  # children of which that is known

    def state(self) -> str:
        """Returns what is known of the process that forks, for the error of a child that has not started."""
        code = self._process.poll()
        if code is not None:
            return f"the process that forks has ended with {code}"
        if is_stopped(self._process.pid):
            return "the process that forks was stopped by a signal"
        if self.started:
            return f"the process that forks is there, and {self.started} children have started"
        return "the process that forks is there, and no child has started; it imports torch first"

    def stop(self) -> None:
        self.control.close()  # it ends when this side has closed
        self._process.wait()

    def start(self, function: str, *arguments: Any, schedule: str = "lazy", seed: int = 1, **settings: str) -> Child:
        settings = {"EMULATOR_SCHEDULE": schedule, "EMULATOR_SEED": str(seed)} | settings
        return Child(self, function, arguments, settings)

    def run(self, function: str, *arguments: Any, schedule: str = "lazy", seed: int = 1, **settings: str) -> Any:
        return self.start(function, *arguments, schedule=schedule, seed=seed, **settings).result()

    def under_all(self, function: str, *arguments: Any, seeds: int = SEEDS, **settings: str) -> list[Any]:
        """Runs a function under the lazy, the eager and the threaded schedule and under random ones, two at a time."""
        cases = [("lazy", 1), ("eager", 1), ("threaded", 1), *(("random", seed) for seed in range(1, seeds + 1))]
        with ThreadPoolExecutor(CONCURRENT) as pool:
            return list(
                pool.map(lambda case: self.run(function, *arguments, schedule=case[0], seed=case[1], **settings), cases)
            )

    def ranks(
        self,
        function: str,
        size: int,
        *arguments: Any,
        dies: int | None = None,
        hosts: Sequence[int] = (),
        **settings: Any,
    ) -> list[Any]:
        """Runs function(rank, size, file of a store, *arguments) in as many processes at once. The rank `dies` ends
        itself in it. With `hosts`, the ranks are on hosts that have that many each."""
        of = on_hosts(hosts) or [{}] * size
        with tempfile.TemporaryDirectory() as folder:
            store = f"{folder}/store"
            started = [
                self.start(function, rank, size, store, *arguments, **settings, **of[rank]) for rank in range(size)
            ]
            results, errors = [], []
            for rank, child in enumerate(started):  # a rank that hangs often waits for another one that has failed
                try:
                    results.append(child.result())
                except AssertionError as error:
                    if rank != dies or ": died\n" not in str(error):
                        errors.append(str(error))
            if errors:
                raise AssertionError("\n".join(errors))
            return results


def _requests(control: socket.socket) -> Iterator[list[int]]:
    """Gives the files of each request, in a fork of this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 3)
        if not data:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            yield list(fds)
        for fd in fds:
            os.close(fd)


def _import_what_torch_imports_late(modules: Sequence[str]) -> None:
    """Imports what takes seconds at its first use, without a CUDA call: an optimizer's step would make one."""
    import torch._dynamo
    import torch.optim

    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a fork has to copy what its garbage collector looks at

    torch.cat([torch.empty(1, device="meta")])


def _serve(control: socket.socket, modules: Sequence[str]) -> None:
    if emulated():
        fake_cuda.install()
    _import_what_torch_imports_late(modules)
    for request, answers, errors in _requests(control):
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        try:
            os.write(answers, b"%d\n" % os.getpid())
        except BrokenPipeError:  # nobody waits for this child any more
            os._exit(0)
        with os.fdopen(request) as text:
            text.seek(0)
            function, arguments, settings = json.load(text)
        os.environ.update(settings)
        module, _, name = function.partition(":")
        try:
            result = getattr(importlib.import_module(module), name)(*arguments)
            os.write(answers, json.dumps({"result": result}).encode())
        except BaseException:  # KeyboardInterrupt and SystemExit as well: this is no process that may go on
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # Finalising Python would end threads of autograd in the middle of their work, which torch does not survive.
        os._exit(0)
    gc.unfreeze()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
