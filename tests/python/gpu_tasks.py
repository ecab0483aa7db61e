"""Runs the checks of gpu_check.py beside each other, as many as a GPU has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

Result = tuple[dict[str, Any], list[dict[str, Any]]]  # the row of a check, and those of what it has measured


@dataclass(frozen=True)
class Task:
    """A check, and for how many ranks it counts among those that run together."""

    ranks: int
    run: Callable[[], Result]


def together(tasks: Iterable[Task], room: int) -> Iterator[Result]:
    """Begins tasks in their order, each as soon as those that run leave room for its ranks, or when none runs. Yields
    their results in the order in which they end."""
    waiting = list(tasks)
    running: dict[Future[Result], int] = {}
    with ThreadPoolExecutor(room) as pool:
        while waiting or running:
            while waiting and (not running or sum(running.values()) + waiting[0].ranks <= room):
                task = waiting.pop(0)
                running[pool.submit(task.run)] = task.ranks
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                yield future.result()
