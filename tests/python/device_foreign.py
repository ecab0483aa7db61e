"""What ranks of test_device_foreign.py do with memory of an allocator that is not told of streams."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

import cuda_holds
import fake_cuda
import sagecomm
from device_calls import MINUTE
from device_failures import meet
from device_programs import SUM, N, accelerator, expect, full, main_stream, mine
from device_waits import until
from older_torch import exception_of

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class Allocator:
    """Memory that is given back is at once that of the next caller in its stream, as with a pluggable allocator that
    has no function for record_stream()."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int | None], list[int]] = {}
        self._used = Counter[int]()
        self._functions = ALLOCATE(self._allocate), FREE(self._give_back)
        self._malloc = ctypes.CDLL(None).cudaMalloc
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in self._functions)
        made = torch._C._cuda_customAllocator(*addresses)
        torch._C._cuda_changeCurrentAllocator(made)

    def _allocate(self, size: int, device: int, stream: int | None) -> int | None:
        self._used[size] += 1
        if places := self._free.get((size, stream)):
            return places.pop()
        place = ctypes.c_void_p()
        assert self._malloc(ctypes.byref(place), ctypes.c_size_t(size)) == 0
        return place.value

    def _give_back(self, place: int, size: int, device: int, stream: int | None) -> None:
        self._used[size] -= 1
        self._free.setdefault((size, stream), []).append(place)

    def used(self, size: int) -> int:
        """How many places of a size are in use."""
        return self._used[size]


def rows_of(x: torch.Tensor, strided: bool) -> torch.Tensor:
    return x[:, ::2] if strided else x


def given_back(allocator: Allocator, size: int) -> None:
    """Waits until operations of this rank alone, each of which looks at some of those before it, have given memory of a
    size back. The thread that ends an operation may be late."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    alone, small = groups[dist.get_rank()], full(mine(), 7)

    def none_is_used() -> bool:
        dist.all_reduce(small, group=alone)
        main_stream().synchronize()
        return allocator.used(size) == 0

    until(none_is_used)
    dist.destroy_process_group(alone)


def memory_is_used_again(strided: bool, waits: bool, allocator: Allocator) -> None:
    x = torch.full((N, 2), mine(), device=accelerator())
    torch.accelerator.synchronize()
    rows = rows_of(x, strided)
    work = dist.all_reduce(rows, async_op=True)
    assert work is not None
    until(work.is_success)  # on the host: the stream that writes the rows may not have come there
    size = rows.numel() * rows.element_size()
    if waits:
        other = torch.full(rows.shape, 5.0, device=accelerator())
        work.wait()
        expect(rows, SUM)
    else:
        del x, rows, work
        gc.collect()
        other = torch.full((N, 1) if strided else (N, 2), 5.0, device=accelerator())
    expect(other, 5)
    torch.accelerator.synchronize()
    if strided or not waits:
        del other
        given_back(allocator, size)


def memory_goes_with_the_wait(allocator: Allocator) -> None:
    x = torch.full((3, N), mine(), device=accelerator())
    torch.accelerator.synchronize()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    until(work.is_success)
    size = x.nbytes
    work.wait()
    del x, work
    gc.collect()
    until(lambda: allocator.used(size) == 0)  # no other operation is needed


def another_stream_waits(allocator: Allocator) -> None:
    """Memory goes back to the stream of the call, which has not waited."""
    x = torch.full((11, N), mine(), device=accelerator())
    torch.accelerator.synchronize()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    until(work.is_success)
    with torch.cuda.stream(torch.cuda.Stream()):
        work.wait()
    size = x.nbytes
    del x, work
    gc.collect()
    assert allocator.used(size) == 1, "the device may not have passed the operation"
    other = torch.full((11, N), 5.0, device=accelerator())
    expect(other, 5)
    del other
    torch.accelerator.synchronize()
    given_back(allocator, size)


def memory_of_many_operations(allocator: Allocator) -> None:
    """One recv that goes on holds up nobody's memory."""
    peer, late = 1 - dist.get_rank(), full(0, 9)
    works = [dist.irecv(late, peer)]
    size = 4 * (N + 20)
    for _ in range(20):
        work = dist.all_reduce(full(mine(), N + 20), async_op=True)
        assert work is not None
        until(work.is_success)
        del work
    given_back(allocator, size)
    works.append(dist.isend(full(3, 9), peer))
    for each in works:
        assert each is not None
        each.wait()
    expect(late, 3)


def tensor_gets_other_memory(allocator: Allocator) -> None:
    x = torch.full((7, N), mine(), device=accelerator())
    torch.accelerator.synchronize()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    until(work.is_success)
    size = x.nbytes
    x.data = full(0)
    assert allocator.used(size) == 1, "the device may not have passed the operation"
    del work
    torch.accelerator.synchronize()
    given_back(allocator, size)


@contextlib.contextmanager
def fault(rules: str) -> Iterator[None]:
    library = fake_cuda.emulator()
    assert library.emulator_plan(";".join([rules, os.environ["EMULATOR_FAULTS"]]).encode()) == 0
    try:
        yield
    finally:
        assert library.emulator_plan(os.environ["EMULATOR_FAULTS"].encode()) == 0


def device_is_asked_in_vain(allocator: Allocator) -> None:
    """For a while, as by a capture of another thread. A later look gives the memory back."""
    size = 4 * (N + 30)
    small = full(mine(), 7)
    with fault("cudaEventQuery@1+=#906"):
        work = dist.all_reduce(full(mine(), N + 30), async_op=True)
        assert work is not None
        until(work.is_success)
        del work
        torch.accelerator.synchronize()
        dist.all_reduce(small)
    assert allocator.used(size) == 1
    given_back(allocator, size)


def end_is_unknown(allocator: Allocator) -> None:
    """An operation fails while the device has no event for its end, or refuses to wait for it. Its memory is kept, and
    given back when the device tells."""
    group, size = dist.new_group(), 4 * (N + 40)
    dist.all_reduce(full(mine()), group=group)
    torch.accelerator.synchronize()
    x = full(mine(), N + 40)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        meet("called")
        group.abort()
        meet("it has failed")
        del x
    else:
        work = dist.all_reduce(x, group=group, async_op=True)
        assert work is not None
        with fault("cudaEventCreateWithFlags@1+=out_of_memory;cudaStreamWaitEvent@1+=#906"):
            meet("called")
            until(lambda: exception_of(work) is not None)
            meet("it has failed")
            with pytest.raises(sagecomm.Aborted):
                work.wait()
        del x, work
        gc.collect()
        assert allocator.used(size) == 1, "the device may still use it"
    torch.accelerator.synchronize()
    given_back(allocator, size)
    dist.destroy_process_group(group)


def call_raises_behind_the_issue(allocator: Allocator) -> None:
    """The current stream cannot wait for the outputs, and the device still uses the copy that stands for rows."""
    raised, size = 0, 4 * (N + 50)
    for call in range(1, 9):
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        alone = groups[dist.get_rank()]
        rows = torch.full((N + 50, 2), mine(), device=accelerator())[:, ::2]
        dist.all_reduce(rows, group=alone)
        until(lambda: allocator.used(size) == 0)
        try:
            with fault(f"cudaStreamWaitEvent@{call}=#906"):
                dist.all_reduce(rows, group=alone)
        except torch.AcceleratorError:
            raised += 1
            del rows
            gc.collect()
            other = torch.full((N + 50,), 5.0, device=accelerator())
            expect(other, 5)
            del other
        except dist.DistBackendError:
            pass
        torch.accelerator.synchronize()
        given_back(allocator, size)
        dist.destroy_process_group(alone)
    assert raised, "no call has raised an error of its wait"


def memory_is_taken_away(allocator: Allocator) -> None:
    """As FSDP does, when the device has passed the operation, and no stream of the call waits for it."""
    x = torch.full((5, N), mine(), device=accelerator())
    torch.accelerator.synchronize()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    with torch.cuda.stream(torch.cuda.Stream()):
        work.wait()
    torch.accelerator.synchronize()
    x.untyped_storage().resize_(0)
    y = torch.full((N, 2), mine(), device=accelerator())
    dist.all_reduce(y[:, ::2])
    expect(y[:, ::2], SUM)


PROGRAMS: list[Callable[[Allocator], None]] = [
    memory_goes_with_the_wait,
    another_stream_waits,
    memory_of_many_operations,
    tensor_gets_other_memory,
    device_is_asked_in_vain,
    end_is_unknown,
    call_raises_behind_the_issue,
    memory_is_taken_away,
]


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    allocator = Allocator()
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    dist.all_reduce(full(mine()))
    for strided in (True, False):
        for waits in (True, False):
            memory_is_used_again(strided, waits, allocator)
            cuda_holds.check()
    for program in PROGRAMS:
        program(allocator)
        cuda_holds.check()
    dist.destroy_process_group()
