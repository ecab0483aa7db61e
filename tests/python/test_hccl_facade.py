"""libsagecomm_hccl.so on host memory, called as vllm-ascend's pyhccl calls HCCL. Ranks are processes or threads."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from facade_processes import in_processes

_PACKAGE = find_spec("sagecomm")  # importing it would import torch, for seconds
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
FACADE = Path(_PACKAGE.origin).resolve().parent / "lib" / "libsagecomm_hccl.so"

INT32, FLOAT32, SUM, MAX = 2, 4, 0, 2
_COMM, _POINTER, _STREAM, _INT, _SIZE = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class RootInfo(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 4108),)


# The functions without which pyhccl does without HCCL, with its types.
PYHCCL: dict[str, list[Any]] = {
    "HcclGetErrorString": [_INT],
    "HcclGetRootInfo": [ctypes.POINTER(RootInfo)],
    "HcclCommInitRootInfo": [_INT, ctypes.POINTER(RootInfo), _INT, ctypes.POINTER(_COMM)],
    "HcclAllReduce": [_POINTER, _POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "HcclBroadcast": [_POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "HcclCommDestroy": [_COMM],
}


class Library:
    """The library's functions. Each raises an error with HCCL's text, as pyhccl does, if it does not succeed."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(FACADE))
        for name, parameters in PYHCCL.items():
            getattr(self.library, name).argtypes = parameters
        self.library.HcclGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"HCCL error: {self.library.HcclGetErrorString(result).decode()}")


def root_info() -> bytes:
    made = RootInfo()
    Library().call("HcclGetRootInfo", ctypes.byref(made))
    return bytes(made)


def as_pyhccl(root: bytes, rank: int, size: int) -> None:
    library, comm = Library(), _COMM()
    made = RootInfo.from_buffer_copy(root)
    library.call("HcclCommInitRootInfo", size, ctypes.byref(made), rank, ctypes.byref(comm))
    warm, warmed = ctypes.c_float(1), ctypes.c_float()
    library.call("HcclAllReduce", ctypes.byref(warm), ctypes.byref(warmed), 1, FLOAT32, SUM, comm, None)
    assert warmed.value == size

    mine, got = (ctypes.c_int32 * 24)(*(10 * rank + i for i in range(24))), (ctypes.c_int32 * 24)()
    library.call("HcclAllReduce", mine, got, 24, INT32, SUM, comm, _STREAM(0))
    assert list(got) == [sum(10 * r + i for r in range(size)) for i in range(24)]
    library.call("HcclAllReduce", mine, got, 24, INT32, MAX, comm, _STREAM(0))
    assert list(got) == [10 * (size - 1) + i for i in range(24)]
    for root_rank in range(size):
        here = (ctypes.c_int32 * 24)(*mine)
        library.call("HcclBroadcast", here, 24, INT32, root_rank, comm, _STREAM(0))
        assert list(here) == [10 * root_rank + i for i in range(24)]
    with pytest.raises(RuntimeError, match="HCCL error: sagecomm: HcclBroadcast: rank 99 is outside the communicator"):
        library.call("HcclBroadcast", mine, 24, INT32, 99, comm, None)
    library.call("HcclCommDestroy", comm)
    with pytest.raises(RuntimeError, match="HCCL error: sagecomm: HcclAllReduce: comm is no communicator"):
        library.call("HcclAllReduce", mine, got, 24, INT32, SUM, comm, None)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_are_processes(size: int) -> None:
    in_processes(as_pyhccl, root_info, size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_are_threads(size: int) -> None:
    root = root_info()
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda rank: as_pyhccl(root, rank, size), range(size)))


def test_what_pyhccl_looks_up_is_there() -> None:
    library = ctypes.CDLL(str(FACADE))
    assert [name for name in PYHCCL if not hasattr(library, name)] == []


TIMEOUTS = f"""
import ctypes, threading
library = ctypes.CDLL({str(FACADE)!r})
library.HcclGetErrorString.restype = ctypes.c_char_p
root, comms = ctypes.create_string_buffer(4108), [ctypes.c_void_p(), ctypes.c_void_p()]
def join(rank):
    return library.HcclCommInitRootInfo(2, root, rank, ctypes.byref(comms[rank]))
def show(code):
    print(code, library.HcclGetErrorString(code).decode())
assert library.HcclGetRootInfo(root) == 0
"""


def timed_out(program: str, **settings: str) -> str:
    run = [sys.executable, "-c", TIMEOUTS + program]
    return subprocess.check_output(run, env={**os.environ, **settings}, stderr=subprocess.DEVNULL, text=True)


def test_timeout_of_a_join() -> None:
    text = timed_out("show(join(0))", HCCL_CONNECT_TIMEOUT="1")
    assert text.startswith("9 sagecomm: ")
    assert "rank 1" in text


def test_timeout_of_an_operation() -> None:
    program = """
other = threading.Thread(target=join, args=(1,))
other.start()
assert join(0) == 0
other.join()
value = ctypes.c_int32(1)
show(library.HcclAllReduce(ctypes.byref(value), ctypes.byref(value), 1, 2, 0, comms[0], None))
"""
    text = timed_out(program, HCCL_EXEC_TIMEOUT="1")
    assert text.startswith("9 sagecomm: ")
    assert "rank 1" in text


def test_each_call_that_fails_is_printed() -> None:
    program = f"""
import ctypes
library = ctypes.CDLL({str(FACADE)!r})
for _ in range(2):
    assert library.HcclCommSuspend(None) == 5
    assert library.HcclCommResume(None) == 5
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    both = [
        "HCCL WARNING sagecomm: HcclCommSuspend: a communicator cannot be suspended: destroy it, and make a new one",
        "HCCL WARNING sagecomm: HcclCommResume: no communicator was suspended",
    ]
    assert run.stderr.splitlines() == both + both
    none = {"ASCEND_GLOBAL_LOG_LEVEL": "4"}
    quiet = subprocess.run([sys.executable, "-c", program], env=none, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""


def test_the_path_that_the_command_prints() -> None:
    command = [sys.executable, "-m", "sagecomm", "hccl-path"]
    assert subprocess.check_output(command, text=True) == f"{FACADE}\n"
    assert json.loads(subprocess.check_output([*command, "--json"])) == {"path": str(FACADE)}
