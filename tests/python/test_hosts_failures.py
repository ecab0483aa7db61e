"""Failures in groups over several hosts, as in test_hosts.py: deaths, also of whole hosts and of the store, aborts and
Ctrl-C. Every survivor raises soon, and all for one first cause."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import host_stores
import test_aborts as aborts
import test_faults as faults
import test_peer_failure as deaths
from failing import backend, caught, common_cause, sum_of_ones
from programs import Programs, Signals, await_sleep, in_background
from promises import kept
from random_programs import SHAPES
from selection import quickly
from worker import Outcome
from worlds import Pool, World, on_hosts

KILLS = int(os.environ.get("TEST_KILLS", "8"))
BOUND_S = 3.0  # of a death
Shape = tuple[int, ...]

# ---- deaths ----


@dataclass(frozen=True)
class Death:
    shape: Shape  # ranks of each host
    victims: tuple[int, ...]
    mode: str  # of test_peer_failure.one_round(), or idle
    count: int = 1000
    with_store: bool = False  # rank 0 serves the store

    def __str__(self) -> str:
        of = (
            f"{'x'.join(map(str, self.shape))}, ranks {' '.join(map(str, self.victims))} in {self.mode} of {self.count}"
        )
        return f"{of}, rank 0 has the store" if self.with_store else of


def until_failure(death: Death, path: str) -> dict[str, Any]:
    """What a survivor was told, and the cause that all survivors have come to."""
    answer = deaths.run_until_failure(path, death.mode, death.count)
    survivors = [rank for rank in range(dist.get_world_size()) if rank not in death.victims]
    answer["cause"] = common_cause(host_stores.common(), survivors)
    return answer


def kill(death: Death, ranks: World, signals: Signals, delay_s: float = 0.0) -> None:
    made = host_stores.served_by_rank_0 if death.with_store else host_stores.of_the_tests
    outcomes = in_background(ranks, until_failure, death, signals.path, store=made)
    signals.await_many(ranks.size)
    time.sleep(delay_s)  # the random moment
    pids = ranks.pids()
    killed_at = time.monotonic()
    for victim in death.victims:
        os.kill(pids[victim], signal.SIGKILL)
    died = {victim: pids[victim] for victim in death.victims}
    check_survivors(death, outcomes.result(90), killed_at, died)


def check_survivors(death: Death, outcomes: list[Outcome], killed_at: float, died: dict[int, int]) -> None:
    for victim in death.victims:
        assert outcomes[victim].exitcode == -signal.SIGKILL
    survivors = [outcome for outcome in outcomes if outcome.rank not in died]
    for outcome in survivors:
        assert outcome.ok, f"rank {outcome.rank}:\n{outcome.trace}"
        answer = outcome.value
        for name, (kind, rank, pid, text) in {"the first": answer["first"], **answer["later"]}.items():
            what = f"rank {outcome.rank}, {name}: {kind}: {text}"
            assert kind == "PeerFailure", what
            assert rank in died, what
            assert pid == died[rank], what
            assert f"Connection closed by peer: rank {rank} (" in text, what
            assert f"pid {pid})" in text, what
        check_operation(death.mode, answer)
        kept(answer["raised"] - max(killed_at, answer["entered"]), BOUND_S, f"PeerFailure on rank {outcome.rank}")
        kept(answer["later_done"] - answer["raised"], BOUND_S, "the failure of later operations")
        assert "REMOTE_ERROR" in answer["error"], answer["error"]
    assert len({outcome.value["cause"] for outcome in survivors}) == 1
    if not death.with_store:  # it answers at once: nobody raises an observation of its own before
        first = {outcome.rank: outcome.value["first"][3] for outcome in survivors}
        assert len(set(first.values())) == 1, f"different first causes: {first}"


def check_operation(mode: str, answer: dict[str, Any]) -> None:
    """It is the dead rank's where it shared memory with the rank that noticed first, else that rank's own."""
    op, sequence, text = answer["op"], answer["sequence"], answer["first"][3]
    if mode == "p2p":  # between two calls nothing is known to be under way
        assert op in ("send", "recv", None), text
    else:
        assert op == ("all_gather" if mode == "all_gather" else "all_reduce"), text
        assert sequence > 0, text


ONE_DIES = [
    Death((1, 1), (1,), "sync"),
    Death((2, 1), (2,), "sync", 50_000),
    Death((2, 2), (3,), "async", 1_500_000),
    Death((1, 1, 1), (1,), "future"),
    Death((1, 2), (0,), "all_gather", 50_000),
    Death((2, 1), (2,), "p2p", 50_000),
    Death((2, 2), (1,), "p2p"),
    Death((2, 1), (2,), "idle"),
    Death((1, 1, 1), (2,), "idle"),
]
THE_STORE_DIES = [
    Death((1, 1), (0,), "sync", with_store=True),
    Death((2, 1), (0,), "sync", 50_000, with_store=True),
    Death((2, 2), (0,), "async", with_store=True),
    Death((1, 1, 1), (0,), "p2p", with_store=True),
    Death((1, 2), (0,), "idle", with_store=True),
]
HOSTS_DIE = [
    Death((2, 2), (2, 3), "sync"),
    Death((2, 2), (0, 1), "sync", 50_000, with_store=True),
    Death((2, 2), (0, 1), "idle", with_store=True),
    Death((2, 2, 2), (0, 1), "p2p", with_store=True),
    Death((1, 1, 1), (0, 1), "sync", with_store=True),
    Death((1, 1, 1), (1, 2), "all_gather"),
    Death((2, 2, 2), (2, 3, 4, 5), "async"),
    Death((2, 2, 2), (0, 1, 2, 3), "sync", 50_000, with_store=True),
]


@pytest.mark.parametrize("death", quickly(ONE_DIES[1:2], ONE_DIES), ids=str)
def test_death_of_a_rank(mortals: Pool, signals: Signals, death: Death) -> None:
    kill(death, mortals.hosts(*death.shape), signals)


@pytest.mark.parametrize("death", quickly(THE_STORE_DIES[4:], THE_STORE_DIES), ids=str)
def test_death_of_the_rank_with_the_store(mortals: Pool, signals: Signals, death: Death) -> None:
    kill(death, mortals.hosts(*death.shape), signals)


@pytest.mark.parametrize("death", quickly(HOSTS_DIE[1:2], HOSTS_DIE), ids=str)
def test_death_of_hosts(mortals: Pool, signals: Signals, death: Death) -> None:
    kill(death, mortals.hosts(*death.shape), signals)


@pytest.mark.long
def test_deaths_at_random_moments(mortals: Pool, signals: Signals) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(KILLS):
        shape, with_store = rng.choice(SHAPES), rng.random() < 0.5
        victims = [0] if with_store else [rng.randrange(sum(shape))]
        if rng.random() < 0.3:
            victims += [r for r in range(1, sum(shape) - 1) if rng.random() < 0.5]
        mode, count = rng.choice(["sync", "async", "all_gather", "p2p"]), rng.choice([1, 1000, 50_000, 1_500_000])
        death = Death(shape, tuple(sorted(set(victims))), mode, count, with_store)
        delay_s = rng.random() * 0.05
        try:
            kill(death, mortals.hosts(*shape), signals, delay_s)
        except AssertionError as error:
            situation = f"seed {seed}, kill {number}: {death} after {delay_s * 1e3:.1f} ms"
            raise AssertionError(f"{situation}: {error}") from None


@pytest.mark.parametrize("shape", quickly([(2, 1)], [(2, 1), (1, 1, 1)]))
@pytest.mark.parametrize(
    "mode", quickly(["recv", "future"], ["all_reduce", "broadcast", "future", "polling", "recv", "send"])
)
def test_death_of_a_rank_that_has_not_arrived(mortals: Pool, signals: Signals, shape: Shape, mode: str) -> None:
    ranks = mortals.hosts(*shape)
    outcomes = in_background(ranks, deaths.wait_for, signals.path, mode, 2)
    signals.await_many(3)
    pid = ranks.pids()[2]
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    texts = set()
    for outcome in outcomes.result(90)[:2]:
        assert outcome.ok, outcome.trace
        (kind, rank, died, text), raised = outcome.value
        assert (kind, rank, died) == ("PeerFailure", 2, pid), text
        assert f" was in {'all_reduce' if mode in ('future', 'polling') else mode}" in text, text
        kept(raised - killed_at, BOUND_S)
        texts.add(text)
    assert len(texts) == 1, texts


@pytest.mark.parametrize("shape", quickly([(1, 1, 1)], [(1, 1, 1), (2, 1), (1, 2)]))
def test_a_clean_leave_harms_only_what_needs_the_rank(mortals: Pool, shape: Shape) -> None:
    for text in mortals.hosts(*shape).run(deaths.goes_early)[:2]:
        assert "rank 2" in text
        assert "has left the group" in text


@pytest.mark.long
@pytest.mark.parametrize("shape", quickly([(2, 1)], [(2, 1), (1, 1, 1)]))
def test_a_process_that_ends_well_has_said_goodbye(shape: Shape) -> None:
    with Programs(deaths.LEAVES_EARLY, 3, on_hosts(*shape)) as ranks:
        assert [ranks.line(0), ranks.line(1)] == ["ready", "ready"]
        assert ranks.ends(2) == 0
        for rank in (0, 1):
            ranks.tell(rank)
        assert [ranks.line(0), ranks.line(1)] == ["PeerFailure 2"] * 2
        ranks.end_well()


# ---- disagreement ----


@pytest.mark.parametrize("shape", quickly([(2, 1)], [(2, 1), (1, 2), (1, 1, 1)]))
@pytest.mark.parametrize(("fault", "call"), [("mismatch", "scatter"), ("exception", "works"), ("exit", "batch")])
def test_everybody_is_told_who(mortals: Pool, signals: Signals, shape: Shape, fault: str, call: str) -> None:
    culprit, ranks = 2, mortals.hosts(*shape)
    pid = ranks.pids()[culprit]
    answers = in_background(ranks, faults.meet, call, fault, culprit, signals.path).result(90)
    first = answers[0].value[0][3] if answers[0].ok else ""
    for outcome in answers[:culprit]:
        assert outcome.ok, outcome.trace
        at_once, later, took = outcome.value
        kind, rank, of, text = at_once
        assert kind == faults.KINDS[fault], text
        assert f"rank {culprit} called" in text if fault == "mismatch" else (rank, of) == (culprit, pid), text
        assert later == at_once, "the first cause stands"
        assert text == first, "and is the same on all ranks"
        kept(took, BOUND_S, "to raise")
    faults.check_culprit(answers[culprit], fault, first)
    assert mortals.hosts(*shape).run(sum_of_ones) == [3.0] * 3, "those that live make a new group"


# ---- abort, Ctrl-C ----


@pytest.mark.parametrize("mode", quickly(["sync", "recv"], ["sync", "async", "future", "recv"]))
def test_abort_from_another_thread_ends_every_wait(mortals: Pool, mode: str) -> None:
    (aborted, text), (ended, there) = mortals.hosts(1, 1).run(aborts.abort_pending, mode)
    assert text == there
    assert "aborted by rank 0" in text
    kept(ended - aborted, 1)


def aborted_by_the_last_rank() -> tuple[faults.Told, faults.Told, float]:
    """All ranks wait for the last one, in different calls."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    t = torch.ones(100_000)
    dist.all_reduce(t)
    calls = [
        lambda: dist.all_reduce(t),
        lambda: dist.irecv(t, last),
        lambda: dist.all_reduce(t, async_op=True).get_future(),
        lambda: dist.isend(t, last),
    ]
    store = c10d._get_default_store()
    if rank == last:
        store.wait([f"waits {r}" for r in range(last)])
        at = time.monotonic()
        backend().abort()
        error = caught(dist.barrier)[0]
        return faults.told(error), faults.told(error), at
    main = threading.Thread(target=lambda: (await_sleep(os.getpid()), store.set(f"waits {rank}", "")))
    main.start()
    error, _, ended = caught(calls[rank % len(calls)])
    main.join()
    return faults.told(error), faults.told(caught(dist.barrier)[0]), ended


@pytest.mark.parametrize("shape", quickly([(2, 2)], SHAPES))
def test_an_abort_is_known_on_all_hosts(mortals: Pool, shape: Shape) -> None:
    answers = mortals.hosts(*shape).run(aborted_by_the_last_rank)
    aborted_at = answers[-1][2]
    for told, later, ended in answers:
        assert told == later
        assert told == answers[-1][0], "ranks have different first causes"
        assert told[:2] == ("Aborted", len(answers) - 1), told
        assert f"was aborted by rank {len(answers) - 1}" in told[3], told
        kept(ended - aborted_at, 1, "to know of the abort")


@pytest.mark.long
def test_torchs_own_abort_path(mortals: Pool) -> None:
    assert mortals.hosts(1, 1).run(aborts.torchs_own_abort) == [2.0, 2.0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_in_a_pending_collective(mortals: Pool, signals: Signals, mode: str) -> None:
    ranks = mortals.hosts(1, 1)
    outcomes = in_background(ranks, aborts.interrupted, signals.path, mode)
    signals.await_many(1)
    await_sleep(ranks.pids()[0])  # in the collective
    at = time.monotonic()
    os.kill(ranks.pids()[0], signal.SIGINT)
    first, second = outcomes.result(90)
    assert first.ok, first.trace
    assert second.ok, second.trace
    kept(first.value - at, 1)  # 0.2 s where the cores are not shared
