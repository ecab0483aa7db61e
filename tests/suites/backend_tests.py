"""torch's tests that are the same for all backends: files of `test/distributed` of its repository, which no wheel has.

A file has one abstract class of tests, and torch makes a class of it for each backend of a list. This module makes one
for the backend and the device of a run. run.py sets the variables that it reads:

    TORCH_TESTS      the folder `test/distributed`, of the commit of the installed torch or one near it
    BACKEND          the backend
    SUITE_DEVICES    of fake CUDA (emulated.py), one for each rank; not set: tensors are on the CPU
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest

import rank_server  # before torch's tests

FOLDER = os.environ["TORCH_TESTS"]
BACKEND = os.environ["BACKEND"]
ON_DEVICES = "SUITE_DEVICES" in os.environ
FILES = {"collectives": "Collectives", "p2p": "P2P", "process_group": "ProcessGroup"}

# What a backend is said to have. Torch's own row for gloo has the first two and sequence numbers of groups.
OF_GLOO = ("bitwise_reductions", "work_sequence_number", "sequence_numbers")
OF_SAGECOMM = (*OF_GLOO, "coalescing", "dropped_p2p_work", "collectives_timing", "gather_single")
CAPABILITIES = (*OF_SAGECOMM, "work_result", "cuda_graph_barrier")

if BACKEND == "sagecomm":
    import sagecomm._registration  # noqa: F401

sys.path.insert(0, FOLDER)
common = importlib.import_module("c10d_backend_common")


def _case(file: str, prefix: str) -> type[unittest.TestCase]:
    module = importlib.import_module(f"test_c10d_{file}")
    abstract = getattr(module, f"Abstract{prefix}Test")
    has = OF_SAGECOMM if BACKEND == "sagecomm" else OF_GLOO
    members = {
        "__module__": __name__,  # where a rank finds it
        "PREFIX": f"{prefix}.",
        "backend_name": BACKEND,
        "device_type": "cuda" if ON_DEVICES else "cpu",
        "dtypes": common.STANDARD_DTYPES,
        "complex_dtypes": common.COMPLEX_DTYPES,
        "float8_dtypes": common.FLOAT8_DTYPES if BACKEND == "sagecomm" and ON_DEVICES else (),
        **{f"supports_{each}": each in has for each in CAPABILITIES},
    }
    return type(f"{prefix}Tests", (abstract, rank_server.RankServer), members)


CASES = [_case(file, prefix) for file, prefix in FILES.items()]
globals().update({case.__name__: case for case in CASES})
rank_server.RankServer.preload(__name__)
