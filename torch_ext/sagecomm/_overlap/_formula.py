"""How much of a communication is hidden, from times of any origin: the one definition that the library measures by."""

from __future__ import annotations

from typing import NamedTuple


class Hidden(NamedTuple):
    """What hidden() returns. All are parts of 1."""

    fraction: float
    """The part of the communication that costs no time. Negative if overlapping is a loss."""
    bound: float
    """The largest part that could be hidden."""
    efficiency: float
    """The fraction, against the bound."""


def hidden(measured: float, *, communicate: float, overlappable: float, before: float = 0.0) -> Hidden:
    """Returns which part of a communication is hidden behind a computation.

    One after the other, everything takes before + overlappable + communicate; what is saved of that is hidden. At most
    min(communicate, overlappable) / communicate can be. A communication that takes no time has nothing to hide, and
    beside a computation that takes none nothing can be hidden: then the fraction, or the efficiency, is 0.

    Args:
        measured: The time of everything, overlapped. All times have the same unit.
        communicate: The time of the communication alone.
        overlappable: The time of the computation that does not need the communication, alone.
        before: The time of the computation that the communication needs, alone.
    """
    if communicate <= 0:
        return Hidden(0.0, 0.0, 0.0)
    fraction = (before + overlappable + communicate - measured) / communicate
    bound = min(communicate, overlappable) / communicate
    return Hidden(fraction, bound, fraction / bound if bound > 0 else 0.0)
