"""Makes the name "sagecomm" known to torch.distributed."""

from __future__ import annotations

import atexit
import sys
from datetime import timedelta
from typing import Any

import torch.distributed

from sagecomm.options import Options

NAME = "sagecomm"
DEVICES = ["cpu"]
LONGEST = timedelta(days=36500)


def register() -> None:
    """Registers the backend. Safe to call again."""
    if not torch.distributed.is_available():
        raise RuntimeError("sagecomm needs torch.distributed, and this torch was built without it")
    from torch.distributed import distributed_c10d as c10d

    if NAME.upper() not in c10d.Backend._plugins:
        atexit.register(_leave)
        c10d.Backend.register_backend(NAME, create, extended_api=True, devices=list(DEVICES))
    # torch attaches a recorder of its own to the groups of backends outside this set, at 2 us an operation and 15 us a
    # barrier. We record natively. A group whose other device has a backend outside the set keeps torch's recorder:
    # torch leaves it out only if all backends of the group are in here. Torch before the recorder has no such set.
    self_recording = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if self_recording is not None:
        self_recording.add(NAME)


def _leave() -> None:
    """Says goodbye in all groups, so that peers do not take the end of this process for a failure.

    Handlers run last-in first-out: this one was registered with the name, before most scripts register theirs, which
    may still use a group.
    """
    native = sys.modules.get("sagecomm._C")  # not there unless a group was made
    if native is not None:
        native.shutdown()


def create(dist_options: Any, options: object | None) -> Any:
    """Creates the backend of one group: torch calls it with its own options and the user's pg_options."""
    from sagecomm import _flight, _native

    native = _native.load()
    if options is None:
        options = Options()
    elif isinstance(options, native.Options):  # `options` of another group
        options = Options(timeout=options._timeout, settings=options.settings)
    if not isinstance(options, Options):
        raise TypeError(
            f"sagecomm: pg_options must be a sagecomm.Options, got {type(options).__module__}.{type(options).__name__}"
        )
    if options.timeout is not None:
        dist_options.timeout = options.timeout
    # timedelta.max is more microseconds than 64 bits count: torch has made something far below zero of it.
    if abs(dist_options.timeout) > LONGEST:
        dist_options.timeout = LONGEST

    _flight.install(native)
    _flight.remember(dist_options.group_id, dist_options.global_ranks_in_group)
    return native.create_backend(dist_options, dict(options.settings))
