"""Messages of the package about what it chose, on the logger "sagecomm"."""

from __future__ import annotations

import functools
import logging
import os


@functools.cache
def logger() -> logging.Logger:
    """Returns the logger. With SAGECOMM_DEBUG=INFO or TRACE its messages go to standard error, as the core's do."""
    log = logging.getLogger("sagecomm")
    if os.environ.get("SAGECOMM_DEBUG", "").strip().upper() in ("INFO", "TRACE") and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("sagecomm: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log
