"""Builds the emulator and the test beds over it into tests/emulator/build: `python tests/emulator/build.py [name ...]`.

Without a name it builds everything. Tests call build(), which prints nothing. A source is compiled again when it, a
header that it includes, its flags, the compiler or torch change. torch is not imported. Nothing of this goes into the
wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import symbols  # noqa: E402

OUTPUT = HERE / "build"
COMPILE_BOUND_S = 290
JOBS = 2  # a compilation with torch's headers needs up to 1.5 GB


class BuildError(RuntimeError):
    """The message has the compiler's errors, or says what is missing."""


class UnavailableError(BuildError):
    """This environment lacks what a test bed is made of."""


@dataclass(frozen=True)
class Library:
    """A shared library of the output folder, or a program. It finds those that it needs beside it."""

    name: str  # of build() and the command line
    path: str  # in the output folder
    sources: Sequence[Path]
    needs: Sequence[str] = ()  # names of libraries to link with
    flags: Sequence[str] = ()
    link: Sequence[str] = ()
    soname: str = ""  # the file's name if empty
    torch: bool = False
    program: bool = False
    # Writes generated sources into the folder for objects, given the objects of `sources`, and returns them.
    generate: Callable[[Path, Sequence[Path]], Sequence[Path]] | None = None
    inputs: Sequence[Path] = field(default=())  # other files that `generate` and `link` read

    @property
    def file(self) -> Path:
        return OUTPUT / self.path


def sources(folder: str, *stems: str) -> list[Path]:
    return sorted(path for path in (HERE / folder).glob("*.cpp") if not stems or path.stem in stems)


def torch_root() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise UnavailableError("the test beds with torch need a torch, and this Python has none")
    return Path(spec.origin).parent


def torch_flags() -> list[str]:
    include = torch_root() / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])]
    return [flag for folder in folders for flag in ("-isystem", str(folder))]


def torch_link(*names: str) -> list[str]:
    return [f"-L{torch_root() / 'lib'}", *(f"-l{name}" for name in names)]


def nvidia(pattern: str) -> Path:
    """A file or folder of NVIDIA's packages, which a CUDA build of torch brings."""
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [path for folder in folders for path in sorted(Path(folder).glob(pattern))]
    if not found:
        raise UnavailableError(f"fake CUDA needs a torch for CUDA 13, which brings nvidia/{pattern}")
    return found[0]


def stubs(pattern: str, refusal: str) -> Callable[[Path, Sequence[Path]], list[Path]]:
    """Makes functions that call `refusal` of those that torch needs and no object defines."""

    def generate(work: Path, objects: Sequence[Path]) -> list[Path]:
        defined = symbols.of_object("--defined-only", *objects)
        known = defined | {re.sub(r"_v\d$", "", name) for name in defined}
        missing = [name for name in symbols.listed()[1] if re.match(pattern, name) and name not in known]
        text = f'extern "C" int {refusal}(const char *name, int *told);\n' + "".join(
            f'extern "C" int {name}() {{\n  static int told = 0;\n  return {refusal}("{name}", &told);\n}}\n'
            for name in missing
        )
        source = work / "stubs.cpp"
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        return [source]

    return generate


def fake_cuda() -> list[Library]:
    """Fake CUDA: the driver, the runtime, and what torch needs besides."""
    headers = nvidia("cu13/include/cuda.h").parent
    cuda = ["-isystem", str(headers), "-I", str(HERE / "cudart" / "include")]
    # A file with "libcudart.so" in its name would make torch load the real runtime beside it.
    runtime_map = HERE / "cudart" / "exports.map"
    return [
        Library(
            "cuda",
            "libcuda.so.1",
            [*sources("cuda"), *sources("ptx"), *sources("skin")],
            needs=["emulator"],
            flags=cuda,
            generate=stubs(r"cu[A-Z]", "fake_cuda_unsupported"),
            inputs=[symbols.LIST],
        ),
        Library(
            "cudart",
            "libfake_runtime.so",
            sources("cudart"),
            needs=["cuda", "emulator"],
            flags=cuda,
            link=[f"-Wl,--version-script={runtime_map}"],
            soname="libcudart.so.13",
            generate=stubs(r"(__)?cuda", "fake_cudart_unsupported"),
            inputs=[symbols.LIST, runtime_map],
        ),
        Library(
            "cuda_torch",
            "_fake_cuda.so",
            sources("cuda_torch"),
            needs=["operators", "emulator"],
            flags=["-fvisibility=hidden"],
            link=["c10", "torch_cpu", "torch_python"],
            torch=True,
        ),
        Library(
            "nccl",
            "libfake_nccl.so",
            [*sources("nccl"), *sources("skin")],
            needs=["cuda", "emulator"],
            flags=[*cuda, "-isystem", str(nvidia("nccl/include/nccl.h").parent)],
            soname="libnccl.so.2",
            generate=stubs(r"nccl", "fake_nccl_unsupported"),
            inputs=[symbols.LIST],
        ),
    ]


def libraries() -> dict[str, Library]:
    """What can be built here, by name, those first that others need."""
    kernels = sources("nccl", "join", "kernels", "reduce", "table")
    known = [
        Library("emulator", "libemulator.so", sources("core")),
        # What vendors' runtimes look like to a program, without any file of a vendor.
        Library("acl", "libascendcl.so", [*sources("acl"), *sources("skin")], needs=["emulator"]),
        Library("cnrt", "libcnrt.so", [*sources("cnrt"), *sources("skin")], needs=["emulator"]),
        *(
            # With the kernels of the emulated NCCL, and without NVIDIA's header.
            Library(
                name,
                f"lib{name}.so",
                [*sources(name), *sources("blocking"), *sources("skin"), *kernels],
                needs=[runtime, "emulator"],
                flags=["-I", str(HERE / "blocking")],
            )
            for name, runtime in (("hccl", "acl"), ("cncl", "cnrt"))
        ),
        # The management library of NVIDIA's driver, and that of a driver without NVLink. Each lies alone in a folder,
        # so that LD_LIBRARY_PATH brings no other library.
        *(
            Library(name, f"{name}/libnvidia-ml.so.1", [*sources("nvml"), *sources("skin")], flags=flags)
            for name, flags in (("nvml", []), ("nvml_without_nvlink", ["-DNO_NVLINK"]))
        ),
        # The management library of Huawei's NPU driver.
        Library("dcmi", "dcmi/libdcmi.so", sources("dcmi")),
        # The management library of Cambricon's driver, in two generations of its interface.
        Library("cndev", "cndev/libcndev.so", sources("cndev")),
        Library("cndev_with_handles", "cndev_with_handles/libcndev.so", sources("cndev"), flags=["-DWITH_HANDLES"]),
        Library("core_test", "core_test", sources("core_test"), needs=["emulator"], program=True),
        Library(
            "operators",
            "liboperators.so",
            sources("operators"),
            needs=["emulator"],
            link=["c10", "torch_cpu"],
            torch=True,
        ),
    ]
    with suppress(UnavailableError):
        known += fake_cuda()
    return {library.name: library for library in known}


def build(names: Iterable[str] = (), extra: Iterable[Library] = ()) -> None:
    """Brings the named libraries, all if none is named, and those that they need up to date.

    `extra` are further libraries that may be named. Processes that build at the same time wait for each other.
    """
    known = libraries() | {library.name: library for library in extra}
    wanted: dict[str, Library] = {}

    def want(name: str) -> None:
        if name not in known:
            raise UnavailableError(f"there is no library {name} here; there are {', '.join(known)}")
        for needed in known[name].needs:
            want(needed)
        wanted[name] = known[name]

    for name in names or known:
        want(name)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with (OUTPUT / "lock").open("w") as lock, ThreadPoolExecutor(JOBS) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for library in wanted.values():
            _build(library, known, pool)


def _build(library: Library, known: dict[str, Library], pool: ThreadPoolExecutor) -> None:
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    flags = ["-std=c++20", "-O1", "-g1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", *library.flags]
    identity = [_version_of(compiler), *compiler]
    if library.torch:
        flags += torch_flags()
        identity.append((torch_root() / "version.py").read_text())
    work = OUTPUT / "objects" / library.name
    work.mkdir(parents=True, exist_ok=True)
    library.file.parent.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        built = work / f"{source.stem}.o"
        state = _digest([*identity, *flags, str(source)])
        if _is_stale(built, state):
            built.with_suffix(".state").unlink(missing_ok=True)
            depends = ["-MMD", "-MF", str(built.with_suffix(".d"))]
            _run([*compiler, *flags, *depends, "-c", str(source), "-o", str(built)])
            built.with_suffix(".state").write_text(state)
        return built

    objects = list(pool.map(compile_one, library.sources))
    if library.generate is not None:
        objects += list(pool.map(compile_one, library.generate(work, objects)))
    needed = [known[name].file for name in library.needs]
    origin = os.path.relpath(OUTPUT, library.file.parent)
    name = f"-Wl,-soname,{library.soname or library.file.name}"
    form = ["-pthread"] if library.program else ["-shared", "-pthread", name]
    command = [
        *(*compiler, *form, "-Wl,--as-needed"),
        *map(str, [*objects, *needed]),
        f"-Wl,-rpath,$ORIGIN/{origin}",
        *(torch_link(*library.link) if library.torch else library.link),
    ]
    stamp = work / "linked"
    state = _digest([*identity, *command, *(str(path.stat().st_mtime_ns) for path in [*objects, *library.inputs])])
    if library.file.exists() and stamp.exists() and stamp.read_text() == state:
        return
    temporary = library.file.with_name(library.file.name + ".new")  # a process that has the old one mapped keeps it
    _run([*command, "-o", str(temporary)])
    temporary.replace(library.file)
    stamp.write_text(state)


def _is_stale(built: Path, state: str) -> bool:
    stamp, depends = built.with_suffix(".state"), built.with_suffix(".d")
    if not (built.exists() and stamp.exists() and stamp.read_text() == state):
        return True
    _, _, names = depends.read_text().replace("\\\n", " ").partition(": ")
    newest = built.stat().st_mtime_ns
    return any(not Path(name).exists() or Path(name).stat().st_mtime_ns >= newest for name in names.split())


def _version_of(compiler: list[str]) -> str:
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"a C++20 compiler is needed: {shlex.join(compiler)}: {error}") from None


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_BOUND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shlex.join(command)}\n{error}") from None
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")


if __name__ == "__main__":
    try:
        build(sys.argv[1:])
    except BuildError as failure:
        sys.exit(str(failure))
