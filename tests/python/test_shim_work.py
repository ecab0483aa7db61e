"""Work, Futures, errors and signals of the shim, on top of a core that does what a script says."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import programs
import shim_calls
import shim_completion
import shim_errors
import shim_hooks
import shim_hooks_abort
import shim_life
import shim_members
import shim_store
from selection import quickly
from shim_harness import SCENARIOS, run, start

pytestmark = pytest.mark.smoke

# Imported for what they register in SCENARIOS.
__all__ = [
    "shim_calls",
    "shim_completion",
    "shim_errors",
    "shim_hooks",
    "shim_hooks_abort",
    "shim_life",
    "shim_members",
    "shim_store",
]

HERE = Path(__file__).resolve().parent
# Seconds until a scenario counts as hanging.
DEADLINE = 120


@pytest.fixture(scope="session")
def fake_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fake_core") / "libfake_core.so"
    sources = sorted((HERE.parent / "cshim").glob("*.c"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-fPIC", "-shared", "-pthread"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *map(str, sources), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="session")
def shim(fake_core: Path) -> Iterator[ProcessPoolExecutor]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=start, initargs=(str(fake_core),)) as pool:
        yield pool


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_shim(shim: ProcessPoolExecutor, scenario: Callable[[], None]) -> None:
    shim.submit(run, scenario).result(timeout=DEADLINE)


# What a process leaves behind when it ends without cleaning up.
ENDINGS = {
    "group never destroyed": "dist.all_reduce(torch.ones(1))",
    "operation never completes": "s.fake.fake_script(s.MANUAL, 0); w = dist.all_reduce(torch.ones(1), async_op=True)",
    "callback of an operation that completes while the interpreter ends": (
        "s.fake.fake_script(s.MANUAL, 0)\n"
        "for _ in range(50):\n"
        "    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: sum(range(10000)))\n"
        "s.fake.fake_finish_elsewhere(0, 0)"
    ),
    "failed operations whose Futures are alive": (
        "s.fake.fake_script(s.MANUAL, 0)\n"
        "futures = [dist.all_reduce(torch.ones(1), async_op=True).get_future() for _ in range(50)]\n"
        "s.fake.fake_finish_elsewhere(s.PEER_FAILURE, 0)"
    ),
    "hooks registered, operations in flight and failing": (
        "def hook(*_): sum(range(100000))\n"
        "s.backend().register_completion_hook(1, hook)\n"
        "s.group()._register_on_completion_hook(hook)\n"
        "s.backend().register_abort_hook(2, hook)\n"
        "s.fake.fake_script(s.MANUAL, 0)\n"
        "for _ in range(50): dist.all_reduce(torch.ones(1), async_op=True)\n"
        "s.fake.fake_finish_elsewhere(0, 0)"
    ),
    "daemon thread in wait": (
        "import threading\n"
        "s.fake.fake_script(s.MANUAL, 0); w = dist.all_reduce(torch.ones(1), async_op=True)\n"
        "threading.Thread(target=w.wait, daemon=True).start()"
    ),
    "claim in a store whose server is stopped": "import shim_store; shim_store.claim_that_does_not_end()",
    "clone of a store whose server is stopped": "import shim_store; shim_store.clone_that_is_not_there(False)",
    "clone of such a store, given back": "import shim_store; shim_store.clone_that_is_not_there(True)",
}


@pytest.mark.parametrize("ending", quickly([*ENDINGS][:3], ENDINGS))
def test_process_ends_quietly(fake_core: Path, ending: str) -> None:
    done = programs.run(f"import shim_harness as s\ns.start({str(fake_core)!r})\n{ENDINGS[ending]}\n")
    assert done.status == 0, done.errors
    assert "terminate" not in done.errors
