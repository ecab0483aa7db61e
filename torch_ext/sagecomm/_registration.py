"""Registers the backend "sagecomm" with torch.distributed."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, overload

import torch
import torch.distributed

from sagecomm.options import LONGEST, Options

NAME = "sagecomm"


def devices() -> list[str]:
    """Returns the types of devices whose tensors groups can take: the CPU and the accelerator that torch was built
    for or that a plugin has registered. It asks no driver, so it neither starts a runtime nor forbids forks, and the
    accelerator may be absent, as with torch's gloo."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


class _Devices(Sequence[str]):
    """devices() as torch reads it when a group is made: a plugin may register its accelerator after this package was
    imported."""

    def __len__(self) -> int:
        return len(devices())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return devices()[index]

    def __repr__(self) -> str:
        return repr(devices())


def register() -> None:
    """Registers the backend. Safe to call again."""
    if not torch.distributed.is_available():
        raise RuntimeError("sagecomm needs torch.distributed, and this torch was built without it")
    from torch.distributed import distributed_c10d as c10d

    if NAME.upper() not in c10d.Backend._plugins:
        atexit.register(_leave)
        # Torch makes a backend the default of the devices that it registers and that have none yet. A group without a
        # name must not become ours because this package was imported before that of an accelerator.
        c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
        c10d.Backend.backend_capability[NAME] = _Devices()  # type: ignore[assignment]  # torch only iterates over it
    # torch attaches a recorder of its own to the groups of backends outside this set, at 2 us an operation and 15 us a
    # barrier. Our groups record in the core. A group with a second backend outside the set keeps torch's recorder,
    # because torch leaves it out only if all backends of the group are in the set. Older torch has no such set.
    self_recording = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if self_recording is not None:
        self_recording.add(NAME)


def _leave() -> None:
    """Leaves all groups, so that peers do not take the end of this process for a failure.

    Exit handlers run in reverse order. This one is registered with the backend's name, before those of most scripts, so
    it runs after them, and they may still use a group.
    """
    native = sys.modules.get("sagecomm._C")  # loaded by the first group
    if native is not None:
        native.shutdown()


def create(dist_options: Any, options: object | None) -> Any:
    """Creates the backend of one group: torch calls it with its own options and the user's pg_options."""
    from sagecomm import _flight, _native

    native = _native.load()
    caller = sys._getframe(1)
    group_desc = _description(caller)
    if options is None:
        options = Options()
    elif isinstance(options, native.Options):  # `options` of another group
        if getattr(options, "enable_reconfigure", False):  # newer torch
            dist_options.enable_reconfigure = True
        group_desc = options.group_desc or group_desc
        options = Options(timeout=options._timeout, settings=options.settings)
    elif isinstance(options, torch._C._distributed_c10d.Backend.Options):
        # A group of several backends has one pg_options for all of them.
        warnings.warn(f"sagecomm takes no notice of pg_options of the backend {options.backend}", stacklevel=2)
        options = Options()
    if not isinstance(options, Options):
        raise TypeError(
            f"sagecomm: pg_options must be a sagecomm.Options, got {type(options).__module__}.{type(options).__name__}"
        )
    named = _devices_named(caller) or [native.device_of(dist_options)]
    served = [device for device in named if _is_served(device)]
    if options.timeout is not None:
        dist_options.timeout = options.timeout
    # timedelta.max overflows 64 bits of microseconds, so torch passes a value far below zero.
    if abs(dist_options.timeout) > LONGEST:
        dist_options.timeout = LONGEST

    _flight.install(native)
    return native.create_backend(dist_options, dict(options.settings), group_desc, served or ["cpu"])


# The functions below read local variables of torch's function that calls `create`, because torch passes them to no
# backend. If a torch has no such variable, they return an empty value.


def _description(caller: FrameType) -> str:
    """Returns the group's description. Torch sets it only after it has made the backend, which is too late for the dump
    of a rank that fails before its first operation: torch's analyser would count that rank to another group."""
    text = caller.f_locals.get("group_desc")
    return text if isinstance(text, str) else ""


def _devices_named(caller: FrameType) -> list[str]:
    """Returns the devices for which a backend string names sagecomm.

    If all devices of a string have the same backend, torch makes one backend, for the first device, and does not name
    the others. Without this function they would show only when their tensors come.
    """
    from torch.distributed import distributed_c10d as c10d

    config = caller.f_locals.get("backend_config")
    if not isinstance(config, c10d.BackendConfig):
        return []
    return [device for device, name in config.get_device_backend_map().items() if name == NAME]


def _is_served(device: str) -> bool:
    """Returns whether the text names a device, and refuses a device that has no sagecomm, as in "xpu:sagecomm".
    `device` comes from the store's prefix, so it may be any text."""
    try:
        known = torch.device(device).type
    except RuntimeError:
        return False
    if known not in devices():
        served = ", ".join(devices())
        raise ValueError(
            f"sagecomm: {device}:{NAME}: there is no sagecomm for {device}, only for {served}; name another backend "
            f"for it, as in cpu:{NAME},{known}:NAME"
        )
    return True
