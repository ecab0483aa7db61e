"""Checks the CUDA path on a machine with one GPU, and measures it: docs/gpu-check.md.

It runs in a checkout and in the package that tools/gpu-package makes. Under fake CUDA it checks itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]  # of tools/gpu-package; in a checkout sagecomm is installed
if (PACKAGE / "sagecomm").is_dir():
    sys.path[1:1] = [str(PACKAGE), str(PACKAGE / "site")]
os.environ.setdefault("TEST_HANG_BOUND_S", "240")  # of each rank: eight ranks share a GPU

from cuda_bed import CudaBed, emulated  # noqa: E402
from gpu_list import CHECKS, Check  # noqa: E402
from gpu_tasks import Result, Task, together  # noqa: E402
from nccl_facade import FACADE  # noqa: E402

RATES = "rates"
ENGINES = ("cuda", "staged")  # in the order of their checks; those of vendors' libraries need a device for each rank
SIZES = (8, 4 << 10, 256 << 10, 4 << 20, 64 << 20)
RATE_RANKS = (2, 4, 8)
RATE_ROUNDS = 3  # at least, on a GPU
TOGETHER = 8  # ranks at a time on a GPU, as many as the largest check has; on the emulator one check at a time
MEASURED = "time and bandwidth beside gloo and beside copies through pinned memory"
WIDTH = max(len(check.name) for check in CHECKS) + 2  # of a column of names
LINES_OF_AN_ERROR = 40  # that are printed; FILE of --json has all


def planned(only: list[str], most: int, engines: Sequence[str]) -> Iterator[tuple[Check | None, int, str]]:
    """Yields the checks with the first engine, the measurements, which are None and of all engines, and the checks with
    the other engines: what comes last is left out first if the time is short. Each has its number of ranks."""
    for engine in engines:
        first = engine == engines[0]
        for check in CHECKS:
            if check.name in only and (first or not check.once):
                yield from ((check, size, engine) for size in check.ranks if size <= most)
        if first and RATES in only:
            yield from ((None, size, "") for size in RATE_RANKS if size <= most)


def why_not(check: Check, engine: str) -> str:
    """Returns why a check is skipped with an engine, "" if it is not."""
    if check.emulated_only and not emulated():
        return "it needs a fault that only the emulator makes"
    if check.hardware_only and emulated():
        return check.hardware_only
    return check.staged_only if engine == "cuda" else check.cuda_only


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self.seed, self.rounds, self.engines = options.seed, options.rounds, list(dict.fromkeys(options.engine))
        self.minutes, self.began = options.minutes, time.monotonic()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SAGECOMM_PROBE": "off"}
        environment.pop("SAGECOMM_ENGINE", None)  # each check has its own
        if not emulated():
            # torch asks NVML for devices, so that the process that forks makes no CUDA call. Kernels are loaded at the
            # start, because to load one later waits for streams that a program holds.
            environment |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_MODULE_LOADING": "EAGER"}
            # Each stream has a queue of the hardware, so that one that is held does not hold up another one.
            environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.room = options.together or (1 if emulated() else TOGETHER)
        self.making = threading.Lock()  # of beds
        self.beds = {False: CudaBed(environment=environment)}  # by whether the processes have the facade of NCCL
        self.environment = environment
        self.schedule = os.environ.get("EMULATOR_SCHEDULE", "lazy")
        self.device: dict[str, Any] = self.ranks("gpu_programs:describe", 1)[0]  # {} without a GPU

    def bed(self, facade: bool) -> CudaBed:
        with self.making:
            if facade not in self.beds:
                preload = ":".join(filter(None, [str(FACADE), self.environment.get("LD_PRELOAD")]))
                self.beds[facade] = CudaBed(environment={**self.environment, "LD_PRELOAD": preload})
            return self.beds[facade]

    def stop(self) -> None:
        for bed in self.beds.values():
            bed.stop()

    def ranks(
        self,
        function: str,
        size: int,
        *arguments: Any,
        facade: bool = False,
        dies: int | None = None,
        **settings: str,
    ) -> list[Any]:
        settings = {"EMULATOR_KICK_MS": "5"} | settings
        bed, order = self.bed(facade), {"schedule": self.schedule, "seed": self.seed}
        return bed.ranks(function, size, *arguments, dies=dies, **order, **settings)

    def why_late(self) -> str:
        """Returns why nothing more begins, "" while there is time."""
        late = time.monotonic() > self.began + 60 * self.minutes
        return f"the {self.minutes:g} minutes of --minutes are over" if late else ""

    def check(self, check: Check, size: int, engine: str) -> dict[str, Any]:
        """Runs a check on so many ranks with an engine. Returns its row."""
        if why := why_not(check, engine):
            return _row(check.name, check.what, size, engine, "skipped", error=why)
        if why := self.why_late():
            return _row(check.name, check.what, size, engine, "late", error=why)

        def run() -> None:
            settings = {"SAGECOMM_ENGINE": engine, **check.settings}
            if check.whole:
                self.ranks(check.whole, size, facade=check.facade, dies=check.dies, **settings)
            else:
                self.ranks("gpu_programs:run", size, check.programs, self.rounds, self.seed, **settings)

        return _attempt(run, check.name, check.what, size, engine)

    def rates(self, size: int) -> Result:
        """Returns the row of a check and those of the measurements, which are of all engines."""
        measured: list[dict[str, Any]] = []
        if why := self.why_late():
            return _row(RATES, MEASURED, size, "", "late", error=why), measured
        # Times of the emulator say nothing.
        sizes, seconds, least = (SIZES[:2], 0.01, 1) if emulated() else (SIZES, 0.1, RATE_ROUNDS)
        rounds = max(least, self.rounds)

        def run() -> None:
            measured.extend(self.ranks("gpu_rates:measure", size, self.engines, sizes, seconds, rounds)[0])

        return _attempt(run, RATES, MEASURED, size, ""), measured

    def tasks(self, only: list[str], most: int) -> Iterator[Task]:
        """Yields what is planned."""
        for check, size, engine in planned(only, most, self.engines):
            if check is None:
                yield Task(self.room, partial(self.rates, size))
            else:
                yield Task(self.room if check.alone else size, partial(self.result_of, check, size, engine))

    def result_of(self, check: Check, size: int, engine: str) -> Result:
        """Runs a check, which measures nothing."""
        return self.check(check, size, engine), []


def _row(
    name: str, what: str, size: int, engine: str, outcome: str, seconds: float = 0.0, error: str = ""
) -> dict[str, Any]:
    return {
        "name": name,
        "what": what,
        "ranks": size,
        "engine": engine,
        "outcome": outcome,
        "seconds": seconds,
        "error": error,
    }


def _attempt(call: Callable[[], None], name: str, what: str, size: int, engine: str) -> dict[str, Any]:
    began, error = time.monotonic(), ""
    try:
        call()
    except AssertionError as failure:  # with what the rank has printed
        error = str(failure) or traceback.format_exc()
    except Exception:
        error = traceback.format_exc()
    return _row(name, what, size, engine, "failed" if error else "passed", time.monotonic() - began, error)


def show(row: dict[str, Any]) -> None:
    start = f"{row['outcome']:<8}{row['seconds']:>7.1f} s  {row['name']:<{WIDTH}}{row['engine']:<8}"
    print(f"{start}{row['ranks']} ranks  {row['what']}")
    for line in row["error"].splitlines()[-LINES_OF_AN_ERROR:]:
        print(f"    {line}")
    sys.stdout.flush()


def table(rates: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'operation':<15}{'ranks':>5}{'bytes':>12}  {'through':<10}{'median us':>12}{'p90 us':>12}{'busbw GB/s':>12}"
    ]
    for row in rates:
        start = f"{row['op']:<15}{row['ranks']:>5}{row['bytes']:>12}  {row['through']:<10}"
        if "refused" in row:
            lines.append(f"{start}  refused: {row['refused'][:70]}")
        else:
            lines.append(f"{start}{row['median_us']:>12.1f}{row['p90_us']:>12.1f}{row['busbw_gb_s']:>12.3f}")
    return lines


def _count(text: str) -> int:
    """Parses an option that is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def _part(report: Path) -> Path:
    """Returns the file beside a report that is written first."""
    return report.with_name(report.name + ".part")


def _report(text: str) -> Path:
    """Parses the name of a file that can be written."""
    report = Path(text)
    try:
        if report.is_dir():
            raise IsADirectoryError("it is a folder")
        _part(report).touch()
        _part(report).unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{report} cannot be written: {error}") from error
    return report


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*(check.name for check in CHECKS), RATES]
    parser.add_argument("--list", action="store_true", help="list the checks, having imported what they need")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="checks of the list")
    parser.add_argument("--json", type=_report, metavar="FILE", help="write all results there as well")
    engines = "of the ranks, which share a device; by default all of them: " + ", then ".join(ENGINES)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES, help=engines)
    parser.add_argument("--seed", type=int, default=1, help="of delays and choices of streams; 1 by default")
    parser.add_argument(
        "--rounds", type=_count, default=1, help="how often each check runs, each time with another seed; 1 by default"
    )
    parser.add_argument("--minutes", type=float, default=11, help="begin nothing after this time; 11 by default")
    parser.add_argument("--ranks", type=_count, default=8, help="leave out what needs more ranks; 8 by default")
    parser.add_argument(
        "--together",
        type=_count,
        metavar="RANKS",
        help=f"run checks at the same time that have so many ranks together; {TOGETHER} by default, 1 on the emulator",
    )
    return parser.parse_args()


def show_list() -> int:
    from gpu_programs import resolve
    from sagecomm import _native

    _native.load()
    for check in CHECKS:
        for name in check.functions():
            resolve(name)
        print(f"{check.name:<{WIDTH}}{check.what}")
    resolve("gpu_rates:measure")
    print(f"{RATES:<{WIDTH}}{MEASURED}")
    return 0


def carry_out(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for. Returns the report, {} without a GPU. At any time --json has what was found so far."""
    if not run.device:
        return {}
    last = options.seed + options.rounds - 1
    name, torch = run.device["name"], run.device["torch"]
    engines = ", ".join(run.engines)
    print(f"gpu-check on {name}, torch {torch}, engines {engines}; seeds {options.seed} to {last}", flush=True)
    checks: list[dict[str, Any]] = []
    rates: list[dict[str, Any]] = []
    report = {
        "version": 2,
        "device": run.device,
        "emulated": emulated(),
        "engines": list(run.engines),
        "python": platform.python_version(),
        "seed": options.seed,
        "rounds": options.rounds,
        "checks": checks,
        "rates": rates,
    }
    for row, measured in together(run.tasks(options.only, options.ranks), run.room):
        show(row)
        checks.append(row)
        rates.extend(measured)
        if options.json:
            _part(options.json).write_text(json.dumps(report, indent=1) + "\n")
            _part(options.json).replace(options.json)
    if rates:
        print(*table(rates), sep="\n")
    return report


def main() -> int:
    options = parsed()
    if options.list:
        return show_list()
    plan = planned(options.only, options.ranks, options.engine)
    if all(check is not None and why_not(check, engine) for check, _, engine in plan):
        print("sagecomm: gpu-check: none of these checks runs with these ranks and engines", file=sys.stderr)
        return 1
    run = Run(options)
    try:
        report = carry_out(run, options)
    finally:
        run.stop()
    if not report:
        print("sagecomm: gpu-check: torch finds no GPU here; nothing was checked", file=sys.stderr)
        return 2
    outcomes = [row["outcome"] for row in report["checks"]]
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped", "late")))
    return int("failed" in outcomes or "late" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
