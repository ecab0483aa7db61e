"""What ranks of test_device_foreign.py do with memory of an allocator that is not told of streams."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter

import torch
import torch.distributed as dist

import cuda_holds
from device_calls import MINUTE
from device_programs import SUM, N, accelerator, expect, full, mine
from device_waits import until

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
    small = full(mine(), 7)
    torch.accelerator.synchronize()
    for _ in range(4):  # the next operations give back what the device has passed
        dist.all_reduce(small)
        torch.accelerator.synchronize()
    if strided or not waits:
        del other
        assert allocator.used(size) == 0, "memory is kept"


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
    assert allocator.used(size) == 0, "no other operation is needed"


def memory_is_taken_away() -> None:
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


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    allocator = Allocator()
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size, timeout=MINUTE)
    dist.all_reduce(full(mine()))
    for strided in (True, False):
        for waits in (True, False):
            memory_is_used_again(strided, waits, allocator)
            cuda_holds.check()
    memory_goes_with_the_wait(allocator)
    memory_is_taken_away()
    dist.destroy_process_group()
