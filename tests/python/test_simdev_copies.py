"""simdev, the emulated torch device: copies with the host and between devices."""

from __future__ import annotations

import pytest
import torch

from device_bed import Schedule, Worlds, build_bound, quick_if_random, run_on_device

pytestmark = build_bound

N = 1000


def copies_with_pinned_memory() -> None:
    """non_blocking=True queues the copy; it reads its source when it runs."""
    import simdev

    main = torch.simdev.current_stream()
    device, pinned = torch.zeros(N, device="simdev"), torch.zeros(N).pin_memory()
    assert pinned.is_pinned()
    assert not torch.zeros(1).is_pinned()
    main.synchronize()
    simdev.hold(main)
    device.copy_(pinned, non_blocking=True)
    pinned.fill_(5)  # before the copy runs, which is what a missing wait of the host allows
    device += 1
    pinned_out = torch.full((N,), -1.0).pin_memory()
    pinned_out.copy_(device, non_blocking=True)
    assert pinned_out[0].item() == -1
    assert not main.query()
    simdev.release(main)
    main.synchronize()
    assert pinned_out.tolist() == [6.0] * N


def early_access_of_the_host(write: bool) -> None:
    import simdev

    device, pinned = torch.ones(N, device="simdev"), torch.zeros(N).pin_memory()
    if write:
        device.copy_(pinned, non_blocking=True)
        simdev.host_write(pinned, "early write")
        word = "early write"
    else:
        pinned.copy_(device, non_blocking=True)
        simdev.host_read(pinned, "early read")
        word = "early read"
    lines = simdev.reports()
    assert len(lines) == 1, lines
    assert word in lines[0]
    assert f"{4 * N} bytes" in lines[0]
    torch.simdev.synchronize()
    (simdev.host_write if write else simdev.host_read)(pinned, "access after the wait")


def blocking_copies() -> None:
    """Everything else with the host is complete when the call returns."""
    import simdev

    device = torch.arange(12, dtype=torch.float32).to("simdev").view(3, 4)
    pinned = torch.empty(3, 4).pin_memory()
    pinned.copy_(device)
    simdev.host_read(pinned, "read after a blocking copy")
    assert pinned.tolist() == device.tolist()
    source = torch.ones(N)
    on_device = source.to("simdev", non_blocking=True)  # pageable: read before the call returns
    source.fill_(9)
    assert on_device.sum().item() == N
    into = torch.empty(4, 3, dtype=torch.float64)
    into.copy_(device.t(), non_blocking=True)
    assert into.tolist() == torch.arange(12.0).view(3, 4).t().tolist()
    strided = torch.zeros(4, 6, device="simdev")[:, ::2]
    strided.copy_(torch.arange(12, dtype=torch.int64).view(4, 3))
    assert strided.tolist() == torch.arange(12.0).view(4, 3).tolist()
    device.copy_(torch.tensor([1.0, 2, 3, 4]))  # expands
    assert device.tolist() == [[1, 2, 3, 4]] * 3
    z = torch.tensor([1 + 2j, 3 - 1j]).to("simdev")
    assert z.conj().cpu().tolist() == [1 - 2j, 3 + 1j]
    assert z.conj().imag.cpu().tolist() == [-2, 1]


def ranges() -> None:
    """The checker sees which bytes a copy or an operator uses, also of views."""
    import simdev

    side = torch.simdev.Stream()
    x = torch.zeros(4, N, device="simdev")
    side.wait_stream(torch.simdev.current_stream())
    x[:2] += 1
    x[2:, : N // 2] += 1
    pinned = torch.empty(2, N).pin_memory()
    with torch.simdev.stream(side):
        x[2:, N // 2 :].mul_(2)
    torch.simdev.synchronize()
    simdev.check()
    with torch.simdev.stream(side):
        pinned.copy_(x[2:], non_blocking=True)
    x[3, -1:].add_(1)
    lines = simdev.reports()
    assert len(lines) == 1, lines
    assert "4 bytes at offset" in lines[0]


def pinned_memory_is_kept() -> None:
    """Pinned memory that is given back while a copy uses it is not used for something else."""
    import simdev

    main = torch.simdev.current_stream()
    device = torch.zeros(N, device="simdev")
    main.synchronize()
    simdev.hold(main)
    pinned = torch.ones(N).pin_memory()
    address = pinned.data_ptr()
    device.copy_(pinned, non_blocking=True)
    del pinned
    other = torch.full((N,), 3.0).pin_memory()
    assert other.data_ptr() != address
    simdev.release(main)
    assert device.sum().item() == N
    again = torch.empty(N, pin_memory=True)
    assert again.data_ptr() == address


def two_devices() -> None:
    x = torch.arange(N, dtype=torch.float32, device="simdev:1")
    x += 1
    y = x.to("simdev:0")  # ordered on both devices
    x += 1
    y += 1
    assert torch.equal(y.cpu(), torch.arange(float(N)) + 2)
    z = y * 2
    y.copy_(x)  # behind the read above
    assert torch.equal(z.cpu(), 2 * (torch.arange(float(N)) + 2))
    assert torch.equal(y.cpu(), x.cpu())
    assert torch.simdev.current_device() == 0
    side = torch.simdev.Stream(device="simdev:1")
    side.wait_stream(torch.simdev.current_stream(1))
    with torch.simdev.stream(side):
        assert torch.simdev.current_device() == 1
        z = x * 2
        w = z.to("simdev:0")
    assert torch.equal(w.cpu(), 2 * (torch.arange(float(N)) + 2))
    view = torch.zeros(N, 2, device="simdev:0")[:, 0]
    view.copy_(x)
    assert torch.equal(view.cpu(), x.cpu())


def wrong_devices() -> None:
    here, there = torch.zeros(4, device="simdev:0"), torch.zeros(4, device="simdev:1")
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(RuntimeError, match="same device"):
        here.add_(torch.ones(4))
    assert (here + torch.tensor(1.0)).sum().item() == 4  # a single number of the CPU is legal
    with pytest.raises(RuntimeError, match="no device 7"):
        torch.zeros(1, device="simdev:7")
    event = torch.simdev.Event()
    event.record(torch.simdev.current_stream(0))
    with pytest.raises(RuntimeError, match="device"):
        event.record(torch.simdev.current_stream(1))
    with pytest.raises(RuntimeError, match="generator of simdev"):
        torch.rand(2, device="simdev", out=here[:2], generator=torch.Generator())


def early_read() -> None:
    early_access_of_the_host(write=False)


def early_write() -> None:
    early_access_of_the_host(write=True)


@quick_if_random
def test_copies_with_pinned_memory_do_not_wait(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, copies_with_pinned_memory, early_read, early_write, pinned_memory_is_kept)


@quick_if_random
def test_other_copies_with_the_host_are_complete(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, blocking_copies, ranges)


@quick_if_random
def test_copies_between_devices_are_ordered_on_both(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, two_devices, wrong_devices)
