"""torch's own tests of a backend: a few of them, and what tests/suites/run.py makes of those that fail."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import network_bed

ON_HOSTS = "own_hosts" if network_bed.why_not() else "network_2x2"
CONFIGURATIONS = ["own", ON_HOSTS, "masquerade", *(["cuda", "nccl"] if torch.version.cuda else [])]
SUITES = Path(__file__).resolve().parents[1] / "suites"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SUITES))
    for name in "run", "expected":
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("run")


@pytest.mark.long
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("theirs", "ours", "named", "worse"),
    [
        (["a"], ["a", "b"], [], []),
        (["a", "b"], ["a"], [], ["b"]),
        (["a", "b"], ["a"], ["b"], []),
    ],
)
def test_what_passes_on_gloo_alone(
    runner: ModuleType, theirs: list[str], ours: list[str], named: list[str], worse: list[str]
) -> None:
    assert runner.only_on_gloo(theirs, ours, named) == worse


COMMON = """
import torch
import torch.distributed as dist

STANDARD_DTYPES, COMPLEX_DTYPES, FLOAT8_DTYPES = (torch.float32,), (torch.complex64,), ()


class C10dBackendTest:
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def begin(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(self.backend_name, world_size=self.world_size, rank=self.rank, store=store)
"""
FILE = """
import torch
import torch.distributed as dist
from c10d_backend_common import C10dBackendTest


class Abstract{prefix}Test(C10dBackendTest):
    def test_sum(self):
        self.begin()
        x = torch.ones(3, device=self.device_type)
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [2, 2, 2])
        dist.destroy_process_group()

    def test_name(self):
        self.assertEqual(self.backend_name, {name!r})
"""


@pytest.mark.long
@pytest.mark.parametrize(("name", "worse"), [("gloo", 3), ("sagecomm", 0)])
def test_what_passes_on_gloo_has_to_pass(tmp_path: Path, name: str, worse: int) -> None:
    """Files in the form of torch's: one test of each passes on one of the two alone."""
    (tmp_path / "c10d_backend_common.py").write_text(COMMON)
    for file, prefix in (("collectives", "Collectives"), ("p2p", "P2P"), ("process_group", "ProcessGroup")):
        (tmp_path / f"test_c10d_{file}.py").write_text(FILE.format(prefix=prefix, name=name))
    done = subprocess.run(
        [sys.executable, str(SUITES / "run.py"), "backends", "--compare", "-k", "test_"],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={**os.environ, "TORCH_TESTS": str(tmp_path)},
    )
    assert done.returncode == (1 if worse else 0), done.stdout[-8000:] + done.stderr[-2000:]
    theirs, ours = (6, 3) if worse else (3, 6)
    assert f"{theirs} tests pass on gloo, {ours} on sagecomm, {worse} on gloo alone" in done.stdout.splitlines()[-1]
