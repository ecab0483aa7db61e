"""Builds the test device simdev: `python tests/emulator/simdev_build.py` for the torch of the running interpreter.

Beside the emulator and the operators it makes libsimdev.so, which has C functions for programs without torch
(simdev/vendor/simdev.h), and the torch extension. Nothing of it goes into the wheel.
"""

from __future__ import annotations

import sys
import sysconfig

from build import BuildError, Library, build, sources

VENDOR = Library("simdev", "libsimdev.so", sources("simdev/vendor"), needs=["emulator"])
DEVICE = Library(
    "simdev_device",
    f"simdev/_device{sysconfig.get_config_var('EXT_SUFFIX')}",
    sources("simdev/device"),
    needs=["emulator", "operators"],
    flags=["-fvisibility=hidden"],
    link=["c10", "torch_cpu", "torch_python"],
    torch=True,
)


def build_device() -> None:
    """Brings everything up to date that a process with the device loads."""
    build([VENDOR.name, DEVICE.name], extra=[VENDOR, DEVICE])


if __name__ == "__main__":
    try:
        build_device()
    except BuildError as failure:
        sys.exit(str(failure))
