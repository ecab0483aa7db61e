"""The death of a rank: every survivor raises PeerFailure that names it, soon, and again for every later operation."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from failing import backend
from older_torch import exception_of
from programs import DEADLINE_S, Programs, abstract_sockets, in_background, report
from promises import kept

KILLS = int(os.environ.get("TEST_KILLS", "8"))
BOUND_S = 2.0


def one_round(mode: str, t: torch.Tensor) -> None:
    size = dist.get_world_size()
    want = float(size * (size + 1) / 2)
    t.fill_(dist.get_rank() + 1.0)
    if mode == "async":
        other = t.clone()
        works = [dist.all_reduce(t, async_op=True), dist.all_reduce(other, async_op=True)]
        works[1].wait()
        works[0].wait()
        assert other[-1].item() == want
    elif mode == "future":
        assert dist.all_reduce(t, async_op=True).get_future().wait()[0] is t
    elif mode == "all_gather":
        out = torch.empty(size * t.numel())
        dist.all_gather_into_tensor(out, t)
        t.fill_(out.reshape(size, -1)[:, -1].sum())
    elif mode == "p2p":
        rank = dist.get_rank()
        got = torch.empty_like(t)
        works = [dist.isend(t, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert bool((got == (rank - 1) % size + 1.0).all()), f"a successful recv holds {got[0].item()}"
        t.fill_(want)
    else:
        dist.all_reduce(t)
    # An operation that succeeds at the moment of a death is complete and right.
    assert bool((t == want).all()), f"a successful {mode} holds {t[0].item()} .. {t[-1].item()} instead of {want}"


def what(error: BaseException) -> tuple[str, int | None, int | None, str]:
    return type(error).__name__, getattr(error, "rank", None), getattr(error, "pid", None), str(error)


def await_failure() -> None:
    """Makes no call until the group has failed."""
    deadline = time.monotonic() + DEADLINE_S
    while "SUCCESS" in str(backend().get_error()):
        assert time.monotonic() < deadline, "the group does not fail"
        time.sleep(0.001)


def run_until_failure(path: str, mode: str, count: int) -> dict[str, Any]:
    t = torch.empty(count)
    for _ in range(5):
        one_round(mode, t)
    report(path)
    entered = time.monotonic()
    try:
        while True:
            entered = time.monotonic()
            if mode == "idle":
                await_failure()
            one_round(mode, t)
    except dist.DistBackendError as error:
        raised, first, op, sequence = (
            time.monotonic(),
            what(error),
            getattr(error, "op", None),
            getattr(error, "sequence", 0),
        )
    neighbour = (dist.get_rank() + 1) % dist.get_world_size()
    later: dict[str, tuple[str, int | None, int | None, str]] = {}
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(t),
        "all_reduce, async": lambda: dist.all_reduce(t, async_op=True).wait(),
        "broadcast": lambda: dist.broadcast(t, 0),
        "barrier": lambda: dist.barrier(),
        "send": lambda: dist.send(t, neighbour),
        "recv": lambda: dist.recv(t),
    }
    for name, call in calls.items():
        try:
            call()
            later[name] = ("nothing", None, None, "")
        except dist.DistBackendError as error:
            later[name] = what(error)
    return {
        "entered": entered,
        "raised": raised,
        "later_done": time.monotonic(),
        "first": first,
        "op": op,
        "sequence": sequence,
        "later": later,
        "error": str(backend().get_error()),
    }


def check_survivor(answer: dict[str, Any], killed_at: float, victim: int, pid: int) -> None:
    kind, rank, died, text = answer["first"]
    assert (kind, rank, died) == ("PeerFailure", victim, pid), answer
    assert f"rank {victim} " in text, text
    assert f"pid {pid}" in text, text
    kept(answer["raised"] - max(killed_at, answer["entered"]), BOUND_S, "PeerFailure after the death")
    for name, again in answer["later"].items():
        assert again[:3] == ("PeerFailure", victim, pid), f"{name} then gave {again}"
    kept(answer["later_done"] - answer["raised"], BOUND_S, "the failure of later operations")
    assert "REMOTE_ERROR" in answer["error"], answer["error"]


@pytest.mark.long
def test_sigkill_of_one_of_four_at_random_moments(mortals, signals):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(KILLS):
        ranks = mortals.world(4)
        victim, count = rng.randrange(4), rng.choice([1, 1000, 50_000, 1_500_000])
        mode, delay = rng.choice(["sync", "async", "future", "all_gather", "p2p"]), rng.random() * 0.05
        situation = f"seed {seed}, kill {number}: rank {victim} in {mode} of {count} after {delay * 1e3:.1f} ms"
        outcomes = in_background(ranks, run_until_failure, signals.path, mode, count)
        signals.await_many(4)
        time.sleep(delay)  # the random moment
        pid = ranks.pids()[victim]
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        for outcome in outcomes.result(60):
            if outcome.rank == victim:
                assert outcome.exitcode == -signal.SIGKILL, situation
                continue
            assert outcome.ok, f"{situation}\nrank {outcome.rank}:\n{outcome.trace}"
            try:
                check_survivor(outcome.value, killed_at, victim, pid)
            except AssertionError as error:
                raise AssertionError(f"{situation}, rank {outcome.rank}: {error}") from None


def wait_for(path: str, mode: str, victim: int) -> tuple[tuple[str, int | None, int | None, str], float]:
    """One operation is pending when the victim dies; the victim never calls it."""
    dist.barrier()
    rank = dist.get_rank()
    if rank == victim:
        report(path)
        signal.pause()
    t = torch.ones(200_000)
    try:
        if mode == "recv":
            work = dist.irecv(t, victim)
        elif mode == "send":
            work = dist.isend(t, victim)
        elif mode == "broadcast":
            work = dist.broadcast(t, victim, async_op=True)
        else:
            work = dist.all_reduce(t, async_op=True)
        report(path)
        if mode == "future":
            work.get_future().wait()
        elif mode == "polling":
            while not work.is_completed():
                time.sleep(0.001)
            assert isinstance(exception_of(work), sagecomm.PeerFailure), exception_of(work)
        work.wait()
    except dist.DistBackendError as error:
        return what(error), time.monotonic()
    raise AssertionError("an operation with a dead rank succeeded")


@pytest.mark.parametrize("mode", ["all_reduce", "broadcast", "future", "polling", "recv", "send"])
def test_death_of_a_rank_that_has_not_arrived(mortals, signals, mode):
    ranks = mortals.world(3)
    outcomes = in_background(ranks, wait_for, signals.path, mode, 2)
    signals.await_many(3)
    pid = ranks.pids()[2]
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for outcome in outcomes.result(60)[:2]:
        assert outcome.ok, outcome.trace
        (kind, rank, died, text), raised = outcome.value
        assert (kind, rank, died) == ("PeerFailure", 2, pid), text
        kept(raised - killed_at, BOUND_S)


def start_again(path: str) -> float:
    """After the failure the survivors make a smaller group in the same processes."""
    store = c10d._get_default_store()
    rank = dist.get_rank()
    dist.barrier()
    report(path)
    if rank == 1:
        signal.pause()
    try:
        dist.barrier()
    except sagecomm.PeerFailure:
        pass
    else:
        raise AssertionError("a barrier with a dead rank succeeded")
    dist.destroy_process_group()
    dist.init_process_group("sagecomm", store=dist.PrefixStore("second", store), rank=(0, -1, 1)[rank], world_size=2)
    t = torch.ones(70_000)
    dist.all_reduce(t)
    return t[-1].item()


def test_survivors_start_again_in_the_same_process(mortals, signals):
    ranks = mortals.world(3)
    outcomes = in_background(ranks, start_again, signals.path)
    signals.await_many(3)
    os.kill(ranks.pids()[1], signal.SIGKILL)
    survivors = [o for o in outcomes.result(60) if o.rank != 1]
    assert all(o.ok for o in survivors), [o.trace for o in survivors]
    assert [o.value for o in survivors] == [2.0, 2.0]


def goes_early() -> str:
    """After rank 2 has destroyed its group, p2p operations between the others succeed and a collective fails."""
    rank = dist.get_rank()
    dist.barrier()
    if rank == 2:
        dist.destroy_process_group()
        return ""
    t = torch.full((100_000,), float(rank))
    for _ in range(20):
        if rank == 0:
            dist.send(t, 1)
            dist.recv(t, 1)
        else:
            dist.recv(t, 0)
            dist.send(t, 0)
    assert t[-1].item() == 0.0
    try:
        dist.all_reduce(t)
    except sagecomm.PeerFailure as error:
        assert error.rank == 2
        return str(error)
    raise AssertionError("a collective without rank 2 succeeded")


def test_a_clean_leave_harms_only_what_needs_the_rank(world):
    texts = world(3).run(goes_early)
    for text in texts[:2]:
        assert "rank 2" in text
        assert "has left the group" in text


LEAVES_EARLY = """
    dist.init_process_group("sagecomm")
    t = torch.ones(1000)
    dist.all_reduce(t)
    if dist.get_rank() == 2:
        sys.exit(0)                     # without destroy, as scripts do
    say("ready")
    hear()                              # until rank 2 has ended
    group = t
    if dist.get_rank() == 0:
        dist.send(t, 1)
    else:
        dist.recv(t, 0)
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        say(type(error).__name__, error.rank)
"""


def test_a_process_that_ends_well_has_said_goodbye():
    with Programs(LEAVES_EARLY, 3) as ranks:
        assert [ranks.line(0), ranks.line(1)] == ["ready", "ready"]
        assert ranks.ends(2) == 0
        for rank in (0, 1):
            ranks.tell(rank)
        assert [ranks.line(0), ranks.line(1)] == ["PeerFailure 2"] * 2
        ranks.end_well()


def reduce_for_ever(path: str) -> None:
    t = torch.ones(3_000_000)
    dist.all_reduce(t)
    report(path)
    while True:
        dist.all_reduce(t)


@pytest.mark.parametrize("way", ["proc", "scm", "tmpfs"])
def test_nothing_stays_after_sigkill_of_all_ranks(fresh_world, signals, tmp_path, way):
    directory = tmp_path / "shm"
    directory.mkdir()
    ranks = fresh_world(2, {"SAGECOMM_SHM_DIR": str(directory), "SAGECOMM_SHM_ATTACH": way})
    pids = ranks.pids()
    outcomes = in_background(ranks, reduce_for_ever, signals.path)
    signals.await_many(2)
    sockets = held_by(pids, abstract_sockets())
    assert bool(sockets) == (way == "scm"), sockets
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert [o.exitcode for o in outcomes.result(60)] == [-signal.SIGKILL] * 2
    assert list(directory.iterdir()) == []
    names = [name for name in os.listdir("/dev/shm") if name.startswith("sagecomm-")]
    assert not [name for name in names if {str(pid) for pid in pids} & set(name.split("-"))]
    assert not sockets & abstract_sockets()


def held_by(pids: list[int], names: set[str]) -> set[str]:
    """Returns the sockets of these processes except those that answer `python -m sagecomm status`."""
    held = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the descriptor has been closed since
                held.add(os.readlink(fd))
    return {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if line.split()[-1] in names and "@sagecomm-status-" not in line and f"socket:[{line.split()[6]}]" in held
    }
