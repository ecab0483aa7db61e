"""libsagecomm_nccl.so by ctypes, called as vLLM's pynccl calls NCCL: the unique id by value, pointers as numbers."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = find_spec("sagecomm")  # importing it would import torch, for seconds
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
FACADE = Path(_PACKAGE.origin).resolve().parent / "lib" / "libsagecomm_nccl.so"

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 4, 5, 6
INT32, FLOAT32 = 2, 7
SUM = 0


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


_COMM, _POINTER, _STREAM, _INT, _SIZE = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
# The functions without which vLLM 0.33 does without NCCL, with their parameters.
PYNCCL: dict[str, list[Any]] = {
    "ncclGetErrorString": [_INT],
    "ncclGetVersion": [ctypes.POINTER(_INT)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(_COMM), _INT, UniqueId, _INT],
    "ncclAllReduce": [_POINTER, _POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "ncclReduce": [_POINTER, _POINTER, _SIZE, _INT, _INT, _INT, _COMM, _STREAM],
    "ncclAllGather": [_POINTER, _POINTER, _SIZE, _INT, _COMM, _STREAM],
    "ncclReduceScatter": [_POINTER, _POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "ncclSend": [_POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "ncclRecv": [_POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "ncclBroadcast": [_POINTER, _POINTER, _SIZE, _INT, _INT, _COMM, _STREAM],
    "ncclCommDestroy": [_COMM],
    "ncclCommAbort": [_COMM],
    "ncclCommSuspend": [_COMM, _INT],
    "ncclCommResume": [_COMM],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [_COMM, _POINTER, _SIZE, ctypes.POINTER(ctypes.c_void_p), _INT],
    "ncclCommWindowDeregister": [_COMM, ctypes.c_void_p],
}


class Error(RuntimeError):
    def __init__(self, result: int, text: str) -> None:
        super().__init__(text)
        self.result = result


class Library:
    """The library's functions. Each raises Error if it does not return ncclSuccess."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(FACADE))
        for name, parameters in PYNCCL.items():
            getattr(self.library, name).argtypes = parameters
        self.library.ncclCommSplit.argtypes = [_COMM, _INT, _INT, ctypes.POINTER(_COMM), _POINTER]
        self.library.ncclCommGetAsyncError.argtypes = [_COMM, ctypes.POINTER(_INT)]
        self.library.ncclCommFinalize.argtypes = [_COMM]
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        self.library.ncclGetLastError.restype = ctypes.c_char_p
        self.library.ncclGetLastError.argtypes = [_COMM]

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != SUCCESS:
            raise Error(result, f"{name}: {self.library.ncclGetLastError(None).decode()}")

    def unique_id(self) -> bytes:
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    def communicator(self, size: int, unique_id: bytes, rank: int) -> ctypes.c_void_p:
        comm = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(comm), size, UniqueId.from_buffer_copy(unique_id), rank)
        return comm

    def asynchronous_error(self, comm: ctypes.c_void_p) -> int:
        error = _INT()
        self.call("ncclCommGetAsyncError", comm, ctypes.byref(error))
        return error.value

    def split(self, comm: ctypes.c_void_p, color: int, key: int) -> ctypes.c_void_p:
        part = ctypes.c_void_p()
        self.call("ncclCommSplit", comm, color, key, ctypes.byref(part), None)
        return part
