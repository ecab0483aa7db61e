"""A torch.distributed backend: collectives over shared memory, planned and supervised by a core written in Go.

    torch.distributed.init_process_group("sagecomm")

Importing this package registers the backend's name and does nothing else: the extension module and the core library
are loaded when the first group is created.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from sagecomm._version import __version__

if TYPE_CHECKING:
    from sagecomm import ddp, nn, parallel
    from sagecomm._overlap import (
        DoubleBuffer,
        InFlight,
        OverlapReport,
        OverlapScheduler,
        all_gather_linear,
        chunked_all_reduce,
        conv2d_all_reduce,
        fused_allreduce_gradients,
        linear_all_reduce,
        linear_reduce_scatter,
        measure_overlap,
        overlap,
        pipeline,
    )
    from sagecomm.parallel import ProcessGroupManager

__all__ = [
    "Aborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DoubleBuffer",
    "InFlight",
    "Options",
    "OverlapReport",
    "OverlapScheduler",
    "PeerFailure",
    "ProcessGroupManager",
    "__version__",
    "all_gather_linear",
    "chunked_all_reduce",
    "conv2d_all_reduce",
    "ddp",
    "dump_flight_recorder",
    "explain",
    "fused_allreduce_gradients",
    "get_stats",
    "linear_all_reduce",
    "linear_reduce_scatter",
    "measure_overlap",
    "metrics",
    "monitored_barrier",
    "nn",
    "overlap",
    "parallel",
    "pipeline",
]

# What a program that only initialises the backend does not need is imported at its first use.
_LATER = {
    "sagecomm._overlap": (
        "DoubleBuffer",
        "InFlight",
        "OverlapReport",
        "OverlapScheduler",
        "all_gather_linear",
        "chunked_all_reduce",
        "conv2d_all_reduce",
        "fused_allreduce_gradients",
        "linear_all_reduce",
        "linear_reduce_scatter",
        "measure_overlap",
        "overlap",
        "pipeline",
    ),
    "sagecomm.parallel": ("ProcessGroupManager",),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}
_MODULES = ("ddp", "nn", "parallel")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"sagecomm.{name}")
    else:
        raise AttributeError(f"module 'sagecomm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported_by_the_command() -> bool:
    """Report whether `python -m sagecomm` imports the package, to find its __main__."""
    asked = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in asked and asked[asked.index("-m") + 1 :][:1] == ["sagecomm"]


# The command line needs torch for some of its verbs only, and torch takes seconds to import.
if not _imported_by_the_command():
    from sagecomm._barrier import monitored_barrier
    from sagecomm._explain import explain
    from sagecomm._observe import dump_flight_recorder, get_stats, metrics
    from sagecomm._registration import register as _register
    from sagecomm.errors import Aborted, CollectiveMismatch, CollectiveTimeout, PeerFailure
    from sagecomm.options import Options

    _register()
