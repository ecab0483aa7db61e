"""`pytest --share=0.4`: of the long cases of a test with many, run a part that a seed draws.

The matrices of the long tests, such as programs by schedules, repeat one promise in many cases. CI runs a part of each
matrix, another one each time, so that all cases run within a few changes. pytest prints the seed first, and DRAW_SEED=n
draws the same cases again.
"""

from __future__ import annotations

import math
import os
import random

import pytest

SEED = (
    "DRAW_SEED"  # in the environment, so that the workers of xdist draw with the seed of the process that starts them
)
FEWEST = 2  # a test with no more long cases runs all of them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=float, default=1.0, help="the part of the long cases of each test that runs, of 1")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--share") < 1:
        os.environ.setdefault(SEED, str(random.SystemRandom().randrange(1_000_000)))


def pytest_report_header(config: pytest.Config) -> str | None:
    share = config.getoption("--share")
    return f"{share:.0%} of the long cases of each test, drawn with {SEED}={os.environ[SEED]}" if share < 1 else None


def drawn(names: list[str], share: float, seed: str) -> set[str]:
    """Returns which of the cases of one test run: their share rounded up, and FEWEST at least."""
    names = sorted(names)
    count = max(min(FEWEST, len(names)), math.ceil(share * len(names)))
    return set(random.Random(f"{seed} {names[0]}").sample(names, count))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--share")
    if share >= 1:
        return
    matrices: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    left_out = {name for names in matrices.values() for name in set(names) - drawn(names, share, os.environ[SEED])}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
