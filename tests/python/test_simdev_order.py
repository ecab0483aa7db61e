"""simdev, the emulated torch device: results are right under every schedule, and a missing order is reported."""

from __future__ import annotations

import threading

import torch

from device_bed import Schedule, Worlds, build_bound, quick_if_random, run_on_device

pytestmark = build_bound

N = 1000


def reported(*words: str) -> None:
    """Takes the reports; each word has to be in one report."""
    import simdev

    lines = simdev.reports()
    assert any(all(word in line for word in words) for line in lines), lines


# ---- streams ----


def read_on_another_stream(ordered: str) -> list[float]:
    """A side stream reads what the default stream writes, while the default stream is held up."""
    import simdev

    main, side = torch.simdev.current_stream(), torch.simdev.Stream()
    x = torch.zeros(N, device="simdev")
    main.synchronize()
    simdev.hold(main)
    x += 1
    if ordered == "event":
        event = torch.simdev.Event()
        event.record()
        side.wait_event(event)
    elif ordered == "stream":
        side.wait_stream(main)
    with torch.simdev.stream(side):
        y = x * 2
    assert not main.query()
    simdev.release(main)
    torch.simdev.synchronize()
    return [y.min().item(), y.max().item()]


def missing_wait_is_reported() -> None:
    read_on_another_stream("not")
    reported("aten::mul", "aten::add", "does not wait for")


def waits_order_streams() -> None:
    assert read_on_another_stream("event") == [2, 2]
    assert read_on_another_stream("stream") == [2, 2]


def waits_of_the_host_order_streams() -> None:
    side, event = torch.simdev.Stream(), torch.simdev.Event()
    x = torch.zeros(N, device="simdev")
    torch.simdev.current_stream().synchronize()
    with torch.simdev.stream(side):
        x += 1
        event.record()
    event.synchronize()
    x *= 3
    torch.simdev.synchronize()
    with torch.simdev.stream(side):
        x += 1
    while not side.query():
        pass
    assert (x + 1).tolist() == [5] * N


@quick_if_random
def test_streams_are_ordered_by_waits_only(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, missing_wait_is_reported, waits_order_streams, waits_of_the_host_order_streams)


# ---- events ----


def events() -> None:
    import simdev

    main, side = torch.simdev.current_stream(), torch.simdev.Stream()
    event = torch.simdev.Event()
    assert event.query()  # without a record
    side.wait_event(event)
    x = torch.zeros(N, device="simdev")
    main.synchronize()
    simdev.hold(main)
    x += 1
    event.record()
    assert not event.query()
    side.wait_event(event)
    x += 1
    event.record()  # the wait above is for the first record
    with torch.simdev.stream(side):
        seen = torch.zeros(N, device="simdev")
    del event  # while both records are pending
    simdev.release(main)
    side.synchronize()
    assert seen.sum().item() == 0
    first, last = torch.simdev.Event(enable_timing=True), torch.simdev.Event(enable_timing=True)
    first.record()
    x += 1
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) >= 0
    assert x.sum().item() == 3 * N


def second_record_is_not_waited_for() -> None:
    side, event = torch.simdev.Stream(), torch.simdev.Event()
    x = torch.zeros(N, device="simdev")
    event.record()
    side.wait_event(event)
    x += 1
    event.record()
    with torch.simdev.stream(side):
        _ = x.clone()
    reported("copy", "aten::add", "does not wait for")


@quick_if_random
def test_a_wait_is_for_the_newest_record_before_it(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, events, second_record_is_not_waited_for)


# ---- memory ----


def reuse(recorded: bool) -> float:
    """Gives memory back while a side stream reads it, and writes to the memory that comes next."""
    import simdev

    main, side = torch.simdev.current_stream(), torch.simdev.Stream()
    x = torch.ones(N, device="simdev")
    address = x.data_ptr()
    side.wait_stream(main)
    simdev.hold(side)
    with torch.simdev.stream(side):
        y = x + 1
    if recorded:
        x.record_stream(side)
    del x
    z = torch.full((N,), 7.0, device="simdev")
    assert (z.data_ptr() == address) == (not recorded)
    main.synchronize()
    simdev.release(side)
    side.synchronize()
    del z
    main.wait_stream(side)
    return y.max().item()


def missing_record_stream_is_reported() -> None:
    assert reuse(recorded=False) == 8
    reported("aten::fill_", "aten::add", "does not wait for")


def record_stream_keeps_memory() -> None:
    import simdev

    assert reuse(recorded=True) == 2
    simdev.check()
    # When the side stream has done its work, the memory is there again.
    torch.simdev.synchronize()
    before = torch.simdev.memory_reserved()
    kept = [torch.empty(N, device="simdev") for _ in range(2)]
    assert torch.simdev.memory_reserved() == before
    del kept


def memory_between_threads() -> None:
    """Memory that one thread gives back when it has waited for its use may serve another thread at once."""
    ready, go, addresses = threading.Event(), threading.Event(), []

    def run() -> None:
        torch.simdev.synchronize()  # from here on the thread has a clock of its own
        ready.set()
        go.wait()
        addresses.append(torch.full((N,), 7.0, device="simdev").data_ptr())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    side = torch.simdev.Stream()
    x = torch.ones(N, device="simdev")
    address = x.data_ptr()
    side.wait_stream(torch.simdev.current_stream())
    with torch.simdev.stream(side):
        x += 1
    side.synchronize()
    del x
    go.set()
    thread.join()
    assert addresses == [address]


@quick_if_random
def test_memory_that_is_given_back_early_needs_record_stream(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(
        fresh_world, schedule, missing_record_stream_is_reported, record_stream_keeps_memory, memory_between_threads
    )


# ---- libraries that know c10 only ----


def staged(safe: bool = True) -> None:
    """A copy through pinned memory on a stream of the pool, by c10's generic interface."""
    import simdev

    x = torch.arange(N, dtype=torch.float32, device="simdev")
    y = torch.zeros(N, device="simdev")
    pinned = torch.empty(N, pin_memory=True)
    address = x.data_ptr()
    x += 1
    side = simdev._device.staged_copy(y, x, pinned, safe)
    del x
    z = torch.full((N,), -1.0, device="simdev")
    if not safe:  # the memory is there again at once, and the caller's stream is behind the side stream
        assert z.data_ptr() == address
    assert y.cpu().tolist() == [n + 1.0 for n in range(N)]
    side.synchronize()
    simdev.host_read(pinned, "a read of the staging memory")
    assert pinned[-1].item() == N


def staged_without_record_stream() -> None:
    staged(safe=False)


def staged_by_a_thread_of_the_library() -> None:
    """Such a thread has chosen no device and has no Python state."""
    import simdev

    x = torch.arange(N, dtype=torch.float32, device="simdev:1")
    y, pinned = torch.zeros_like(x), torch.empty(N, pin_memory=True)
    x += 1
    simdev._device.staged_copy_on_thread(y, x, pinned)
    y += 1
    assert y.tolist() == [n + 2.0 for n in range(N)]


def guard() -> None:
    import simdev

    for device in ("simdev:0", "simdev:1"):
        assert simdev._device.guard_faults(torch.device(device)) == ""
    side = torch.simdev.Stream()
    simdev._device.begin_capture(side)
    assert side.is_capturing()
    simdev._device.end_capture(side)
    assert not side.is_capturing()


@quick_if_random
def test_c10s_generic_interface_is_enough_for_a_library(fresh_world: Worlds, schedule: Schedule) -> None:
    functions = (staged, staged_without_record_stream, staged_by_a_thread_of_the_library, guard)
    run_on_device(fresh_world, schedule, *functions)
