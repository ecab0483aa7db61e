"""How groups over several hosts, as in test_hosts.py, begin and end: stores, secrets, new groups after old ones, exits,
and children that outlive a rank."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

import host_stores
import test_endings as endings
import test_peer_failure as deaths
from failing import sum_of_ones
from programs import Programs, Signals, in_background
from promises import kept
from random_programs import SHAPES
from sagecomm import _native
from selection import quickly
from worlds import COLLECTIVE_TIMEOUT, Pool, World, on_hosts

Shape = tuple[int, ...]
DEATH_BOUND_S = 3.0

# ---- many processes ----

MOST_SOCKETS = 100  # of a process
MANY = (4, 4, 4, 4)
MAKING_S = 1.0  # until all ranks have their first group, with its links, and until they have six more


RAISED = """
import ctypes, resource, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
ctypes.CDLL(sys.argv[1])
late = time.monotonic() + 30
while (soft := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) == 200 and time.monotonic() < late:
    time.sleep(0.001)  # the runtime begins on a thread of its own
print(soft)
"""


def test_the_core_raises_the_limit_of_descriptors() -> None:
    """The hard limit bounds the links of a process: Go's runtime raises the soft one when the core is loaded."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    told = subprocess.run([sys.executable, "-c", RAISED, str(_native.CORE)], check=True, capture_output=True, text=True)
    assert int(told.stdout) >= hard - 1 > 200


def sockets() -> int:
    descriptors = Path("/proc/self/fd")
    links = (os.readlink(each) for each in descriptors.iterdir() if each.is_symlink())
    return sum(link.startswith("socket:") for link in links)


def makes_groups() -> tuple[float, float, int]:
    """Seconds of making the first group of the processes, which makes their links, and six more, and the sockets that a
    process has for them. The default group is one of gloo."""
    everybody = list(range(dist.get_world_size()))
    others = sockets()
    dist.barrier()
    began = time.monotonic()
    dist.barrier(dist.new_group(everybody, backend="sagecomm"))
    first = time.monotonic() - began
    began = time.monotonic()
    for _ in range(6):
        dist.barrier(dist.new_group(everybody, backend="sagecomm"))
    return first, time.monotonic() - began, sockets() - others


@pytest.mark.long
def test_sixteen_processes_on_four_hosts(fresh_world: Callable[..., World]) -> None:
    made = fresh_world(sum(MANY), on_hosts(*MANY)).run(makes_groups, backend="gloo")
    first, six = max(first for first, _, _ in made), max(six for _, six, _ in made)
    print(f"first group {first:.3f} s, six more {six:.3f} s, at most {max(n for _, _, n in made)} sockets")
    kept(first, MAKING_S, "making the first group")
    kept(six, MAKING_S, "making six groups")
    for rank, (_, _, descriptors) in enumerate(made):
        assert 0 < descriptors < MOST_SOCKETS, rank


# ---- stores and secrets ----


@pytest.mark.parametrize("shape", quickly([(1, 1), (2, 1)], SHAPES))
def test_stores(hosts: Callable[..., World], tmp_path: Path, shape: Shape) -> None:
    size = sum(shape)
    for store in (host_stores.served_by_rank_0, partial(host_stores.in_a_file, str(tmp_path / "store"))):
        assert hosts(*shape).run(sum_of_ones, store=store) == [size] * size


def secrets(directory: Path) -> list[Path]:
    paths = [directory / name for name in ("secret", "copy", "other")]
    for path, text in zip(paths, ("a" * 32, "a" * 32, "b" * 32), strict=True):
        path.write_text(text)
        path.chmod(0o600)
    return paths


@pytest.mark.parametrize("shape", quickly([(2, 1)], SHAPES))
def test_one_secret(fresh_world: Callable[..., World], tmp_path: Path, shape: Shape) -> None:
    secret, copy, _ = secrets(tmp_path)
    environment = on_hosts(*shape, SAGECOMM_SECRET_FILE=str(secret))
    environment[-1]["SAGECOMM_SECRET_FILE"] = str(copy)
    size = sum(shape)
    assert fresh_world(size, environment).run(sum_of_ones) == [size] * size


@pytest.mark.parametrize("shape", quickly([(1, 1)], [(1, 1), (2, 1), (2, 2)]))
@pytest.mark.parametrize("odd", ["another secret", "none"])
@pytest.mark.parametrize("which", quickly([-1], [0, -1]))
def test_ranks_with_different_secrets(
    fresh_world: Callable[..., World], tmp_path: Path, shape: Shape, odd: str, which: int
) -> None:
    secret, _, other = secrets(tmp_path)
    environment = on_hosts(*shape, SAGECOMM_SECRET_FILE=str(secret))
    environment[which]["SAGECOMM_SECRET_FILE"] = str(other) if odd == "another secret" else ""
    began = time.monotonic()
    outcomes = fresh_world(sum(shape), environment).outcomes(sum_of_ones)
    assert time.monotonic() - began < COLLECTIVE_TIMEOUT.total_seconds(), "found before the timeout"
    for outcome in outcomes:
        assert outcome.error is not None, f"rank {outcome.rank} has made the group"
        assert "SAGECOMM_SECRET_FILE" in str(outcome.error), outcome.trace


# ---- one group after the other ----


@pytest.mark.parametrize("shape", quickly([], [(2, 1), (1, 2), (1, 1, 1)]))
@pytest.mark.parametrize("prefix", quickly(["the same"], ["the same", "round {number}"]))
def test_init_and_destroy_again_and_again(mortals: Pool, shape: Shape, prefix: str) -> None:
    assert mortals.hosts(*shape).run(endings.init_again, prefix) == [[3.0 * number for number in range(8)]] * 3


@pytest.mark.parametrize("shape", quickly([(1, 1, 1)], [(1, 1, 1), (1, 2), (2, 1)]))
def test_survivors_start_again_in_the_same_process(mortals: Pool, signals: Signals, shape: Shape) -> None:
    for _ in range(2):
        ranks = mortals.hosts(*shape)
        outcomes = in_background(ranks, deaths.start_again, signals.path)
        signals.await_many(3)
        os.kill(ranks.pids()[1], signal.SIGKILL)
        survivors = [o for o in outcomes.result(90) if o.rank != 1]
        assert all(o.ok for o in survivors), [o.trace for o in survivors]
        assert [o.value for o in survivors] == [2.0, 2.0]
    assert mortals.hosts(*shape).run(sum_of_ones) == [3.0] * 3


# ---- ends ----


@pytest.mark.parametrize("ending", quickly(["never destroyed", "works in flight, destroyed"], endings.ENDINGS))
def test_ranks_end_as_they_should(tmp_path: Path, ending: str) -> None:
    endings.ends_as_it_should(ending, tmp_path, on_hosts(1, 1, SAGECOMM_SHM_DIR=str(tmp_path)))


@pytest.mark.long
def test_destroy_with_works_in_flight(hosts: Callable[..., World]) -> None:
    took, text = hosts(1, 1).run(endings.destroyed_under_works)[0]
    assert took < 30
    assert "has left the group" in text or ("has shut group" in text and "new group" in text), text
    texts = hosts(1, 1).run(endings.destroyed_from_another_thread)
    assert [len(t) for t in texts] == [1, 1], texts


EXIT_BEHIND_A_BROADCAST = """
    count, late = int(os.environ["TEST_COUNT"]), os.environ["TEST_LATE"] == "late"
    dist.init_process_group("sagecomm")
    rank = dist.get_rank()
    want = torch.arange(count)
    t = want.clone() if rank == 0 else torch.zeros(count, dtype=torch.int64)
    if rank != 0 and late:
        say("ready")
        hear()                          # until rank 0 has ended
    dist.broadcast(t, 0)
    if rank == 0:
        sys.exit(0)                     # without destroy, as scripts do
    say("right" if torch.equal(t, want) else f"wrong: {t}")
"""


@pytest.mark.parametrize("count", quickly([1000], [1, 1000, 1_000_000]))
@pytest.mark.parametrize("shape", quickly([(1, 1)], [(1, 1), (1, 2), (2, 2), (1, 1, 1)]))
def test_an_exit_right_behind_a_broadcast(shape: Shape, count: int) -> None:
    environment = on_hosts(*shape, TEST_COUNT=str(count), TEST_LATE="")
    with Programs(EXIT_BEHIND_A_BROADCAST, sum(shape), environment) as ranks:
        for rank in range(1, sum(shape)):
            assert ranks.line(rank) == "right"
        ranks.end_well()


@pytest.mark.long
@pytest.mark.parametrize("shape", quickly([(1, 1)], [(1, 1), (1, 2)]))
def test_what_was_broadcast_outlives_its_sender(shape: Shape) -> None:
    """Rank 0 has ended before the others call."""
    environment = on_hosts(*shape, TEST_COUNT="100", TEST_LATE="late")
    with Programs(EXIT_BEHIND_A_BROADCAST, sum(shape), environment) as ranks:
        others = range(1, sum(shape))
        assert [ranks.line(rank) for rank in others] == ["ready"] * len(others)
        assert ranks.ends(0) == 0, ranks.errors(0)
        for rank in others:
            ranks.tell(rank)
        assert [ranks.line(rank) for rank in others] == ["right"] * len(others)
        ranks.end_well()


# ---- fork ----

OUTLIVED_BY_A_CHILD = """
    import multiprocessing
    from torch.utils.data import DataLoader, TensorDataset
    def live():
        time.sleep(1000)
    dist.init_process_group("sagecomm")
    t = torch.ones(1000)
    dist.all_reduce(t)
    if dist.get_rank() == 1:
        if os.environ["TEST_FORK"] == "os.fork":
            child = os.fork()
            if child == 0:
                live()
        elif os.environ["TEST_FORK"] == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=live)
            process.start()
            child = process.pid
        else:
            loader = DataLoader(TensorDataset(torch.arange(1000.0)), num_workers=1, multiprocessing_context="fork")
            batches = iter(loader)
            next(batches)
            child = batches._workers[0].pid
        say(child)
    say("ready")
    try:
        while True:
            dist.all_reduce(t)
    except dist.DistBackendError as error:
        say(type(error).__name__, error.rank, time.monotonic())
"""


@pytest.mark.parametrize("fork", quickly(["os.fork"], ["os.fork", "multiprocessing", "data loader"]))
@pytest.mark.parametrize("shape", quickly([(1, 1)], [(1, 1), (1, 1, 1), (1, 2)]))
def test_a_child_that_outlives_its_parent_does_not_hide_the_death(shape: Shape, fork: str) -> None:
    with Programs(OUTLIVED_BY_A_CHILD, sum(shape), on_hosts(*shape, TEST_FORK=fork)) as ranks:
        child = int(ranks.line(1))
        try:
            assert ranks.lines() == ["ready"] * sum(shape)
            killed_at = ranks.kill(1)
            for rank in set(range(sum(shape))) - {1}:
                kind, culprit, at = ranks.line(rank).split()
                assert (kind, culprit) == ("PeerFailure", "1")
                kept(float(at) - killed_at, DEATH_BOUND_S)
            assert alive(child) or fork == "data loader", "the child has ended before"  # torch's look at their parent
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for rank in set(range(sum(shape))) - {1}:
            assert ranks.ends(rank) == 0, ranks.errors(rank)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
