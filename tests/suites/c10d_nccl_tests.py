"""torch's tests of its backend nccl, `test_c10d_nccl.py` of `test/distributed` of its repository, which no wheel has.
Those run whose ranks are processes. run.py sets the variable that it reads:

    TORCH_TESTS      the folder `test/distributed`, of the commit of the installed torch or one near it
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest

import rank_server  # before torch's tests

from torch.testing._internal.common_distributed import MultiProcessTestCase  # isort: skip

sys.path.insert(0, os.environ["TORCH_TESTS"])
tests = importlib.import_module("test_c10d_nccl")


def _case(name: str, of: type) -> type[unittest.TestCase]:
    members = {"__module__": __name__, "PREFIX": f"{name}."}  # where a rank finds it
    return type(f"{name}OnRanks", (of, rank_server.RankServer), members)


CASES = [
    _case(name, of)
    for name, of in vars(tests).items()
    if isinstance(of, type) and issubclass(of, MultiProcessTestCase) and of.__module__ == tests.__name__
]
globals().update({case.__name__: case for case in CASES})
rank_server.RankServer.preload(__name__)
