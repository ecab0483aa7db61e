"""A torch.distributed backend: collectives over shared memory, planned and supervised by a core written in Go.

    torch.distributed.init_process_group("sagecomm")

Importing this package registers the backend's name, and sets the variables that SAGECOMM_LAUNCHER asks for. The
extension module and the core library are loaded when the first group is created.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

from sagecomm._version import __version__

__all__ = [
    "Aborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommBackendProtocol",
    "CommFusionBuffer",
    "CommOp",
    "DoubleBuffer",
    "InFlight",
    "Options",
    "Overlap",
    "OverlapReport",
    "OverlapScheduler",
    "PeerFailure",
    "ProcessGroupManager",
    "TopologyManager",
    "__version__",
    "all_gather",
    "all_gather_linear",
    "all_reduce",
    "all_to_all",
    "autograd",
    "broadcast",
    "chunked_all_reduce",
    "conv2d_all_reduce",
    "create_comm_backend",
    "ddp",
    "dump_flight_recorder",
    "explain",
    "fused_all_reduce",
    "fused_allreduce_gradients",
    "get_stats",
    "irecv",
    "isend",
    "launchers",
    "linear_all_reduce",
    "linear_reduce_scatter",
    "measure_overlap",
    "metrics",
    "monitored_barrier",
    "nn",
    "overlap",
    "parallel",
    "pipeline",
    "recv",
    "reduce_scatter",
    "select_all_reduce_algorithm",
    "send",
]


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
    from sagecomm.launchers import apply as _apply_launcher
    from sagecomm.options import Options

    _register()
    try:
        _apply_launcher()
    except ValueError as _err:  # torch says then that RANK is not set
        warnings.warn(str(_err), RuntimeWarning, stacklevel=2)

# What follows is imported when it is first used: `import torch` imports this package, and most programs need its
# backend only.
if TYPE_CHECKING:
    from sagecomm import autograd, ddp, launchers, nn, parallel
    from sagecomm import backends as backends
    from sagecomm import fusion as fusion
    from sagecomm import primitives as primitives
    from sagecomm import topology as topology
    from sagecomm._overlap import (
        DoubleBuffer,
        InFlight,
        Overlap,
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
    from sagecomm.backends import CommBackendProtocol, CommOp, create_comm_backend
    from sagecomm.fusion import CommFusionBuffer, fused_all_reduce
    from sagecomm.parallel import ProcessGroupManager
    from sagecomm.primitives import (
        all_gather,
        all_reduce,
        all_to_all,
        broadcast,
        irecv,
        isend,
        recv,
        reduce_scatter,
        send,
    )
    from sagecomm.topology import TopologyManager, select_all_reduce_algorithm
else:
    _MODULES = {
        "_overlap": [
            "DoubleBuffer",
            "InFlight",
            "Overlap",
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
        ],
        "autograd": ["autograd"],
        "backends": ["backends", "CommBackendProtocol", "CommOp", "create_comm_backend"],
        "ddp": ["ddp"],
        "launchers": ["launchers"],
        "fusion": ["fusion", "CommFusionBuffer", "fused_all_reduce"],
        "nn": ["nn"],
        "parallel": ["parallel", "ProcessGroupManager"],
        "primitives": [
            "primitives",
            "all_gather",
            "all_reduce",
            "all_to_all",
            "broadcast",
            "irecv",
            "isend",
            "recv",
            "reduce_scatter",
            "send",
        ],
        "topology": ["topology", "TopologyManager", "select_all_reduce_algorithm"],
    }
    _LATER = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module 'sagecomm' has no attribute {name!r}")
        module = importlib.import_module(f"sagecomm.{_LATER[name]}")
        found = module if name == _LATER[name] else getattr(module, name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *_LATER})
