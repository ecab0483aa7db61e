"""tools/rerun-failed: only tests that failed by themselves get a second run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "rerun-failed"

# Prints the output of a first `go test`, and that of a second run, which has -count=1 among its arguments.
GO = """
import sys
first, again = {outputs!r}
text, status = again if "-count=1" in sys.argv else first
print(text)
sys.exit(status)
"""

FAILS = "--- FAIL: TestA (0.00s)\n    a_test.go:3: no\n"
ENDS = "FAIL\nFAIL\tsagecomm/a\t0.1s\nFAIL"
DETECTOR = 'ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346 "x" (0x0, 0x0) (tid=9625)\n'
PASSES = ("ok  \tsagecomm/a\t0.1s", 0)


@pytest.mark.parametrize(
    ("first", "again", "status", "says"),
    [
        (PASSES[0], PASSES, 0, ""),
        (FAILS + ENDS, PASSES, 0, "flaky: sagecomm/a TestA"),
        (f"{PASSES[0]}\n{FAILS}{ENDS}", PASSES, 0, "flaky: sagecomm/a TestA"),
        (FAILS + ENDS, (FAILS + ENDS, 1), 1, "rerun: sagecomm/a TestA"),
        (FAILS + "coverage: 80.0% of statements\n" + ENDS, PASSES, 0, "flaky: sagecomm/a TestA"),
        # Another test crashed after the one that failed, in Go or in C, and the tests behind it did not run.
        (FAILS + "panic: no\n\ngoroutine 7 [running]:\nFAIL\tsagecomm/a\t0.1s\nFAIL", PASSES, 1, ""),
        (FAILS + "SIGABRT: abort\nPC=0x408fee\nFAIL\tsagecomm/a\t0.1s\nFAIL", PASSES, 1, ""),
        (FAILS + "fatal error: all goroutines are asleep\n" + ENDS, PASSES, 1, ""),
        ("WARNING: DATA RACE\n" + FAILS + ENDS, PASSES, 1, ""),
        ("# sagecomm/a\na.go:1:1: expected 'package'\nFAIL\tsagecomm/a [build failed]\nFAIL", PASSES, 1, ""),
        # The race detector fails itself: the whole package runs again, but not behind a race.
        (DETECTOR + "FAIL\tsagecomm/a\t0.1s\nFAIL", PASSES, 0, "flaky: sagecomm/a the whole package"),
        (DETECTOR + "FAIL\tsagecomm/a\t0.1s\nFAIL", (FAILS + ENDS, 1), 1, "rerun: sagecomm/a the whole package"),
        ("WARNING: DATA RACE\n" + DETECTOR + "FAIL\tsagecomm/a\t0.1s\nFAIL", PASSES, 1, ""),
        # One package fails by a test, the other one crashes.
        (f"{FAILS}{ENDS[:-5]}\nFAIL\tsagecomm/b\t0.1s\nFAIL", PASSES, 1, ""),
    ],
)
def test_only_failures_of_tests_run_again(tmp_path, first, again, status, says):
    go = tmp_path / "go.py"
    first_status = 0 if first == PASSES[0] else 1
    go.write_text(GO.format(outputs=((first, first_status), again)))
    command = [sys.executable, str(TOOL), sys.executable, str(go), "test", "./..."]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert says in ended.stdout
    if not says:
        assert "rerun:" not in ended.stdout
