"""Starts scripts in processes that have imported torch already: forks of one process, milliseconds instead of seconds.

A started process ends as any interpreter does, exit handlers and finalisation included, and has loaded no core before
its script does: for what a script's rank sees it is a new process. Only what torch's import has made is not searched
for cycles at the end: a fork has to copy what it looks at, and that would take longer than all the rest. Run by itself,
this file is the process that forks; Started is the other side.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO

NUMBER = struct.Struct("i")


class Started:
    """A started process, with the part of Popen's interface that tests use."""

    _control: socket.socket | None = None

    def __init__(self, script: str, environment: Mapping[str, str], errors: IO[str]) -> None:
        stdin, writer = os.pipe()
        reader, stdout = os.pipe()
        self._answers, theirs = os.pipe()
        self.stdin = os.fdopen(writer, "w")
        self.stdout = os.fdopen(reader)
        self.returncode: int | None = None
        with tempfile.TemporaryFile("w+") as request:
            json.dump([script, dict(environment)], request)
            request.flush()
            given = [stdin, stdout, errors.fileno(), request.fileno(), theirs]
            socket.send_fds(Started._starter(), [b"."], given)
            for fd in (stdin, stdout, theirs):
                os.close(fd)
            (self.pid,) = NUMBER.unpack(os.read(self._answers, NUMBER.size))

    @classmethod
    def _starter(cls) -> socket.socket:
        if cls._control is None:
            cls._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, __file__, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            theirs.close()
            atexit.register(process.wait)
            atexit.register(cls._control.close)  # it ends when this side has closed
        return cls._control

    def poll(self) -> int | None:
        return self.returncode if self._ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("script", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            (status,) = NUMBER.unpack(os.read(self._answers, NUMBER.size))
            os.close(self._answers)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode is not None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(control: socket.socket) -> str:
    """Forks for every request. Returns, with the script, in the processes that are to run one."""
    import sagecomm  # noqa: F401  imports torch

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes in between
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 5)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, request, answers = fds
    pid = os.fork()
    if pid != 0:
        # This is the process in between. It reports how its child has ended.
        for fd in standard:
            os.close(fd)
        os.write(answers, NUMBER.pack(pid))
        os.write(answers, NUMBER.pack(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(answers)
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    with os.fdopen(request) as text:
        text.seek(0)
        script, environment = json.load(text)
    os.environ.clear()
    os.environ.update(environment)
    return script


if __name__ == "__main__":
    text = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = ["script"]
    exec(compile(text, "script", "exec"), {"__name__": "__main__"})
