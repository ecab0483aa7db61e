"""Programs of random operations in groups that overlap (random_programs.py), from fixed seeds."""

from __future__ import annotations

import pytest

import random_programs
from selection import quickly

PROGRAMS, AT_A_TIME = 80, 5


@pytest.mark.parametrize("first", quickly([0], range(0, PROGRAMS, AT_A_TIME)))
def test_random_programs(pool, first):
    failed = list(random_programs.failures(pool, range(first, first + AT_A_TIME)))
    assert not failed, "\n\n".join(f"program {seed} failed:\n{text}" for seed, text in failed)
