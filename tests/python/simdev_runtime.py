"""The C functions of libsimdev.so (tests/emulator/simdev/vendor/simdev.h), as a library without torch calls them."""

from __future__ import annotations

import ctypes
from typing import Any

import device_bed  # noqa: F401  finds simdev_build


class Runtime:
    """Every function raises RuntimeError with the name of the code that it returns."""

    def __init__(self) -> None:
        from simdev_build import VENDOR

        self._library = ctypes.CDLL(str(VENDOR.file))
        self._library.simdev_error_name.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, f"simdev_{name}")

        def call(*arguments: Any) -> None:
            code = function(*(ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments))
            if code != 0:
                raise RuntimeError(f"simdev_{name}: {self._library.simdev_error_name(code).decode()}")

        return call

    def pointer(self, function: str, *arguments: Any) -> int:
        """Calls a function that writes a pointer through its last argument."""
        made = ctypes.c_void_p()
        getattr(self, function)(*arguments, ctypes.byref(made))
        assert made.value is not None
        return made.value

    def flag(self, function: str, handle: int) -> bool:
        """Calls a function that writes an int through its last argument."""
        answer = ctypes.c_int()
        getattr(self, function)(handle, ctypes.byref(answer))
        return answer.value != 0


def size(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


def word(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)
