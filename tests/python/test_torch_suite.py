"""torch's own tests of a backend: a few of them, and what tests/suites/run.py makes of those that fail."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SUITES = Path(__file__).resolve().parents[1] / "suites"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SUITES))
    for name in "run", "expected":
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("run")


@pytest.mark.long
@pytest.mark.parametrize("configuration", ["own", "masquerade", *(["cuda", "nccl"] if torch.version.cuda else [])])
def test_a_few_of_torchs_tests(configuration: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SUITES / "run.py"), configuration, "--smoke"],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert ", 0 failed, " in done.stdout.splitlines()[-1]
    assert ", 0 skipped, " in done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        ({"passed": ["a"], "failed": ["b"]}, []),
        ({"passed": ["a"], "failed": ["b", "c"]}, ["c failed"]),
        ({"passed": ["a", "b"], "failed": []}, ["b passes: delete it from expected.py"]),
        ({"passed": ["a"], "failed": []}, ["b was not run: delete it from expected.py"]),
        ({"passed": ["a"], "failed": [], "complete": False}, []),
        ({"passed": ["a"], "failed": ["b"], "at_least": 2}, ["1 tests passed, expected 2 or more"]),
    ],
)
def test_expected_failures_may_only_become_fewer(runner: ModuleType, outcome: dict[str, Any], wrong: list[str]) -> None:
    assert runner.verdict(**{"expected": ["b"], "complete": True, **outcome}) == wrong


@pytest.mark.long
def test_the_list_of_differences_is_short(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(runner.expected_failures("own")) == set(runner.DIFFERENCES)
    assert set(runner.expected_failures("masquerade")) == {"test_ddp_logging_data_cpu"}
    for each in runner.DIFFERENCES.values():
        assert each.reason
        assert each.configurations <= runner.CONFIGURATIONS.keys()
    one = next(iter(runner.DIFFERENCES.values()))
    monkeypatch.setattr(runner, "DIFFERENCES", {str(i): one for i in range(runner.MOST + 1)})
    with pytest.raises(SystemExit, match=f"{runner.MOST} are allowed"):
        runner.expected_failures("own")
