"""Fake CUDA: torch's own CUDA build on the emulator, on a machine without a GPU.

A parent builds the libraries and starts a child with environment(); the child imports this module as well. CUDA's own
functions are emulated for the whole process from its start; install() lets torch's operators run.

    subprocess.run([sys.executable, "-c", script], env=fake_cuda.environment("random", seed=7))

    import fake_cuda, torch          # in the script
    fake_cuda.install()
    torch.ones(3, device="cuda").sum()
    fake_cuda.check()                # raises if an operator failed, or if the order of two accesses was left open
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import build as builder  # noqa: E402

if TYPE_CHECKING:
    import torch

OUTPUT = builder.OUTPUT
DRIVER = OUTPUT / "libcuda.so.1"
RUNTIME = OUTPUT / "libfake_runtime.so"
NCCL = OUTPUT / "libfake_nccl.so"

# ---- in the process that starts others


def build() -> None:
    """Brings the libraries up to date. Raises builder.UnavailableError where fake CUDA cannot be."""
    builder.build([library.name for library in builder.fake_cuda()])
    tried = subprocess.run(["/bin/true"], env=environment(), capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise builder.UnavailableError(tried.stderr.strip())  # a driver of NVIDIA's is here


def environment(
    schedule: str = "lazy",
    seed: int = 1,
    devices: int = 2,
    preload: Sequence[Path] = (),
    base: Mapping[str, str] = os.environ,
    **settings: str,
) -> dict[str, str]:
    """The environment of a process under fake CUDA, with further libraries (`preload`) and variables (`settings`)."""
    own = [str(path) for path in (*preload, RUNTIME, DRIVER)]
    path = [str(HERE), *filter(None, [base.get("PYTHONPATH")])]
    return {
        **base,
        "LD_PRELOAD": ":".join(own),
        "PYTHONPATH": os.pathsep.join(path),
        "EMULATOR_SCHEDULE": schedule,
        "EMULATOR_SEED": str(seed),
        "EMULATOR_DEVICES": str(devices),
        "SAGECOMM_ENGINE": "staged",  # what most tests are about, also where ranks have a libnccl.so.2
        "OMP_NUM_THREADS": "1",  # operators run on the emulator's thread, which has torch's number of threads from here
        **settings,
    }


# ---- in a process under fake CUDA


class OrderError(AssertionError):
    """The checker's reports: pairs of accesses of one place in memory whose order nothing determines."""


def emulator() -> ctypes.CDLL:
    """The emulator of this process, with the functions of core/annotate.h."""
    if str(DRIVER) not in os.environ.get("LD_PRELOAD", "").split(":"):
        raise RuntimeError("this process is not under fake CUDA: start it with fake_cuda.environment()")
    library = ctypes.CDLL(str(OUTPUT / "libemulator.so"))
    library.emulator_reports.restype = ctypes.c_size_t
    library.emulator_report_text.restype = ctypes.c_size_t
    library.emulator_finished.restype = ctypes.c_size_t
    library.emulator_objects.restype = library.emulator_waited_records.restype = ctypes.c_size_t
    library.emulator_bytes.restype = library.emulator_most_bytes.restype = ctypes.c_size_t
    for named in (library.emulator_finished, library.emulator_bytes, library.emulator_most_bytes):
        named.argtypes = [ctypes.c_char_p]
    library.emulator_report_text.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for access in (library.emulator_host_read, library.emulator_host_write):
        access.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    for key in (library.emulator_release, library.emulator_acquire):
        key.argtypes = [ctypes.c_void_p]
    for held in (library.emulator_hold, library.emulator_release_stream):
        held.argtypes = [ctypes.c_void_p]
    return library


def install() -> int:
    """Lets torch's operators on CUDA tensors run as CPU kernels on the emulator's streams. Returns how many."""
    return int(_operators().operators)


def _operators() -> Any:
    import torch  # noqa: F401  the extension links to its libraries

    sys.path.insert(0, str(OUTPUT))
    try:
        import _fake_cuda  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(OUTPUT))
    return _fake_cuda


def report_count() -> int:
    return int(emulator().emulator_reports())


def report() -> str:
    """The checker's reports, each with both accesses. The first line has the schedule and the seed."""
    library = emulator()
    size = library.emulator_report_text(None, 0) + 1
    text = ctypes.create_string_buffer(size)
    library.emulator_report_text(text, size)
    return text.value.decode()


def reset() -> None:
    """Forgets the reports."""
    emulator().emulator_reset_reports()


def bytes_of(kind: str) -> int:
    """The bytes of memory of a kind that this process has: pinned, registered, device or imported."""
    return int(emulator().emulator_bytes(kind.encode()))


def most_bytes_of(kind: str) -> int:
    """The most that it has had at a time."""
    return int(emulator().emulator_most_bytes(kind.encode()))


def waited_records() -> int:
    """How many records of events have waited because the device had no event left; in a process of simdev, too."""
    waited = ctypes.CDLL(str(OUTPUT / "libemulator.so")).emulator_waited_records
    waited.restype = ctypes.c_size_t
    return int(waited())


def check() -> None:
    """Waits for all devices. Raises the first error of an operator that nobody waited for, or the checker's reports."""
    import torch

    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    if errors := _operators().take_errors():
        raise RuntimeError(errors[0])
    if report_count():
        raise OrderError(report())


def describe() -> str:
    """The schedule, the seed and the state of all streams."""
    return str(_operators().describe())


def run_all() -> None:
    """Waits until nothing can run. The calling thread does not come after what has run."""
    _operators().run_all()


@contextmanager
def held(stream: torch.cuda.Stream) -> Iterator[None]:
    """Nothing on the stream begins inside."""
    if emulator().emulator_hold(stream.cuda_stream) != 0:
        raise ValueError(f"no such stream: {stream}")
    try:
        yield
    finally:
        emulator().emulator_release_stream(stream.cuda_stream)


def host_read(tensor: torch.Tensor, what: str) -> None:
    """Tells the checker that this thread reads a pinned tensor, which it cannot see by itself."""
    emulator().emulator_host_read(tensor.data_ptr(), tensor.nbytes, what.encode())


def host_write(tensor: torch.Tensor, what: str) -> None:
    emulator().emulator_host_write(tensor.data_ptr(), tensor.nbytes, what.encode())
