"""Draws what `python -m sagecomm topo` prints: a box for each part of the host, and accelerators in circles."""

from __future__ import annotations

import math
from typing import Any

from sagecomm import _topo
from sagecomm._svg import document, line, text

_Json = dict[str, Any]

CHARACTER, LINE = 7.3, 17  # of the monospaced font, in pixels
MARGIN, PADDING = 16, 10
COLUMNS = 2  # of boxes
RADIUS, DEVICE = 130, 17  # of the circle, and of an accelerator on it

# The classes of links between accelerators, the closest first: colour and width.
CLASSES = {
    "NVLink": ("#5a9a3a", 3.0),
    "HCCS": ("#b04848", 3.0),
    "MLU-Link": ("#7a58a8", 3.0),
    "PCI switch": ("#4878a8", 1.6),
    "host bridge": ("#9a9a9a", 1.2),
    "socket": ("#c8c8c8", 0.8),
    "not known": ("#d08040", 0.8),
}


def svg(host: _Json) -> str:
    """Returns the picture of a host, as the core describes it."""
    summary = _topo.summary(host)
    parts = [text(MARGIN, 24, _topo.title(host), "font-weight='bold'")]
    parts += [text(MARGIN, 24 + LINE * (i + 1), line) for i, line in enumerate(summary)]
    top = 24.0 + LINE * (len(summary) + 1)
    blocks = _topo.blocks(host)
    columns = [blocks[k::COLUMNS] for k in range(COLUMNS)]
    left, bottom = float(MARGIN), top
    for column in filter(None, columns):
        width = CHARACTER * max(len(line) for name, facts in column for line in (name, *facts)) + 2 * PADDING
        y = top
        for name, facts in column:
            height = LINE * (len(facts) + 1) + 2 * PADDING
            parts += _box(left, y, width, height, name, facts)
            y += height + MARGIN
        left, bottom = left + width + MARGIN, max(bottom, y)
    width = max([left, *(CHARACTER * len(line) + 2 * MARGIN for line in (_topo.title(host), *summary))])
    for mesh in _topo.meshes(host):
        if len(mesh.facts) > 1:
            parts += _links(mesh, bottom)
            bottom += 2 * (RADIUS + DEVICE) + 2 * MARGIN + LINE
            width = max(width, 2 * (RADIUS + DEVICE) + 300)
    return document(math.ceil(width), math.ceil(bottom), parts)


def _box(x: float, y: float, width: float, height: float, name: str, facts: list[str]) -> list[str]:
    frame = f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='#f4f6f8' stroke='#8898a8'/>"
    lines = [text(x + PADDING, y + PADDING + 12, name, "font-weight='bold'")]
    for i, fact in enumerate(facts):
        lines.append(
            text(x + PADDING, y + PADDING + 12 + LINE * (i + 1), fact, "font-family='monospace' xml:space='preserve'")
        )
    return [frame, *lines]


def _links(mesh: _topo.Mesh, top: float) -> list[str]:
    """The accelerators, a line for each pair, and which line means what."""
    x, y = MARGIN + RADIUS + DEVICE, top + LINE + RADIUS + DEVICE + MARGIN
    places = {}
    for place, number in enumerate(mesh.facts):
        angle = 2 * math.pi * place / len(mesh.facts) - math.pi / 2
        places[number] = (x + RADIUS * math.cos(angle), y + RADIUS * math.sin(angle))
    lines: dict[str, list[str]] = {}
    for (a, b), name in mesh.classes.items():
        lines.setdefault(name, []).append(line(*places[a], *places[b], *CLASSES[name]))
    parts = [text(MARGIN, top + LINE, mesh.name, "font-weight='bold'")]
    parts += [each for name in reversed(CLASSES) for each in lines.get(name, [])]  # the closest above the others
    for number, (gx, gy) in places.items():
        parts.append(f"<circle cx='{gx:.1f}' cy='{gy:.1f}' r='{DEVICE}' fill='white' stroke='#444444'/>")
        parts.append(text(gx, gy + 4, str(number), "text-anchor='middle'"))
    at = x + RADIUS + DEVICE + 2 * MARGIN
    for row, name in enumerate(each for each in CLASSES if each in lines):
        height = top + LINE + 2 * MARGIN + LINE * row
        parts.append(line(at, height, at + 30, height, *CLASSES[name]))
        parts.append(text(at + 38, height + 4, name))
    return parts
