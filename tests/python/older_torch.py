"""What older torch does not let Python ask a Work."""

from __future__ import annotations

import torch.distributed as dist

WORK_HAS_NUMBER = hasattr(dist.Work, "_get_sequence_number")


def exception_of(work: dist.Work) -> BaseException | None:
    """work.exception(), or what wait() raises where torch cannot convert that to Python."""
    try:
        return work.exception()
    except TypeError:
        pass
    if work.is_completed():
        try:
            work.wait()
        except Exception as error:
            return error
    return None
