"""gpu_check.py, which checks the CUDA path on a GPU, under fake CUDA (docs/gpu-check.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpu_files
import gpu_waits
from cuda_bed import CudaBed, fake_cuda
from gpu_list import CHECKS
from gpu_tasks import Result, Task, together

HERE = Path(__file__).resolve().parent


def checked(bed: CudaBed, folder: Path, *arguments: str, **settings: str) -> tuple[int, str, dict[str, Any]]:
    """Returns the exit code, what was printed, and the report. `bed` has built what it runs on."""
    report = folder / "report.json"
    command = [sys.executable, str(HERE / "gpu_check.py"), "--json", str(report), *arguments]
    environment = fake_cuda.environment(**settings)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.long
def test_the_package_imports_nothing_of_the_checkout(tmp_path: Path) -> None:
    """The programs of the check are complete, and each check has its functions. tools/gpu-package tries the same with
    the torch and the Python of the package."""
    gpu_files.copy(tmp_path)
    (tmp_path / "sagecomm").symlink_to(HERE.parents[1] / "torch_ext" / "sagecomm")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(tmp_path / "tests/python/gpu_check.py"), "--list"]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert {check.name for check in CHECKS} <= names


@pytest.mark.long
def test_some_checks(cuda_bed: CudaBed, tmp_path: Path) -> None:
    only = ["holds", "16-random", "graph", "graph-refused", "sanitizer"]
    code, text, report = checked(cuda_bed, tmp_path, "--engine", "staged", "--only", *only, "--ranks", "2")
    assert code == 0, text
    assert report["emulated"]
    assert [(row["name"], row["outcome"]) for row in report["checks"]] == [
        (name, "passed") for name in ("holds", "16-random", "16-random", "graph", "graph-refused", "sanitizer")
    ]


@pytest.mark.long
def test_one_call_runs_both_engines(cuda_bed: CudaBed, tmp_path: Path) -> None:
    """As `make gpu-check` does: checks with each engine, and all ways side by side."""
    only = ["holds", "graph-refused", "rates"]
    code, text, report = checked(cuda_bed, tmp_path, "--only", *only, "--ranks", "2", "--together", "4")
    assert code == 0, text
    assert report["engines"] == ["cuda", "staged"]
    assert sorted((row["name"], row["engine"], row["outcome"]) for row in report["checks"]) == [
        ("graph-refused", "cuda", "skipped"),
        ("graph-refused", "staged", "passed"),
        ("holds", "cuda", "passed"),
        ("rates", "", "passed"),
    ]
    measured = {row["through"] for row in report["rates"] if "refused" not in row}
    assert measured == {"cuda", "staged", "gloo", "pinned"}


# What a run without options does on a GPU.
PLAN = """
import json
import gpu_check

class Run(gpu_check.Run):
    engines, room = gpu_check.ENGINES, gpu_check.TOGETHER

    def __init__(self):
        pass

    def check(self, check, size, engine):
        return {"does": [check.name, size, engine, gpu_check.why_not(check, engine)]}

    def rates(self, size):
        return {"does": ["rates", size, "", ""]}, []

names = [*(check.name for check in gpu_check.CHECKS), "rates"]
print(json.dumps([task.run()[0]["does"] for task in Run().tasks(names, 8)]))
"""


def test_a_run_without_options_does_all() -> None:
    """It runs each check that hardware can run, collectives in graphs included. The measurements come before the checks
    of the second engine."""
    command = [sys.executable, "-c", PLAN]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    runs = [(name, size, engine) for name, size, engine, why_not in plan if not why_not]
    assert {name for name, _, _ in runs} == {check.name for check in CHECKS if not check.emulated_only} | {"rates"}
    assert {("graph-collectives", 2, "cuda"), ("graph-refused", 2, "staged"), ("16-random", 8, "cuda")} <= {*runs}
    assert [size for name, size, _ in runs if name == "rates"] == [2, 4, 8]
    assert [name for name, _, _, _ in plan].count("nccl") == 1
    engines = [engine for _, _, engine in runs]
    assert engines == sorted(engines, key=["cuda", "", "staged"].index)


def test_checks_that_run_together() -> None:
    """Tasks that fit run at the same time: each waits for the other here. What does not fit begins when those before it
    have ended, in its turn, and what is larger than the room runs alone."""
    both, told = threading.Barrier(2, timeout=60), []

    def task(name: str, ranks: int, meets: bool = False) -> Task:
        def run() -> Result:
            told.append(f"begin {name}")
            if meets:
                both.wait()
            told.append(f"end {name}")
            return {"name": name}, []

        return Task(ranks, run)

    tasks = [task("a", 2, meets=True), task("b", 2, meets=True), task("large", 9), task("c", 3), task("d", 2)]
    names = [row["name"] for row, _ in together(tasks, 4)]
    assert sorted(names[:2]) == ["a", "b"]
    assert names[2:] == ["large", "c", "d"]
    assert told[4:] == ["begin large", "end large", "begin c", "end c", "begin d", "end d"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rounds", "0"], "argument --rounds: '0' is no number of 1 or more"),
        (["--ranks", "0"], "argument --ranks: '0' is no number of 1 or more"),
        (["--together", "0"], "argument --together: '0' is no number of 1 or more"),
        (["--json", "no/such/folder/report.json"], "report.json cannot be written: "),
        (["--json", "."], "argument --json: . cannot be written: it is a folder"),
    ],
)
def test_options_that_are_refused_before_anything_runs(tmp_path: Path, arguments: list[str], text: str) -> None:
    command = [sys.executable, str(HERE / "gpu_check.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stderr
    assert not done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["--only", "11-senders", "--ranks", "2"], ["--only", "graph-collectives", "--engine", "staged"]],
    ids=["too few ranks", "skipped"],
)
def test_a_run_of_nothing_is_a_failure(arguments: list[str]) -> None:
    command = [sys.executable, str(HERE / "gpu_check.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "none of these checks runs with these ranks and engines" in done.stderr


def in_turn(schedule: str) -> pytest.MarkDecorator:
    """Parametrizes a test of minutes by one schedule, and by both under `make test-streams`."""
    return pytest.mark.parametrize("schedule", ["lazy", "random"] if "SEEDS" in os.environ else [schedule])


@pytest.mark.long
@in_turn("lazy")
def test_all_checks(cuda_bed: CudaBed, tmp_path: Path, schedule: str) -> None:
    code, text, report = checked(cuda_bed, tmp_path, "--engine", "staged", "--ranks", "4", EMULATOR_SCHEDULE=schedule)
    assert code == 0, text
    assert {row["name"] for row in report["checks"]} == {check.name for check in CHECKS} | {"rates"}
    assert {row["through"] for row in report["rates"]} == {"staged", "gloo", "pinned"}


@pytest.mark.long
@in_turn("random")
def test_all_checks_of_the_engine_cuda(cuda_bed: CudaBed, tmp_path: Path, schedule: str) -> None:
    code, text, report = checked(cuda_bed, tmp_path, "--engine", "cuda", "--ranks", "3", EMULATOR_SCHEDULE=schedule)
    assert code == 0, text
    assert report["engines"] == ["cuda"]
    others = [row["name"] for row in report["checks"] if row["outcome"] != "passed"]
    assert others == ["12-events", "15-first", "graph-refused", "nccl"]


@pytest.mark.long
def test_what_fails_is_reported(cuda_bed: CudaBed, tmp_path: Path) -> None:
    faults = "cuMemcpyDtoHAsync@2+=out_of_memory"  # the first copy is that of gpu_programs.warm
    only = ["--engine", "staged", "--only", "3-waits"]
    code, text, report = checked(cuda_bed, tmp_path, *only, EMULATOR_FAULTS=faults)
    assert code == 1, text
    (row,) = report["checks"]
    assert row["outcome"] == "failed"
    assert "device_programs:wait_on_another_stream, seed 1: " in row["error"]


# The second check looks at the file, and raises what is no AssertionError.
KEPT = """
import argparse, json, pathlib, sys
import gpu_check

file = pathlib.Path(sys.argv[1])

class Run(gpu_check.Run):
    device, engines, room = {"name": "none", "torch": "none"}, ["staged"], 1

    def __init__(self):
        pass

    def check(self, check, size, engine):
        def run():
            if file.exists():
                raise KeyError([row["outcome"] for row in json.loads(file.read_text())["checks"]][0])

        return gpu_check._attempt(run, check.name, check.what, size, engine)

options = argparse.Namespace(only=["holds", "3-waits"], ranks=2, json=file, seed=1, rounds=1)
print([row["outcome"] for row in gpu_check.carry_out(Run(), options)["checks"]])
"""


@pytest.mark.long
def test_results_are_kept_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    command = [sys.executable, "-c", KEPT, str(file)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "KeyError: 'passed'" in done.stdout
    first, *others = [row["outcome"] for row in json.loads(file.read_text())["checks"]]
    assert first == "passed"
    assert set(others) == {"failed"}


@pytest.mark.long
def test_calls_that_wait(cuda_bed: CudaBed) -> None:
    """The emulated driver waits where a real one was found to wait."""
    command = [sys.executable, str(HERE / "gpu_waits.py")]
    environment = fake_cuda.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    waiting = {line.split()[0] for line in lines if line.endswith("waits, and others cannot launch and ask")}
    assert waiting == gpu_waits.WAIT, done.stdout


@pytest.mark.long
def test_a_run_that_has_no_time(cuda_bed: CudaBed, tmp_path: Path) -> None:
    """It says so, and does not count as passed."""
    code, text, report = checked(cuda_bed, tmp_path, "--minutes", "0", "--only", "holds", "rates")
    assert code == 1, text
    assert {(row["name"], row["outcome"]) for row in report["checks"]} == {("holds", "late"), ("rates", "late")}
    assert all(row["error"] == "the 0 minutes of --minutes are over" for row in report["checks"])


@pytest.mark.long
def test_a_machine_without_a_gpu(cuda_bed: CudaBed, tmp_path: Path) -> None:
    code, text, report = checked(cuda_bed, tmp_path, EMULATOR_DEVICES="0")
    assert code == 2
    assert "torch finds no GPU here; nothing was checked" in text
    assert not report
