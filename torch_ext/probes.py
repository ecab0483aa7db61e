"""Questions that only the installed torch's headers can answer, asked of the compiler.

Prefer `requires` expressions in the shim: they cost nothing. A probe answers what C++ code cannot ask: which language
standard the headers accept, and whether a header exists and declares a name on which a preprocessor line depends. One
probe costs as much as parsing its headers (torch's take about 8 s), so answers are kept per compiler, torch and source
in the build directory.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

BACKEND_HEADER = "#include <torch/csrc/distributed/c10d/Backend.hpp>\n"

# Tried in this order. C++20 first: newer torch demands it, and the shim is C++20 wherever the headers let it be.
STANDARDS = ("c++20", "c++17")

# (macro, source): the macro is defined for the shim if the source compiles. Extend it here.
PROBES: tuple[tuple[str, str], ...] = ()


class ProbeError(RuntimeError):
    """No language standard compiles torch's headers."""


class Prober:
    """Compiles small sources with `command`, the compiler and its include flags, and keeps the outcome.

    `identity` names the compiler and the torch for which the answers hold.
    """

    def __init__(self, command: Sequence[str], identity: str, cache: Path) -> None:
        self._command = list(command)
        self._identity = identity
        self._cache = cache
        self._answers: dict[str, bool] = {}
        if cache.exists():
            self._answers = json.loads(cache.read_text())

    def compiles(self, source: str, *flags: str) -> bool:
        """Whether `source` passes the compiler's front end."""
        key = hashlib.sha256("\0".join([self._identity, *self._command, *flags, source]).encode()).hexdigest()
        if key not in self._answers:
            self._answers[key] = self._run(source, flags).returncode == 0
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            self._cache.write_text(json.dumps(self._answers, indent=1))
        return self._answers[key]

    def standard(self) -> str:
        """Returns the first -std= that this torch's headers accept."""
        for standard in STANDARDS:
            if self.compiles(BACKEND_HEADER, f"-std={standard}"):
                return standard
        first_errors = self._run(BACKEND_HEADER, [f"-std={STANDARDS[0]}"]).stderr[:2000]
        raise ProbeError(f"torch's headers compile with none of {', '.join(STANDARDS)}:\n{first_errors}")

    def macros(self, standard: str) -> list[str]:
        """The macros of PROBES whose source compiles."""
        return [macro for macro, source in PROBES if self.compiles(source, f"-std={standard}")]

    def _run(self, source: str, flags: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *flags, "-fsyntax-only", "-x", "c++", "-"]
        return subprocess.run(command, input=source, capture_output=True, text=True, check=False)
