"""torch.simdev: what torch and its libraries expect of the module of a device."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from . import NAME, _device

_Device = torch.device | str | int | None

_process = os.getpid()


def _index(device: _Device = None) -> int:
    """Returns the index of a device, the current one where none is given."""
    if isinstance(device, int):
        return device
    if device is None:
        return current_device()
    device = torch.device(device)
    if device.type != NAME:
        raise ValueError(f"expected a simdev device, got {device}")
    return current_device() if device.index is None else device.index


# ---- state of the process ----


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def init() -> None:
    """Does nothing: the device is ready when simdev is imported."""


def _lazy_init() -> None:
    """torch calls this before the first use."""


def _is_in_bad_fork() -> bool:
    """Reports whether this process is a fork of the one that imported simdev."""
    return os.getpid() != _process


def device_count() -> int:
    return int(_device.device_count())


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


# ---- the current device ----


def current_device() -> int:
    return int(_device.current_device())


def set_device(device: _Device) -> None:
    _device.set_device(_index(device))


def _exchange_device(device: int) -> int:
    return int(_device.exchange_device(device)) if device >= 0 else -1


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801
    """Context manager: another current device."""

    def __init__(self, device: _Device) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: the device of a tensor, if it is one of simdev's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == NAME else None)


def get_device_name(device: _Device = None) -> str:
    return f"simdev {_index(device)}"


def get_device_capability(device: _Device = None) -> dict[str, Any]:
    return torch.accelerator.get_device_capability(torch.device(NAME, _index(device)))


def synchronize(device: _Device = None) -> None:
    _device.synchronize(_index(device))


# ---- streams and events ----


class Stream(torch.Stream):
    """A new stream of a device."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device(NAME, _index(device)), priority=priority)


class Event(torch.Event):
    """An event. It belongs to the device of the stream that records it first."""

    # elapsed_time() takes no objects of derived classes.
    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event(NAME, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: _Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(torch.device(NAME, _index(device)))


def default_stream(device: _Device = None) -> torch.Stream:
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream the current one of its device. It does not change the current device."""
    if stream is None:
        return
    with device(stream.device):
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager: another current stream and its device, or nothing for None."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._before = current_stream(self.stream.device)
            self._device_before = _exchange_device(self.stream.device.index)
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            torch.accelerator.set_stream(self._before)
            _exchange_device(self._device_before)


def stream(stream: torch.Stream | None) -> StreamContext:
    return StreamContext(stream)


# ---- memory ----


def empty_cache() -> None:
    _device.empty_cache()


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    free, total = _device.memory_info(_index(device))
    return free, total


def memory_stats(device: _Device = None) -> dict[str, Any]:
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device: _Device = None) -> int:
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: _Device = None) -> int:
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: _Device = None) -> int:
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: _Device = None) -> int:
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: _Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


# ---- random numbers ----


def _generator(device: _Device = None) -> torch.Generator:
    generator: torch.Generator = _device.default_generator(_index(device))
    return generator


def manual_seed(seed: int) -> None:
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def seed() -> int:
    return _generator().seed()


def seed_all() -> None:
    manual_seed_all(seed())


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: _Device = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: _Device = None) -> None:
    _generator(device).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)
