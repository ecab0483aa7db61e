"""Ranks of torch's tests on devices of fake CUDA, if the variable SUITE_DEVICES says how many.

Torch's tests ask for devices while they are imported. A process that has called CUDA cannot fork ranks, so until a rank
begins the answers come from here and not from the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils._triton

DEVICES = int(os.environ.get("SUITE_DEVICES", "0"))

_asked: list[tuple[Any, str, Callable[..., Any]]] = []  # functions that ask the driver


def _answer(module: Any, name: str, answer: Callable[[], object]) -> None:
    _asked.append((module, name, getattr(module, name)))
    setattr(module, name, answer)


if DEVICES:
    import fake_cuda

    for _module in (torch.cuda, torch.accelerator):
        _answer(_module, "is_available", lambda: True)
        _answer(_module, "device_count", lambda: DEVICES)
    torch.utils._triton.has_triton = lambda **_: False  # nothing compiles kernels for these devices
    if "LD_PRELOAD" not in os.environ:
        preload = [Path(each) for each in os.environ.get("SUITE_PRELOAD", "").split() if each]
        os.environ.update(
            fake_cuda.environment(devices=DEVICES, preload=preload)
        )  # for processes that begin from here on


def begin() -> None:
    """Lets this process, a rank, use the devices."""
    if DEVICES:
        for module, name, function in _asked:
            setattr(module, name, function)
        fake_cuda.install()
