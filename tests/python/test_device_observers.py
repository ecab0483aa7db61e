"""What a group shows of its operations on tensors of an accelerator: statistics, metrics, status, flight recorder. The
accelerator is simdev, an emulated one (test_device_tensors.py)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import analyser
import programs
import sagecomm
from device_bed import Schedule, Worlds
from device_programs import expect, full, held, main_stream, mine
from flight import ours, read, with_recorder
from sagecomm import _status
from test_device_tensors import checked, ranks

DEADLINE_S = 60.0
LAZY = Schedule("lazy")


def numbers() -> tuple[int, list[int]]:
    """Of the group, and of the last operations on the CPU and on a device."""
    tensors = [torch.ones(3), torch.ones(3), torch.ones(3), full(mine()), full(mine())]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
    return backend._get_sequence_number_for_group(), [w._get_sequence_number() for w in (works[2], works[4])]


def both_lanes() -> dict[str, Any]:
    group, last = numbers()
    found: dict[str, Any] = {"stats": sagecomm.get_stats(), "metrics": sagecomm.metrics(), "group": group, "last": last}
    found["explained"] = sagecomm.explain("all_reduce", 12, device=True)
    found["cpu"] = sagecomm.explain("all_reduce", 12)
    torch.accelerator.synchronize()
    return found


def test_statistics_have_rows_of_both_lanes(fresh_world: Worlds) -> None:
    for found in ranks(fresh_world, LAZY).run(checked, both_lanes):
        stats = found["stats"]
        assert (stats["sequence"], stats["all_reduce_count"], stats["total_bytes"]) == (5, 5, 3 * 12 + 2 * 4000)
        rows = {(row["device"], row["engine"], row["transport"]): row["count"] for row in stats["rows"]}
        assert rows == {("cpu", "host", "shm"): 3, ("privateuseone", "staged", "shm"): 2}
        lanes = {lane["lane"]: (lane["engine"], lane["sequence"]) for lane in stats["lanes"]}
        assert lanes == {"host": ("host", 3), "device": ("staged", 2)}
        for counter in ("sleeps", "blocked", "programs"):
            assert stats[counter] >= max(lane[counter] for lane in stats["lanes"])
        assert 'algo="one_shot",device="privateuseone",engine="staged",transport="shm"} 2' in found["metrics"]
        # torch counts the collectives of the group; each lane numbers its own.
        assert found["group"] == 5
        assert found["last"] == [3, 2]
        assert found["explained"]["engine"] == "staged"
        assert [e["engine"] for e in found["explained"]["engines"] if e["chosen"]] == ["staged"]
        assert "engines" not in found["cpu"]


def profiled(path: str) -> list[int]:
    """Numbers of the ranges that trace analysers look for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        numbers()
    trace = f"{path}{dist.get_rank()}"
    profile.export_chrome_trace(trace)
    events = json.loads(Path(trace).read_text())["traceEvents"]
    return [event["args"]["Seq"] for event in events if event.get("name") == "record_param_comms"]


def test_the_profiler_has_the_numbers_of_the_lanes(fresh_world: Worlds, tmp_path: Path) -> None:
    assert ranks(fresh_world, LAZY).run(profiled, str(tmp_path / "trace")) == [[1, 2, 3, 1, 2]] * 2


def dumps_of_both_lanes(prefix: str) -> dict[str, Any]:
    numbers()
    with held(main_stream()):
        dist.all_reduce(full(mine()), async_op=True)  # its stream does not reach it
        sagecomm.dump_flight_recorder(prefix)
        return read()


@with_recorder
def test_the_analyser_reads_dumps_of_both_lanes(fresh_world: Worlds, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    world = ranks(fresh_world, LAZY, SAGECOMM_FR_PREFIX=analyser.prefix())
    for dump in world.run(dumps_of_both_lanes, str(directory / "rank_")):
        entries = ours(dump)
        groups = {entry["process_group"][0]: entry["pg_id"] for entry in entries}
        (name,) = (group for group in groups if not group.endswith("/device"))
        assert set(groups) == {name, name + "/device"} == set(dump["pg_config"])
        assert {entry["process_group"][1] for entry in entries} == {"default_pg"}
        of = {g: [(e["collective_seq_id"], e["state"]) for e in entries if e["process_group"][0] == g] for g in groups}
        done = [(number, "completed") for number in (1, 2, 3)]
        assert of == {name: done, name + "/device": [*done[:2], (3, "started")]}
        status = {g: dump["pg_status"][str(pg_id)]["last_completed_collective"] for g, pg_id in groups.items()}
        assert status == {name: 3, name + "/device": 2}
    database, printed = analyser.analyse(directory)
    assert "Not all ranks" not in printed
    assert "has errors" not in printed
    assert len(database.collectives) == 6
    assert all(each.pass_check and each.type_of_mismatch is None for each in database.collectives)
    assert sorted((group.desc, group.size) for group in database.groups) == [("default_pg", 2), ("default_pg", 2)]


def late(directory: str) -> list[int] | None:
    """Rank 1 holds its stream until rank 0 has seen that."""
    store = c10d._get_default_store()
    x = full(mine())
    if dist.get_rank() == 1:
        with held(main_stream()):
            work = dist.all_reduce(x, async_op=True)
            store.wait(["seen"])
        work.wait()
        return None
    work = dist.all_reduce(x, async_op=True)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        group = next(g for g in _status.groups(_status.collect()) if os.getpid() in [r["pid"] for r in g.ranks])
        states = {rank: position["state"] for rank, position in _status.on_devices(group).items()}
        if states == {0: "in", 1: "late"}:
            break
        assert time.monotonic() < deadline, (states, group)
    jobs = programs.command("status").said.split("job of pid ")  # other tests run beside this one
    Path(directory, "printed").write_text(next(job for job in jobs if str(os.getpid()) in job.split()))
    store.set("seen", b"1")
    work.wait()
    expect(x, 3)
    return _status.behind_on_devices(group)


@pytest.mark.long
def test_status_tells_a_rank_whose_stream_is_late(fresh_world: Worlds, tmp_path: Path) -> None:
    assert ranks(fresh_world, LAZY).run(checked_late, str(tmp_path)) == [[1], None]
    printed = (tmp_path / "printed").read_text()
    assert "  on devices, engine staged" in printed
    assert "behind on devices: rank 1" in printed
    (line,) = (line for line in printed.splitlines() if "its own stream" in line)
    assert line.split()[:2] == ["1", "late"]
    assert "all_reduce #1 (float32, SUM, 1000 elements)" in line


def checked_late(directory: str) -> list[int] | None:
    return checked(lambda: late(directory))


def dies_on_a_device() -> str:
    """Rank 1 ends after two operations on devices, without having called any on the CPU."""
    x = full(mine())
    for _ in range(2):
        dist.all_reduce(x)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        os._exit(3)
    with pytest.raises(sagecomm.PeerFailure) as raised:
        dist.all_reduce(x)
    return str(raised.value)


@pytest.mark.long
def test_a_survivor_dumps_both_lanes_of_a_rank_that_died(fresh_world: Worlds, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    settings = {"SAGECOMM_FR_DUMP": str(directory / "rank_"), "SAGECOMM_FR_PREFIX": analyser.prefix()}
    survivor, _ = ranks(fresh_world, LAZY, **settings).outcomes(dies_on_a_device)
    assert survivor.ok, survivor.trace
    assert "died in or after all_reduce #2 (float32, SUM, 1000 elements) on a device" in survivor.value
    deadline = time.monotonic() + DEADLINE_S
    while not all((directory / f"rank_{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline, list(directory.iterdir())
        time.sleep(0.01)
    _, printed = analyser.analyse(directory)
    assert "Not all ranks joining collective, sequence number: 3" in printed, printed
    assert "missing ranks: {1}" in printed, printed
    assert "/device" in printed
