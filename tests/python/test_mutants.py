"""The mutants of `make test-mutants` follow the code that they change, and the run of them counts no false success."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = Path(__file__).resolve().parents[1] / "mutants"
# The modules add folders of the checkout. Ranks of other tests inherit the path, and test the installed package.
installed = sys.path.copy()
sys.path.insert(0, str(MUTANTS))

import run as mutants  # noqa: E402

sys.path[:] = installed


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
def test_each_patch_applies() -> None:
    done = subprocess.run(
        [sys.executable, str(MUTANTS / "run.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(MUTANTS.glob("*.patch"))) >= 30


def test_the_report_is_of_these_mutants() -> None:
    """A patch that is gone has no line, and none says that nothing has noticed."""
    text = mutants.REPORT.read_text()
    lines = re.findall(r"^\| (\w+) \| .+ \| (\w+): .+ \| .+ \|$", text, re.MULTILINE)
    assert len(lines) == len(re.findall(r"^\| \w+ \|", text, re.MULTILINE))
    for name, suite in lines:
        assert suite in mutants.read(MUTANTS / f"{name}.patch").tests, name


def outcome(program: str, suite: str = "cuda", bound_s: float = 60) -> tuple[str, str]:
    command = [sys.executable, "-c", f"import os, signal\nprint('test', flush=True)\n{program}"]
    run = mutants.bounded(command, MUTANTS, dict(os.environ), bound_s)
    return mutants.verdict("a_mutant", suite, run)


def test_a_suite_that_is_killed_ends_the_run() -> None:
    """Nobody knows whether such a suite would have noticed the mutant."""
    with pytest.raises(SystemExit, match="a_mutant: suite cuda was ended by signal 'terminated'"):
        outcome("os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(SystemExit, match="a_mutant: suite fake was ended by signal 'killed'"):
        outcome("print('signal: killed'); print('FAIL sagecomm/pgbackend 3.1s'); raise SystemExit(1)", "fake")


def test_a_suite_that_overruns_is_a_hang() -> None:
    assert outcome("signal.pause()", bound_s=0.1)[1] == "a hang of the suite"


def test_a_suite_that_fails_or_passes() -> None:
    failure = "FAILED tests/python/test_device_waits.py::test_programs[lazy] - AssertionError: assert 1 == 2"
    assert outcome(f"print({failure!r}); raise SystemExit(1)") == (
        "test_device_waits.py::test_programs[lazy]",
        "an assertion",
    )
    assert outcome("raise SystemExit(0)") == ("", "")
