"""Selects the cases of a matrix that `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def quickly(kept: Sequence[Any], cases: Iterable[Any]) -> list[Any]:
    """Returns all cases. Those that are not in `kept` get the mark `long`."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in cases]
