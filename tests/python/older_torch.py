"""What older torch lacks, and replacements for functions of Work that it does not bind."""

from __future__ import annotations

import torch
import torch.distributed as dist

KNOWS_CAPTURES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)  # Stream::is_capturing() of c10
WORK_HAS_NUMBER = hasattr(dist.Work, "_get_sequence_number")


def exception_of(work: dist.Work) -> BaseException | None:
    """Returns work.exception(), or the exception of wait() if this torch cannot convert the former to Python."""
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
