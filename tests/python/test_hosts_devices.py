"""Tensors of an accelerator in groups over several hosts, through the engine that stages them, on the emulated device
of tests/emulator/simdev."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import device_calls
import device_p2p
from device_bed import Schedule, Worlds
from selection import quickly
from test_device_tensors import checked, ranks
from worlds import World, on_hosts

PROGRAMS: list[Callable[[], Any]] = [
    device_calls.order.producer_is_late,
    device_calls.order.synchronous_call_without_a_wait,
    device_calls.operations,
    device_calls.long_tensors,
    device_p2p.send_of_a_late_producer,
    device_p2p.crossing,
    device_p2p.tags_in_another_order,
]


ONE_EACH, TWO_EACH = (1, 1), (2, 2)  # ranks of each host


@pytest.mark.parametrize("shape", quickly([ONE_EACH], [ONE_EACH, TWO_EACH]), ids=str)
@pytest.mark.parametrize("schedule", quickly([Schedule("lazy")], [Schedule("lazy"), Schedule("random")]), ids=str)
def test_operations_of_two_hosts(fresh_world: Worlds, schedule: Schedule, shape: tuple[int, ...]) -> None:
    def over_hosts(size: int, environment: dict[str, str]) -> World:
        return fresh_world(size, on_hosts(*shape, **environment))

    world = ranks(over_hosts, schedule)
    for program in PROGRAMS:
        world.run(checked, program)
