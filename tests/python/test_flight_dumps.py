"""Dumps of failures: every rank writes one, a survivor writes that of a rank that cannot, and torch's analyser names
the rank and the operation."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import analyser
import sagecomm
from programs import await_calls, await_stop, in_background, report

DEADLINE_S = 60.0


def options(directory: Path, **settings: str) -> sagecomm.Options:
    return sagecomm.Options(settings={"fr_dump": str(directory / "rank_"), "fr_prefix": analyser.prefix(), **settings})


def read(path: Path) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(path.read_bytes())
    return dump


def wait_for(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
    return read(path)


def operations(dump: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    return [
        (entry["profiling_name"].partition(":")[2], entry["collective_seq_id"], entry["state"])
        for entry in dump["entries"]
    ]


def until_it_fails(culprit: int, way: str, path: str) -> tuple[str, int | None]:
    """Two all_reduces; the culprit does not come to the third one, in which the others are by then, or calls another
    operation."""
    t = torch.ones(8)
    dist.all_reduce(t)
    dist.all_reduce(t)
    report(path)
    *others, last = (rank for rank in range(dist.get_world_size()) if rank != culprit)
    if dist.get_rank() == culprit and way != "mismatch":
        await_calls(3, *others, last)
        os.kill(os.getpid(), signal.SIGKILL if way == "kill" else signal.SIGSTOP)
    if dist.get_rank() == last and way == "stop":  # the others have a long timeout
        await_calls(3, *others)
        dist.distributed_c10d._get_default_group()._get_backend(t.device)._set_default_timeout(timedelta(seconds=2))
    try:
        if dist.get_rank() == culprit and way == "mismatch":
            dist.broadcast(t, 0)
        else:
            dist.all_reduce(t)
    except dist.DistBackendError as error:
        return type(error).__name__, getattr(error, "rank", None)
    return "nothing", None


@pytest.mark.parametrize(
    ("way", "culprit"),
    [("kill", 2), *(pytest.param(*case, marks=pytest.mark.long) for case in (("kill", 0), ("stop", 1), ("stop", 0)))],
)
def test_a_rank_that_is_gone_is_dumped_and_named(mortals, signals, tmp_path: Path, way: str, culprit: int) -> None:
    ranks = mortals.world(4)
    directory = tmp_path / "dumps"
    directory.mkdir()
    running = in_background(ranks, until_it_fails, culprit, way, signals.path, options=options(directory))
    pids = ranks.pids()
    dumps = {rank: wait_for(directory / f"rank_{rank}") for rank in range(4)}
    # So far only the survivors have written dumps: the culprit is dead, or stopped until now.
    _, printed = analyser.analyse(directory)
    if way == "stop":
        await_stop(pids[culprit])
        os.kill(pids[culprit], signal.SIGCONT)
    outcomes = running.result()
    for rank, outcome in enumerate(outcomes):
        if rank != culprit:
            expected = "PeerFailure" if way == "kill" else "CollectiveTimeout"
            assert outcome.value == (expected, culprit), outcome
    for rank, dump in dumps.items():
        first_two = [("all_reduce", 1, "completed"), ("all_reduce", 2, "completed")]
        assert operations(dump)[:2] == first_two
        assert operations(dump)[2:] == ([] if rank == culprit else [("all_reduce", 3, "started")])
        (config,) = dump["pg_config"].values()
        assert config["ranks"] == "[0, 1, 2, 3]"
    assert "Not all ranks joining collective, sequence number: 3" in printed, printed
    assert f"missing ranks: {{{culprit}}}" in printed, printed
    assert "all_reduce" in printed
    if way == "stop":  # the stopped rank goes on, learns of the failure, and writes its own dump
        assert outcomes[culprit].value == ("CollectiveTimeout", culprit)
        assert operations(read(directory / f"rank_{culprit}"))[2:] in (
            [("all_reduce", 3, "started")],
            [("all_reduce", 3, "scheduled")],
            [],
        )


def leave_early(path: str) -> int | None:
    """Rank 1 leaves after two all_reduces, as a rank that raises an exception does."""
    t = torch.ones(8)
    dist.all_reduce(t)
    dist.all_reduce(t)
    report(path)
    if dist.get_rank() == 1:
        await_calls(3, 0, 2)  # their dumps must say that rank 1 is missing there
        dist.destroy_process_group()
        return None
    with pytest.raises(sagecomm.PeerFailure) as failure:
        dist.all_reduce(t)
    return failure.value.rank


def test_a_rank_that_has_left_is_dumped_and_named(mortals, signals, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    outcomes = mortals.world(3).outcomes(leave_early, signals.path, options=options(directory))
    assert [outcome.value for outcome in outcomes] == [1, None, 1]
    dump = wait_for(directory / "rank_1")
    assert operations(dump) == [("all_reduce", 1, "completed"), ("all_reduce", 2, "completed")]
    _, printed = analyser.analyse(directory)
    assert "missing ranks: {1}" in printed, printed


def test_a_mismatch_is_dumped_and_named(mortals, signals, tmp_path: Path) -> None:
    ranks = mortals.world(2)
    directory = tmp_path / "dumps"
    directory.mkdir()
    outcomes = ranks.outcomes(until_it_fails, 1, "mismatch", signals.path, options=options(directory))
    assert {outcome.value[0] for outcome in outcomes} == {"CollectiveMismatch"}
    assert operations(read(directory / "rank_0"))[2] == ("all_reduce", 3, "started")
    assert operations(read(directory / "rank_1"))[2] == ("broadcast", 3, "started")
    _, printed = analyser.analyse(directory)
    assert "Collective sequence number: 3 has errors" in printed, printed
    assert "broadcast" in printed
    assert "all_reduce" in printed


def dump_on_request(prefix: str) -> None:
    dist.all_reduce(torch.ones(3))
    sagecomm.dump_flight_recorder(prefix)
    with pytest.raises(RuntimeError, match="SAGECOMM_FR_DUMP"):
        sagecomm.dump_flight_recorder()


def test_a_dump_on_request(mortals, tmp_path: Path) -> None:
    mortals.world(2).run(dump_on_request, str(tmp_path / "now_"))
    for rank in range(2):
        dump = read(tmp_path / f"now_{rank}")
        assert operations(dump) == [("all_reduce", 1, "completed")]
        assert [entry["process_group"][1] for entry in dump["entries"]] == ["default_pg"]


def test_no_dump_without_a_place(mortals, signals, tmp_path: Path) -> None:
    ranks = mortals.world(2)
    nowhere = sagecomm.Options(settings={"fr_dump": "none"})
    outcomes = ranks.outcomes(until_it_fails, 1, "mismatch", signals.path, options=nowhere)
    assert {outcome.value[0] for outcome in outcomes} == {"CollectiveMismatch"}
    assert list(tmp_path.glob("rank_*")) == []


def fail_in_many_groups(path: str) -> str:
    """Ten groups of the same ranks; one rank dies. What it did before was dumped once, and that file is old by then."""
    groups = [dist.new_group() for _ in range(10)]
    for number, group in enumerate(groups):
        for _ in range(number + 1):
            dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    report(path)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(2), group=groups[3])
    except sagecomm.PeerFailure as error:
        return str(error)
    return "nothing"


def test_many_groups_that_fail_at_once_are_in_one_file(fresh_world, signals, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    stale = directory / "rank_1"
    stale.write_bytes(pickle.dumps({"entries": []}))
    os.utime(stale, (time.time() - 5, time.time() - 5))
    ranks = fresh_world(2, {"SAGECOMM_FR_DUMP": str(directory / "rank_")})
    outcomes = ranks.outcomes(fail_in_many_groups, signals.path)
    assert "died" in outcomes[0].value
    mine, theirs = wait_for(directory / "rank_0"), read(stale)
    deadline = time.monotonic() + DEADLINE_S
    while not theirs["entries"]:
        assert time.monotonic() < deadline, "the stale file of the dead rank was left"
        time.sleep(0.01)
        theirs = read(stale)
    assert len(mine["pg_config"]) == len(theirs["pg_config"]) == 11
    counts = Counter(entry["pg_id"] for entry in theirs["entries"])
    assert [counts[pg_id] for pg_id in sorted(counts)] == [1, *range(1, 11)]
    assert {entry["state"] for entry in theirs["entries"]} == {"completed"}


def fail_with_pairs(path: str) -> str:
    """Groups of ranks 1 and 2, 2 and 3, and of 0 and 1, which rank 2 is not in. It dies when all have used theirs."""
    me = dist.get_rank()
    for n, pair in enumerate(([1, 2], [2, 3], [0, 1]), start=1):
        group = dist.new_group(pair, group_desc=f"pair {n}")
        if me in pair:
            for _ in range(n):
                dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    report(path)
    if me == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(2))
    except sagecomm.PeerFailure as error:
        return str(error.rank)
    return "nothing"


def test_the_file_of_a_dead_rank_has_groups_that_its_writer_is_not_in(fresh_world, signals, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    ranks = fresh_world(4, {"SAGECOMM_FR_DUMP": str(directory / "rank_")})
    outcomes = ranks.outcomes(fail_with_pairs, signals.path)
    assert [outcome.value for outcome in outcomes if outcome.rank != 2] == ["2"] * 3
    dump = wait_for(directory / "rank_2")
    groups = {config["desc"]: config["ranks"] for config in dump["pg_config"].values()}
    assert groups == {"default_pg": "[0, 1, 2, 3]", "pair 1": "[1, 2]", "pair 2": "[2, 3]"}
    done = Counter(entry["process_group"][1] for entry in dump["entries"])
    assert done == {"default_pg": 1, "pair 1": 1, "pair 2": 2}
