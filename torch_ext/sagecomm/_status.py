"""python -m sagecomm status: asks the processes of this host that use sagecomm how their groups are doing.

Each process listens on an abstract Unix socket (internal/statussock in the core) and answers whoever connects as the
same user, or root, with one JSON document. The answer has of every rank what that rank has put into shared memory, so a
rank that was stopped, or has died, is in the answers of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagecomm._format import about, columns, many

PREFIX = "sagecomm-status-"
TIMEOUT_S = 2.0
MOST_BYTES = 64 << 20
_LONGEST_COMMAND = 160
_LISTENS = 0x10000  # __SO_ACCEPTCON in /proc/net/unix


@dataclass(frozen=True)
class Command:
    """What the system says of a process; None where it says nothing."""

    line: str | None
    started: float | None  # seconds since the epoch
    job: str | None  # what its launcher calls the job, and where its store is


@dataclass(frozen=True)
class Answer:
    """Of one process; `status` is None where it does not answer."""

    pid: int
    status: dict[str, Any] | None
    command: Command | None = None


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
            connection.settimeout(TIMEOUT_S)
            connection.connect("\0" + name)
            # Any user can take the name of a socket: what counts is who answers on it.
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            here, owner, _ = struct.unpack("3i", credentials)  # the number that the process has in this namespace
            if owner != uid:
                return Answer(pid, None)
            text, deadline = bytearray(), time.monotonic() + TIMEOUT_S
            while (part := connection.recv(1 << 16)) and len(text) < MOST_BYTES and time.monotonic() < deadline:
                text += part
        told = json.loads(text)
        groups([Answer(pid, told)])  # whether it is what it should be
        return Answer(pid, told, command_of(here))
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
    engine: str = ""  # of operations on devices


def groups(answers: Iterable[Answer]) -> list[Group]:
    """Groups of one name are the same if they have the same members."""
    found: dict[tuple[Any, ...], Group] = {}
    for answer in answers:
        for told in (answer.status or {}).get("groups", []):
            members = tuple((rank["host"], rank["pid"]) for rank in told["ranks"])
            group = found.setdefault(
                (told["group"], members),
                Group(told["group"], told["desc"], list(told["ranks"]), None, set(), told.get("engine", "")),
            )
            for rank in told["ranks"]:
                _ = rank["rank"], rank["global_rank"], rank["state"], rank["issued"]
                if "device" in rank:
                    _ = rank["device"]["state"], rank["device"]["issued"]
            group.ranks[told["rank"]] = told["ranks"][told["rank"]]  # nobody knows a rank better than itself
            group.failure = group.failure or told.get("failure")
            group.answered.add(told["rank"])
    return list(found.values())


def behind(group: Group) -> list[int]:
    """Ranks that the others wait for in the host lane."""
    return _behind({rank["rank"]: rank for rank in group.ranks})


def on_devices(group: Group) -> dict[int, dict[str, Any]]:
    """Where the ranks are in the device lane. Empty if no rank has used it."""
    return {rank["rank"]: rank["device"] for rank in group.ranks if "device" in rank}


def behind_on_devices(group: Group) -> list[int]:
    """Ranks that the others wait for in the device lane: if all have called, those whose streams are late."""
    positions = on_devices(group)
    late = [rank for rank, position in positions.items() if position["state"] == "late"]
    return _behind(positions) or (late if any(p["state"] in ("in", "failed") for p in positions.values()) else [])


def _behind(positions: dict[int, dict[str, Any]]) -> list[int]:
    """Ranks that have begun fewer collectives in a lane, while somebody is inside one."""
    here = {rank: position for rank, position in positions.items() if position["state"] != "left"}
    most = max((position["issued"] for position in here.values()), default=0)
    waiting = any(p["state"] in ("in", "late", "failed") and p["issued"] == most for p in here.values())
    return [rank for rank, position in here.items() if waiting and position["issued"] < most]


def command_of(pid: int, proc: Path = Path("/proc")) -> Command:
    """Requires: pid is the number of the process in this namespace; 0 is one that it has none in."""
    line = started = job = None
    with contextlib.suppress(OSError, LookupError, ValueError):
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        line = " ".join(word.decode(errors="replace") for word in words) or None
        ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
        (boot,) = re.findall(r"^btime (\d+)$", (proc / "stat").read_text(), re.MULTILINE)
        started = int(boot) + ticks / os.sysconf("SC_CLK_TCK")
        pairs = (proc / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        job = _job(dict(pair.split("=", 1) for pair in pairs if "=" in pair))
    return Command(line, started, job)


def _job(environment: dict[str, str]) -> str | None:
    facts = []
    for launcher, name in (("torchrun", "TORCHELASTIC_RUN_ID"), ("Slurm", "SLURM_JOB_ID")):
        if environment.get(name, "none") != "none":
            facts.append(f"{launcher} {environment[name]}")
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        facts.append(f"store at {environment['MASTER_ADDR']}:{environment['MASTER_PORT']}")
    return ", ".join(facts) or None


@dataclass
class Job:
    """Processes that have groups with each other."""

    groups: list[Group]
    answers: list[Answer]


def jobs(answers: Sequence[Answer]) -> list[Job]:
    """Processes of one job are those that groups join, directly or through others; one without a group is alone."""
    found: list[tuple[set[tuple[str, int]], Job]] = []
    for group in groups(answers):
        members = {(rank["host"], rank["pid"]) for rank in group.ranks}
        together = [each for each in found if each[0] & members]
        found = [each for each in found if not each[0] & members]
        job = Job([*(g for _, each in together for g in each.groups), group], [])
        found.append((members.union(*(each[0] for each in together)), job))
    for answer in answers:
        # One that does not answer is known by its number alone.
        host = (answer.status or {}).get("host")
        of = [job for known, job in found if any(pid == answer.pid and host in (None, where) for where, pid in known)]
        if of:
            of[0].answers.append(answer)
        else:
            found.append(({(str(host), answer.pid)}, Job([], [answer])))
    return sorted((job for _, job in found), key=lambda job: min((a.pid for a in job.answers), default=0))


def as_json(answers: Sequence[Answer]) -> str:
    return json.dumps([dataclasses.asdict(answer) for answer in answers])


def watch(every: float, in_json: bool) -> None:
    """Prints the status again and again until it is interrupted; on a terminal in place of the last one."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and not in_json else ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            answers = collect()
            now = time.strftime("%H:%M:%S")
            print(as_json(answers) if in_json else f"{clear}{now}\n{text(answers)}\n", flush=True)
            time.sleep(every)


def text(answers: Sequence[Answer]) -> str:
    """For people."""
    if not answers:
        return "no process of this user on this host uses sagecomm (in this network namespace)"
    now = time.time_ns()
    lines: list[str] = []
    for job in jobs(answers):
        lines += ["", *_title(job)] if lines else _title(job)
        lines += [
            f"pid {answer.pid} does not answer{_process_state(answer.pid)}"
            for answer in job.answers
            if answer.status is None
        ]
        for group in job.groups:
            lines += ["", *_described(group, now)]
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)


def _title(job: Job) -> list[str]:
    """Which job it is, and its processes with their commands."""
    commands = [(answer.pid, answer.command) for answer in job.answers if answer.command is not None]
    if not commands:
        return []
    name = next((command.job for _, command in commands if command.job), None) or f"of pid {commands[0][0]}"
    rows = [("pid", "started", "command")]
    for pid, command in commands:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(command.started)) if command.started else "?"
        line = command.line or "?"
        rows.append((str(pid), when, line if len(line) <= _LONGEST_COMMAND else line[: _LONGEST_COMMAND - 3] + "..."))
    return [f"job {name}, {many(len(job.answers), 'process', 'processes')} here", *columns(rows)]


def _described(group: Group, now: int) -> list[str]:
    """A group, rank by rank."""
    lines = [f'group "{group.name}" ({group.description}), {many(len(group.ranks), "rank")}']
    rows = [("rank", "global", "host", "pid", "state", "for", "operation", "waits for")]
    for rank in group.ranks:
        process = "" if rank["rank"] in group.answered else _process_state(rank["pid"])
        who = (str(rank["rank"]), str(rank["global_rank"]), rank["host"], str(rank["pid"]))
        rows.append((*who, *_position(rank, process, now)))
    lines += columns(rows)
    lines += _named("behind", behind(group))
    if positions := on_devices(group):
        lines.append(f"  on devices, engine {group.engine}")
        table = [("rank", "state", "for", "operation", "waits for")]
        for rank in group.ranks:
            if rank["rank"] in positions:
                process = "" if rank["rank"] in group.answered else _process_state(rank["pid"])
                table.append((str(rank["rank"]), *_position(positions[rank["rank"]], process, now)))
        lines += columns(table)
        lines += _named("behind on devices", behind_on_devices(group))
    if group.failure:
        lines.append(f"  failed: {group.failure['message']}")
    return lines


def _position(position: dict[str, Any], process: str, now: int) -> tuple[str, str, str, str]:
    """State, for how long, operation, and what it waits for."""
    since = about((now - position["since_ns"]) / 1e9) if "since_ns" in position else ""
    waits = f"rank {position['waits_for']}" if "waits_for" in position else ""
    if position["state"] == "late":
        waits = "its own stream"
    operation = " and ".join(filter(None, [position.get("op", "none yet"), position.get("message")]))
    return position["state"] + process, since, operation, waits


def _named(what: str, ranks: list[int]) -> list[str]:
    return [f"  {what}: {', '.join(f'rank {rank}' for rank in ranks)}"] if ranks else []


def _process_state(pid: int) -> str:
    """What the system says of a process, where its number means the same here."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return {"T": " (stopped)", "t": " (traced)", "Z": " (ended)", "D": " (in the kernel)"}.get(letter, "")
