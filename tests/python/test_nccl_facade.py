"""libsagecomm_nccl.so on host memory, called as vLLM's pynccl calls NCCL, by ranks that are processes or threads."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from facade_processes import in_processes
from nccl_facade import FACADE, FLOAT32, INVALID_ARGUMENT, INVALID_USAGE, PYNCCL, REMOTE_ERROR, SUM, Error, Library
from selection import quickly

N = 24
Floats = ctypes.c_float * N


def values(rank: int) -> list[float]:
    return [float(i + rank) for i in range(N)]


def as_pynccl(unique_id: bytes, rank: int, size: int) -> None:
    """What vLLM's own tests of pynccl do, with memory of the host."""
    library = Library()
    comm = library.communicator(size, unique_id, rank)
    warm = ctypes.c_float(1)
    library.call("ncclAllReduce", ctypes.byref(warm), ctypes.byref(warm), 1, FLOAT32, SUM, comm, None)
    assert warm.value == size
    total = [sum(values(r)[i] for r in range(size)) for i in range(N)]

    mine, got = Floats(*values(rank)), Floats()
    library.call("ncclAllReduce", mine, got, N, FLOAT32, SUM, comm, None)
    assert list(got) == total
    library.call("ncclReduce", mine, got, N, FLOAT32, SUM, 0, comm, None)
    assert rank != 0 or list(got) == total

    whole = (ctypes.c_float * (size * N))()
    library.call("ncclAllGather", mine, whole, N, FLOAT32, comm, None)
    assert list(whole) == [v for r in range(size) for v in values(r)]
    part = N // size
    library.call("ncclReduceScatter", mine, got, part, FLOAT32, SUM, comm, None)
    assert list(got)[:part] == total[rank * part : (rank + 1) * part]

    for root in range(size):  # pynccl gives the root's buffer twice, and NULL on the others
        here = Floats(*values(rank))
        library.call("ncclBroadcast", here if rank == root else None, here, N, FLOAT32, root, comm, None)
        assert list(here) == values(root)

    library.call("ncclGroupStart")  # all_gatherv: a broadcast for each rank, of different lengths
    offsets = [r * (r + 1) // 2 for r in range(size + 1)]
    gathered = (ctypes.c_float * offsets[size])()
    for root in range(size):
        at = ctypes.byref(gathered, 4 * offsets[root])
        library.call("ncclBroadcast", mine, at, root + 1, FLOAT32, root, comm, None)
    library.call("ncclGroupEnd")
    assert list(gathered) == [values(r)[i] for r in range(size) for i in range(r + 1)]

    if rank == 0 and size > 1:
        library.call("ncclSend", mine, N, FLOAT32, size - 1, comm, None)
    elif rank == size - 1 and size > 1:
        library.call("ncclRecv", got, N, FLOAT32, 0, comm, None)
        assert list(got) == values(0)
    window = ctypes.c_void_p(1)
    library.call("ncclCommWindowRegister", comm, mine, 4 * N, ctypes.byref(window), 1)
    assert window.value is None
    library.call("ncclCommWindowDeregister", comm, window)
    library.call("ncclCommDestroy", comm)


def unique_id() -> bytes:
    return Library().unique_id()


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_are_processes(size: int) -> None:
    in_processes(as_pynccl, unique_id, size)


@pytest.mark.parametrize("size", [1, 2, 4, pytest.param(8, marks=pytest.mark.long)])
def test_ranks_are_threads(size: int) -> None:
    unique_id = Library().unique_id()
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda rank: as_pynccl(unique_id, rank, size), range(size)))


def killed_beside_splits(seed: int, unique_id: bytes, rank: int, size: int) -> None:
    """The last rank dies while all split a communicator again and again. With seed 0 it comes to no split."""
    library = Library()
    comm = library.communicator(size, unique_id, rank)
    dies = rank == size - 1
    if dies and seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if dies:
        signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(0.001, 0.1))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def split_for_ever() -> None:
        while True:
            library.call("ncclCommDestroy", library.split(comm, 0, -rank))

    with pytest.raises(Error, match=rf"rank {size - 1}\b") as failure:
        split_for_ever()
    assert failure.value.result == REMOTE_ERROR, failure.value
    while library.asynchronous_error(comm) != REMOTE_ERROR:  # else the other one may find that this rank has left
        time.sleep(0.001)
    library.call("ncclCommDestroy", comm)


@pytest.mark.parametrize("seed", quickly([0], range(12)))
def test_a_rank_dies_beside_splits(seed: int) -> None:
    death = signal.SIGKILL if seed == 0 else signal.SIGALRM
    in_processes(partial(killed_beside_splits, seed), unique_id, 3, last=death)


def test_what_pynccl_looks_up_is_there() -> None:
    library = ctypes.CDLL(str(FACADE))
    assert [name for name in PYNCCL if not hasattr(library, name)] == []


def test_ids_that_nobody_made() -> None:
    """An id is checked before a rank connects anywhere, and one that was changed is refused."""
    library = Library()
    made = library.unique_id()
    generator = random.Random(5)
    changed = [bytes(128), b"\xff" * 128, made[:64] + bytes(64)]
    for _ in range(60):
        bad = bytearray(made)
        for _ in range(generator.choice([1, 2, 30])):
            bad[generator.randrange(128)] ^= generator.randrange(1, 256)
        changed.append(bytes(bad))
    changed += [generator.randbytes(128) for _ in range(60)]
    for bad in changed:
        with pytest.raises(Error) as refusal:
            library.communicator(1, bad, 0)
        assert refusal.value.result == INVALID_USAGE, refusal.value
    library.call("ncclCommDestroy", library.communicator(1, made, 0))


def test_a_communicator_that_was_destroyed() -> None:
    library = Library()
    comm = library.communicator(1, library.unique_id(), 0)
    library.call("ncclCommDestroy", comm)
    with pytest.raises(Error, match="or was destroyed") as refusal:
        library.call("ncclAllReduce", Floats(), Floats(), N, FLOAT32, SUM, comm, None)
    assert refusal.value.result == INVALID_ARGUMENT


def test_the_path_that_the_command_prints() -> None:
    command = [sys.executable, "-m", "sagecomm", "nccl-path"]
    assert subprocess.check_output(command, text=True) == f"{FACADE}\n"
    assert json.loads(subprocess.check_output([*command, "--json"])) == {"path": str(FACADE)}


def test_one_go_runtime_in_a_process(tmp_path: Path) -> None:
    """The facade takes the core that the process has loaded, whichever file that is."""
    core = shutil.copy(FACADE.with_name("libsagecomm.so"), tmp_path / "core.so")
    program = f"""
import ctypes
core = ctypes.CDLL({str(core)!r})
assert ctypes.CDLL({str(FACADE)!r}).ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
files = {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
print([file for file in files if "sagecomm.so" in file or "core.so" in file])
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == f"['{core}']\n"
