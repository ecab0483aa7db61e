"""Copies the programs of gpu_check.py, and what they import of this folder: `python gpu_files.py FOLDER`.

tools/gpu-package makes its package so. FOLDER gets tests/python and tests/emulator."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

from gpu_list import CHECKS

HERE = Path(__file__).resolve().parent
PROGRAMS = ("gpu_check", "gpu_rates", "gpu_waits")  # others import these by name only
OF_EMULATOR = ("fake_cuda", "build", "symbols")


def closure() -> set[Path]:
    """Returns the files of all checks."""
    waiting = {*PROGRAMS, *(function.partition(":")[0] for check in CHECKS for function in check.functions())}
    found: set[Path] = set()
    while waiting:
        source = HERE / f"{waiting.pop()}.py"
        if not source.exists() or source in found:
            continue
        found.add(source)
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                waiting |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting.add(node.module)
    return found


def copy(folder: Path) -> None:
    emulator = [HERE.parent / "emulator" / f"{name}.py" for name in OF_EMULATOR]
    for name, files in (("python", closure()), ("emulator", emulator)):
        target = folder / "tests" / name
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, target)


if __name__ == "__main__":
    copy(Path(sys.argv[1]))
