"""How shutdown() ends a group: how long it waits, and whether it may raise. The shim calls this."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType

from torch.distributed import distributed_c10d as c10d


class _Nested(threading.local):
    """Whether this thread is in the second call of forget()."""

    is_under_way = False


_nested = _Nested()


def may_wait() -> bool:
    """Returns whether shutdown() may wait for operations on devices as long as they may take. It may not where an
    exception is being handled, or is raised when this call returns, and in exit handlers of the process, which the main
    thread runs when it counts as ended. Other threads may outlive it.
    """
    if _nested.is_under_way or sys.exc_info()[0] is not None:
        return False
    main = threading.main_thread()
    return main.is_alive() or main.ident != threading.get_ident()


def may_raise(forgets: bool) -> bool:
    """Returns whether the failure of a group that has ended may be raised. If an exception is being handled it may not:
    the program goes wrong already, and its own exception must not be replaced. With `forgets`, torch forgets the groups
    before.
    """
    if _nested.is_under_way or sys.exc_info()[0] is not None:
        return False
    return forget() if forgets else True


def _call_once_more(destroy: Callable[[object], None], group: object) -> None:
    # Where a signal handler raises in it, the call is repeated before that is raised. Groups that are shut down return
    # at once then. Anything else comes behind the failure that is about to be raised.
    raised: BaseException | None = None
    for _ in range(100):
        try:
            destroy(group)
            break
        except Exception:
            break
        except BaseException as e:
            raised = raised or e
    if raised is not None:
        raise raised


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
                _call_once_more(FunctionType(code, frame.f_globals), frame.f_locals["group"])
            finally:
                _nested.is_under_way = False
            break
        frame = frame.f_back
    return True
