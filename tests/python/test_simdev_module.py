"""simdev, the emulated torch device: torch.simdev, training, random numbers, memory, threads, forks."""

from __future__ import annotations

import io
import itertools
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from device_bed import EMULATOR, Schedule, Worlds, build_bound, built, quick_if_random, run_on_device
from selection import quickly
from starter import Started

pytestmark = build_bound

N = 1000


# ---- training ----


def history(device: str) -> list[torch.Tensor]:
    """Returns the losses and the parameters of a small model after some steps."""
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []
    for _ in range(4):
        x, y = torch.randn(8, 12, generator=generator), torch.randint(4, (8,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert next(model.parameters()).device.type == device
    return [t.detach().cpu() for t in (*losses, *model.parameters())]


def training() -> None:
    for ours, theirs in zip(history("simdev"), history("cpu"), strict=True):
        assert torch.equal(ours, theirs)


def backward_on_another_stream() -> None:
    """Autograd runs each backward operator on the stream of its forward operator, and orders the streams itself."""
    side = torch.simdev.Stream()
    x = torch.ones(N, device="simdev", requires_grad=True)
    y = x * 3
    side.wait_stream(torch.simdev.current_stream())
    with torch.simdev.stream(side):
        z = (y * y).sum()
    torch.simdev.current_stream().wait_stream(side)
    z.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [18.0] * N


@quick_if_random
@pytest.mark.parametrize("queue", ["0", "1"], ids=["", "launch-queue"])
def test_training_gives_the_bits_of_the_cpu(fresh_world: Worlds, schedule: Schedule, queue: str) -> None:
    settings = {"SIMDEV_LAUNCH_QUEUE": queue}
    run_on_device(fresh_world, schedule, training, backward_on_another_stream, environment=settings)


# ---- the module ----


def module() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("simdev")
    assert torch.get_device_module("simdev") is torch.simdev
    assert torch.simdev.is_available()
    assert torch.simdev.is_initialized()
    assert torch.simdev.device_count() == torch.accelerator.device_count() == 2
    default, side = torch.simdev.default_stream(), torch.simdev.Stream(priority=-1)
    assert torch.simdev.current_stream() == default
    with torch.simdev.stream(side):
        assert torch.simdev.current_stream() == side
        with torch.simdev.device(1):
            assert torch.simdev.current_device() == 1
            assert torch.simdev.current_stream() == torch.simdev.default_stream(1)
        with torch.simdev.stream(None):
            assert torch.simdev.current_stream() == side
    assert torch.simdev.current_stream() == default
    torch.simdev.set_device("simdev:1")
    assert torch.empty(1, device="simdev").device == torch.device("simdev:1")
    assert torch.simdev.Stream().device == torch.device("simdev:1")
    torch.simdev.set_device(0)
    with torch.simdev.device_of(torch.empty(0, device="simdev:1")):
        assert torch.accelerator.current_device_index() == 1
    t = torch.ones(2).simdev()
    assert t.is_simdev
    assert repr(t) == "tensor([1., 1.], device='simdev:0')"


def copies_of_tensors() -> None:
    t = torch.arange(N, device="simdev", dtype=torch.float32).requires_grad_()
    file = io.BytesIO()
    torch.save({"t": t, "v": t.detach()[2:4]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["t"].device == t.device
    assert loaded["t"].requires_grad
    assert loaded["v"].tolist() == [2, 3]
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu")["t"], t.cpu())
    assert torch.equal(t.detach().clone().view(10, -1).t().contiguous().cpu(), t.detach().cpu().view(10, -1).t())
    storage = t.detach().clone().untyped_storage()
    storage.resize_(0)
    storage.resize_(4 * N)
    grown = torch.ones(4, device="simdev")
    grown.resize_(2, 4)
    assert grown[0].tolist() == [1] * 4


def results_that_depend_on_data() -> None:
    x = torch.arange(6, device="simdev")
    assert torch.nonzero(x > 3).flatten().tolist() == [4, 5]
    assert x[x % 2 == 1].tolist() == [1, 3, 5]
    assert torch.unique(x // 2).tolist() == [0, 1, 2]
    assert torch.equal(x, x.clone())
    out = torch.empty(0, device="simdev", dtype=torch.int64)
    assert torch.cat([x, x], out=out).numel() == 12
    assert torch.add(x, 1, out=torch.empty(6, device="simdev", dtype=torch.int64))[5].item() == 6


def late_errors() -> None:
    """An operator that fails when it runs is reported by check()."""
    import simdev

    table = torch.zeros(4, device="simdev")
    table.index_add_(0, torch.tensor([9], device="simdev"), torch.ones(1, device="simdev"))
    with pytest.raises(AssertionError, match="index_add"):
        simdev.check()
    with pytest.raises(RuntimeError, match="size of tensor"):
        table + torch.zeros(3, device="simdev")


def random_numbers() -> None:
    torch.manual_seed(5)
    a, b = torch.rand(N, device="simdev"), torch.randn(N, device="simdev")
    state = torch.simdev.get_rng_state()
    c = torch.randperm(N, device="simdev")
    torch.simdev.set_rng_state(state)
    assert torch.equal(c, torch.randperm(N, device="simdev"))
    torch.manual_seed(5)
    assert torch.equal(a, torch.rand(N, device="simdev"))
    assert torch.equal(b, torch.randn(N, device="simdev"))
    generator = torch.Generator(device="simdev").manual_seed(3)
    d = torch.rand(N, device="simdev", generator=generator)
    with torch.random.fork_rng(device_type="simdev"):
        torch.rand(N, device="simdev")
    assert torch.equal(d, torch.rand(N, device="simdev", generator=generator.manual_seed(3)))
    assert generator.device == torch.device("simdev:0")


def memory() -> None:
    torch.simdev.empty_cache()
    before, (free, total) = torch.simdev.memory_allocated(), torch.simdev.mem_get_info()
    assert total == 64 << 20
    x = torch.empty(4 << 20, device="simdev", dtype=torch.uint8)
    assert torch.simdev.memory_allocated() == torch.accelerator.memory_allocated() == before + (4 << 20)
    assert torch.simdev.mem_get_info()[0] == free - (4 << 20)
    del x
    assert torch.simdev.memory_allocated() == before
    assert torch.simdev.memory_reserved() >= before + (4 << 20)
    y = torch.empty(63 << 20, device="simdev", dtype=torch.uint8)  # takes the place of cached memory
    with pytest.raises(torch.OutOfMemoryError, match="device 0 has no memory"):
        torch.empty(2 << 20, device="simdev", dtype=torch.uint8)
    del y
    torch.simdev.empty_cache()
    assert torch.simdev.mem_get_info()[0] == free
    assert torch.simdev.max_memory_allocated() >= before + (63 << 20)


def threads() -> None:
    """A thread has a device and streams of its own; an event that it waits for orders it."""
    side = torch.simdev.Stream()
    x = torch.zeros(N, device="simdev")
    event = torch.simdev.Event()
    torch.simdev.set_device(1)
    with torch.simdev.stream(side):
        x_is_ready = torch.simdev.Event()
        x_is_ready.record(torch.simdev.default_stream(0))
        side.wait_event(x_is_ready)
        x += 1
        event.record()
    seen: list[object] = []

    def run() -> None:
        seen.append((torch.simdev.current_device(), torch.simdev.current_stream() == torch.simdev.default_stream()))
        event.synchronize()
        seen.append(x.sum().item())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(0, True), N]
    torch.simdev.set_device(0)


def forks() -> None:
    """A forked process cannot use the device, is told so at once, and ends."""
    x = torch.ones(2, device="simdev")
    assert not torch.simdev._is_in_bad_fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
        child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: torch.zeros(1, device="simdev"), lambda: x + 1, torch.simdev.synchronize):
            try:
                use()
            except RuntimeError as error:
                refused += "spawn" in str(error)
        del x
        os._exit(0 if refused == 3 and torch.simdev._is_in_bad_fork() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert x.sum().item() == 2


IN_FLIGHT = f"""
import sys
sys.path.insert(0, {str(EMULATOR)!r})
import torch, simdev
main, pinned, number = torch.simdev.current_stream(), torch.ones(100).pin_memory(), torch.tensor(2.0)
x = torch.empty(100, device="simdev")
if HELD:
    simdev.hold(main)
x.copy_(pinned, non_blocking=True)
for _ in range(20):
    x = x * number
torch.simdev.Stream().wait_event(main.record_event())
"""


_ENDS = list(itertools.product(("lazy", "eager", "random", "threaded"), ("0", "1"), (False, True)))


@pytest.mark.parametrize("case", quickly([("lazy", "1", True), ("threaded", "0", False)], _ENDS), ids=str)
def test_a_program_may_end_with_work_in_flight(tmp_path: Path, case: tuple[str, str, bool]) -> None:
    schedule, queue, held = case
    built()
    settings = {**os.environ, "EMULATOR_SCHEDULE": schedule, "SIMDEV_LAUNCH_QUEUE": queue}
    with (tmp_path / "errors").open("w+") as errors:
        process = Started(f"HELD = {held}\n{IN_FLIGHT}", settings, errors)
        code = process.wait(60)
        errors.seek(0)
        assert (code, errors.read()) == (0, "")


@quick_if_random
def test_the_module_and_tensors(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, module, copies_of_tensors, results_that_depend_on_data, late_errors)


@quick_if_random
def test_random_numbers_follow_the_order_of_calls(fresh_world: Worlds, schedule: Schedule) -> None:
    run_on_device(fresh_world, schedule, random_numbers, threads)


def test_memory_is_counted_and_bounded(fresh_world: Worlds) -> None:
    run_on_device(fresh_world, Schedule("lazy"), memory, environment={"EMULATOR_MEMORY": "64M"})


@pytest.mark.parametrize("queue", ["0", "1"], ids=["", "launch-queue"])
def test_a_forked_process_is_refused(fresh_world: Worlds, queue: str) -> None:
    run_on_device(fresh_world, Schedule("lazy"), forks, environment={"SIMDEV_LAUNCH_QUEUE": queue})
