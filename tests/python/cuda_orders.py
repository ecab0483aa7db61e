"""Programs with a missing order, and their correct forms, for test_fake_cuda_orders.py."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import torch

import fake_cuda

SIZE = 4096


def copy_of_producer(correct: bool) -> None:
    """A copy on a side stream reads what the current stream writes."""
    source, copied = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    source.fill_(7)
    if correct:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copied.copy_(source, non_blocking=True)
    side.synchronize()


def reuse_of_memory(correct: bool) -> None:
    """The allocator gives memory to the current stream that a side stream still reads."""
    side = torch.cuda.Stream()
    source, copied = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copied.copy_(source, non_blocking=True)
    if correct:
        source.record_stream(side)
    address = source.data_ptr()
    del source
    again = torch.empty(SIZE, device="cuda")
    assert correct or again.data_ptr() == address
    again.fill_(2)
    side.synchronize()


def read_of_slot(correct: bool) -> None:
    """The CPU reads a pinned slot that a copy fills."""
    slot = torch.zeros(SIZE, pin_memory=True)
    source = torch.ones(SIZE, device="cuda")
    slot.copy_(source, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    if correct:
        copied.synchronize()
    fake_cuda.host_read(slot, "the reader of the slot")
    torch.cuda.synchronize()


PROGRAMS: list[Callable[[bool], None]] = [copy_of_producer, reuse_of_memory, read_of_slot]


def reports(correct: bool) -> dict[str, list[str]]:
    """The reports of each program."""
    found = {}
    for program in PROGRAMS:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        fake_cuda.reset()
        program(correct)
        found[program.__name__] = fake_cuda.report().strip().splitlines()[1:]
    return found


def threads() -> None:
    """Four threads add to tensors on random streams that wait for each other. Each value is checked at the end."""
    failures: list[str] = []

    def work(number: int) -> None:
        choices = random.Random(number)
        for turn in range(10):
            value, expected = torch.zeros(257, device="cuda"), 0
            last = torch.cuda.current_stream()
            for _ in range(12):
                stream = choices.choice([torch.cuda.Stream(), torch.cuda.current_stream()])
                stream.wait_stream(last)
                with torch.cuda.stream(stream):
                    if choices.random() < 0.5:
                        value.add_(1)
                        expected += 1
                    else:
                        copied = torch.empty_like(value)
                        copied.copy_(value, non_blocking=True)
                        value.record_stream(stream)
                        value = copied
                last = stream
            torch.cuda.current_stream().wait_stream(last)
            value.record_stream(torch.cuda.current_stream())
            if not value.cpu().eq(expected).all():
                failures.append(f"thread {number}, turn {turn}: {value[0].item()} instead of {expected}")

    started = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures, failures[0]
    fake_cuda.check()
