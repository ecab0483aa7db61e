"""Builds sagecomm._C, the C++ shim, against the torch of the running interpreter.

Used by setup.py for wheels and by `make shim` for the tree (`python shim_build.py`). It calls the compiler itself
instead of torch.utils.cpp_extension: no ninja, no CUDA search, no import of torch, warnings as errors for our sources
only. Units are compiled in parallel. A unit is compiled again when a source of it, a header of ours, the flags, the
compiler or torch change.

Sources are joined into a few translation units, because nearly all of the time goes into torch's headers: one source
alone takes 33 s, and each further source of a unit about 1 s. All sources in two units take 92 s; one unit per source
would take more than ten minutes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = HERE / "sagecomm"

# The number of joined translation units: as many as a small machine has cores. It is the same on every machine, so that
# clashing names and missing includes within a unit show on every machine or on none.
UNITS = 2

sys.path.insert(0, str(HERE))
from probes import ProbeError, Prober  # noqa: E402


class BuildError(RuntimeError):
    """The message is for the person who started the build."""


@dataclass(frozen=True)
class Torch:
    """The installed torch, found without importing it."""

    root: Path
    version: str  # "2.15.0+cu132"

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def next_minor(self) -> str:
        major, minor = self.minor.split(".")
        return f"{major}.{int(minor) + 1}"


def find_torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(
            "sagecomm is compiled against the torch that it will run with, and this Python has none: install torch "
            "first, then run pip with --no-build-isolation"
        )
    root = Path(spec.origin).parent
    found = re.search(r"^__version__ = '([^']+)'", (root / "version.py").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"cannot read torch's version from {root / 'version.py'}")
    return Torch(root, found[1])


def extension_name() -> str:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return f"_C{suffix}"


def build_info(torch: Torch) -> str:
    """Source of sagecomm/_build_info.py."""
    return (
        "# Written by shim_build.py.\n"
        f"TORCH_VERSION = {torch.version!r}  # that sagecomm._C was compiled against\n"
        f"TORCH_MINOR = {torch.minor!r}\n"
    )


def build(output: Path, info: Path, torch: Torch) -> bool:
    """Compiles and links what is out of date. Returns whether `output` was written."""
    compiler = _compiler()
    tag = f"{sys.implementation.cache_tag}-torch-{torch.version}"
    work = HERE / "build" / f"shim-{tag}"
    work.mkdir(parents=True, exist_ok=True)
    includes = _includes(torch)
    identity = f"{_version_of(compiler)} torch {torch.version}"
    prober = Prober([*compiler, *includes], identity, HERE / "build" / "probes.json")
    try:
        standard = prober.standard()
    except ProbeError as err:
        raise BuildError(str(err)) from None
    compile_command = [
        *compiler,
        f"-std={standard}",
        *("-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
        *(f"-D{macro}=1" for macro in prober.macros(standard)),
        f'-DSAGECOMM_TORCH_VERSION="{torch.version}"',
        f"-I{ROOT / 'export'}",
        *includes,
        *shlex.split(os.environ.get("CXXFLAGS", "")),
    ]
    sources = sorted((ROOT / "cshim").glob("*.cpp"))
    if not sources:
        raise BuildError(f"no sources in {ROOT / 'cshim'}: build from a complete checkout")
    units = _join(sources, work)
    stale = {unit: units[unit] for unit in units if _is_stale(unit, work, identity, compile_command)}
    _compile_all(stale, work, identity, compile_command)

    objects = [work / f"{unit.stem}.o" for unit in units]
    link_command = [
        *compiler,
        *("-shared", "-s", "-Wl,--exclude-libs,ALL"),
        *map(str, objects),
        f"-L{torch.root / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch_python", "-ldl"),
        *shlex.split(os.environ.get("LDFLAGS", "")),
    ]
    stamp = work / "linked"
    state = _digest([identity, *link_command, *(str(o.stat().st_mtime_ns) for o in objects)])
    linked = work / extension_name()
    if not linked.exists() or _read(stamp) != state:
        _run([*link_command, "-o", str(linked)], "linking sagecomm._C failed")
        stamp.write_text(state)
    if _same_file(linked, output) and _read(info) == build_info(torch):
        return False
    # The file is replaced and never overwritten: a process that has the old one mapped keeps it.
    temporary = output.with_suffix(".new")
    shutil.copy2(linked, temporary)
    temporary.replace(output)
    info.write_text(build_info(torch))
    return True


def _compiler() -> list[str]:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        raise BuildError(
            f"sagecomm: a C++20 compiler is needed ({compiler[0]} was not found): install g++ 11 or newer, or set CXX"
        )
    return compiler


def _version_of(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]


def _includes(torch: Torch) -> list[str]:
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").exists():
        raise BuildError(f"sagecomm: {python}/Python.h is missing: install Python's headers (python3-dev on Debian)")
    include = torch.root / "include"
    directories = [include, include / "torch" / "csrc" / "api" / "include", python]
    return [flag for directory in directories for flag in ("-isystem", str(directory))]


def _join(sources: Sequence[Path], work: Path) -> dict[Path, list[Path]]:
    """Writes the units that include the sources, those that changed only; returns which source is in which.

    A source's unit follows from its name alone, so that one more source changes one unit.
    """
    units: dict[Path, list[Path]] = {}
    for source in sources:
        number = hashlib.sha1(source.name.encode()).digest()[0] % UNITS
        units.setdefault(work / f"unit_{number}.cpp", []).append(source)
    for unit, members in units.items():
        text = "".join(f'#include "{source}"\n' for source in members)
        if _read(unit) != text:
            unit.write_text(text)
    return units


def _is_stale(unit: Path, work: Path, identity: str, command: Sequence[str]) -> bool:
    built = work / f"{unit.stem}.o"
    depends = work / f"{unit.stem}.d"
    if not built.exists() or _read(work / f"{unit.stem}.cmd") != _digest([identity, *command]):
        return True
    _, _, names = depends.read_text().replace("\\\n", " ").partition(": ")
    newest = built.stat().st_mtime_ns
    for name in names.split():
        path = Path(name)
        if not path.exists() or path.stat().st_mtime_ns >= newest:
            return True
    return False


def _compile_all(units: dict[Path, list[Path]], work: Path, identity: str, command: Sequence[str]) -> None:
    """Compiles units in parallel and prints a line for each that is done. Raises BuildError with the compiler's
    errors."""
    total, done = sum(map(len, units.values())), 0
    if total:
        print(f"shim: compiling {total} sources in {len(units)} units", flush=True)
    with ThreadPoolExecutor(_jobs()) as pool:
        compiling = {pool.submit(_compile, unit, work, identity, command): unit for unit in units}
        for finished in as_completed(compiling):
            if (failure := finished.result()) is not None:
                raise BuildError(failure)
            done += len(units[compiling[finished]])
            print(f"shim: {done} of {total} compiled", flush=True)


def _compile(unit: Path, work: Path, identity: str, command: Sequence[str]) -> str | None:
    """Compiles one unit. Returns the compiler's errors, or None."""
    built = work / f"{unit.stem}.o"
    full = [*command, "-MMD", "-MF", str(work / f"{unit.stem}.d"), "-c", str(unit), "-o", str(built)]
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        built.unlink(missing_ok=True)
        return f"{shlex.join(full)}\n{done.stderr}"
    (work / f"{unit.stem}.cmd").write_text(_digest([identity, *command]))
    return None


def _jobs() -> int:
    """Returns how many units to compile at once. A unit needs up to 1.5 GB; memory of the page cache counts as free."""
    cores = len(os.sched_getaffinity(0))
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    memory = int(available[1]) << 10 if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(cores, memory // (3 << 29)))


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{what}:\n{shlex.join(command)}\n{done.stderr}")


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _same_file(a: Path, b: Path) -> bool:
    return b.exists() and a.stat().st_size == b.stat().st_size and a.stat().st_mtime_ns == b.stat().st_mtime_ns


def main() -> int:
    try:
        torch = find_torch()
        if build(PACKAGE / extension_name(), PACKAGE / "_build_info.py", torch):
            print(f"sagecomm: built sagecomm._C for torch {torch.version}")
    except BuildError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
