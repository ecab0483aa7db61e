"""Overlap on tensors of an accelerator, under fake CUDA: results are the CPU's bits, and the emulator's checker finds
no missing order between streams, whatever its schedule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cuda_bed import CudaBed
from device_bed import Schedule
from test_device_training import RUN, compare, needs_cuda, on_the_cpu, under_schedules

__all__ = ["on_the_cpu"]  # a fixture

FUNCTIONS = ["operators", "loops", "scheduled", "hooked", "waited_twice", "measured"]


@needs_cuda
@under_schedules("function", FUNCTIONS, FUNCTIONS)
def test_overlap(cuda_bed: CudaBed, on_the_cpu: Callable[..., list[str]], schedule: Schedule, function: str) -> None:
    compare(cuda_bed, on_the_cpu, 2, schedule, f"device_overlap:{function}")


@needs_cuda
def test_a_wait_that_is_left_out_is_reported(cuda_bed: CudaBed) -> None:
    """The orders that the other tests rely on are seen: reading before wait() fails, whatever the values are."""
    with pytest.raises(AssertionError, match="without an order"):
        cuda_bed.ranks(RUN, 2, "device_overlap:read_too_early", "cuda", EMULATOR_KICK_MS="5")
