"""Types of the command line's arguments. What is no such argument is refused with what is expected instead."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
P2P = ("send", "recv")
LENGTHS = [8, 64, 256, *(1 << n for n in range(10, 27))]  # that tune measures: 8 B to 64 MiB
MOST_RANKS = 512  # of a group on one host: algo/plan's MaxSize
PICTURES = (".png", ".svg", ".pdf")

# K and KiB are 1024, KB is 1000, as GNU coreutils have it; SAGECOMM_TUNE and other variables know the first alone.
_POWERS = {None: 0, "K": 1, "M": 2, "G": 3}
_SIZES = "expected bytes, as in 8, 64K, 1MiB or 100MB (K and KiB are 1024, KB is 1000)"


def collective(text: str) -> str:
    if text not in COLLECTIVES:
        near = difflib.get_close_matches(text, COLLECTIVES, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no collective{meant} (there are {', '.join(COLLECTIVES)})")
    return text


def operation(text: str) -> str:
    return text if text in P2P else collective(text)


def collectives(text: str) -> list[str]:
    return [collective(name) for name in text.split(",")]


def size(text: str) -> int:
    """Bytes: "100MB", "64KiB", "1M", "8"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMG])(I?B)?|B)?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: {_SIZES}")
    return int(float(match[1]) * (1000 if match[3] == "B" else 1024) ** _POWERS[match[2]])


def sizes(text: str) -> list[int]:
    """A list, or a range in steps of four times as much: "8,64KiB", "8-100MB"."""
    return _several(text, size, 4)


def whole(text: str, least: int = 0) -> int:
    """A number that the core can hold: from `least` to 2^31 - 1."""
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else -1
    if not least <= number < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least} to {(1 << 31) - 1}")
    return number


def positive(text: str) -> int:
    return whole(text, 1)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0.1 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 or more")
    return number


def counts(text: str) -> list[int]:
    """Numbers of hosts or ranks: "512", "64,512", "1-8192", which is in steps of twice as many."""
    return _several(text, whole, 2)


def _several(text: str, one: Callable[[str], int], factor: int) -> list[int]:
    if "-" not in text:
        return [one(part) for part in text.split(",")]
    parts = [one(part) for part in text.split("-")]
    if len(parts) != 2 or not 1 <= parts[0] <= parts[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a range from 1 or more to as many or more, as in 8-64")
    return list(_steps(parts[0], parts[1], factor))


def _steps(first: int, last: int, factor: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= factor
    yield last


def lengths(text: str) -> list[int]:
    """Of tensors that tune measures, which are of float32."""
    found = sizes(text)
    for number in found:
        if number < 4 or number % 4:
            raise argparse.ArgumentTypeError(f"{number} bytes: expected a multiple of 4, of float32 numbers")
    return found


def sizes_of_groups(text: str) -> list[int]:
    """Numbers of ranks that tune starts. What cannot be a group is refused before a process is started."""
    found = counts(text)
    for number in found:
        if number < 2:
            raise argparse.ArgumentTypeError(
                f"a group of {number} has nothing to choose between: expected 2 to {MOST_RANKS} ranks"
            )
        if number > MOST_RANKS:
            raise argparse.ArgumentTypeError(f"a group has at most {MOST_RANKS} ranks, not {number}")
    return found


def powers() -> list[int]:
    """2, 4, 8, as far as each rank has a processor."""
    return [n for n in (2, 4, 8) if n <= max(2, len(os.sched_getaffinity(0)))]


def picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text}: expected a file name that ends in {', '.join(PICTURES)}")
    return path


def is_launched() -> bool:
    """Report whether torchrun, or another launcher, has started this process as one of several ranks."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
