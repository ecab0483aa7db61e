"""Runs functions on simdev, the emulated device of tests/emulator, each in a process of its own for each schedule.

The process that runs the tests never imports simdev: the emulator has one schedule and one seed in a process. A failure
names both; EMULATOR_SEED=n pytest ... begins with the seed n.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  torch's meta kernels import it, which takes seconds: processes are forked with it

from selection import quickly
from worlds import World

EMULATOR = Path(__file__).resolve().parents[1] / "emulator"
sys.path.insert(0, str(EMULATOR))

Worlds = Callable[..., World]


@dataclass(frozen=True)
class Schedule:
    name: str
    seed: int = 1

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}" if self.name == "random" else self.name


FIRST_SEED = int(os.environ.get("EMULATOR_SEED", "1"))
SEEDS = int(os.environ.get("SEEDS", "1"))  # of the random schedule; `make test-streams` runs more
_RANDOM = [Schedule("random", FIRST_SEED + n) for n in range(SEEDS)]
_QUICK = [Schedule("lazy"), _RANDOM[0]]
ALL = [Schedule("lazy"), Schedule("eager"), Schedule("threaded"), *_RANDOM]
# For tests of what calls queue while nothing that they need runs.
ONE_SEED = [each for each in ALL if each not in _RANDOM[1:]]


def cases_of(few: int, many: int) -> range:
    """The seeds of cases that a seed draws, such as the moment at which a rank dies: many under `make test-streams`."""
    return range(1, 1 + (many if "SEEDS" in os.environ else few))


def deaths(
    sizes: Sequence[int], schedules: Sequence[str], seeds: range, quick: Sequence[tuple[int, str, int]]
) -> pytest.MarkDecorator:
    """Parametrizes a test of the last rank's death by `size`, `schedule` and the seed of the moment. Each size meets
    each schedule once, at moments that take turns; under `make test-streams` it does at all moments."""
    pairs = list(itertools.product(sizes, schedules))
    if "SEEDS" in os.environ:
        cases = [(*pair, seed) for pair in pairs for seed in seeds]
    else:
        cases = [(*pair, seeds[n % len(seeds)]) for n, pair in enumerate(pairs)]
    cases += [case for case in quick if case not in cases]
    rows = [
        pytest.param(*case, id="-".join(map(str, case)), marks=() if case in quick else pytest.mark.long)
        for case in cases
    ]
    return pytest.mark.parametrize(("size", "schedule", "seed"), rows)


# For tests that run under one order of the host and one random one, unless SEEDS is set.
FEW = [Schedule("lazy"), *(_RANDOM if "SEEDS" in os.environ else _RANDOM[:1])]

# For tests that run under one order, unless SEEDS is set.
lazily = pytest.mark.parametrize("schedule", [Schedule("lazy"), *(_RANDOM if "SEEDS" in os.environ else [])], ids=str)

# A test under these runs for each schedule. `make test` leaves out most of them, or all but one where another test has
# the same order under the other one, or where it is the device itself that is tested.
under_schedules = pytest.mark.parametrize("schedule", quickly(_QUICK, ALL), ids=str)
quick_if_lazy = pytest.mark.parametrize("schedule", quickly(_QUICK[:1], ALL), ids=str)
quick_if_random = pytest.mark.parametrize("schedule", quickly(_QUICK[1:], ALL), ids=str)


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


def by_turns(
    what: str, values: Sequence[Any], kept: Sequence[Any] | None = None, schedules: Sequence[Schedule] = ALL
) -> pytest.MarkDecorator:
    """Parametrizes a test by `what` and by the schedule. `make test` runs each value, or those in `kept`, under one of
    its schedules, which take turns: both are checked, but not all pairs of them."""
    quick = list(zip(values if kept is None else kept, itertools.cycle(_QUICK), strict=False))
    rows = [
        pytest.param(*pair, id=f"{_name(pair[0])}-{pair[1]}", marks=() if pair in quick else pytest.mark.long)
        for pair in itertools.product(values, schedules)
    ]
    return pytest.mark.parametrize((what, "schedule"), rows)


# The first test builds the device, on a busy machine for longer than a test may take.
build_bound = pytest.mark.timeout(900)


@cache
def built() -> None:
    """Brings the device up to date. The first time takes some minutes."""
    from simdev_build import build_device

    build_device()


def run_on_device(
    worlds: Worlds, schedule: Schedule, *functions: Callable[[], Any], environment: dict[str, str] | None = None
) -> None:
    """Calls functions of module level, one after the other, in a new process.

    A function that leaves reports of the checker or errors of operators behind fails.
    """
    built()
    settings = {"EMULATOR_SCHEDULE": schedule.name, "EMULATOR_SEED": str(schedule.seed), **(environment or {})}
    worlds(1, settings).run(_in_process, settings, functions, backend=None)


def _in_process(settings: dict[str, str], functions: tuple[Callable[[], Any], ...]) -> None:
    import simdev

    for function in functions:
        try:
            function()
            simdev.check()
        except Exception as error:
            what = f"{function.__name__} under {settings}: {type(error).__name__}: {error}"
            raise AssertionError(what) from error
