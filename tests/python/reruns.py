"""`pytest --rerun-failed`: a test that fails runs once more, and only a second failure counts.

CI asks for it, because a test may fail on a machine that was busy for a moment. Each test that passes then is reported
as `flaky: NAME`, with what it said the first time.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

GATHERED: dict[str, str] = {}  # first failures of tests that passed the second time, by name
CARRIED = "first_failure"  # what the last report of a test carries, from a worker of xdist to where they are gathered


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rerun-failed", action="store_true", help="run a test that fails once more")


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not item.config.getoption("--rerun-failed"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failures = [report.longreprtext for report in reports if report.failed]
    if failures:
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            setattr(reports[-1], CARRIED, "\n".join(failures))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if (failure := getattr(report, CARRIED, None)) is not None:
        GATHERED[report.nodeid] = failure


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, failure in GATHERED.items():
        terminalreporter.section(f"first run of {name}")
        terminalreporter.write_line(failure)
    for name in GATHERED:
        terminalreporter.write_line(f"flaky: {name}")
