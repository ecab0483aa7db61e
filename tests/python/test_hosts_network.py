"""Groups over hosts that a network joins (network_bed.py): links lead over interfaces, and cables are pulled."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
import torch.distributed as dist

import network_bed
import random_programs
import sagecomm
import test_matrix as matrix
from failing import backend, caught
from network_bed import Network
from programs import Signals, in_background, report
from promises import kept, most
from test_hosts_tls import Certificates
from worker import Outcome
from worlds import World

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why := network_bed.why_not()), reason=why),
]

needs_ipv6 = pytest.mark.skipif(bool(why := network_bed.why_no_ipv6()), reason=why)
needs_delay = pytest.mark.skipif(bool(why := network_bed.why_no_delay()), reason=why)

CUT_S = 3.0  # until a cut is a failure on all ranks
REPAIR_S = 2.5  # a cut that ends a link with the default of SAGECOMM_LINK_TIMEOUT
FAILOVER_S = 7.0  # a cut behind which the kernel may be silent for as long, unless that is bounded
FAILOVER_TIMEOUT_S = 10.0
SLOW_MS = 10  # of a cable, each way, so that an answer from another host comes after 40
SHAPES = [(1, 1), (2, 2), (2, 2, 2, 2)]  # ranks of each host
FIRST_PROGRAM, PROGRAMS = 1000, 6  # the seed of the first one, and so many of each shape from there on
LEAST = 1 << 20  # bytes that each host sends in all operations or some programs
SUM = 4 << 20  # bytes that are summed to see what crosses


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    made: list[Network] = []

    def make(hosts: int, rate: str = "", delay_ms: float = 0, loss: float = 0, *, ipv6: bool = False) -> Network:
        made.append(Network(hosts, rate, delay_ms, loss, ipv6=ipv6))
        return made[-1]

    yield make
    for each in made:
        each.close()


_stores: dict[str, dist.TCPStore] = {}  # of this process, a rank
_jobs = itertools.count()


def served_by_host_0(common: Any, rank: int, size: int, address: str = f"{network_bed.NETWORK}.1") -> dist.Store:
    """Rank 0 serves one store for all jobs of its process. That of a job alone could keep the port until its garbage is
    collected, which may be after the next job has begun."""
    if address not in _stores:
        _stores[address] = dist.TCPStore(address, network_bed.PORT, is_master=rank == 0, wait_for_workers=False)
    return dist.PrefixStore(f"job {next(_jobs)}", _stores[address])


def served_by_host_0_with_ipv6(common: Any, rank: int, size: int) -> dist.Store:
    return served_by_host_0(common, rank, size, f"{network_bed.NETWORK_6}:1")


def everything() -> list[float]:
    """A few operations between all hosts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = []
    for count in (1, 1000, 300_000):
        t = torch.full((count,), float(rank))
        dist.all_reduce(t)
        seen.append(t.sum().item() / count)
        u = torch.full((count,), float(rank))
        dist.broadcast(u, size - 1)
        seen.append(u[-1].item())
        gathered = [torch.empty(count) for _ in range(size)]
        dist.all_gather(gathered, torch.full((count,), float(rank)))
        seen.extend(each[0].item() for each in gathered)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((count,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, got := torch.empty(count), (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        assert got[-1].item() == (rank - 1) % size
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]
    return seen


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 1), (1, 1, 1), (2, 2, 2, 2)], ids=str)
def test_operations_over_a_network(network, fresh_world, sizes):
    size = sum(sizes)
    ranks = fresh_world(size, network(len(sizes)).environments(*sizes))
    once = [size * (size - 1) / 2, size - 1, *range(size)]
    assert ranks.run(everything, store=served_by_host_0) == [once * 3] * size


@needs_ipv6
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_operations_over_ipv6(network, fresh_world, encrypted, tmp_path):
    environments = network(2, ipv6=True).environments(2, 2)
    if encrypted:
        certificates = Certificates(tmp_path / "tls")
        environments = [each | certificates.of() for each in environments]
    ranks = fresh_world(4, environments)
    assert ranks.run(everything, store=served_by_host_0_with_ipv6) == [[6, 3, *range(4)] * 3] * 4


@needs_ipv6
def test_a_host_with_both_families_and_one_with_ipv4(network, fresh_world):
    hosts = network(2)
    hosts.add_ipv6(0)
    environments = [each | {"SAGECOMM_SOCKET_IFNAME": "eth0"} for each in hosts.environments(1, 1)]
    ranks = fresh_world(2, environments)
    assert ranks.run(everything, store=served_by_host_0) == [[1, 1, 0, 1] * 3] * 2


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_every_operation_over_a_network(network, fresh_world, sizes):
    hosts = network(len(sizes))
    ranks = fresh_world(sum(sizes), hosts.environments(*sizes))
    matrix.run_matrix(ranks, matrix.chosen_cells(), own_order=True, store=served_by_host_0)
    assert all(hosts.sent(host) > LEAST for host in range(hosts.hosts)), "data has crossed no cable"


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_random_programs_over_a_network(network, fresh_world, sizes):
    hosts = network(len(sizes))
    ranks = fresh_world(sum(sizes), hosts.environments(*sizes))
    drawn = (random_programs.program(seed, over_hosts=True) for seed in itertools.count(FIRST_PROGRAM))
    of_shape = itertools.islice((each for each in drawn if each.hosts == sizes), PROGRAMS)
    failed = list(random_programs.failures_of(of_shape, ranks, store=served_by_host_0))
    assert not failed, "\n\n".join(f"program {seed} failed:\n{text}" for seed, text in failed)
    assert all(hosts.sent(host) > LEAST for host in range(hosts.hosts)), "data has crossed no cable"


def long_broadcast() -> None:
    dist.broadcast(torch.ones(SUM // 4), 0)
    dist.barrier()


def test_packets_that_are_too_long(network, fresh_world):
    """Links are made, whose handshake is short, and long data do not pass."""
    hosts = network(2)
    for host in range(2):
        hosts.shorten(host, 1500)
    ranks = fresh_world(2, [each | {"SAGECOMM_PROBE": "off"} for each in hosts.environments(1, 1)])
    outcome = ranks.outcomes(long_broadcast, store=served_by_host_0)[0]  # the other rank reads the end of the link
    assert "its host does not acknowledge what was sent on one connection" in str(outcome.error), outcome
    assert "look at their MTU" in str(outcome.error), outcome.error


@pytest.mark.skipif(bool(why := network_bed.why_no_rate()), reason=why)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=str)
def test_operations_over_cables_with_a_rate(network, fresh_world, sizes):
    """Connections are full, and bytes wait in front of a cable."""
    size = sum(sizes)
    ranks = fresh_world(size, network(len(sizes), "200mbit").environments(*sizes))
    once = [size * (size - 1) / 2, size - 1, *range(size)]
    assert ranks.run(everything, store=served_by_host_0) == [once * 3] * size


@needs_delay
def test_operations_over_cables_that_lose_frames(network, fresh_world):
    """The kernel sends again what is lost, later and later, and no host counts as dead for that."""
    ranks = fresh_world(4, network(2, delay_ms=SLOW_MS, loss=0.02).environments(2, 2))
    once = [6, 3, *range(4)]
    for _ in range(3):
        assert ranks.run(everything, store=served_by_host_0) == [once * 3] * 4


def links_as_chosen() -> tuple[dict[str, Any], float]:
    """What is known of the link between the two hosts, and the seconds that count for its latency."""
    dist.barrier()  # rank 0 has the store
    answer = sagecomm.explain("all_reduce", 8)
    return answer["probed_links"], answer["parameters"]["network.latency"]


@needs_delay
def test_the_probe_finds_a_delay(network, fresh_world):
    """In 40 ms there and back no burst is measured. The kernel knows the way, of which at most 6.4 ms count."""
    environments = network(2, delay_ms=SLOW_MS).environments(1, 1)
    ranks = fresh_world(2, [each | {"SAGECOMM_PROBE": "on"} for each in environments])
    one, other = ranks.run(links_as_chosen, store=served_by_host_0)
    assert one == other == ({"pairs": 1, "measured": 0, "latency_known": 1}, pytest.approx(6.4e-3))


def calls_of(op: str, calls: int) -> None:
    """Calls of a collective over SUM bytes, those of all blocks together where it has blocks."""
    size, count = dist.get_world_size(), SUM // 4
    whole, block = torch.empty(count), torch.empty(count // size)
    for _ in range(calls):
        whole.fill_(1)
        block.fill_(1)
        if op == "all_reduce":
            dist.all_reduce(whole)
        elif op == "broadcast":
            dist.broadcast(whole, 0)
        elif op == "reduce":
            dist.reduce(whole, 0)
        elif op == "all_gather":
            dist.all_gather_into_tensor(whole.zero_(), block)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(block, whole)
        else:
            assert op == "all_to_all"
            dist.all_to_all_single(out := torch.zeros(count), whole)
            whole = out
        if op != "reduce" or dist.get_rank() == 0:
            assert whole[-1].item() == (size if op in ("all_reduce", "reduce") else 1)
        assert block[-1].item() == (size if op == "reduce_scatter" else 1)


# What each of two hosts of two ranks sends, in parts of SUM. Hierarchical plans send what a host has for the other one,
# rooted ones from or to the root's host only (docs/algorithms.md). In a ring one rank of each host sends to the other.
BETWEEN_HOSTS: dict[str, dict[str, tuple[float, float]]] = {
    "hierarchical": {
        "all_reduce": (1, 1),
        "broadcast": (1, 0),
        "reduce": (0, 1),
        "all_gather": (1 / 2, 1 / 2),
        "reduce_scatter": (1 / 2, 1 / 2),
        "all_to_all": (1, 1),
    },
    "ring": {"all_reduce": (3 / 2, 3 / 2), "all_gather": (3 / 4, 3 / 4), "reduce_scatter": (3 / 4, 3 / 4)},
    "rabenseifner": {"all_reduce": (1, 1)},
}


@pytest.mark.parametrize("algorithm", BETWEEN_HOSTS)
def test_bytes_between_hosts(network, fresh_world, algorithm):
    hosts = network(2)
    rules = {"SAGECOMM_TUNE": ";".join(f"{op}:{algorithm}" for op in BETWEEN_HOSTS[algorithm])}
    ranks = fresh_world(4, [each | rules for each in hosts.environments(2, 2)])

    def sent_by(op: str, calls: int) -> list[int]:
        before = [hosts.sent(host) for host in range(2)]
        ranks.run(calls_of, op, calls, store=served_by_host_0)
        return [hosts.sent(host) - b for host, b in enumerate(before)]

    for op, shares in BETWEEN_HOSTS[algorithm].items():
        few, many = sent_by(op, 1), sent_by(op, 9)
        for host, share in enumerate(shares):
            # The difference has no bytes of the start. Acknowledgements, and headers of frames, are a few percent.
            sent = (many[host] - few[host]) / (8 * SUM)
            assert share * 0.97 - 0.01 <= sent <= share * 1.1 + 0.02, f"{op}: host {host} sent {sent:.3f}"


def until_cut(path: str) -> dict[str, Any]:
    """Sums until that fails. Returns the failure, when it came, and the cause some time later, when those have agreed
    that can."""
    report(path)

    def sums() -> None:
        while True:
            dist.all_reduce(torch.ones(1000))

    error, _, raised = caught(sums)
    time.sleep(most(1.0))  # nothing tells that there is no verdict to come
    return {
        "kind": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "text": str(error),
        "raised": raised,
        "later": str(caught(dist.barrier)[0]),
        "error": str(backend().get_error()),
    }


def cut(ranks: World, signals: Signals, do: Callable[[], None], dies: int | None = None) -> list[dict[str, Any]]:
    """What each rank was told behind a cut, all of them within the bound. One rank may die in it."""
    outcomes = in_background(ranks, until_cut, signals.path, store=served_by_host_0)
    signals.await_many(ranks.size)
    time.sleep(0.2)  # some sums
    cut_at = time.monotonic()
    do()
    answers = outcomes.result(120)
    if dies is not None:
        del answers[dies]
    for outcome in answers:
        assert isinstance(outcome, Outcome)
        assert outcome.ok, f"rank {outcome.rank}:\n{outcome.trace}"
        assert outcome.value["kind"] == "PeerFailure", outcome.value
        assert "Connection closed by peer" in outcome.value["text"]
        kept(outcome.value["raised"] - cut_at, CUT_S, f"the failure on rank {outcome.rank}")
    return [outcome.value for outcome in answers]


def one_cause(answers: list[dict[str, Any]], ranks: list[int], culprits: set[int]) -> None:
    """Checks that ranks have come to one cause, which names one of the culprits."""
    causes = {answers[rank]["later"] for rank in ranks}
    assert len(causes) == 1, causes
    text = causes.pop()
    assert any(f"Connection closed by peer: rank {culprit} (" in text for culprit in culprits), text


def test_a_pulled_cable(network, fresh_world, signals):
    hosts = network(2)
    ranks = fresh_world(4, hosts.environments(2, 2))
    answers = cut(ranks, signals, lambda: hosts.pull(1))
    one_cause(answers, [0, 1], {2, 3})
    one_cause(answers, [2, 3], {0, 1})


def sums_until_all_stop(path: str, until: str) -> int:
    """Sums until rank 0 finds a file, and returns how many there were."""
    report(path)
    for calls in itertools.count(1):
        stops = torch.tensor([float(dist.get_rank() == 0 and os.path.exists(until))])
        dist.all_reduce(stops)
        if stops.item():
            return calls
    raise AssertionError("counting has ended")


def mended(
    ranks: World, signals: Signals, stop: Path, do: Callable[[], None], seconds: float, undo: Callable[[], None]
) -> None:
    """Checks that ranks go on behind a cut of so many seconds."""
    outcomes = in_background(ranks, sums_until_all_stop, signals.path, str(stop), store=served_by_host_0)
    signals.await_many(ranks.size)
    do()
    time.sleep(seconds)  # it is the cut
    assert not outcomes.done()
    undo()
    stop.touch()
    answers = outcomes.result(120)
    assert all(answer.ok for answer in answers), [answer.trace for answer in answers]
    assert len({answer.value for answer in answers}) == 1


def test_a_cable_that_is_plugged_in_again(network, fresh_world, signals, tmp_path):
    """A cut that is shorter than SAGECOMM_LINK_TIMEOUT is a delay."""
    hosts = network(2)
    ranks = fresh_world(4, [each | {"SAGECOMM_LINK_TIMEOUT": "20"} for each in hosts.environments(2, 2)])
    mended(ranks, signals, tmp_path / "stop", lambda: hosts.pull(1), REPAIR_S, lambda: hosts.plug(1))


@pytest.mark.skipif(bool(why := network_bed.why_no_bounded_backoff()), reason=why)
def test_a_switch_that_fails_over(network, fresh_world, signals, tmp_path):
    """The cut is of more than half of SAGECOMM_LINK_TIMEOUT, and no kernel sees that it begins or ends."""
    hosts = network(2)
    timeout = {"SAGECOMM_LINK_TIMEOUT": str(FAILOVER_TIMEOUT_S)}
    ranks = fresh_world(4, [each | timeout for each in hosts.environments(2, 2)])
    mended(ranks, signals, tmp_path / "stop", lambda: hosts.isolate(1), FAILOVER_S, lambda: hosts.isolate(1, False))


@needs_delay
def test_a_pulled_cable_of_slow_ones(network, fresh_world, signals):
    hosts = network(2, delay_ms=SLOW_MS, loss=0.01)
    ranks = fresh_world(3, hosts.environments(2, 1))
    answers = cut(ranks, signals, lambda: hosts.pull(1))
    one_cause(answers, [0, 1], {2})
    one_cause(answers, [2], {0, 1})


@needs_delay
def test_a_death_behind_slow_cables(network, fresh_world, signals):
    hosts = network(2, delay_ms=SLOW_MS, loss=0.01)
    ranks = fresh_world(3, hosts.environments(1, 2))
    answers = cut(ranks, signals, lambda: os.kill(ranks.pids()[2], SIGKILL), dies=2)
    one_cause(answers, [0, 1], {2})


def test_a_host_that_is_heard_and_does_not_hear(network, fresh_world, signals):
    hosts = network(2)
    ranks = fresh_world(3, hosts.environments(2, 1))
    answers = cut(ranks, signals, lambda: hosts.drop(0, 1))
    one_cause(answers, [0, 1], {0, 1, 2})  # the store may hear rank 2 first, and answer in vain
    one_cause(answers, [2], {0, 1})


def test_one_of_three_hosts_is_cut_off(network, fresh_world, signals):
    hosts = network(3)
    ranks = fresh_world(4, hosts.environments(2, 1, 1))
    answers = cut(ranks, signals, lambda: hosts.pull(2))
    one_cause(answers, [0, 1, 2], {3})
    one_cause(answers, [3], {0, 1, 2})


def test_two_of_three_hosts_do_not_reach_each_other(network, fresh_world, signals):
    """All of them reach the third one, which has the store, so all come to one cause."""
    hosts = network(3)
    ranks = fresh_world(3, hosts.environments(1, 1, 1))

    def do() -> None:
        hosts.drop(1, 2)
        hosts.drop(2, 1)

    one_cause(cut(ranks, signals, do), [0, 1, 2], {1, 2})
