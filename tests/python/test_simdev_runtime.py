"""simdev's C functions: on streams of their own without torch, and on torch's streams by their native handles."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess

import pytest
import torch

from device_bed import EMULATOR, Schedule, Worlds, build_bound, built, quick_if_random, run_on_device
from simdev_runtime import Runtime, size, word

pytestmark = build_bound

N = 1000
BYTES = 4 * N
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def without_torch(schedule: Schedule) -> None:
    """Runs in a process where nobody imports simdev."""
    rt = Runtime()
    rt.init()
    rt.init()
    count = ctypes.c_int()
    rt.device_count(ctypes.byref(count))
    assert count.value == 2
    with pytest.raises(RuntimeError, match="no_current_device"):
        rt.pointer("malloc", size(4))
    rt.set_device(ctypes.c_int(0))
    device, host = rt.pointer("malloc", size(BYTES)), rt.pointer("malloc_host", size(BYTES))
    flag = rt.pointer("malloc_host", size(4))
    numbers = (ctypes.c_int32 * N).from_address(host)
    flag_word = ctypes.c_uint32.from_address(flag)
    flag_word.value = 0
    first, second, event = rt.pointer("stream_create"), rt.pointer("stream_create"), rt.pointer("event_create")

    # The first stream waits for a flag of the host, the second one for the first.
    rt.stream_wait_value(first, flag, word(7))
    rt.fill_async(device, ctypes.c_int(3), size(BYTES), first)
    rt.event_record(event, first)
    rt.stream_wait_event(second, event)
    rt.copy_async(host, device, size(BYTES), second)
    called: list[int] = []
    function = HOST_FUNCTION(lambda _: called.append(numbers[N - 1]))
    rt.launch_host_function(second, function, None)
    assert not rt.flag("event_query", event)
    assert not rt.flag("stream_query", second)
    flag_word.value = 9  # 9 is behind 7
    rt.stream_synchronize(second)
    assert called == [0x03030303]
    assert set(numbers) == {0x03030303}
    assert rt.flag("event_query", event)
    rt.stream_write_value(first, flag, word(11))
    rt.event_record(event, first)
    rt.event_synchronize(event)
    assert flag_word.value == 11

    with pytest.raises(RuntimeError, match="not_supported"):
        rt.copy_async(host, flag, size(4), first)
    with pytest.raises(RuntimeError, match="invalid_handle"):
        rt.stream_synchronize(None)
    with pytest.raises(RuntimeError, match="invalid_value"):
        rt.copy_async(host, device, size(BYTES + 1), first)
    rt.set_device(ctypes.c_int(1))
    with pytest.raises(RuntimeError, match="wrong_device"):
        rt.copy_async(host, device, size(BYTES), first)
    with pytest.raises(RuntimeError, match="invalid_device"):
        rt.set_device(ctypes.c_int(2))
    rt.set_device(ctypes.c_int(0))
    numbers_of_the_program = (ctypes.c_int32 * N)(*range(N))
    rt.register_host(ctypes.addressof(numbers_of_the_program), size(BYTES))
    rt.copy_async(device, ctypes.addressof(numbers_of_the_program), size(BYTES), first)
    rt.device_synchronize()
    rt.unregister_host(ctypes.addressof(numbers_of_the_program))
    for stream in (first, second):
        rt.stream_destroy(stream)
    rt.event_destroy(event)
    rt.free(device)
    rt.free_host(host)
    rt.free_host(flag)


def on_torchs_streams() -> None:
    rt = Runtime()
    side = torch.simdev.Stream()
    x = torch.zeros(N, dtype=torch.int32, device="simdev")
    pinned = torch.zeros(N, dtype=torch.int32).pin_memory()
    side.wait_stream(torch.simdev.current_stream())
    handle = side.native_handle
    with torch.simdev.stream(side):
        x += 1
        rt.copy_async(pinned.data_ptr(), x.data_ptr(), size(BYTES), side.native_handle)
        x += 1
        side.synchronize()
    assert pinned.tolist() == [1] * N
    assert handle == side.native_handle
    rt.fill_async(x.data_ptr(), ctypes.c_int(1), size(BYTES), side.native_handle)
    torch.simdev.current_stream().wait_stream(side)
    assert (x + 1).tolist() == [0x01010102] * N
    with torch.simdev.device(1), pytest.raises(RuntimeError, match="wrong_device"):
        rt.stream_synchronize(handle)


def unordered_calls_are_reported() -> None:
    import simdev

    rt = Runtime()
    x = torch.zeros(N, device="simdev")
    pinned = torch.zeros(N).pin_memory()
    rt.copy_async(pinned.data_ptr(), x.data_ptr(), size(BYTES), torch.simdev.Stream().native_handle)
    lines = simdev.reports()
    assert any("copy from device to pinned" in line and "does not wait for" in line for line in lines), lines


def test_the_header_is_c() -> None:
    command = [*shlex.split(os.environ.get("CC", "gcc")), *("-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")]
    subprocess.run([*command, str(EMULATOR / "simdev" / "vendor" / "simdev.h")], check=True, timeout=60)


@quick_if_random
def test_a_program_without_torch_uses_streams(fresh_world: Worlds, schedule: Schedule) -> None:
    built()
    settings = {"EMULATOR_SCHEDULE": schedule.name, "EMULATOR_SEED": str(schedule.seed)}
    fresh_world(1, settings).run(without_torch, schedule, backend=None)


@quick_if_random
def test_a_library_uses_native_handles_of_torchs_streams(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, on_torchs_streams, unordered_calls_are_reported)
