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
import suites  # noqa: E402
from suites import Failure, Run  # noqa: E402

sys.path[:] = installed


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
def test_each_patch_applies() -> None:
    done = subprocess.run(
        [sys.executable, str(MUTANTS / "run.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(MUTANTS.glob("*.patch"))) >= 30


def test_each_suite_has_a_patch() -> None:
    used = {suite for path in MUTANTS.glob("*.patch") for suite in mutants.read(path).tests}
    assert used == {*suites.PYTHON, *suites.GO}


def test_the_report_is_of_these_mutants() -> None:
    """A patch that is gone has no line, and none says that nothing has noticed. Those that have not run are listed, and
    so are those whose patch changed something else when they ran."""
    text = mutants.REPORT.read_text()
    lines = re.findall(r"^\| (\w+) \| [0-9a-f]{8} \| .+ \| (\w+): .+ \| .+ \|$", text, re.MULTILINE)
    assert len(lines) == len(re.findall(r"^\| \w+ \|", text, re.MULTILINE))
    known = sorted([*(name for name, _ in lines), *mutants.not_yet_run(text)])
    assert known == sorted(path.stem for path in MUTANTS.glob("*.patch"))
    line_of = mutants.lines_of(text)
    for name, suite in lines:
        mutant = mutants.read(MUTANTS / f"{name}.patch")
        assert suite in mutant.tests, name
        why = f"the patch of {name} has changed since its run: run it again, or move it to the list of those to be run"
        assert mutants.is_of(line_of[name], mutant), why


A_PATCH = """An order.
Tests: cuda

--- a/file
+++ b/file
@@ -1,2 +1,2 @@
 {around}
-{before}
+{after}
"""


def test_a_run_takes_a_mutant_off_the_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mutant that nobody has listed, and that has not run, stays unknown to the report. One whose patch changes
    something else than in its run comes into the list. Of another one only the lines around the change are others."""
    (tmp_path / "caught.md").write_text(
        "\n".join([*mutants.REPORT_HEAD, *mutants.NOT_YET_RUN, "- a", "- b", "- gone\n"])
    )

    def write(name: str, **lines: str) -> mutants.Mutant:
        path = tmp_path / f"{name}.patch"
        path.write_text(A_PATCH.format(**{"around": "one", "before": name, "after": "two", **lines}))
        return mutants.read(path)

    known = {name: write(name) for name in ("a", "b", "c")}
    monkeypatch.setattr(mutants, "HERE", tmp_path)
    monkeypatch.setattr(mutants, "REPORT", tmp_path / "caught.md")
    outcome = mutants.Outcome(Failure("cuda", "a test", "a hang", ""), counts=True, seconds=1)
    for name, left in (("a", ["b"]), ("b", [])):
        mutants.write_report(known[name], outcome)
        assert mutants.not_yet_run(mutants.REPORT.read_text()) == left
    line = {name: f"| {name} | {each.changes} | An order. | cuda: a test | a hang |" for name, each in known.items()}
    assert mutants.REPORT.read_text() == "\n".join([*mutants.REPORT_HEAD, line["a"], line["b"]]) + "\n"

    assert mutants.is_of(line["a"], write("a", around="three"))
    for lines in ({"before": "three"}, {"after": "three"}):
        assert not mutants.is_of(line["b"], write("b", **lines))
    mutants.write_report(known["c"], outcome)
    assert mutants.lines_of(mutants.REPORT.read_text()) == {name: line[name] for name in ("a", "c")}
    assert mutants.not_yet_run(mutants.REPORT.read_text()) == ["b"]


def outcome(program: str, suite: str = "cuda", bound_s: float = 60) -> Failure | None:
    command = [sys.executable, "-c", f"import os, signal\nprint('test', flush=True)\n{program}"]
    run = suites.bounded(command, MUTANTS, dict(os.environ), bound_s)
    return suites.verdict("a_mutant", suite, run)


def test_a_suite_that_is_killed_ends_the_run() -> None:
    """Nobody knows whether such a suite would have noticed the mutant."""
    with pytest.raises(SystemExit, match="a_mutant: suite cuda was ended by signal 'terminated'"):
        outcome("os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(SystemExit, match="a_mutant: suite fake was ended by signal 'killed'"):
        outcome("print('signal: killed'); print('FAIL sagecomm/pgbackend 3.1s'); raise SystemExit(1)", "fake")


def test_a_suite_that_overruns_tells_nothing() -> None:
    failure = outcome("signal.pause()", bound_s=0.1)
    assert failure is not None
    assert failure.overran
    assert mutants.Outcome(failure, counts=False, seconds=1).verdict.startswith("not sure: ")


NODE = "tests/python/test_device_failures.py::test_a_peer_that_dies[synchronous-staged without waits]"


def test_a_suite_that_fails_or_passes() -> None:
    line = f"FAILED {NODE} - AssertionError: assert 1 == 2"
    found = Failure("cuda", NODE.removeprefix("tests/python/"), "an assertion", NODE)
    assert outcome(f"print({line!r}); raise SystemExit(1)") == found
    lines = "--- FAIL: TestLate (0.01s)\n    --- FAIL: TestLate/one (0.01s)\n        late_test.go:7: random 3: ..."
    found = Failure("fake", "TestLate random 3", "an assertion", "TestLate")
    assert outcome(f"print({lines!r}); raise SystemExit(1)", "fake") == found
    assert outcome("raise SystemExit(0)") is None


@pytest.mark.parametrize(
    ("suite", "alone", "code", "output", "passes"),
    [
        ("cuda", NODE, 0, f"{NODE} PASSED", True),
        ("cuda", NODE, 0, f"{NODE} SKIPPED (no CUDA)", False),
        ("cuda", NODE, 1, f"{NODE} FAILED", False),
        ("fake", "TestLate", 0, "=== RUN   TestLate\n--- PASS: TestLate (0.01s)\nPASS", True),
        ("fake", "TestLate", 0, "testing: warning: no tests to run\nPASS\nok  \tsagecomm/pgbackend", False),
        ("fake", "", 0, "ok  \tsagecomm/pgbackend\t3.1s", True),
    ],
    ids=["passes", "is skipped", "fails", "passes in Go", "is not there", "the whole suite passes"],
)
def test_a_test_counts_if_it_passes_without_the_mutant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suite: str, alone: str, code: int, output: str, passes: bool
) -> None:
    monkeypatch.setattr(suites, "LOGS", tmp_path)
    monkeypatch.setattr(suites, "start", lambda *_: Run(code, output, overran=False))
    failure = Failure(suite, "a test", "a hang", alone)
    assert suites.passes(tmp_path, failure, 1, "a_mutant") is passes
    assert mutants.Outcome(failure, passes, 1).verdict.startswith(f"{suite}: " if passes else "not sure: ")


PATCH = """A group's end tells nothing.
Tests: exits

diff --git a/{name} b/{name}
--- a/{name}
+++ b/{name}
@@ -1,1 +1,2 @@
 {first}
+MUTANT = True
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
def test_processes_of_the_tests_import_the_changed_package(tmp_path: Path) -> None:
    name = "torch_ext/sagecomm/_version.py"
    source = (mutants.ROOT / name).read_text()
    patch = tmp_path / "a_mutant.patch"
    patch.write_text(PATCH.format(name=name, first=source.partition("\n")[0]))
    mutant = mutants.read(patch)
    assert not mutant.in_core
    tree = mutants.Tree(mutants.WORK / "tree-of-a-test")  # inside the repository, as the copies of a run are
    try:
        tree.change(mutant)
        assert "MUTANT" in (tree.root / name).read_text()
        program = "from sagecomm import _version; print(_version.MUTANT)"
        environment = suites.environment(tree.root, seeds=1)
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout == "True\n", done.stderr
        tree.restore(mutant)
        assert (tree.root / name).read_text() == source
    finally:
        shutil.rmtree(tree.root)
