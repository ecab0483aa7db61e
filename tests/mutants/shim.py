"""Builds sagecomm._C of a changed tree in seconds: each source by itself, over a precompiled header of torch's.

The shim's own build joins sources, which is the fastest way to compile all of them, and the slowest to compile one.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "torch_ext"))

import shim_build  # noqa: E402
from probes import Prober  # noqa: E402

JOBS = 2  # a compilation with torch's headers needs up to 1.5 GB
THEIRS = re.compile(r"^#include (<[\w/]+\.h(?:pp)?>)", re.MULTILINE)
OURS = re.compile(r'^#include "([\w./]+)"', re.MULTILINE)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


class Shim:
    """Objects are kept in `cache` by what they are made of, so a changed source is the only one that is compiled."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        self._torch = shim_build.find_torch()
        compiler, includes = shim_build._compiler(), shim_build._includes(self._torch)
        identity = f"{shim_build._version_of(compiler)} torch {self._torch.version}"
        prober = Prober([*compiler, *includes], identity, cache / "probes.json")
        standard = prober.standard()
        self._command = [
            *compiler,
            f"-std={standard}",
            *("-O0", "-g0", "-fPIC", "-fvisibility=hidden", "-Winvalid-pch"),
            *(f"-D{macro}=1" for macro in prober.macros(standard)),
            f'-DSAGECOMM_TORCH_VERSION="{self._torch.version}"',
            *includes,
        ]
        self._header = self._precompile(identity)

    def _precompile(self, identity: str) -> Path:
        """Returns the header that every source begins with. A compiler takes its precompiled form if there is one."""
        found = {name for path in (ROOT / "cshim").glob("*.[ch]pp") for name in THEIRS.findall(path.read_text())}
        text = "".join(f"#include {name}\n" for name in sorted(found) if name.startswith(("<ATen", "<c10", "<torch")))
        header = self._cache / f"torch-{digest(text, identity, *self._command)}.hpp"
        compiled = header.with_suffix(".hpp.gch")
        if not compiled.exists():
            header.write_text(text)
            run([*self._command, "-x", "c++-header", str(header), "-o", str(compiled)])
        return header

    def build(self, tree: Path) -> Path:
        """Compiles what was not compiled before, and writes the extension into the package of the tree."""
        texts = {path.name: path.read_text() for path in (*(tree / "cshim").iterdir(), tree / "export/sagecomm.h")}
        objects = {name: self._object(name, texts) for name in texts if name.endswith(".cpp")}
        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(lambda item: self._compile(tree, *item), objects.items()))
        output = tree / "torch_ext/sagecomm" / shim_build.extension_name()
        names = [str(path) for path in objects.values()]
        libraries = [f"-L{self._torch.root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python", "-ldl"]
        run([self._command[0], "-shared", "-s", "-Wl,--exclude-libs,ALL", *names, *libraries, "-o", f"{output}.new"])
        Path(f"{output}.new").replace(output)
        (output.parent / "_build_info.py").write_text(shim_build.build_info(self._torch))
        return output

    def _object(self, name: str, texts: dict[str, str]) -> Path:
        seen, found = set[str](), [name]
        while found:
            if (each := found.pop()) in texts and each not in seen:
                seen.add(each)
                found += [Path(included).name for included in OURS.findall(texts[each])]
        return self._cache / f"{Path(name).stem}-{digest(self._header.name, *(texts[each] for each in sorted(seen)))}.o"

    def _compile(self, tree: Path, name: str, output: Path) -> None:
        if not output.exists():
            temporary = output.with_suffix(f".{tree.name}")
            source = str(tree / "cshim" / name)
            header = ["-include", str(self._header), f"-I{tree / 'export'}"]
            run([*self._command, *header, "-c", source, "-o", str(temporary)])
            temporary.replace(output)


def run(command: Sequence[str], **how: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
