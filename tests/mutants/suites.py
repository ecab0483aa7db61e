"""The suites that must notice mutants: how one runs over a copy of the tree, and which of its tests has failed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import shim

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "mutants"
SUITE_BOUND_S = 420
HANG_BOUND_S = 30  # of one test's ranks, unless the environment has TEST_HANG_BOUND_S

_TENSORS = "tests/python/test_device_tensors.py"
_SIMDEV = [f"{_TENSORS}::{name}" for name in ("test_programs", "test_coalesced", "test_p2p", "test_a_peer_that_ends")]
PYTHON = {
    "cuda": ["tests/python/test_device_waits.py", f"{_TENSORS}::test_programs_on_cuda"],
    "simdev": [*_SIMDEV, f"{_TENSORS}::test_wait_does_not_block_the_host"],
    "each": ["tests/python/test_device_each.py", "-k", "cuda or current"],  # every operation
    "refused": ["tests/python/test_device_each.py", "-k", "behind_an_event"],
    "blocking": ["tests/python/test_device_failures.py"],
    "faults": ["tests/python/test_device_faults.py"],
    "foreign": ["tests/python/test_device_foreign.py"],
    "p2p": [_TENSORS, "-k", "p2p"],  # the part of both beds that is about it
    "full": ["tests/python/test_device_full.py"],  # streams
    "callers": ["tests/python/test_device_waits.py", "-k", "a_new_stream"],
    "queues": ["tests/python/test_device_queues.py"],  # of the hardware
    "joined": ["tests/python/test_device_joined.py"],
    "waits": ["tests/python/test_cuda_engine.py", "-k", "test_calls_that_wait"],
    "captures": ["tests/python/test_cuda_engine.py", "-k", "captures or factors"],
    "turns": ["tests/python/test_cuda_engine.py", "-k", "rows_do"],
    "libraries": ["tests/python/test_nccl_waits.py", "-k", "p2p_behind"],
    "handlers": ["tests/python/test_nccl_waits.py", "-k", "handler"],
    "unwritten": ["tests/python/test_cuda_engine.py", "-k", "written"],
    "exits": ["tests/python/test_endings.py", "-k", "futures_end"],
    "kept": [
        "tests/python/test_nccl_engine.py",
        "tests/python/test_nccl_graphs.py",
        "-k",
        "behind_an_error or beside_graphs or capture_fails or running",
    ],
    "scripted": ["tests/python/test_shim_work.py", "-k", "written or abort_ends"],
    "operators": ["tests/python/test_operators.py"],
    "scaling": ["tests/python/test_vendor_devices.py", "-k", "test_averages_and_factors and launch"],
    "vendors": ["tests/python/test_vendor_devices.py", "-k", "launch and (calls or waits)"],
}
# Packages, then the tests of them; all tests if no pattern follows.
GO = {
    "driver": ["./tests/go", "-run", "TestCProgramOnADevice"],
    "pools": [
        "./internal/engine/staged",
        "./internal/engine/vendor",
        "-run",
        "TwoThreads|ThatIsIssued|WaitsForQuiet|ThatAreFull|GivenBack|ForASend|OfTheirOwn|StayBehind|ThatIsDone|CannotWait|AreLeft"
        "|FindsNoRoom|ForRows|FillNoStream|IsIdle|AreChosen|WaitLater|FollowFromThePeer",
    ],
    "orders": [
        "./internal/engine/staged",
        "./internal/engine/vendor",
        "./internal/engine/cuda",
        "-run",
        "EarlierOperations|AnError|OfATrial|ForWhichStreams|SeenEnd|GatesForget|BesideTheEnd|BehindCalls|IsDown|OfAClosed"
        "|CannotBeEnded|WhatGraphsUse|HasFailed|Overtakes|FirstKernel|ValuesAreKnown|BeforeWaits"
        "|CapturesBeside|DepartsBehind|SaysThat|NextWay|JoinIsBetween",
    ],
    "graphs": ["./internal/engine/vendor", "-run", "Lingers"],
    "late": ["./tests/devices", "-run", "TestKernelsThatComeLate"],
    "arguments": ["./tests/devices", "-run", "TestArgumentsOfCUDA"],
    "connections": ["./tests/devices", "-run", "TestQueuesOfRecvs"],
    "parts": ["./pgbackend", "-run", "CoalescedCall|EarlyCalls"],
    "endings": ["./internal/engine/cuda", "-run", "Told|Release|Departed|Died"],
    "fake": ["./pgbackend", "-run", "Staged|Staging|Windows|Late|Device|TimeoutBegins|Refused"],
    "externals": ["./pgbackend", "-run", "External|BlocksBetween|NeedNoQuestion"],
    "lanes": [
        "./pgbackend",
        "-run",
        "ThatIsDown|GoesDownWhile|TurnsLast|ClosedBehind|ThroughALibrary|Programs|FirstOperationOn",
    ],
    "destroys": ["./pgbackend", "-run", "Destroy|Stopped"],
    "commands": ["./internal/engine/cuda", "-run", "Commands|Streams|Barrier|Values"],
    "engines": [f"./internal/engine/{name}" for name in ("staged", "vendor", "nccl", "cuda")],
    "runner": ["./internal/runner"],
    # The programs of tests/runner: the runner's C without Go, its gates too, under ThreadSanitizer.
    "threads": ["./tests/runner/sanitize", "-run", "TestUnderThreadSanitizer"],
}
LOADS_THE_CORE = {*PYTHON, "driver"}  # the other suites are Go's tests of a package, which build what they need


@dataclass(frozen=True)
class Failure:
    suite: str
    test: str  # with its schedule and seed
    how: str
    alone: str  # the test, as pytest or go test takes it; empty if no test was running
    overran: bool = False  # the bound of the suite has ended it: the machine may have been slow


@dataclass(frozen=True)
class Run:
    code: int
    output: str
    overran: bool  # the bound ended it

    @property
    def signal(self) -> str:
        """The signal that ended the suite. It came from outside, since tests send signals to their ranks only."""
        if self.overran:
            return ""
        if self.code < 0:
            return (signal.strsignal(-self.code) or str(-self.code)).lower()
        said = re.search(r"^signal: (.+)$", self.output, re.MULTILINE)  # go test of the program that it has run
        return said[1] if said else ""


def environment(tree: Path, seeds: int) -> dict[str, str]:
    """Processes import the package of the copy before the installed one. They leave no bytecode there: a patch of the
    same length in the same second would be taken for what it replaces."""
    return {
        "TEST_HANG_BOUND_S": str(HANG_BOUND_S),
        **os.environ,
        "SEEDS": str(seeds),
        "TEST_THOROUGH": "1",  # also what is too long for `make test` (tests/quick)
        "PYTHONPATH": str(tree / "torch_ext"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def log_of(what: str, suite: str) -> Path:
    return LOGS / f"{what}-{suite}.log"


def start(tree: Path, suite: str, seeds: int, alone: str = "") -> Run:
    """Runs a suite, or one of its tests alone."""
    around = environment(tree, seeds)
    if suite in GO:
        go, packages = str(tree / "tools/go"), [word for word in GO[suite] if word.startswith("./")]
        shim.run([go, "test", "-vet=off", "-run", "^$", *packages], cwd=tree)  # compiling has no bound, and may fail
        what = [*packages, "-v", "-run", f"^{re.escape(alone)}$"] if alone else GO[suite]
        how = ["-short", "-count=1", "-failfast", "-vet=off", "-timeout", "200s"]
        return bounded([go, "test", *how, *what], tree, around)
    how = ["-v", "-x", "--tb=short", "-p", "no:cacheprovider", "--timeout=120"]
    what = [alone] if alone else PYTHON[suite]
    return bounded([sys.executable, "-m", "pytest", *how, *what], ROOT, around)


def fails(tree: Path, suite: str, seeds: int, what: str) -> Failure | None:
    """Returns which test of the suite failed with `what`; nothing if all passed."""
    run = start(tree, suite, seeds)
    log_of(what, suite).write_text(run.output)
    return verdict(what, suite, run)


def passes(tree: Path, failure: Failure, seeds: int, what: str) -> bool:
    """Reports whether the test that failed with `what` passes over this tree, alone. Where a failure names no test, all
    of its suite runs."""
    log = log_of(what, f"{failure.suite}-without")
    run = start(tree, failure.suite, seeds, failure.alone)
    log.write_text(run.output)
    refuse_a_signal(what, failure.suite, run, log)
    passed = r"^--- PASS: " if failure.alone and failure.suite in GO else r"^ok |::.+ PASSED"
    return run.code == 0 and re.search(passed, run.output, re.MULTILINE) is not None


def refuse_a_signal(what: str, suite: str, run: Run, log: Path) -> None:
    if run.signal:
        raise SystemExit(
            f"{what}: suite {suite} was ended by signal '{run.signal}'; whether it notices the mutant is open. "
            f"Its output is in {log}"
        )


def verdict(what: str, suite: str, run: Run) -> Failure | None:
    """Returns which test failed with `what`; nothing if all passed."""
    refuse_a_signal(what, suite, run, log_of(what, suite))
    if run.code == 0:
        return None
    test, alone = find_go(run.output) if suite in GO else find_python(run.output)
    return Failure(suite, test, "a suite that overran" if run.overran else reason(run.output), alone, run.overran)


def bounded(command: list[str], where: Path, environment: dict[str, str], bound_s: float = SUITE_BOUND_S) -> Run:
    with subprocess.Popen(
        command,
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        overran = False
        try:
            output, _ = process.communicate(timeout=bound_s)
        except subprocess.TimeoutExpired:
            overran = True
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        finally:  # go test that has overrun its own bound leaves the programs of its tests behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return Run(process.returncode, output, overran)


def find_python(output: str) -> tuple[str, str]:
    """Returns the name of the test that failed, and how pytest calls it."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", output, re.MULTILINE)
    running = re.findall(r"^(tests/\S+::.+?) *(?:PASSED|FAILED|SKIPPED|$)", output, re.MULTILINE)
    node = failed[1] if failed else re.sub(r" \++ Timeout \++$", "", running[-1]) if running else ""
    return node.removeprefix("tests/python/") or "the start of pytest", node


def find_go(output: str) -> tuple[str, str]:
    """Returns the name of the test that failed, with its schedule, and the name of the test that it is a part of."""
    failed = re.search(r"--- FAIL: (\S+)", output) or re.search(r"running tests:\s+(\S+)", output)
    seed = re.search(
        r"^\s+\w+_test\.go:\d+: (lazy|eager|threaded|random \d+|with \d hardware queues?)", output, re.MULTILINE
    )
    name = failed[1] if failed else ""
    return " ".join([name or "the start of go test", *([seed[1]] if seed else [])]), name.partition("/")[0]


# The first that fits names what went wrong. A hang comes late, since who hangs often has a peer that has failed.
REASONS = (
    ("a report of the checker", r"conflict: "),
    ("a wrong result", r"AssertionError: \(-?[\d.]+, -?[\d.]+\)|other bits than|does not hold: host"),
    ("a hang", r": hung$|the ranks hang:|did not answer within|Timeout|test timed out|did not end"),
    ("an assertion", r"AssertionError: assert |^E +assert |DID NOT RAISE|does not hold|_test\.go:\d+: "),
    ("an exception", r"Error: "),
)


def reason(output: str) -> str:
    return next((what for what, pattern in REASONS if re.search(pattern, output, re.MULTILINE)), "a failure")
