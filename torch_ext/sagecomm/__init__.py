"""A torch.distributed backend: collectives over shared memory, planned and supervised by a core written in Go.

    torch.distributed.init_process_group("sagecomm")

Importing this package registers the backend's name and does nothing else: the extension module and the core library
are loaded when the first group is created.
"""

import sys

from sagecomm._version import __version__

__all__ = [
    "Aborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Options",
    "PeerFailure",
    "__version__",
    "dump_flight_recorder",
    "explain",
    "get_stats",
    "metrics",
    "monitored_barrier",
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
    from sagecomm.options import Options

    _register()
