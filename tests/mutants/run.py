"""Applies each mutant to a copy of the tree, builds it and runs the tests that must notice it.

    python tests/mutants/run.py [--check] [--jobs N] [--seeds N] [name ...]

A mutant is a patch in this folder that takes one order out of the way of an operation on a device. The text in front of
the patch says what is missing; its line `Tests:` names the suites that must notice, in the order in which they run.
--check only finds out whether each patch applies. Without names, the copy without a mutant comes first and must pass.
The table of who caught what goes to caught.md, what a suite printed to build/mutants/MUTANT-SUITE.log.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import shim

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "mutants"
REPORT = HERE / "caught.md"
CORE = "torch_ext/sagecomm/lib/libsagecomm.so"
JOBS = 2  # mutants at a time, each with two or more ranks
SUITE_BOUND_S = 420
HANG_BOUND_S = 30  # of one test's ranks, unless the environment has TEST_HANG_BOUND_S
UNCHANGED = "without_a_mutant"

_TENSORS = "tests/python/test_device_tensors.py"
_SIMDEV = [f"{_TENSORS}::{name}" for name in ("test_programs", "test_coalesced", "test_p2p", "test_a_peer_that_ends")]
PYTHON = {
    "cuda": ["tests/python/test_device_waits.py", f"{_TENSORS}::test_programs_on_cuda"],
    "simdev": [*_SIMDEV, f"{_TENSORS}::test_wait_does_not_block_the_host"],
    "each": ["tests/python/test_device_each.py", "-k", "cuda"],  # every operation
    "blocking": ["tests/python/test_device_failures.py"],
    "p2p": [_TENSORS, "-k", "p2p"],  # the part of both beds that is about it
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
    "scripted": ["tests/python/test_shim_work.py", "-k", "written"],
    "vendors": ["tests/python/test_vendor_devices.py", "-k", "launch and (calls or waits)"],
}
GO = {
    "driver": ["./tests/go", "-run", "TestCProgramOnADevice"],
    "pools": ["./internal/engine/staged", "./internal/engine/vendor", "-run", "TwoThreads|ThatIsIssued|WaitsForQuiet"],
    "graphs": ["./internal/engine/vendor", "-run", "Lingers"],
    "late": ["./tests/devices", "-run", "TestKernelsThatComeLate"],
    "endings": ["./internal/engine/cuda", "-run", "Told|Release|Departed|Died"],
    "fake": ["./pgbackend", "-run", "Staged|Staging|Windows|Late|Device|TimeoutBegins|Refused"],
}


@dataclass(frozen=True)
class Mutant:
    path: Path
    what: str
    tests: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def in_core(self) -> bool:
        return any(not name.startswith("cshim/") for name in self.files)


@dataclass(frozen=True)
class Outcome:
    caught: str  # suite and test, with its schedule and seed; empty if nothing noticed
    how: str
    seconds: float


def read(path: Path) -> Mutant:
    head, _, patch = path.read_text().partition("--- a/")
    found = re.search(r"^Tests: (.+)$", head, re.MULTILINE)
    if found is None or not set(found[1].split()) <= {*PYTHON, *GO}:
        raise SystemExit(f"{path}: no line `Tests:` with some of {', '.join((*PYTHON, *GO))}")
    files = tuple(re.findall(r"^--- a/(\S+)", "--- a/" + patch, re.MULTILINE))
    what = " ".join(head[: found.start()].split())
    return Mutant(path, what, tuple(found[1].split()), files)


def apply(mutant: Mutant, tree: Path, *how: str) -> str:
    """Returns why the patch does not apply, or nothing."""
    command = ["git", "apply", "--whitespace=nowarn", *how, str(mutant.path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


class Tree:
    """A copy of the tree that mutants take turns in. The beds and the environment are those of the tree itself."""

    def __init__(self, number: int) -> None:
        self.root = WORK / f"tree-{number}"
        shutil.rmtree(self.root, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file() and not name.startswith(("tests/emulator/", "tests/mutants/", "docs/")):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        for name in (".venv", ".toolchain", "tests/emulator"):
            if (ROOT / name).exists():
                (self.root / name).symlink_to(ROOT / name)
        (self.root / CORE).parent.mkdir(parents=True, exist_ok=True)

    def restore(self, mutant: Mutant) -> None:
        for name in mutant.files:
            shutil.copyfile(ROOT / name, self.root / name)

    def build_core(self) -> None:
        (self.root / CORE).unlink(missing_ok=True)
        shim.run(["make", "--no-print-directory", "core"], cwd=self.root)

    def suite(self, name: str, seeds: int, what: str) -> tuple[str, str]:
        """Returns which test failed with `what`, and how; nothing if all passed."""
        environment = {"TEST_HANG_BOUND_S": str(HANG_BOUND_S), **os.environ, "SEEDS": str(seeds)}
        if name in GO:
            command = [
                str(self.root / "tools/go"),
                "test",
                "-short",
                "-count=1",
                "-failfast",
                "-vet=off",
                "-timeout",
                "200s",
                *GO[name],
            ]
            where = self.root
        else:
            environment["PYTHONPATH"] = str(self.root / "torch_ext")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-v",
                "-x",
                "--tb=short",
                "-p",
                "no:cacheprovider",
                "--timeout=120",
                *PYTHON[name],
            ]
            where = ROOT
        run = bounded(command, where, environment)
        log_of(what, name).write_text(run.output)
        return verdict(what, name, run)


def log_of(what: str, suite: str) -> Path:
    return WORK / f"{what}-{suite}.log"


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


def verdict(what: str, suite: str, run: Run) -> tuple[str, str]:
    """Returns which test failed with `what`, and how; nothing if all passed."""
    if run.signal:
        raise SystemExit(
            f"{what}: suite {suite} was ended by signal '{run.signal}'; whether it notices the mutant is open. "
            f"Its output is in {log_of(what, suite)}"
        )
    if run.code == 0:
        return "", ""
    test, how = find_go(run.output) if suite in GO else find_python(run.output)
    return test, "a hang of the suite" if run.overran else how


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
        return Run(process.returncode, output, overran)


def find_python(output: str) -> tuple[str, str]:
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::\S+(?: \S+?\])?)", output, re.MULTILINE)
    running = re.findall(r"^(tests/\S+::.+?) *(?:PASSED|FAILED|SKIPPED|$)", output, re.MULTILINE)
    test = failed[1] if failed else running[-1] if running else "the start of pytest"
    return re.sub(r" \++ Timeout \++$", "", test.rpartition("/")[2]), reason(output)


def find_go(output: str) -> tuple[str, str]:
    failed = re.search(r"--- FAIL: (\S+)", output) or re.search(r"running tests:\s+(\S+)", output)
    seed = re.search(
        r"^\s+\w+_test\.go:\d+: (lazy|eager|threaded|random \d+|with \d hardware queues?)", output, re.MULTILINE
    )
    return " ".join([failed[1] if failed else "the start of go test", *([seed[1]] if seed else [])]), reason(output)


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


def try_mutant(tree: Tree, mutant: Mutant, builder: shim.Shim, seeds: int) -> Outcome:
    began = time.monotonic()
    try:
        if why := apply(mutant, tree.root):
            raise SystemExit(f"{mutant.path} does not apply:\n{why}")
        if mutant.in_core:
            tree.build_core()
        else:
            shutil.copyfile(WORK / "libsagecomm.so", tree.root / CORE)
        builder.build(tree.root)
        for name in mutant.tests:
            test, how = tree.suite(name, seeds, mutant.name)
            if test:
                return Outcome(f"{name}: {test}", how, time.monotonic() - began)
        return Outcome("", "", time.monotonic() - began)
    finally:
        tree.restore(mutant)


def prepare(builder: shim.Shim, jobs: int, everything: bool, seeds: int) -> queue.Queue[Tree]:
    trees: queue.Queue[Tree] = queue.Queue()
    for number in range(jobs):
        tree = Tree(number)
        if number == 0:
            tree.build_core()
            shutil.copyfile(tree.root / CORE, WORK / "libsagecomm.so")
            builder.build(tree.root)
            for name in ("cuda", "simdev", *GO) if everything else ():
                test, how = tree.suite(name, seeds, UNCHANGED)
                if test:
                    raise SystemExit(f"without a mutant, {test} fails with {how}: {log_of(UNCHANGED, name)}")
        trees.put(tree)
    return trees


def run_all(mutants: list[Mutant], jobs: int, seeds: int, everything: bool) -> bool:
    builder = shim.Shim(WORK / "objects")
    trees = prepare(builder, jobs, everything, seeds)
    writing = threading.Lock()

    def one(mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            outcome = try_mutant(tree, mutant, builder, seeds)
        finally:
            trees.put(tree)
        with writing:
            write_report(mutant, outcome)
        print(f"{mutant.name}: {outcome.caught or 'NOT CAUGHT'}: {outcome.how} ({outcome.seconds:.0f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(one, mutants))
    caught = sum(bool(outcome.caught) for outcome in outcomes)
    print(f"{caught} of {len(mutants)} mutants were caught")
    return caught == len(mutants)


REPORT_HEAD = [
    "# Who caught which mutant",
    "",
    "`make test-mutants` writes this page. A test's name ends with the schedule and the seed.",
    "",
    "| mutant: | what is missing | caught by | as |",
    "|---|---|---|---|",
]


def write_report(mutant: Mutant, outcome: Outcome) -> None:
    """Replaces the line of this mutant."""
    old = REPORT.read_text() if REPORT.exists() else ""
    lines = {found[1]: found[0] for found in re.finditer(r"^\| (\w+) \|.*\|$", old, re.MULTILINE)}
    lines[mutant.name] = f"| {mutant.name} | {mutant.what} | {outcome.caught or 'nothing'} | {outcome.how} |"
    kept = [lines[path.stem] for path in sorted(HERE.glob("*.patch")) if path.stem in lines]
    REPORT.write_text("\n".join([*REPORT_HEAD, *kept]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only find out whether each patch applies")
    parser.add_argument("--jobs", type=int, default=JOBS, help="mutants at a time")
    parser.add_argument("--seeds", type=int, default=3, help="of the random schedule")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    mutants = [read(path) for path in sorted(HERE.glob("*.patch"))]
    if arguments.names:
        known = {mutant.name: mutant for mutant in mutants}
        if unknown := [name for name in arguments.names if name not in known]:
            parser.error(f"no mutant is called {', '.join(unknown)}")
        mutants = [known[name] for name in arguments.names]
    if arguments.check:
        broken = {mutant.path.name: why for mutant in mutants if (why := apply(mutant, ROOT, "--check"))}
        for name, why in broken.items():
            print(f"{name} does not apply any more; write it again:\n{why}", file=sys.stderr)
        return int(bool(broken))
    return int(not run_all(mutants, arguments.jobs, arguments.seeds, not arguments.names))


if __name__ == "__main__":
    sys.exit(main())
