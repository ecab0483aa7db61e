"""What the pictures of this package have in common."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns a picture with a white ground."""
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' "
        f"height='{height:g}' font-family='sans-serif' font-size='12'>"
    )
    return "\n".join([head, f"<rect width='{width:g}' height='{height:g}' fill='white'/>", *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Returns a line of text. `more` are attributes."""
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#444444", width: float = 1) -> str:
    """Returns a straight line."""
    ends = f"x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'"
    return f"<line {ends} stroke='{colour}' stroke-width='{width:g}'/>"
