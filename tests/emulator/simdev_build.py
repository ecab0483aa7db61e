"""Builds the test device: `python tests/emulator/simdev_build.py` for the torch of the running interpreter.

It makes three libraries in build/emulator, none of which goes into the wheel:
- libemulator.so, the emulator core, that all users of one process share,
- libsimdev.so, its C functions for programs without torch (simdev/vendor/simdev.h),
- simdev/_device*.so, the torch extension.

A source is compiled again when it, a header of ours, the flags, the compiler or torch change. torch is not imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "build" / "emulator"
COMPILE_BOUND_S = 280


class BuildError(RuntimeError):
    """The message has the compiler's errors."""


@dataclass(frozen=True)
class Library:
    path: Path
    sources: list[Path]
    flags: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)


def torch_root() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("simdev needs torch, and this Python has none")
    return Path(spec.origin).parent


def extension() -> Path:
    return OUTPUT / "simdev" / f"_device{sysconfig.get_config_var('EXT_SUFFIX')}"


def libraries(with_torch: bool) -> list[Library]:
    """Returns what is to be built, in the order of linking."""
    emulator = Library(OUTPUT / "libemulator.so", sorted((HERE / "core").glob("*.cpp")))
    beside = [f"-L{OUTPUT}", "-lemulator", "-Wl,-rpath,$ORIGIN"]
    vendor = Library(OUTPUT / "libsimdev.so", [HERE / "simdev" / "vendor" / "simdev.cpp"], link=beside)
    if not with_torch:
        return [emulator, vendor]
    torch = torch_root()
    include = torch / "include"
    directories = [include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])]
    device = Library(
        extension(),
        sorted((HERE / "simdev" / "device").glob("*.cpp")),
        ["-fvisibility=hidden", *(flag for d in directories for flag in ("-isystem", str(d)))],
        [f"-L{OUTPUT}", "-lemulator", "-Wl,-rpath,$ORIGIN/..", f"-L{torch / 'lib'}"]
        + ["-lc10", "-ltorch_cpu", "-ltorch_python"],
    )
    return [emulator, vendor, device]


def build(with_torch: bool = True) -> None:
    """Brings the libraries up to date. Processes that build at the same time wait for each other."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with (OUTPUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for library in libraries(with_torch):
            _build(library)


def _build(library: Library) -> None:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    flags = ["-std=c++20", "-O1", "-g0", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", *library.flags]
    work = OUTPUT / "objects" / library.path.stem.split(".")[0]
    work.mkdir(parents=True, exist_ok=True)
    library.path.parent.mkdir(parents=True, exist_ok=True)
    version = _run([*compiler, "--version"])
    torch_version = (torch_root() / "version.py").read_text() if library.flags else ""
    state = hashlib.sha256("\0".join([version, torch_version, *compiler, *flags]).encode()).hexdigest()

    def compile_one(source: Path) -> Path:
        built = work / f"{source.stem}.o"
        if _is_stale(built, state):
            depends = built.with_suffix(".d")
            _run([*compiler, *flags, "-MMD", "-MF", str(depends), "-c", str(source), "-o", str(built)])
            built.with_suffix(".state").write_text(state)
        return built

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        objects = list(pool.map(compile_one, library.sources))
    newest = max(o.stat().st_mtime_ns for o in objects)
    if library.path.exists() and library.path.stat().st_mtime_ns > newest:
        return
    temporary = library.path.with_suffix(".new")  # a process that has the old one mapped keeps it
    soname = f"-Wl,-soname,{library.path.name}"
    _run([*compiler, "-shared", "-pthread", soname, *map(str, objects), *library.link, "-o", str(temporary)])
    temporary.replace(library.path)


def _is_stale(built: Path, state: str) -> bool:
    stamp, depends = built.with_suffix(".state"), built.with_suffix(".d")
    if not (built.exists() and stamp.exists() and stamp.read_text() == state):
        return True
    _, _, names = depends.read_text().replace("\\\n", " ").partition(": ")
    newest = built.stat().st_mtime_ns
    return any(not Path(name).exists() or Path(name).stat().st_mtime_ns >= newest for name in names.split())


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_BOUND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shlex.join(command)}\n{error}") from None
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    try:
        build()
    except BuildError as failure:
        sys.exit(str(failure))
