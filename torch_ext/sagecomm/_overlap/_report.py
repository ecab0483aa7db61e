"""What measure_overlap() has measured, and what follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sagecomm._format import columns, duration
from sagecomm._overlap import _timeline
from sagecomm._overlap._formula import Hidden, hidden

Interval = tuple[float, float]
"""From and to, in seconds."""


@dataclass(frozen=True)
class Times:
    """Seconds of one way to run: over all repetitions of the time of the slowest rank."""

    median: float
    p90: float


@dataclass(frozen=True)
class OverlapReport:
    """How much of the communication is hidden behind computing. Times are in seconds, medians of the slowest rank.

    With T_comp = compute, T_ov = overlappable, T_comm = communicate and T = overlapped:
    serial = T_comp + T_ov + T_comm; hidden fraction = (serial - T) / T_comm; at most min(T_comm, T_ov) / T_comm can be
    hidden; efficiency = hidden fraction / that bound. Where T_comm is 0, there is nothing to hide: all three are 0.
    """

    compute: Times
    """Of the computation that the communication needs."""
    overlappable: Times
    """Of the computation that does not need the communication."""
    communicate: Times
    """Of the communication, with nothing beside it."""
    overlapped: Times
    """Of everything, with the overlappable computation during the communication."""
    compute_inside: float
    """Of the overlappable computation during the communication."""
    communicate_inside: float | None
    """Of the communication during the computation, its issue included. None: its end is unknown, because the handle
    does not tell."""
    intervals: dict[str, Interval | None]
    """Of one overlapped repetition on this rank, the one whose time is the median: from and to, by what ran. None: the
    end is unknown."""
    device: str
    """Of this rank, that computes: `cpu`, or an accelerator such as `cuda:0`, whose events the times are from."""
    ranks: int
    threads: int
    """That compute, in each rank."""
    processors: int
    """That this process may run on."""
    repetitions: int
    backend: str

    @property
    def serial(self) -> float:
        """The seconds that all parts take one after the other."""
        return self.compute.median + self.overlappable.median + self.communicate.median

    @property
    def hidden_fraction(self) -> float:
        """The share of the communication that takes no time of its own. It is negative if overlapping is a loss, and 0
        if the communication takes no time."""
        return self._hidden.fraction

    @property
    def bound(self) -> float:
        """The largest possible hidden fraction: min(T_comm, T_ov) / T_comm. 0 if the communication takes no time."""
        return self._hidden.bound

    @property
    def efficiency(self) -> float:
        """The hidden fraction as a share of what is possible. 0 if nothing is: the bound is 0."""
        return self._hidden.efficiency

    @property
    def _hidden(self) -> Hidden:
        return hidden(
            self.overlapped.median,
            communicate=self.communicate.median,
            overlappable=self.overlappable.median,
            before=self.compute.median,
        )

    @property
    def compute_interference(self) -> float:
        """By which share computing takes longer during the communication. 0 if it takes no time alone."""
        return self.compute_inside / self.overlappable.median - 1 if self.overlappable.median > 0 else 0.0

    @property
    def communicate_interference(self) -> float | None:
        """By which share communicating takes longer during the computation. 0 if it takes no time alone, None if its
        end during the computation is unknown."""
        if self.communicate_inside is None:
            return None
        return self.communicate_inside / self.communicate.median - 1 if self.communicate.median > 0 else 0.0

    @property
    def speedup(self) -> float:
        """The serial time divided by the measured one. 1 if nothing took time."""
        return self.serial / self.overlapped.median if self.overlapped.median > 0 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """All measured and derived numbers, as JSON has them."""
        names = ("serial", "hidden_fraction", "bound", "efficiency", "speedup")
        interference = ("compute_interference", "communicate_interference")
        return {**asdict(self), **{name: getattr(self, name) for name in (*names, *interference)}}

    def json(self) -> str:
        """The same as `as_dict()`, as JSON."""
        return json.dumps(self.as_dict())

    def table(self) -> str:
        """A table for people."""
        times = {
            "T_comp    compute": self.compute,
            "T_ov      overlappable": self.overlappable,
            "T_comm    communicate": self.communicate,
            "T         overlapped": self.overlapped,
        }
        rows = [("", "median", "p90")]
        rows += [(name, duration(t.median), duration(t.p90)) for name, t in times.items()]
        rows.append(("serial = T_comp + T_ov + T_comm", duration(self.serial), ""))
        communicating = self.communicate_interference
        shares = [
            ("hidden fraction = (serial - T) / T_comm", f"{self.hidden_fraction:.0%}"),
            ("bound = min(T_comm, T_ov) / T_comm", f"{self.bound:.0%}"),
            ("efficiency = hidden fraction / bound", f"{self.efficiency:.0%}"),
            ("speedup = serial / T", f"{self.speedup:.2f}"),
            ("interference, computing", f"{self.compute_interference:+.0%}"),
            ("interference, communicating", "unknown" if communicating is None else f"{communicating:+.0%}"),
        ]
        setting = (
            f"{self.backend}, {self.device}, {self.ranks} ranks x {self.threads} computing threads on "
            f"{self.processors} processors, {self.repetitions} repetitions"
        )
        advice = []
        if self.device == "cpu" and self.ranks * self.threads >= self.processors:
            advice.append("computing threads occupy all processors: only waiting can be hidden")
        return "\n".join([setting, *columns(rows, range(1, 3)), *columns(shares, range(1, 2)), *advice])

    def save_timeline(self, path: str | Path) -> None:
        """Writes a picture of one overlapped repetition, below the same work one after the other, as SVG."""
        serial: dict[str, Interval | None] = {}
        at = 0.0
        for name in ("compute", "overlappable", "communicate"):
            begin, at = at, at + getattr(self, name).median
            serial[name] = (begin, at)
        title = f"{self.hidden_fraction:.0%} of the communication hidden, {self.efficiency:.0%} of what is possible"
        Path(path).write_text(_timeline.svg(title, {"one after the other": serial, "overlapped": self.intervals}))
