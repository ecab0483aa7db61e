"""Groups over several hosts with encrypted links: what they do, how they fail, and certificates that do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import test_hosts_failures as failures
import test_hosts_life as life
import test_matrix as matrix
from failing import caught, sum_of_ones
from programs import Programs, Signals, await_stop, in_background, report
from selection import quickly
from worlds import COLLECTIVE_TIMEOUT, World, on_hosts

ROOT = Path(__file__).parents[2]
Fresh = Callable[..., World]
Shape = tuple[int, ...]
FEW_CELLS = 40  # one cell of so many is run
LONG = 4 << 20  # floats, 16 MiB


class Certificates:
    """The files of an authority and of what it has certified."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        command = [str(ROOT / "tools" / "go"), "run", "./tests/certificates", str(directory), "own", "other", "old=-1"]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120)

    def of(self, name: str = "own", key: str | None = None) -> dict[str, str]:
        return {
            "SAGECOMM_TLS_CERTIFICATE": str(self._directory / f"{name}.pem"),
            "SAGECOMM_TLS_KEY": str(self._directory / f"{key or name}.key"),
            "SAGECOMM_TLS_AUTHORITIES": str(self._directory / "authority.pem"),
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "theirs")


# ---- operations ----


@pytest.mark.parametrize("shape", quickly([(2, 1)], [(1, 1), (2, 1), (2, 2), (1, 1, 1)]))
def test_operations(fresh_world: Fresh, certificates: Certificates, shape: Shape) -> None:
    ranks = fresh_world(sum(shape), on_hosts(*shape, **certificates.of()))
    matrix.run_matrix(ranks, matrix.chosen_cells()[sum(shape) :: FEW_CELLS], own_order=True)


def both_ways() -> bool:
    """Sends 16 MiB to the other rank while that one does so too, with and without another operation of its own."""
    rank = dist.get_rank()
    right = True
    for number in range(3):
        out, into = torch.full((LONG,), float(10 * rank + number)), torch.zeros(LONG)
        works = [dist.isend(out, 1 - rank), dist.irecv(into, 1 - rank)]
        for work in works:
            work.wait()
        right &= bool((into == 10 * (1 - rank) + number).all())
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, (rank, "x" * 10_000))
        right &= [which for which, _ in gathered] == [0, 1]
        dist.all_reduce(out)
        right &= bool((out == 10 + 2 * number).all())
    dist.monitored_barrier()
    return right


@pytest.mark.long
def test_long_messages_in_both_directions(fresh_world: Fresh, certificates: Certificates) -> None:
    assert fresh_world(2, on_hosts(1, 1, **certificates.of())).run(both_ways) == [True, True]


@pytest.mark.parametrize("count", quickly([1_000_000], [1, 1_000_000]))
def test_an_exit_right_behind_a_broadcast(certificates: Certificates, count: int) -> None:
    environment = on_hosts(1, 1, TEST_COUNT=str(count), TEST_LATE="", **certificates.of())
    with Programs(life.EXIT_BEHIND_A_BROADCAST, 2, environment) as ranks:
        assert ranks.line(1) == "right"
        ranks.end_well()


# ---- failures ----

DEATHS = [
    failures.Death((2, 1), (2,), "sync", 50_000),
    failures.Death((1, 1), (1,), "p2p", 50_000),
    failures.Death((1, 1, 1), (1,), "async", 1_500_000),
    failures.Death((1, 1, 1), (2,), "idle"),
]


@pytest.mark.parametrize("death", quickly(DEATHS[:1], DEATHS), ids=str)
def test_death_of_a_rank(
    fresh_world: Fresh, certificates: Certificates, signals: Signals, death: failures.Death
) -> None:
    shape = death.shape
    failures.kill(death, fresh_world(sum(shape), on_hosts(*shape, **certificates.of())), signals)


def until_a_timeout(path: str) -> tuple[str, str]:
    """Rank 1 is stopped. Rank 0 sends more than the connection holds, and must come back."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        dist.recv(torch.empty(1), 0)  # rank 0 has the sum, which a goroutine of this process may have sent later
        report(path)
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", ""
    dist.send(torch.ones(1), 1)
    report(path)
    error, *_ = caught(lambda: dist.all_reduce(torch.ones(LONG)))
    report(path)
    return type(error).__name__, str(error)


@pytest.mark.long
def test_a_stopped_rank(fresh_world: Fresh, certificates: Certificates, signals: Signals) -> None:
    ranks = fresh_world(2, on_hosts(1, 1, SAGECOMM_TIMEOUT="3", **certificates.of()))
    outcomes = in_background(ranks, until_a_timeout, signals.path)
    signals.await_many(2)
    stopped = ranks.pids()[1]
    try:
        await_stop(stopped)
        signals.await_many(1)  # rank 0 has come back while rank 1 is stopped
    finally:
        os.kill(stopped, signal.SIGCONT)
    told = outcomes.result(60)[0]
    assert told.ok, told.trace
    assert told.value[0] == "CollectiveTimeout", told.value
    assert "rank 1" in told.value[1]


# ---- certificates that do not fit ----


def fails(fresh_world: Fresh, of: list[dict[str, str]], *texts: str) -> None:
    environment = [{**host, **tls} for host, tls in zip(on_hosts(*[1] * len(of)), of, strict=True)]
    began = time.monotonic()
    outcomes = fresh_world(len(of), environment).outcomes(sum_of_ones)
    assert time.monotonic() - began < COLLECTIVE_TIMEOUT.total_seconds(), "found before the timeout"
    for outcome in outcomes:
        assert outcome.error is not None, f"rank {outcome.rank} has made the group"
        for text in texts:
            assert text in str(outcome.error), outcome.trace


def test_a_certificate_of_another_authority(
    fresh_world: Fresh, certificates: Certificates, others: Certificates
) -> None:
    fails(fresh_world, [certificates.of(), others.of()], "accept the certificate of th", "SAGECOMM_TLS_AUTHORITIES")


def test_a_rank_without_tls(fresh_world: Fresh, certificates: Certificates) -> None:
    fails(fresh_world, [{}, certificates.of()], "TLS is set on rank 1 and not on rank 0")


def test_an_expired_certificate(fresh_world: Fresh, certificates: Certificates) -> None:
    expired = [certificates.of(), certificates.of("old")]
    fails(fresh_world, expired, "SAGECOMM_TLS_CERTIFICATE: the certificate has expired at ")


def test_the_key_of_another_certificate(fresh_world: Fresh, certificates: Certificates) -> None:
    mixed = [certificates.of(), certificates.of("own", "other")]
    fails(fresh_world, mixed, "SAGECOMM_TLS_CERTIFICATE and SAGECOMM_TLS_KEY: tls: private key does not match")


@pytest.mark.parametrize("name", ["SAGECOMM_TLS_CERTIFICATE", "SAGECOMM_TLS_KEY", "SAGECOMM_TLS_AUTHORITIES"])
def test_a_setting_that_is_missing(fresh_world: Fresh, certificates: Certificates, name: str) -> None:
    fails(fresh_world, [certificates.of(), {**certificates.of(), name: ""}], f"{name} is not set, and TLS needs")
