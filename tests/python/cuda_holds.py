"""Holds streams of CUDA, emulated or real, and looks for errors that a program does not see.

A held stream of a real GPU waits for a word in pinned memory (`by_words`). If the program does not release it within
EXPIRES_S, a timer does, so that a program that makes the host wait for a held stream fails and does not hang.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

import torch

import fake_cuda
from cuda_bed import emulated

EXPIRES_S = 20.0
_WORDS = 1 << 14  # a word is used once: a stream may look at it after it was released

by_words = not emulated()

_held: dict[torch.Stream, tuple[int, threading.Timer]] = {}  # the word and the timer
_expired: list[str] = []
_next = iter(range(_WORDS))


def handle(stream: torch.Stream) -> int:
    found = torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    return int(found.cuda_stream)


def _on_its_device(change: Callable[[torch.Stream], None]) -> Callable[[torch.Stream], None]:
    """The default streams of all devices have one handle, which is that of the current device."""

    @functools.wraps(change)
    def changed(stream: torch.Stream) -> None:
        with torch.cuda.device(stream.device_index):
            change(stream)

    return changed


@_on_its_device
def hold(stream: torch.Stream) -> None:
    """Nothing that is launched on the stream begins until it is released."""
    if not by_words:
        assert fake_cuda.emulator().emulator_hold(handle(stream)) == 0
        return
    words, place, native = _words(), next(_next), handle(stream)
    address = ctypes.c_uint64(words.data_ptr() + 4 * place)
    failed = _driver().cuStreamWaitValue32_v2(ctypes.c_void_p(native), address, 1, 0)
    assert failed == 0, f"cuStreamWaitValue32 returned {failed}"
    timer = threading.Timer(EXPIRES_S, _expire, [stream])
    timer.daemon = True
    _held[stream] = (place, timer)
    timer.start()


@_on_its_device
def release(stream: torch.Stream) -> None:
    if not by_words:
        assert fake_cuda.emulator().emulator_release_stream(handle(stream)) == 0
    elif (held := _held.pop(stream, None)) is not None:
        held[1].cancel()
        _words()[held[0]] = 1


def check() -> None:
    """Waits for the device. Raises what the emulator has found, or that a stream was not released in time."""
    if emulated():
        fake_cuda.check()
    torch.cuda.synchronize()
    if _expired:
        raise AssertionError(_expired.pop())


def _expire(stream: torch.Stream) -> None:
    held = _held.pop(stream, None)
    if held is not None:
        _expired.append(f"the host waited {EXPIRES_S:.0f} s for a stream that it was to release")
        _words()[held[0]] = 1


@functools.cache
def _words() -> torch.Tensor:
    return torch.zeros(_WORDS, dtype=torch.int32).pin_memory()


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
