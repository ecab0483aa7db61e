"""Upper bounds of times, which hold on a machine that is not overloaded."""

from __future__ import annotations

import os
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
MUCH_PRESSURE = 50.0  # percent of the last 10 s in which somebody waited for a processor


def kept(took: float, bound_s: float, what: str = "it") -> None:
    """Prints a time that exceeds its bound, and fails if it exceeds three times the bound. While processes wait for
    processors (/proc/pressure/cpu) it allows more, but less than a group's timeout."""
    text = f"{what} took {took:.2f} s, {bound_s:g} s are promised"
    assert took < most(bound_s), text
    if took >= bound_s:
        print(text)


def most(bound_s: float) -> float:
    try:
        overloaded = float(PRESSURE.read_text().split("avg10=")[1].split()[0]) > MUCH_PRESSURE
    except (OSError, IndexError, ValueError):  # a kernel without pressure figures
        overloaded = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
    return (15 if overloaded else 3) * bound_s
