"""tools/pip-install: what it says while pip works, and what it does when pip fails."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "pip-install"
LOADER = importlib.machinery.SourceFileLoader("pip_install", str(SCRIPT))
pip_install = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("pip_install", LOADER))
sys.modules["pip_install"] = pip_install  # dataclasses and annotations look for it
LOADER.exec_module(pip_install)


def test_it_says_what_pip_does() -> None:
    progress = pip_install.Progress()
    said = []
    for line in (
        "Collecting torch==2.15.0",
        "  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (899.8 MB)",
        "Progress 449900000 of 899800000",
        "Progress 899800000 of 899800000",
        "  Downloading https://example.org/numpy-2.4.6.tar.gz (16.9 MB)",
        "Installing collected packages: numpy, torch",
    ):
        progress.read(line)
        said.append(progress.text().removeprefix("sagecomm: set-up: ").removesuffix(" (0 s)"))
    assert said == [
        "looking for packages",
        "downloading torch-2.15.0 (899.8 MB)",
        "downloading torch-2.15.0 (899.8 MB), 50 %, 450 MB so far",
        "downloading torch-2.15.0 (899.8 MB), 100 %, 900 MB so far",
        "downloading numpy-2.4.6 (16.9 MB), 900 MB so far",
        "installing 2 packages, 900 MB so far",
    ]


def test_a_failure_is_pips_own(capfd) -> None:
    code = "import sys; print('what is wrong'); sys.exit(3)"
    assert pip_install.install([sys.executable, "-c", code]) == 3
    assert "what is wrong" in capfd.readouterr().err
    assert subprocess.run([sys.executable, SCRIPT], capture_output=True, check=False).returncode == 1
