"""The options that users pass to torch as pg_options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

LONGEST = timedelta(days=36500)


@dataclass
class Options:
    """Settings of one group; `python -m sagecomm env` lists the names.

        dist.init_process_group("sagecomm", pg_options=sagecomm.Options(settings={"debug": "INFO"}))

    A SAGECOMM_* variable that is set in the environment wins over the setting of the same name.
    """

    timeout: timedelta | None = None
    """Of the rendezvous and of every operation; None takes torch's argument of the same name."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Variable names in lower case without the SAGECOMM_ prefix, and their values as text."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not isinstance(self.timeout, timedelta):
            raise TypeError(f"sagecomm: Options.timeout must be a datetime.timedelta or None, got {self.timeout!r}")
        for name, value in self.settings.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"sagecomm: Options.settings maps text to text, got {name!r}: {value!r}")

    @property
    def _timeout(self) -> timedelta | None:
        """Returns the timeout. Torch's device meshes read this attribute for the groups of a dimension."""
        return self.timeout


def bounded(timeout: timedelta) -> timedelta:
    """Returns the timeout, at most what torch can count: timedelta.max overflows 64 bits of microseconds. The shim
    calls this."""
    return min(timeout, LONGEST)
