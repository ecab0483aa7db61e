"""What is told of children of a CudaBed that do not start. All other tests under fake CUDA use those that do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

import cuda_bed
from cuda_bed import CudaBed


class Unserved(CudaBed):
    """A bed whose process serves nothing. The test has its end of the control socket."""

    def __init__(self) -> None:
        self.control, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = "import sys; sys.stdin.read()"
        self._process = subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE)
        self.started = 0


def test_children_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, with what is known of the process that should have started them. One that starts later finds
    that nobody waits for it, and ends."""
    monkeypatch.setattr(cuda_bed, "BOUND_S", 0.01)
    bed = Unserved()
    try:
        late = bed.start("module:function")
        why = "function .*: has not started within 0 s: the process that forks is there, and no child has started"
        with pytest.raises(AssertionError, match=why):
            late.result()
        _, (request, answers, errors), _, _ = socket.recv_fds(bed.theirs, 1, 3)
        with pytest.raises(BrokenPipeError):
            os.write(answers, b"1\n")
        for fd in (request, answers, errors):
            os.close(fd)
        bed._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, bed._process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(AssertionError, match=r"has not started within 0 s: .* was stopped by a signal"):
            bed.start("module:function").result()
        bed._process.kill()
        bed._process.wait()
        lost = bed.start("module:function")
        bed.theirs.close()
        with pytest.raises(AssertionError, match="has not started: the process that forks has ended with -9"):
            lost.result()
    finally:
        bed._process.kill()
        bed.stop()
