"""Applies each mutant to a copy of the tree, builds it and runs the tests that must notice it.

    python tests/mutants/run.py [--check] [--jobs N] [--seeds N] [name ...]

A mutant is a patch in this folder that takes one order out of the way of an operation on a device, in the core, the
extension or the package. The text in front of the patch says what is missing; its line `Tests:` names the suites of
suites.py that must notice, in the order in which they run. A test counts that fails with the mutant, and passes alone
without it.
--check only finds out whether each patch applies. Without names, the copy without a mutant comes first and must pass.
The table of who caught what goes to caught.md, what a suite printed to build/mutants/MUTANT-SUITE.log. A line of the
table has the hash of the lines that its patch changed. When the patch changes others, the mutant counts as not run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import shim
import suites
from suites import Failure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = suites.LOGS
REPORT = HERE / "caught.md"
CORE = "torch_ext/sagecomm/lib/libsagecomm.so"
JOBS = 2  # mutants at a time, each with two or more ranks
UNCHANGED = "without_a_mutant"


@dataclass(frozen=True)
class Mutant:
    path: Path
    what: str
    tests: tuple[str, ...]
    files: tuple[str, ...]
    changes: str  # a hash of the lines that it takes out and adds

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def in_core(self) -> bool:
        return any(not name.startswith(("cshim/", "torch_ext/")) for name in self.files)

    def has(self, kinds: Collection[str]) -> bool:
        return any(name in kinds for name in self.tests)


@dataclass(frozen=True)
class Outcome:
    failure: Failure | None
    counts: bool  # the test that has failed passes without the mutant
    seconds: float

    @property
    def verdict(self) -> str:
        if self.failure is None:
            return "nothing"
        test = f"{self.failure.suite}: {self.failure.test}"
        if self.failure.overran:
            return f"not sure: the suite took too long: {test}"
        return test if self.counts else f"not sure: fails without the mutant: {test}"

    @property
    def how(self) -> str:
        return self.failure.how if self.failure else ""


def read(path: Path) -> Mutant:
    head, _, patch = path.read_text().partition("--- a/")
    found = re.search(r"^Tests: (.+)$", head, re.MULTILINE)
    if found is None or not set(found[1].split()) <= {*suites.PYTHON, *suites.GO}:
        raise SystemExit(f"{path}: no line `Tests:` with some of {', '.join((*suites.PYTHON, *suites.GO))}")
    files = tuple(re.findall(r"^--- a/(\S+)", "--- a/" + patch, re.MULTILINE))
    what = " ".join(head[: found.start()].split())
    return Mutant(path, what, tuple(found[1].split()), files, changes_of("--- a/" + patch))


def changes_of(patch: str) -> str:
    """Returns a hash of the lines that a patch takes out and adds. Those around them do not count, nor do the files."""
    lines = [line for line in patch.splitlines() if line[:1] in {"+", "-"}]
    changed = [line for line in lines if not line.startswith(("--- a/", "+++ b/"))]
    return hashlib.sha256("\n".join(changed).encode()).hexdigest()[:8]


def apply(mutant: Mutant, tree: Path, *how: str) -> str:
    """Returns why the patch does not apply, or nothing."""
    command = ["git", "apply", "--whitespace=nowarn", *how, str(mutant.path)]
    # The copy is inside a repository. git must not look at that: it would pass over the files of a patch that
    # `git diff` has written, without an error.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(command, cwd=tree, env=outside, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


class Tree:
    """A copy of the tree that mutants take turns in. The beds and the environment are those of the tree itself."""

    def __init__(self, root: Path, builder: shim.Shim | None = None) -> None:
        self.root = root
        self._builder = builder
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

    def change(self, mutant: Mutant) -> None:
        why = apply(mutant, self.root)
        same = [name for name in mutant.files if (self.root / name).read_bytes() == (ROOT / name).read_bytes()]
        if why or same or not mutant.files:
            raise SystemExit(f"{mutant.path} does not apply:\n{why or f'it does not change {same}'}")

    def restore(self, mutant: Mutant) -> None:
        for name in mutant.files:
            shutil.copyfile(ROOT / name, self.root / name)

    def build(self, core_too: bool) -> None:
        """Makes the core and the extension. A core that no source of the copy changes is that of the first build."""
        (self.root / CORE).unlink(missing_ok=True)
        if core_too:
            shim.run(["make", "--no-print-directory", "core"], cwd=self.root)
        else:
            shutil.copyfile(WORK / "libsagecomm.so", self.root / CORE)
        if self._builder:
            self._builder.build(self.root)


def try_mutant(tree: Tree, mutant: Mutant, seeds: int) -> Outcome:
    began = time.monotonic()
    try:
        tree.change(mutant)
        if mutant.has(suites.LOADS_THE_CORE):
            tree.build(mutant.in_core)
        found = (suites.fails(tree.root, name, seeds, mutant.name) for name in mutant.tests)
        failure = next(filter(None, found), None)
    finally:
        tree.restore(mutant)
    counts = False
    if failure and not failure.overran:
        if failure.suite in suites.LOADS_THE_CORE:
            tree.build(core_too=False)
        counts = suites.passes(tree.root, failure, seeds, mutant.name)
    return Outcome(failure, counts, time.monotonic() - began)


def prepare(mutants: list[Mutant], jobs: int, seeds: int, everything: bool) -> queue.Queue[Tree]:
    """Makes the copies, and what all of them begin with as far as the mutants' suites need it."""
    python = any(mutant.has(suites.PYTHON) for mutant in mutants)
    builder = shim.Shim(WORK / "objects") if python else None
    trees: queue.Queue[Tree] = queue.Queue()
    for number in range(jobs):
        trees.put(Tree(WORK / f"tree-{number}", builder))
    first = trees.queue[0]
    if any(mutant.has(suites.LOADS_THE_CORE) for mutant in mutants):
        first.build(core_too=True)
        shutil.copyfile(first.root / CORE, WORK / "libsagecomm.so")
    for name in ("cuda", "simdev", *suites.GO) if everything else ():
        if failure := suites.fails(first.root, name, seeds, UNCHANGED):
            log = suites.log_of(UNCHANGED, name)
            raise SystemExit(f"without a mutant, {failure.test} fails with {failure.how}: {log}")
    return trees


def run_all(mutants: list[Mutant], jobs: int, seeds: int, everything: bool) -> bool:
    trees = prepare(mutants, jobs, seeds, everything)
    writing = threading.Lock()

    def one(mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            outcome = try_mutant(tree, mutant, seeds)
        finally:
            trees.put(tree)
        with writing:
            write_report(mutant, outcome)
        print(f"{mutant.name}: {outcome.verdict}: {outcome.how} ({outcome.seconds:.0f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(one, mutants))
    caught = sum(outcome.counts for outcome in outcomes)
    print(f"{caught} of {len(mutants)} mutants were caught")
    return caught == len(mutants)


REPORT_HEAD = [
    "# Who caught which mutant",
    "",
    "`make test-mutants` writes this page. A test's name ends with the schedule and the seed.",
    "",
    "| mutant: | patch | what is missing | caught by | as |",
    "|---|---|---|---|---|",
]


NOT_YET_RUN = ["", "Not yet run:", ""]


def not_yet_run(report: str) -> list[str]:
    """Returns the mutants in the list at the end of a report, to which whoever adds a patch without a run adds it, and
    whoever changes what a patch changes moves it."""
    return re.findall(r"^- (\w+)$", report.partition("\n".join(NOT_YET_RUN))[2], re.MULTILINE)


def lines_of(report: str) -> dict[str, str]:
    """Returns the line of each mutant of a report."""
    return {found[1]: found[0] for found in re.finditer(r"^\| (\w+) \|.*\|$", report, re.MULTILINE)}


def is_of(line: str, mutant: Mutant) -> bool:
    """Returns whether a line of a report is that of a run with what the patch changes now."""
    return line.startswith(f"| {mutant.name} | {mutant.changes} | ")


def write_report(mutant: Mutant, outcome: Outcome) -> None:
    """Replaces the line of this mutant, and takes it off the list of those that have not run. Lines whose patch changes
    something else now go to that list."""
    old = REPORT.read_text() if REPORT.exists() else ""
    mutants = [read(path) for path in sorted(HERE.glob("*.patch"))]
    lines = lines_of(old)
    stale = {each.name for each in mutants if each.name in lines and not is_of(lines[each.name], each)}
    lines[mutant.name] = f"| {mutant.name} | {mutant.changes} | {mutant.what} | {outcome.verdict} | {outcome.how} |"
    left = {*not_yet_run(old), *stale} - {mutant.name}
    names = [each.name for each in mutants]
    kept = [lines[name] for name in names if name in lines and name not in left]
    listed = [f"- {name}" for name in names if name in left]
    REPORT.write_text("\n".join([*REPORT_HEAD, *kept, *([*NOT_YET_RUN, *listed] if listed else [])]) + "\n")


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
