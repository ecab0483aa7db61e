"""Runs torch's own tests of a backend against sagecomm, and compares what fails with expected.py.

    python tests/suites/run.py                          all configurations, in turn
    python tests/suites/run.py own -k monitored         of one, the tests whose names contain that
    python tests/suites/run.py own masquerade --smoke   the few that pytest runs
    python tests/suites/run.py eight --backend gloo     the same tests on torch's own backend, to compare with
    python tests/suites/run.py cuda --compare           both, and whether all that passes on gloo passes on sagecomm

Where tests are told "sagecomm", those run whose skip has no other reason than the name, on gloo as well. The
configurations c10d_nccl, and those whose names begin with "backends", need files of torch's repository: the variable
TORCH_TESTS names their folder, `test/distributed`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "emulator"), str(HERE.parent / "python")]

import fake_cuda  # noqa: E402
import nccl_facade  # noqa: E402
import network_bed  # noqa: E402
from expected import DIFFERENCES, MOST, OF_ONE_CONFIGURATION, ON_NCCL, ON_NCCL2  # noqa: E402

LOGS = HERE.parents[1] / "build" / "suites"  # what the ranks write, which is a lot
TEST_TIMEOUT_S = 120  # of one test; after that torch shows the stacks of its ranks


@dataclass(frozen=True)
class Configuration:
    told: str  # the backend's name as the tests see it
    ranks: int
    at_least: int  # tests that pass, with the pinned torch: a skip is no way out
    smoke: tuple[str, ...] = ()
    cuda: bool = False  # the tests of CUDA tensors, on emulated devices, one for each rank
    tests: str = "torch_tests"  # the module that has them
    from_repository: bool = False  # they are in no wheel
    hosts: tuple[int, ...] = ()  # ranks of each, where SAGECOMM_HOSTID puts them on several; empty: all are on one
    network: bool = False  # hosts are network namespaces (tests/python/network_bed.py)
    nccl_class: str = ""  # torch's own, which answers to the name; empty: sagecomm does


SMOKE_ON_HOSTS = (
    "test_DistributedDataParallelCPU",
    "test_all_to_all_single_unequal_split",
    "test_batch_isend_irecv_gloo",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_send_recv_any_source",
)

CONFIGURATIONS = {
    "own": Configuration(
        told="sagecomm",
        ranks=3,
        at_least=94,
        smoke=(
            "test_DistributedDataParallelCPU",
            "test_all_to_all_single_unequal_split",
            "test_batch_isend_irecv_gloo",
            "test_ddp_logging_data_cpu",
            "test_monitored_barrier_gloo_subgroup",
            "test_scatter_object_list",
            "test_sparse_all_reduce_sum",
        ),
    ),
    # Torch's tests are told "gloo", and sagecomm answers to that name.
    "masquerade": Configuration(
        told="gloo",
        ranks=3,
        at_least=89,
        smoke=(
            "test_accumulate_gradients_no_sync_allreduce_hook",
            "test_all_gather_coalesced_simple",
            "test_all_reduce_sum_async",
            "test_ddp_logging_data_cpu",
            "test_get_future",
            "test_isend_torch_profiler",
            "test_monitored_barrier_gloo_rank_0_timeout",
            "test_send_recv_any_source_autograd_profiler",
        ),
    ),
    "own_hosts": Configuration(
        told="sagecomm",
        ranks=4,
        at_least=97,
        smoke=SMOKE_ON_HOSTS,
        hosts=(2, 2),
    ),
    "network_2x1": Configuration(told="sagecomm", ranks=2, at_least=94, hosts=(1, 1), network=True),
    "network_2x2": Configuration(
        told="sagecomm", ranks=4, at_least=97, smoke=SMOKE_ON_HOSTS, hosts=(2, 2), network=True
    ),
    "network_4x2": Configuration(told="sagecomm", ranks=8, at_least=118, hosts=(2, 2, 2, 2), network=True),
    "eight": Configuration(told="sagecomm", ranks=8, at_least=118),
    "eight_masquerade": Configuration(told="gloo", ranks=8, at_least=110),
    "cuda": Configuration(
        told="gloo",
        ranks=2,
        at_least=170,
        smoke=(
            "test_all_reduce_sum_cuda_async",
            "test_broadcast_cuda",
            "test_ddp_hook_parity_allreduce",
            "test_ddp_logging_data_cpu",
            "test_ddp_uneven_inputs",
            "test_sparse_all_reduce_sum_cuda",
        ),
        cuda=True,
    ),
    "backends": Configuration(told="sagecomm", ranks=2, at_least=31, tests="backend_tests", from_repository=True),
    "backends_cuda": Configuration(
        told="sagecomm", ranks=2, at_least=36, tests="backend_tests", from_repository=True, cuda=True
    ),
    # The tests are told "nccl", and torch's own backend of that name answers, over libsagecomm_nccl.so.
    "nccl": Configuration(
        told="nccl",
        ranks=2,
        at_least=136,
        smoke=(
            "test_all_reduce_sum_cuda_async",
            "test_all_to_all_cuda",
            "test_batch_isend_irecv_nccl",
            "test_ddp_hook_parity_allreduce",
            "test_reduce_scatter_v_cuda",
        ),
        cuda=True,
        nccl_class="ProcessGroupNCCL",
    ),
    "nccl2": Configuration(told="nccl", ranks=2, at_least=121, cuda=True, nccl_class="ProcessGroupNCCL2"),
    "c10d_nccl": Configuration(
        told="nccl",
        ranks=4,  # the tests have 2 to 4, and want a device for each
        at_least=185,  # of the classes that have run (docs/torch-suites.md)
        tests="c10d_nccl_tests",
        from_repository=True,
        cuda=True,
        nccl_class="ProcessGroupNCCL",
    ),
}


def expected_failures(name: str) -> dict[str, str]:
    """The tests that are expected to fail in that configuration, and why."""
    if len(DIFFERENCES) > MOST:
        raise SystemExit(f"{len(DIFFERENCES)} expected differences, {MOST} are allowed: mend something")
    if (of := CONFIGURATIONS[name].nccl_class) and name not in OF_ONE_CONFIGURATION:
        return ON_NCCL2 if of == "ProcessGroupNCCL2" else ON_NCCL
    failures = {test: each.reason for test, each in DIFFERENCES.items() if name in each.configurations}
    return failures | OF_ONE_CONFIGURATION.get(name, {})


def verdict(
    passed: Collection[str], failed: Collection[str], expected: Collection[str], *, complete: bool, at_least: int = 0
) -> list[str]:
    """What is wrong with a run. `complete`: all tests were to run, so that what is missing counts."""
    wrong = [f"{name} failed" for name in sorted(set(failed) - set(expected))]
    for name in sorted(set(expected) - set(failed)):
        if name in passed:
            wrong.append(f"{name} passes: delete it from expected.py")
        elif complete:
            wrong.append(f"{name} was not run: delete it from expected.py")
    if complete and len(passed) < at_least:
        wrong.append(f"{len(passed)} tests passed, expected {at_least} or more")
    return wrong


class Outcomes(unittest.TestResult):
    """Shows one sign for each test, and remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self.passed.append(_name(test))
        _show(".")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.left_out[_name(test)] = reason
        _show("s")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self.failed[_name(test)] = self.failures[-1][1]
        _show("F")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self.failed[_name(test)] = self.errors[-1][1]  # what raised in a rank arrives as a RuntimeError
        _show("F")

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        if _name(test) in self.failed and _name(test) in self.passed:  # its end failed
            self.passed.remove(_name(test))


def _name(test: unittest.TestCase) -> str:
    name: str = getattr(test, "PREFIX", "") + test.id().rpartition(".")[2]
    return name


def _show(sign: str) -> None:
    print(sign, end="", flush=True)


def run(name: str, backend: str, part: str | None, smoke: bool) -> int:
    """Runs the tests of one configuration in this process, which has run none before."""
    configuration = CONFIGURATIONS[name]
    if configuration.from_repository and "TORCH_TESTS" not in os.environ:
        print(f"{name}: not run: set TORCH_TESTS to the folder test/distributed of torch's repository")
        return 0
    if configuration.network and (why := network_bed.why_not()):
        print(f"{name}: not run: {why}")
        return 0
    try:
        os.environ |= environment(configuration, backend)
    except fake_cuda.builder.UnavailableError as error:
        print(f"{name}: not run: {error}")
        return 0
    log = LOGS / f"{name}.log"
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as to:
        os.dup2(to.fileno(), sys.stderr.fileno())
    load = unittest.TestLoader().loadTestsFromTestCase
    cases = importlib.import_module(configuration.tests).CASES
    chosen = unittest.TestSuite(test for case in cases for test in load(case))
    if smoke:
        chosen = unittest.TestSuite(test for test in chosen if _name(test) in configuration.smoke)
        missing = set(configuration.smoke) - {_name(test) for test in chosen}
        if missing:
            raise SystemExit(f"{name}: this torch has no tests called {sorted(missing)}")
    if part is not None:
        chosen = unittest.TestSuite(test for test in chosen if part in _name(test))

    outcomes = Outcomes()
    began = time.monotonic()
    with hosts_of(configuration) as environments:
        if environments:
            os.environ["SUITE_ENVIRONMENTS"] = json.dumps(environments)
        chosen.run(outcomes)
    _outcomes_file(name, backend).write_text(json.dumps([outcomes.passed, [*outcomes.failed]]))
    took = time.monotonic() - began

    expected = expected_failures(name) if backend == "sagecomm" else {}
    print()
    for test, text in outcomes.failed.items():
        print(f"expected: {test}: {expected[test]}" if test in expected else f"---- {test} ----\n{text}")
    complete = not smoke and part is None
    at_least = configuration.at_least if backend == "sagecomm" else 0
    wrong = verdict(outcomes.passed, outcomes.failed, expected, complete=complete, at_least=at_least)
    for each in wrong:
        print(f"{name}: {each}")
    surprises = len(outcomes.failed.keys() - expected.keys())
    through = configuration.nccl_class if backend == "sagecomm" else ""
    served_by = f"{backend} through {through}" if through else backend
    print(
        f"{name}: {served_by}, told {os.environ['BACKEND']}, {configuration.ranks} ranks: "
        f"{len(outcomes.passed)} passed, {surprises} failed, {len(outcomes.failed) - surprises} failed as expected, "
        f"{len(outcomes.left_out)} skipped, {took:.0f} s; log: {log}"
    )
    return 1 if wrong else 0


def _outcomes_file(name: str, backend: str) -> Path:
    return LOGS / f"{name}-{backend}.json"


def compare(name: str, part: str | None) -> int:
    """Runs one configuration on gloo and on sagecomm. What passes on gloo has to pass on sagecomm, but for the
    differences of expected.py that come from the name."""
    codes = []
    for backend in ("gloo", "sagecomm"):
        _outcomes_file(name, backend).unlink(missing_ok=True)
        command = [sys.executable, __file__, name, "--backend", backend, *(["-k", part] if part else [])]
        codes.append(subprocess.run(command, check=False).returncode)
    if not _outcomes_file(name, "sagecomm").exists():
        return max(codes)
    (theirs, _), (ours, failed) = (
        json.loads(_outcomes_file(name, backend).read_text()) for backend in ("gloo", "sagecomm")
    )
    named = {test for test, each in DIFFERENCES.items() if name in each.configurations}
    worse = only_on_gloo(theirs, ours, named)
    for test in worse:
        print(f"{name}: {test} passes on gloo and {'fails' if test in failed else 'is not run'} on sagecomm")
    print(f"{name}: {len(theirs)} tests pass on gloo, {len(ours)} on sagecomm, {len(worse)} on gloo alone")
    return 1 if worse or codes[1] else 0


def only_on_gloo(theirs: Collection[str], ours: Collection[str], named: Collection[str]) -> list[str]:
    """Returns what passes on gloo alone. `named`: tests that tell backends apart by their names."""
    return sorted(set(theirs) - set(ours) - set(named))


@contextmanager
def hosts_of(configuration: Configuration) -> Iterator[list[dict[str, str]]]:
    """The environment of each rank where there are several hosts, which last until the end of the block."""
    sizes = configuration.hosts
    if configuration.network:
        with network_bed.Network(len(sizes)) as network:
            # torch makes groups of gloo beside, which by default has the address of the machine's name.
            yield [{"GLOO_SOCKET_IFNAME": "eth0", **each} for each in network.environments(*sizes)]
    else:
        yield [{"SAGECOMM_HOSTID": f"h{host}"} for host, size in enumerate(sizes) for _ in range(size)]


def environment(configuration: Configuration, backend: str) -> Mapping[str, str]:
    """What torch's tests, and the processes of their ranks, are to find."""
    paths = [str(HERE), str(HERE.parent / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    cuda = {}
    if configuration.cuda:
        fake_cuda.build()
        cuda = {"SUITE_DEVICES": str(configuration.ranks), "EMULATOR_KICK_MS": "5"}
        if configuration.nccl_class:
            cuda["SUITE_PRELOAD"] = str(nccl_facade.FACADE)
            cuda["TORCH_DIST_USE_NCCL2"] = str(int(configuration.nccl_class == "ProcessGroupNCCL2"))
    return {
        **cuda,
        "BACKEND": configuration.told if backend == "sagecomm" else backend,
        "SUITE_SERVED_BY": configuration.told if configuration.nccl_class and backend == "sagecomm" else backend,
        "SUITE_FOR_EVERY_NAME": "yes" if configuration.told == "sagecomm" else "no",
        "WORLD_SIZE": str(configuration.ranks),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_TIMEOUT_S),
        # torch skips all tests where there are fewer devices than ranks.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(configuration.ranks))) if configuration.cuda else "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configurations", nargs="*", metavar="CONFIGURATION", help=f"of {', '.join(CONFIGURATIONS)}")
    parser.add_argument("-k", dest="part", help="only tests whose names contain this")
    parser.add_argument("--smoke", action="store_true", help="only a few")
    parser.add_argument("--compare", action="store_true", help="run gloo as well; what passes there has to pass")
    parser.add_argument("--backend", default="sagecomm", help="sagecomm, or the name of another backend")
    given = parser.parse_args()
    names = given.configurations or list(CONFIGURATIONS)
    for name in names:
        if name not in CONFIGURATIONS:
            parser.error(f"there is no configuration {name!r}, only {', '.join(CONFIGURATIONS)}")
    if given.compare:  # torch's own class has no name under which gloo could answer
        named = [name for name in given.configurations if CONFIGURATIONS[name].nccl_class]
        if named:
            parser.error(f"{named[0]} runs torch's own class: there is nothing to compare with")
        return max(compare(name, given.part) for name in names if not CONFIGURATIONS[name].nccl_class)
    if len(names) == 1:
        return run(names[0], given.backend, given.part, given.smoke)
    # Each in an interpreter of its own: torch reads the variables once.
    options = ["--backend", given.backend, *(["-k", given.part] if given.part else []), *["--smoke"] * given.smoke]
    codes = [subprocess.run([sys.executable, __file__, name, *options], check=False).returncode for name in names]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
