"""A test-only accelerator for torch: PrivateUse1 under the name simdev, carried out by the emulator of tests/emulator.

Put tests/emulator into sys.path and import this package after the environment is set (README.md). The device module is
torch.simdev. This package has beside it what tests look at: the reports of the checker and the emulator's streams.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from types import ModuleType

import torch

from simdev_build import DEVICE


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{__name__}._device", DEVICE.file)
    if spec is None or spec.loader is None or not DEVICE.file.exists():
        raise ImportError(f"{DEVICE.file} is missing: run tests/emulator/simdev_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NAME = os.environ.get("SIMDEV_NAME", "simdev")

torch.utils.rename_privateuse1_backend(NAME)
_device = _load()

from . import module  # noqa: E402

torch._register_device_module(NAME, module)
torch.utils.generate_methods_for_privateuse1_backend()

# Its thread would meet an interpreter that is going away.
atexit.register(_device.stop_launch_queue)


def check() -> None:
    """Waits for all devices and raises what went wrong: a failed operator, a missing order, a broken rule of memory."""
    for device in range(_device.device_count()):
        _device.synchronize(device)
    errors = _device.take_errors()
    if errors:
        raise AssertionError(f"{_device.describe()}\n" + "\n".join(errors))
    if _device.report_count():
        raise AssertionError(_device.report_text())


def reports() -> list[str]:
    """Returns the reports of the checker and of the memory rules of what was launched so far, and forgets them."""
    _device.drain_launch_queue()
    lines: list[str] = _device.report_text().splitlines()[1:]
    _device.reset_reports()
    return lines


def hold(stream: torch.Stream) -> None:
    """Nothing that is launched on the stream begins until release()."""
    _device.hold(stream)


def release(stream: torch.Stream) -> None:
    _device.release(stream)


def host_read(tensor: torch.Tensor, what: str) -> None:
    """Tells the checker that this thread reads a pinned tensor, which it cannot see by itself."""
    _device.host_read(tensor.data_ptr(), tensor.nbytes, what)


def host_write(tensor: torch.Tensor, what: str) -> None:
    """Tells the checker that this thread writes a pinned tensor."""
    _device.host_write(tensor.data_ptr(), tensor.nbytes, what)
