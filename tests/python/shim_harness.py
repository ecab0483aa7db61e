"""The shim on top of the fake core in tests/cshim: what the modules shim_*.py share.

One process holds one core, so their scenarios run in a process of their own (test_shim_work.py). A scenario is a
function that raises where the shim is wrong. The group has two ranks, of which this process plays rank 0; the fake
pretends the other.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm import _C

OK, WAITS, MANUAL, FAIL, OK_WORK = range(5)
INVALID, PEER_FAILURE, TIMEOUT, MISMATCH, ABORTED, SYSTEM = -1, -2, -3, -4, -5, -6
CPU = torch.device("cpu")
NATIVE = torch._C._distributed_c10d
DEADLINE = timedelta(seconds=60)


class Op(ctypes.Structure):
    """sagecomm_op, as the fake saw it last. The segment lists are gone by then."""

    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("reduce_op", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("root", ctypes.c_int32),
        ("tag", ctypes.c_int32),
        ("n_in", ctypes.c_uint32),
        ("n_out", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
        ("device_type", ctypes.c_uint8),
        ("ordering", ctypes.c_uint8),
        ("device_index", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("in_", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("in_blocks", ctypes.c_void_p),
        ("out_blocks", ctypes.c_void_p),
        ("factor", ctypes.c_double),
        ("timeout_ns", ctypes.c_int64),
        ("batch_hash", ctypes.c_uint64),
    )


ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE, BARRIER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV = range(11)


class Fake:
    """The functions of fake_script.c that script it; usable after start()."""

    library: ctypes.CDLL

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        return getattr(self.library, name)


fake = Fake()


def start(path: str) -> None:
    """Opens the fake as the core and makes the default group."""
    _C.set_exception_types(
        sagecomm.PeerFailure, sagecomm.CollectiveTimeout, sagecomm.CollectiveMismatch, sagecomm.Aborted
    )
    _C.load_core(path)
    fake.library = ctypes.CDLL(path)
    fake.fake_last_op.restype = ctypes.POINTER(Op)
    fake.fake_await.argtypes = (ctypes.c_int, ctypes.c_uint64)
    fake.fake_number_others.argtypes = (ctypes.c_uint64,)
    fake.fake_timeout_set.restype = ctypes.c_int64
    fake.fake_options.restype = fake.fake_got.restype = ctypes.c_char_p
    dist.Backend.register_backend("fake_core", create, extended_api=True, devices=["cpu"])
    getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(
        "fake_core"
    )  # otherwise torch's recorder registers hooks of its own
    dist.init_process_group("fake_core", store=dist.HashStore(), rank=0, world_size=2)
    gc.freeze()  # `run` collects garbage after each scenario, and need not look at all that torch has made


def create(options: object, _pg_options: object) -> object:
    return _C.create_backend(options, {"debug": "WARN", "tune": "x"})


SCENARIOS: list[Callable[[], None]] = []


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS.append(function)
    return function


def run(function: Callable[[], None]) -> None:
    fake.fake_reset()
    live = fake.fake_live_works()
    function()
    gc.collect()
    assert fake.fake_live_works() == live, "a handle of the core was not given back"


def backend() -> _C.ProcessGroupSagecomm:
    return c10d._get_default_group()._get_backend(CPU)


def group() -> dist.ProcessGroup:
    return c10d._get_default_group()


def last() -> Op:
    return fake.fake_last_op().contents


def sequence_number(work: dist.Work) -> int | None:
    """None where this torch has no binding for it."""
    return work._get_sequence_number() if hasattr(work, "_get_sequence_number") else None


def raises(kind: type[BaseException], call: Callable[[], object], text: str = "") -> BaseException:
    """pytest.raises without pytest, for the exact type."""
    try:
        call()
    except BaseException as error:
        if type(error) is not kind or text not in str(error):
            raise AssertionError(
                f"expected {kind.__name__} with {text!r}, got {type(error).__name__}: {error}"
            ) from error
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def all_reduce(value: float = 1.0, n: int = 4) -> tuple[torch.Tensor, dist.Work]:
    tensor = torch.full((n,), value)
    return tensor, dist.all_reduce(tensor, async_op=True)


def check_peer_failure(error: BaseException) -> None:
    assert isinstance(error, dist.DistBackendError)
    assert (error.rank, error.host, error.pid, error.op, error.group) == (3, "node7", 4711, "all_reduce", "fake")
    assert isinstance(error.sequence, int)
    assert "scripted failure -2" in str(error)


def backend_options(store: dist.Store) -> object:
    options = NATIVE._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, 0, 2
    options.timeout, options.group_id, options.global_ranks_in_group = DEADLINE, "mine", [0, 1]
    return options


@contextmanager
def interrupt_when(condition: Callable[[], object]):
    """Ctrl-C for the main thread as soon as condition() returns on another one."""

    def interrupt() -> None:
        condition()
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
        signal.signal(signal.SIGINT, before)
