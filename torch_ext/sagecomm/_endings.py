"""How shutdown() ends a group: how long it waits, and whether it may raise. The shim calls this."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType, FunctionType

from torch.distributed import distributed_c10d as c10d


class _Nested(threading.local):
    """Whether this thread is in the second call of forget()."""

    is_under_way = False


_nested = _Nested()


def may_wait() -> bool:
    """Returns whether shutdown() may wait for operations on devices as long as they may take. It may not where an
    exception is being handled, or waits for this call to be raised, and in exit handlers of the process, which run when
    the main thread has ended.
    """
    return not _nested.is_under_way and sys.exc_info()[0] is None and threading.main_thread().is_alive()


def may_raise() -> bool:
    """Returns whether shutdown() of the group, which has ended, may raise. If an exception is being handled it may not:
    the program goes wrong already, and its own exception must not be replaced.
    """
    if _nested.is_under_way or sys.exc_info()[0] is not None:
        return False
    return forget()


def forget() -> bool:
    """Makes torch forget the groups that are being destroyed, before an exception ends that. Returns True.

    torch's `destroy_process_group()` forgets the groups when shutdown() has returned, so behind an exception it would
    refuse to make new ones. Here the same call is made once more inside itself. It finds this group shut down, shuts
    the others down, which raise nothing there, and forgets them.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _nested.is_under_way:
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
