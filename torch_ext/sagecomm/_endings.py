"""The end of a group that has failed in an operation of which no call has raised the failure. The shim calls this."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType, FunctionType

from torch.distributed import distributed_c10d as c10d


class _Nested(threading.local):
    """Whether this thread is in the second call of may_raise()."""

    is_under_way = False


_nested = _Nested()


def may_raise() -> bool:
    """Returns whether shutdown() of the group, which has ended, may raise. If an exception is being handled it may not:
    the program goes wrong already, and its own exception must not be replaced.

    torch's `destroy_process_group()` forgets the groups when shutdown() has returned, so behind an exception it would
    refuse to make new ones. Here the same call is made once more inside itself. It finds this group shut down, shuts
    the others down, which raise nothing there, and forgets them.
    """
    if _nested.is_under_way or sys.exc_info()[0] is not None:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "destroy_process_group" and frame.f_globals is vars(c10d):
            _nested.is_under_way = True
            try:
                with suppress(Exception):  # the failure that may be raised comes before it
                    FunctionType(code, frame.f_globals)(frame.f_locals["group"])
            finally:
                _nested.is_under_way = False
            break
        frame = frame.f_back
    return True
