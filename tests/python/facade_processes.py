"""Runs ranks of a facade in processes of their own, which meet at an id that rank 0 makes."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any


def _child(
    function: Callable[[bytes, int, int], None], make_id: Callable[[], bytes], connection: Any, rank: int, size: int
) -> None:
    if rank == 0:
        connection.send_bytes(make_id())
    function(connection.recv_bytes(), rank, size)


def in_processes(
    function: Callable[[bytes, int, int], None], make_id: Callable[[], bytes], size: int, last: int = 0
) -> None:
    """Returns when all have ended without an error, but for the last rank, which the given signal has killed."""
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    children = [
        context.Process(target=_child, args=(function, make_id, theirs, rank, size))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    made = pipes[0][0].recv_bytes()
    for mine, _ in pipes:
        mine.send_bytes(made)
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * (size - 1) + [-last]
