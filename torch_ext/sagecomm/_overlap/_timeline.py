"""Draws intervals of time as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from sagecomm._format import duration

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
    parts, y = [_text(LEFT, 20, title, "font-weight='bold'")], HEADER
    for name, intervals in groups.items():
        y += GAP
        parts.append(_text(8, y + 14, name, "font-weight='bold'"))
        y += BAR
        for what, interval in intervals.items():
            parts.append(_text(16, y + 15, what))
            parts += [_text(LEFT, y + 14, "unknown")] if interval is None else _bar(what, *interval, scale, y)
            y += BAR
    y += GAP
    parts.append(f"<line x1='{LEFT}' y1='{y}' x2='{WIDTH - RIGHT}' y2='{y}' stroke='#444444'/>")
    for tick in range(5):
        x = LEFT + tick * (WIDTH - LEFT - RIGHT) / 4
        parts.append(f"<line x1='{x:.1f}' y1='{y}' x2='{x:.1f}' y2='{y + 5}' stroke='#444444'/>")
        parts.append(_text(x, y + 18, duration(tick * longest / 4), "text-anchor='middle'"))
    height = y + 28
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        "font-family='sans-serif' font-size='12'>"
    )
    return "\n".join([head, f"<rect width='{WIDTH}' height='{height}' fill='white'/>", *parts, "</svg>"]) + "\n"


def _bar(what: str, begin: float, end: float, scale: float, y: int) -> list[str]:
    x, width = LEFT + begin * scale, max(1.0, (end - begin) * scale)
    inside = width > 70
    return [
        f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{BAR - 4}' fill='{COLOURS.get(what, '#888888')}'/>",
        _text(x + 4 if inside else x + width + 4, y + 14, duration(end - begin), "fill='white'" if inside else ""),
    ]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y}' {more}>{escape(text)}</text>"
