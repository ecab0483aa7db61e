"""The functions of NVIDIA's libraries that torch imports or looks up by name: `python tests/emulator/symbols.py`.

It writes symbols.txt from the libraries of the installed torch. The build makes stubs for those that nothing here
implements, because a library of torch fails to load if one name is missing. A test compares the list with the installed
torch, so that it cannot be out of date unnoticed.
"""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "symbols.txt"
IMPORTED = re.compile(r"(__)?cuda[A-Z]\w+|cu(?!File)[A-Z]\w+|nccl[A-Z]\w+")
# c10 looks driver functions up by these names.
LOOKED_UP = re.compile(rb"\0(cu(?!File|pti)[A-Z][A-Za-z0-9]+(?:_v\d)?)(?=\0)")


def torch_root() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def torch_version() -> str:
    found = re.search(r"^__version__ = '([^']+)'", (torch_root() / "version.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def of_object(option: str, *files: Path) -> set[str]:
    """The names that object files or libraries define (--defined-only) or import (--undefined-only)."""
    dynamic = ["-D"] if all(".so" in file.name for file in files) else []
    command = ["nm", *dynamic, "-g", "--format=posix", option, *map(str, files)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0].partition("@")[0] for line in lines if len(line.split()) > 1}


def of_torch() -> list[str]:
    libraries = sorted((torch_root() / "lib").glob("*.so"))
    names = {name for name in of_object("--undefined-only", *libraries) if IMPORTED.fullmatch(name)}
    looked_up = LOOKED_UP.findall((torch_root() / "lib" / "libc10_cuda.so").read_bytes())
    return sorted(names | {name.decode() for name in looked_up})


def listed() -> tuple[str, list[str]]:
    """The torch that the list was made from, and its names."""
    head, *names = LIST.read_text().splitlines()
    return head.split()[-1], [name for name in names if not name.startswith("#")]


if __name__ == "__main__":
    lines = [f"# Written by tests/emulator/symbols.py from torch {torch_version()}", *of_torch()]
    LIST.write_text("\n".join(lines) + "\n")
