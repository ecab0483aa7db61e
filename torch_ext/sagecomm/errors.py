"""Exceptions raised by operations of a group. The native extension raises them; nobody else needs to create one."""

from __future__ import annotations

from typing import Any

from torch.distributed import DistBackendError


class _CollectiveError(DistBackendError):
    """What all four have in common. The message is complete by itself; the attributes are for programs,
    None where they say nothing."""

    rank: int | None  #: the culprit
    host: str | None  #: the host that it runs on
    pid: int | None  #: its process
    op: str | None  #: the operation that was in flight; of a dead rank, the last collective that it began
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
    """A rank died, or left, while it was needed."""


class CollectiveTimeout(_CollectiveError):
    """The operation's time ran out; the message names the ranks that have not arrived."""


class CollectiveMismatch(_CollectiveError):
    """Ranks called different operations; the message names both calls."""


class Aborted(_CollectiveError):
    """abort() was called, here or on another rank, or the group was destroyed under the operation."""


# They read as sagecomm.PeerFailure in tracebacks, the name that users catch them by.
for _error in (PeerFailure, CollectiveTimeout, CollectiveMismatch, Aborted):
    _error.__module__ = "sagecomm"
