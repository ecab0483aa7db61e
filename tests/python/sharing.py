"""`pytest -n 2`: tests run beside each other, the longest first, and then those that promise a time run alone.

A test promises a time if its file imports promises.py. The workers agree by two locks, on files of this folder. Who
waits for the second one holds the first, so that tests which share the second cannot keep a test away that needs it
alone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# A worker takes the tests of whole files, in this order. The files whose tests take minutes come first, so that no
# worker begins one when the others have nothing left to do. Those that promise a time come last: before a test that
# runs alone, a worker waits for the test of the other one.
LONGEST = (
    "test_gpu_check.py",
    "test_vendor_devices.py",
    "test_device_training.py",
    "test_cuda_engine.py",
    "test_torch_suite.py",
    "test_nccl_torch.py",
    "test_device_tensors.py",
    "test_cuda_graphs.py",
    "test_random_programs.py",
)

HERE = Path(__file__).parent
QUEUE, MACHINE = HERE / "sharing.py", HERE / "promises.py"


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    with path.open() as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: processes that the test has forked have it open


def promises_times(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    values = vars(item.module).values()
    return "promises" in (getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in values)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    assert all((HERE / name).exists() for name in LONGEST)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (promises_times(item), places.get(item.path.name, len(places))))


# First, so that the bound of pytest-timeout does not count the time in which a test waits for its turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not hasattr(item.config, "workerinput"):  # not a worker of xdist
        return (yield)
    how = fcntl.LOCK_EX if promises_times(item) else fcntl.LOCK_SH
    with locked(QUEUE, fcntl.LOCK_EX):
        turn = locked(MACHINE, how)
        turn.__enter__()
    try:
        return (yield)
    finally:
        turn.__exit__(None, None, None)
