"""Draws intervals of time as SVG."""

from __future__ import annotations

from collections.abc import Mapping

from sagecomm._format import duration
from sagecomm._svg import document, line, text

Intervals = Mapping[str, tuple[float, float] | None]
"""None: it is not known when that was."""

WIDTH, LEFT, RIGHT = 800, 150, 30
BAR, GAP, HEADER = 22, 6, 34
COLOURS = {"compute": "#4878a8", "overlappable": "#6aa86a", "communicate": "#d08040"}


def svg(title: str, groups: Mapping[str, Intervals]) -> str:
    """Returns a picture with one bar for each interval, in seconds, and all groups on the same scale."""
    known = [interval for intervals in groups.values() for interval in intervals.values() if interval is not None]
    longest = max((end for _, end in known), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = [text(LEFT, 20, title, "font-weight='bold'")], HEADER
    for name, intervals in groups.items():
        y += GAP
        parts.append(text(8, y + 14, name, "font-weight='bold'"))
        y += BAR
        for what, interval in intervals.items():
            parts.append(text(16, y + 15, what))
            parts += [text(LEFT, y + 14, "unknown")] if interval is None else _bar(what, *interval, scale, y)
            y += BAR
    y += GAP
    parts.append(line(LEFT, y, WIDTH - RIGHT, y))
    for tick in range(5):
        x = LEFT + tick * (WIDTH - LEFT - RIGHT) / 4
        parts.append(line(x, y, x, y + 5))
        parts.append(text(x, y + 18, duration(tick * longest / 4), "text-anchor='middle'"))
    height = y + 28
    return document(WIDTH, height, parts)


def _bar(what: str, begin: float, end: float, scale: float, y: int) -> list[str]:
    x, width = LEFT + begin * scale, max(1.0, (end - begin) * scale)
    inside = width > 70
    return [
        f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{BAR - 4}' fill='{COLOURS.get(what, '#888888')}'/>",
        text(x + 4 if inside else x + width + 4, y + 14, duration(end - begin), "fill='white'" if inside else ""),
    ]
