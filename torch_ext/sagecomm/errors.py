"""Exceptions raised by operations of a group. The native extension creates them."""

from __future__ import annotations

from typing import Any

from torch.distributed import DistBackendError


class _CollectiveError(DistBackendError):
    """The base of all four. The message is complete by itself; the attributes are for programs. An unknown attribute is
    None."""

    rank: int | None  #: the rank that caused the error
    host: str | None  #: the host that it runs on
    pid: int | None  #: its process
    op: str | None  #: the operation in flight; of a dead rank its last one, or that of the rank that lost its link
    sequence: int | None  #: its number in the group, from 1
    group: str | None  #: the group's name

    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        host: str | None = None,
        pid: int | None = None,
        op: str | None = None,
        sequence: int | None = None,
        group: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.pid = pid
        self.op = op
        self.sequence = sequence
        self.group = group

    def __reduce__(self) -> tuple[Any, ...]:
        message = str(self.args[0]) if self.args else ""
        return type(self), (message, self.rank, self.host, self.pid, self.op, self.sequence, self.group)


class PeerFailure(_CollectiveError):
    """A rank died or left while an operation needed it."""


class CollectiveTimeout(_CollectiveError):
    """The operation's timeout has passed. The message names the missing ranks."""


class CollectiveMismatch(_CollectiveError):
    """Ranks called different operations. The message names both calls."""


class Aborted(_CollectiveError):
    """abort() was called, here or on another rank, or the group was destroyed under the operation."""


# Tracebacks show them as sagecomm.PeerFailure, the name by which users catch them.
for _error in (PeerFailure, CollectiveTimeout, CollectiveMismatch, Aborted):
    _error.__module__ = "sagecomm"
