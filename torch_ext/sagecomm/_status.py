"""python -m sagecomm status: asks the processes of this host that use sagecomm how their groups are doing.

Each process listens on an abstract Unix socket (internal/statussock in the core) and answers whoever connects as the same
user, or root, with one JSON document. It says of every rank what that rank has put into shared memory, so a rank that
was stopped, or has died, is in the answers of the others.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "sagecomm-status-"
PATIENCE_S = 2.0
MOST_BYTES = 64 << 20
_LISTENS = 0x10000  # __SO_ACCEPTCON in /proc/net/unix


@dataclass(frozen=True)
class Answer:
    """Of one process; `status` is None where it does not answer."""

    pid: int
    status: dict[str, Any] | None


def sockets(table: Path = Path("/proc/net/unix")) -> list[str]:
    """Names of the sockets that listen for this question, as this user may ask them."""
    mine = re.compile(rf"@({PREFIX}{'[0-9]+' if os.geteuid() == 0 else os.geteuid()}-[0-9]+(?:-[0-9]+)?)$")
    found = []
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        name = mine.match(fields[-1])
        if name is not None and int(fields[3], 16) & _LISTENS:
            found.append(name[1])
    return sorted(found)


def ask(name: str) -> Answer:
    uid, pid = (int(number) for number in name[len(PREFIX) :].split("-")[:2])
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect("\0" + name)
            # Any user can take the name of a socket: what counts is who answers on it.
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] != uid:
                return Answer(pid, None)
            text, deadline = bytearray(), time.monotonic() + PATIENCE_S
            while (part := connection.recv(1 << 16)) and len(text) < MOST_BYTES and time.monotonic() < deadline:
                text += part
        told = json.loads(text)
        groups([Answer(pid, told)])  # whether it is what it should be
        return Answer(pid, told)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Answer(pid, None)


def collect() -> list[Answer]:
    answers = [ask(name) for name in sockets()]
    # The socket of a process that has ended is kept by those that were forked from it.
    return [answer for answer in answers if answer.status is not None or Path(f"/proc/{answer.pid}").exists()]


@dataclass
class Group:
    """One group, put together from what its members say."""

    name: str
    description: str
    ranks: list[dict[str, Any]]  # as seen by a process that answered; its own line where that is one of them
    failure: dict[str, Any] | None
    answered: set[int]  # ranks


def groups(answers: Iterable[Answer]) -> list[Group]:
    """Groups of one name are the same if they have the same members."""
    found: dict[tuple[Any, ...], Group] = {}
    for answer in answers:
        for told in (answer.status or {}).get("groups", []):
            members = tuple((rank["host"], rank["pid"]) for rank in told["ranks"])
            group = found.setdefault(
                (told["group"], members), Group(told["group"], told["desc"], list(told["ranks"]), None, set())
            )
            for rank in told["ranks"]:
                _ = rank["rank"], rank["global_rank"], rank["state"], rank["issued"]
            group.ranks[told["rank"]] = told["ranks"][told["rank"]]  # nobody knows a rank better than itself
            group.failure = group.failure or told.get("failure")
            group.answered.add(told["rank"])
    return list(found.values())


def behind(group: Group) -> list[int]:
    """Ranks that the others wait for: those that have begun fewer collectives, while somebody is inside one."""
    here = [rank for rank in group.ranks if rank["state"] not in ("left",)]
    most = max((rank["issued"] for rank in here), default=0)
    waiting = any(rank["state"] in ("in", "failed") and rank["issued"] == most for rank in here)
    return [rank["rank"] for rank in here if waiting and rank["issued"] < most]


def text(answers: Sequence[Answer]) -> str:
    """For people."""
    if not answers:
        return "no process of this user on this host uses sagecomm (in this network namespace)"
    lines = []
    for answer in answers:
        if answer.status is None:
            lines.append(f"pid {answer.pid} does not answer{_process_state(answer.pid)}")
    now = time.time_ns()
    for group in groups(answers):
        title = f'group "{group.name}" ({group.description}), {_many(len(group.ranks), "rank")}'
        lines += ["", title] if lines else [title]
        rows = [("rank", "global", "host", "pid", "state", "for", "operation", "waits for")]
        for rank in group.ranks:
            state = rank["state"] + ("" if rank["rank"] in group.answered else _process_state(rank["pid"]))
            operation = " and ".join(filter(None, [rank.get("op", "none yet"), rank.get("message")]))
            waits = f"rank {rank['waits_for']}" if "waits_for" in rank else ""
            since = _duration((now - rank["since_ns"]) / 1e9) if "since_ns" in rank else ""
            row = (str(rank["rank"]), str(rank["global_rank"]), rank["host"], str(rank["pid"]), state, since)
            rows.append((*row, operation, waits))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for cells_of in rows:
            cells = (cell.ljust(width) for cell, width in zip(cells_of, widths, strict=True))
            lines.append(("  " + "  ".join(cells)).rstrip())
        if missing := behind(group):
            lines.append(f"  behind: {', '.join(f'rank {rank}' for rank in missing)}")
        if group.failure:
            lines.append(f"  failed: {group.failure['message']}")
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{max(seconds, 0) * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _process_state(pid: int) -> str:
    """What the system says of a process, where its number means the same here."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return {"T": " (stopped)", "t": " (traced)", "Z": " (ended)", "D": " (in the kernel)"}.get(letter, "")
