"""torch's tests of its backend nccl, `test_c10d_nccl.py` of `test/distributed` of its repository, which no wheel has.
Those run whose ranks are processes. run.py sets the variable that it reads:

    TORCH_TESTS      the folder `test/distributed` of torch's release 2.9.1, of which expected.py has the failures
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from collections.abc import Callable
from typing import Any

from torch import multiprocessing

import rank_server  # before torch's tests

from torch.testing._internal import common_distributed  # isort: skip

# It asks the driver when it decorates a test, in a process that is not under fake CUDA.
common_distributed.requires_multicast_support = lambda: unittest.skip("needs multicast of a device")

sys.path.insert(0, os.environ["TORCH_TESTS"])
tests = importlib.import_module("test_c10d_nccl")


def _spawn_with_pipes(self: Any) -> None:
    """Starts the ranks of a test of the flight recorder, to each of which the test has a pipe."""
    pipes = [multiprocessing.Pipe() for _ in range(self.world_size)]
    self.children_pipes = [ours for _, ours in pipes]
    theirs = iter([theirs for theirs, _ in pipes])

    def process(target: Callable[..., None], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return rank_server.rank_process(target, name, (next(theirs), *args), kwargs)

    self._start_processes(process)


def _case(name: str, of: type) -> type[unittest.TestCase]:
    members: dict[str, Any] = {"__module__": __name__, "PREFIX": f"{name}."}  # where a rank finds it
    if issubclass(of, tests.NCCLTraceTestBase):
        members["_spawn_processes"] = _spawn_with_pipes  # torch's own starts processes that know of no fake CUDA
    return type(f"{name}OnRanks", (of, rank_server.RankServer), members)


def _runs(of: object) -> bool:
    """Whether that is a class of the file whose ranks are processes."""
    ranks = common_distributed.MultiProcessTestCase
    return isinstance(of, type) and issubclass(of, ranks) and of.__module__ == tests.__name__


CASES = [_case(name, of) for name, of in vars(tests).items() if _runs(of)]
globals().update({case.__name__: case for case in CASES})
rank_server.RankServer.preload(__name__)
