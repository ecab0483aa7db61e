"""Which calls of CUDA's driver wait while a stream waits for a word, and what other threads cannot do meanwhile, on a
machine with a GPU of NVIDIA: `python tests/python/gpu_waits.py`. Under fake CUDA it shows what the emulated driver
does. docs/devices.md has what was found."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

# What waits on driver 580.159.04. To make a stream does now and then, so it is not in the list.
WAIT = {"cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuIpcCloseMemHandle", "cuModuleLoadData"}
SOON_S, BOUND_S = 0.5, 20.0  # until a call of WAIT counts as one that waits, and another one
BYTES = 1 << 20
PORTABLE, MAPPED, NON_BLOCKING, NO_TIMING, LAZY_PEERS = 1, 2, 1, 2, 1
PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry compute(
.param .u64 compute_param_0
)
.maxntid 1, 1, 1
{
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [compute_param_0];
cvta.to.global.u64 %rd2, %rd1;
st.global.u32 [%rd2], 7;
ret;
}
"""


class Property(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Handle(ctypes.Structure):  # CUipcMemHandle
    _fields_ = (("bytes", ctypes.c_byte * 64),)


class Driver:
    """The driver with the primary context of device 0. Its methods raise RuntimeError where a call fails."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.use()
        self.memory, self.pinned = self.allocate(), self.pin()

    def use(self) -> None:
        """Makes the context that of this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} returned {status}")

    def made(self, kind: Any, name: str, *arguments: Any) -> Any:
        """The result of a call that writes it to its first parameter."""
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result

    def allocate(self) -> Any:
        return self.made(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(BYTES))

    def pin(self) -> Any:
        return self.made(ctypes.c_void_p, "cuMemHostAlloc", ctypes.c_size_t(BYTES), PORTABLE | MAPPED)

    def stream(self) -> Any:
        return self.made(ctypes.c_void_p, "cuStreamCreateWithPriority", NON_BLOCKING, 0)

    def event(self) -> Any:
        return self.made(ctypes.c_void_p, "cuEventCreate", NO_TIMING)

    def module(self) -> Any:
        return self.made(ctypes.c_void_p, "cuModuleLoadData", ctypes.c_char_p(PTX.encode()))

    def kernel(self, module: Any) -> Any:
        return self.made(ctypes.c_void_p, "cuModuleGetFunction", module, ctypes.c_char_p(b"compute"))

    def launch(self, kernel: Any, stream: Any) -> None:
        at = ctypes.c_uint64(self.memory.value)
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(at), ctypes.c_void_p))
        self.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)

    def mapped(self) -> tuple[Any, Any]:
        """Memory of cuMemCreate, and its address."""
        of = Property(type=1, location=(ctypes.c_int * 2)(1, 0))
        size = self.made(ctypes.c_size_t, "cuMemGetAllocationGranularity", ctypes.byref(of), 0)
        memory = self.made(ctypes.c_uint64, "cuMemCreate", size, ctypes.byref(of), ctypes.c_uint64(0))
        zero = ctypes.c_uint64(0)
        address = self.made(ctypes.c_uint64, "cuMemAddressReserve", size, ctypes.c_size_t(0), zero, zero)
        self.call("cuMemMap", address, size, ctypes.c_size_t(0), memory, zero)
        access = (ctypes.c_int * 3)(1, 0, 3)
        self.call("cuMemSetAccess", address, size, access, ctypes.c_size_t(1))
        return address, (size, memory)

    def unmap(self, address: Any, of: tuple[Any, Any]) -> None:
        size, memory = of
        self.call("cuMemUnmap", address, size)
        self.call("cuMemRelease", memory)

    def register(self) -> Any:
        memory = ctypes.c_char.from_buffer(mmap.mmap(-1, BYTES))
        self.call("cuMemHostRegister_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES), PORTABLE | MAPPED)
        return memory

    def handle(self, memory: Any) -> Handle:
        found = Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(found), memory)
        return found

    def open(self, handle: Handle) -> Any:
        function = self.library.cuIpcOpenMemHandle_v2
        function.argtypes = (ctypes.c_void_p, Handle, ctypes.c_uint)
        return self.made(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", handle, LAZY_PEERS)


def of_another_process(handles: Any, end: Any) -> None:
    """Shares memory until the other side ends."""
    d = Driver()
    for _ in range(2):
        handles.send(bytes(d.handle(d.allocate()).bytes))
    end.wait()


def calls(d: Driver, handles: list[Handle]) -> dict[str, Callable[[], Any]]:
    """The calls by name. What they need was made before."""
    side, event, pinned, memory, registered = d.stream(), d.event(), d.pin(), d.allocate(), d.register()
    module, other, stream, mapped, opened = d.module(), d.stream(), d.stream(), d.mapped(), d.open(handles[0])
    host, size = ctypes.create_string_buffer(BYTES), ctypes.c_size_t(BYTES)
    return {
        "cuMemAlloc": d.allocate,
        "cuMemFree": lambda: d.call("cuMemFree_v2", memory),
        "cuMemCreate, cuMemMap, cuMemSetAccess": d.mapped,
        "cuMemUnmap, cuMemRelease": lambda: d.unmap(*mapped),
        "cuMemHostAlloc": d.pin,
        "cuMemFreeHost": lambda: d.call("cuMemFreeHost", pinned),
        "cuMemHostRegister": d.register,
        "cuMemHostUnregister": lambda: d.call("cuMemHostUnregister", ctypes.byref(registered)),
        "cuIpcGetMemHandle": lambda: d.handle(d.memory),
        "cuIpcOpenMemHandle": lambda: d.open(handles[1]),
        "cuIpcCloseMemHandle": lambda: d.call("cuIpcCloseMemHandle", opened),
        "cuStreamCreateWithPriority": d.stream,
        "cuStreamDestroy": lambda: d.call("cuStreamDestroy_v2", stream),
        "cuEventCreate": d.event,
        "cuEventRecord": lambda: d.call("cuEventRecord", event, side),
        "cuModuleLoadData": d.module,
        "cuModuleGetFunction, cuLaunchKernel": lambda: d.launch(d.kernel(module), side),
        "cuMemcpyDtoHAsync": lambda: d.call("cuMemcpyDtoHAsync_v2", d.pinned, d.memory, size, side),
        "cuMemcpyDtoHAsync, pageable": lambda: d.call("cuMemcpyDtoHAsync_v2", host, d.memory, size, other),
    }


class Waits:
    """Tries calls while a stream waits for a word of pinned memory."""

    def __init__(self, d: Driver) -> None:
        self.d, self.words, self.next = d, d.pin(), count()
        self.kernel, self.beside, self.waiting = d.kernel(d.module()), d.stream(), d.stream()

    def launch(self) -> None:
        self.d.launch(self.kernel, self.beside)

    def ask(self) -> None:
        """What torch asks before it launches anything, and the library in each call."""
        self.d.call("cuStreamIsCapturing", self.beside, ctypes.byref(ctypes.c_int()))

    def tried(self, name: str, call: Callable[[], Any]) -> tuple[bool, list[str], str]:
        """Whether the call waits, what other threads cannot do meanwhile, and an error."""
        at = self.words.value + 4 * next(self.next)
        self.d.call("cuStreamWaitValue32_v2", self.waiting, ctypes.c_uint64(at), 1, 0)
        error: list[str] = []

        def run(call: Callable[[], Any]) -> None:
            try:
                self.d.use()
                call()
            except (AttributeError, RuntimeError) as raised:
                error.append(str(raised))

        others = {"launch": self.launch, "ask": self.ask} if name in WAIT else {}
        threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in (call, *others.values())]
        waits = []
        for thread in threads:
            thread.start()
            thread.join(SOON_S if name in WAIT else BOUND_S)
            waits.append(thread.is_alive())
        ctypes.c_uint32.from_address(at).value = 1
        for thread, waited in zip(threads, waits, strict=True):
            thread.join(BOUND_S if waited else None)
            if thread.is_alive():
                raise RuntimeError(f"{name} does not return although no stream waits any more")
        self.d.call("cuCtxSynchronize")
        kept = [other for other, waited in zip(others, waits[1:], strict=True) if waited]
        return waits[0], kept, (error or [""])[0]


def main() -> int:
    """Prints a line for each call. Returns 1 if one does something else than is expected."""
    import multiprocessing

    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    end = spawning.Event()
    peer = spawning.Process(target=of_another_process, args=(theirs, end), daemon=True)
    peer.start()
    handles = [Handle.from_buffer_copy(ours.recv()) for _ in range(2)]
    d = Driver()
    waits, wrong = Waits(d), False
    for name, call in calls(d, handles).items():
        began = time.monotonic()
        waited, kept, error = waits.tried(name, call)
        text = "waits" + (f", and others cannot {' and '.join(kept)}" if kept else "") if waited else "returns"
        print(f"{name:<40}{time.monotonic() - began:>7.3f} s  {error or text}", flush=True)
        wrong |= bool(error) or waited != (name in WAIT)
    end.set()
    peer.join()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
