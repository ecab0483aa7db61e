"""The mutants of `make test-mutants` follow the code that they change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = Path(__file__).resolve().parents[1] / "mutants"


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
def test_each_patch_applies() -> None:
    done = subprocess.run(
        [sys.executable, str(MUTANTS / "run.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(MUTANTS.glob("*.patch"))) >= 30
