"""simdev's launch queue on the host: calls on a native handle that was kept overtake launches, and are reported."""

from __future__ import annotations

import ctypes

import pytest
import torch

import test_simdev_copies as copies
import test_simdev_order as order
from device_bed import Schedule, Worlds, build_bound, quick_if_random, run_on_device
from simdev_runtime import Runtime, size

pytestmark = build_bound

N = 1000
BYTES = 4 * N
QUEUE = {"SIMDEV_LAUNCH_QUEUE": "1"}


def kept_handle() -> None:
    import simdev

    rt, main = Runtime(), torch.simdev.current_stream()
    x, pinned = torch.zeros(N, device="simdev"), torch.empty(N, pin_memory=True)
    kept = main.native_handle
    rt.copy_async(pinned.data_ptr(), x.data_ptr(), size(BYTES), kept)  # legal: nothing was launched since
    main.synchronize()
    simdev.check()
    x += 1
    rt.copy_async(pinned.data_ptr(), x.data_ptr(), size(BYTES), kept)
    lines = simdev.reports()
    assert any("copy from device to pinned" in line and "aten::add" in line for line in lines), lines


def fresh_handle() -> None:
    rt, main = Runtime(), torch.simdev.current_stream()
    x, pinned = torch.zeros(N, device="simdev"), torch.empty(N, pin_memory=True)
    for value in range(1, 4):
        x += 1
        rt.copy_async(pinned.data_ptr(), x.data_ptr(), size(BYTES), main.native_handle)
        main.synchronize()
        assert pinned.tolist() == [value] * N
    rt.fill_async(x.data_ptr(), ctypes.c_int(0), size(BYTES), main.native_handle)
    x += 1  # behind what is on the native handle
    assert x.tolist() == [1] * N


def late_query() -> None:
    """An event is incomplete while its record is in the queue, and the queue moves on for those who ask again."""
    import simdev

    assert simdev._device.launch_queue_enabled()
    x, event = torch.zeros(N, device="simdev"), torch.simdev.Event()
    torch.simdev.synchronize()
    x += 1
    event.record()
    queries = 1
    while not event.query():
        queries += 1
    assert queries > 1
    assert torch.simdev.current_stream().query()


def errors_come_later() -> None:
    """A call that fails when it leaves the queue is raised by whoever drains it."""
    import simdev

    main = torch.simdev.current_stream()
    a, b = torch.simdev.Event(), torch.simdev.Event()
    a.record()
    b.record()
    main.synchronize()
    simdev._device.push_failing_call("a call that fails")
    with pytest.raises(RuntimeError, match="an entry of the launch queue failed: a call that fails"):
        main.synchronize()
    main.synchronize()


def without_anybody_asking() -> None:
    """Host memory shows that the queue and the streams go on by themselves after a while."""
    x, pinned = torch.ones(N, device="simdev"), torch.zeros(N).pin_memory()
    pinned.copy_(x, non_blocking=True)
    last = ctypes.c_float.from_address(pinned.data_ptr() + BYTES - 4)
    while last.value != 1:
        pass
    torch.simdev.synchronize()


@quick_if_random
def test_a_native_handle_is_good_until_the_next_launch(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, fresh_handle, kept_handle, errors_come_later, environment=QUEUE)


@quick_if_random
def test_the_rules_of_order_hold_with_the_queue(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(
        fresh_world,
        schedule,
        *(order.missing_wait_is_reported, order.waits_order_streams, order.waits_of_the_host_order_streams),
        *(order.events, order.memory_between_threads),
        *(order.second_record_is_not_waited_for, order.missing_record_stream_is_reported),
        *(order.record_stream_keeps_memory, order.staged, order.guard, order.staged_by_a_thread_of_the_library),
        *(copies.copies_with_pinned_memory, copies.early_read, copies.early_write, copies.blocking_copies),
        *(copies.ranges, copies.pinned_memory_is_kept, copies.two_devices),
        environment=QUEUE,
    )


def test_a_query_is_false_while_a_record_is_in_the_queue(fresh_world: Worlds) -> None:
    run_on_device(fresh_world, Schedule("lazy"), late_query, environment={**QUEUE, "EMULATOR_KICK_MS": "0"})


def test_the_queue_moves_on_by_itself(fresh_world: Worlds) -> None:
    run_on_device(fresh_world, Schedule("lazy"), without_anybody_asking, environment=QUEUE)
