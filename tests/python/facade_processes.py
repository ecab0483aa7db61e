"""Runs ranks of a facade in processes of their own, which meet at an id that rank 0 makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

from worker import enter


def _child(
    function: Callable[[bytes, int, int], None],
    make_id: Callable[[], bytes],
    connection: Any,
    rank: int,
    size: int,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    if namespace := environment.get("TEST_NETWORK_NAMESPACE"):
        enter(namespace)
    if rank == 0:
        connection.send_bytes(make_id())
    function(connection.recv_bytes(), rank, size)


def in_processes(
    function: Callable[[bytes, int, int], None],
    make_id: Callable[[], bytes],
    size: int,
    last: int = 0,
    *,
    environments: Sequence[dict[str, str]] = (),
    dying: int = -1,
) -> None:
    """Returns when all have ended without an error, but for the rank `dying`, which the signal `last` has killed. -1 is
    the last rank. Each rank may have variables of its own, among them where it is (network_bed.py)."""
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    variables = environments or [{}] * size
    children = [
        context.Process(target=_child, args=(function, make_id, theirs, rank, size, variables[rank]))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    made = pipes[0][0].recv_bytes()
    for mine, _ in pipes:
        mine.send_bytes(made)
    for child in children:
        child.join(60)
    expected = [0] * size
    expected[dying] = -last
    assert [child.exitcode for child in children] == expected
