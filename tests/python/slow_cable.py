"""A cable between two namespaces whose frames come later, and of which some are lost: a process that hands frames from
one tap device to another. The kernel's own netem does the same, where a kernel has it.

It is a program, which network_bed.py starts. It makes both devices, prints a line, and ends with its standard input:

    python tests/python/slow_cable.py --delay-ms 20 --loss 0.01 --seed 7 namespace:interface namespace:interface
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
TUNSETIFF = 0x400454CA  # <linux/if_tun.h>
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
LONGEST_FRAME = 65550
QUEUED = 1000  # frames in one direction, as netem's limit; further ones are lost


def enter(namespace: str) -> None:
    """Moves this thread into a network namespace. os.setns came with Python 3.12."""
    with Path("/run/netns", namespace).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), namespace)


def tap(end: str) -> int:
    """Makes a tap device and returns its file, which does not block."""
    namespace, _, interface = end.partition(":")
    enter(namespace)
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI))
    return file


class Direction:
    """What goes from one end to the other."""

    def __init__(self, source: int, destination: int, delay: float, loss: float, lots: random.Random) -> None:
        self.source, self.destination = source, destination
        self._delay, self._loss, self._lots = delay, loss, lots
        self._queue: list[tuple[float, int, bytes]] = []
        self._taken = 0

    def take(self) -> None:
        """Takes the frames that are there."""
        while True:
            try:
                frame = os.read(self.source, LONGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:  # the device is not up yet
                return
            self._taken += 1
            if self._lots.random() >= self._loss and len(self._queue) < QUEUED:
                heapq.heappush(self._queue, (time.monotonic() + self._delay, self._taken, frame))

    def give(self) -> float | None:
        """Hands over what is due. Returns in how many seconds the next frame is, None if there is none."""
        while self._queue:
            due, _, frame = self._queue[0]
            if (left := due - time.monotonic()) > 0:
                return left
            heapq.heappop(self._queue)
            with suppress(OSError):  # the device is down: the cable is pulled
                os.write(self.destination, frame)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Hand frames from one tap device to another, later.")
    parser.add_argument("--delay-ms", type=float, default=0, help="in each direction")
    parser.add_argument("--loss", type=float, default=0, help="the part of the frames that is lost, in each direction")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of frames")
    parser.add_argument("ends", nargs=2, metavar="namespace:interface")
    parsed = parser.parse_args()
    ends = [tap(end) for end in parsed.ends]
    lots = random.Random(parsed.seed)
    ways = [Direction(a, b, parsed.delay_ms / 1e3, parsed.loss, lots) for a, b in (ends, ends[::-1])]
    print("ready", flush=True)
    control = sys.stdin.fileno()
    while True:
        left = [seconds for way in ways if (seconds := way.give()) is not None]
        readable, _, _ = select.select([control, *ends], [], [], min(left, default=None))
        if control in readable:
            return
        for way in ways:
            if way.source in readable:
                way.take()


if __name__ == "__main__":
    main()
