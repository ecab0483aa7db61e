"""What a running group shows: statistics, metrics, the status of a job, a timeline, the stacks of callers."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from prometheus_client.parser import text_string_to_metric_families

import programs
import sagecomm
from programs import Programs, await_stop
from sagecomm import _status
from sagecomm.__main__ import main

DEADLINE_S = 60.0


def some_operations() -> dict[str, Any]:
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(1 << 20))
    dist.broadcast(torch.ones(3, dtype=torch.int16), 0)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(torch.ones(3, dtype=torch.float64))
        dist.all_reduce(torch.ones(4, dtype=torch.float64))
    return sagecomm.get_stats()


def test_statistics(world) -> None:
    for rank, stats in enumerate(world(2).run(some_operations)):
        assert (stats["rank"], stats["size"], stats["sequence"], stats["fused"]) == (rank, 2, 8, 2)
        assert stats["all_reduce_count"] == 7
        assert stats["total_bytes"] == 5 * 8 + 4 * 2**20 + 6 + 56
        assert stats["avg_latency_ms"] > 0
        rows = {(row["op"], row["dtype"], row["up_to"]): row for row in stats["rows"]}
        assert {key: row["count"] for key, row in rows.items()} == {
            ("all_reduce", "float32", 8): 5,
            ("all_reduce", "float32", 4 * 2**20): 1,
            ("broadcast", "int16", 8): 1,
            ("all_reduce", "float64", 64): 1,
        }
        (lane,) = stats["lanes"]
        assert (lane["lane"], lane["device"], lane["engine"], lane["sequence"]) == ("host", "cpu", "host", 8)
        for row in rows.values():
            assert (row["device"], row["engine"]) == ("cpu", "host")
            assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]
            assert row["wait_us"] + row["transfer_us"] == pytest.approx(row["avg_us"])
            assert row["transport"] == "shm"
            assert row["algorithm"] in ("one_shot", "two_shot")


def in_no_group() -> None:
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=group)
        assert sagecomm.get_stats(group)["all_reduce_count"] == 1
    else:
        with pytest.raises(ValueError, match="not in the group"):
            sagecomm.get_stats(group)
    with pytest.raises(ValueError, match="gloo"):
        sagecomm.get_stats(dist.new_group(backend="gloo"))
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="init_process_group"):
        sagecomm.get_stats()


def test_statistics_of_what_is_no_group_of_ours(world) -> None:
    world(2).run(in_no_group)


def in_detail() -> int:
    dist.all_reduce(torch.ones(2))
    return int(sagecomm.get_stats()["all_reduce_count"])


def test_statistics_behind_torchs_wrapper(fresh_world) -> None:
    assert min(fresh_world(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(in_detail)) >= 1


def metrics_of_some_operations() -> str:
    some_operations()
    return sagecomm.metrics()


def test_metrics_are_what_prometheus_reads(fresh_world, tmp_path: Path) -> None:
    pattern = str(tmp_path / "rank-%r.prom")
    world = fresh_world(2, {"SAGECOMM_METRICS_FILE": pattern, "SAGECOMM_METRICS_EVERY": "0.05"})
    texts = world.run(metrics_of_some_operations)
    # Every group of a process ends with the test function, and the file is written once more.
    texts += [(tmp_path / f"rank-{rank}.prom").read_text() for rank in range(2)]
    for text in texts:
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = {
            (sample.name, sample.labels.get("op"), sample.labels.get("algo")): sample.value
            for family in families.values()
            for sample in family.samples
            if sample.labels.get("le") in (None, "+Inf")
        }
        assert families["sagecomm_latency_seconds"].type == "histogram"
        assert samples[("sagecomm_collectives_total", "all_reduce", "one_shot")] == 6
        assert samples[("sagecomm_collectives_total", "all_reduce", "two_shot")] == 1
        assert samples[("sagecomm_latency_seconds_bucket", "all_reduce", "one_shot")] == 6
        assert samples[("sagecomm_latency_seconds_count", "all_reduce", "one_shot")] == 6
        assert samples[("sagecomm_bytes_total", "broadcast", "one_shot")] == 6
        assert samples[("sagecomm_fused_total", "all_reduce", "one_shot")] == 2
        (info,) = families["sagecomm_group_info"].samples
        assert info.labels["desc"] == "default_pg"


HANGING = """
    dist.init_process_group("sagecomm", timeout=timedelta(seconds=60))
    t = torch.ones(10)
    dist.all_reduce(t)
    say(os.getpid())
    if dist.get_rank() == 1:
        hear()
    dist.all_reduce(t)
    say("done")
    hear()
    dist.destroy_process_group()
"""


def status_in_words(asked: list[int]) -> programs.Ended:
    """What the command prints once these processes answer: on a busy machine one may be too slow."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        done = programs.command("status")
        if not any(f"pid {pid} does not answer" in done.said for pid in asked):
            return done
        assert time.monotonic() < deadline, done.said


def until(ranks: Programs, pids: list[int], *wanted: str) -> _status.Group:
    """Returns the group of those processes when its ranks, in order, are in these states."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for group in _status.groups(_status.collect()):
            if [rank["pid"] for rank in group.ranks] == pids and [r["state"] for r in group.ranks] == list(wanted):
                return group
        assert time.monotonic() < deadline, _status.text(_status.collect())
        time.sleep(0.02)


def sockets_of(pids: list[int]) -> list[str]:
    return [name for name in _status.sockets() if int(name[len(_status.PREFIX) :].split("-")[1]) in pids]


@pytest.mark.long
def test_status_of_a_job_that_hangs() -> None:
    with Programs(HANGING, 3) as ranks:
        pids = [int(ranks.line(rank)) for rank in range(3)]
        group = until(ranks, pids, "in", "done", "in")
        assert [rank["op"].split(" ")[:2] for rank in group.ranks] == [
            ["all_reduce", "#2"],
            ["all_reduce", "#1"],
            ["all_reduce", "#2"],
        ]
        assert _status.behind(group) == [1]
        assert group.description == "default_pg"

        # A stopped rank does not answer; the others know what it does.
        os.kill(pids[1], signal.SIGSTOP)
        try:
            await_stop(pids[1])
            done = status_in_words([pids[0], pids[2]])
        finally:
            os.kill(pids[1], signal.SIGCONT)
        printed = done.said
        assert done.status == 1, printed
        assert ", 3 processes here" in printed  # whose environment is that of the process that forked them
        (process,) = (line.split(maxsplit=3) for line in printed.splitlines() if line.split()[:1] == [str(pids[0])])
        assert process[1] == time.strftime("%Y-%m-%d")
        assert "python" in process[3]
        assert f"pid {pids[1]} does not answer (stopped)" in printed
        assert 'group "0" (default_pg), 3 ranks' in printed
        assert "behind: rank 1" in printed
        (line,) = [line for line in printed.splitlines() if str(pids[1]) in line and "all_reduce" in line]
        assert "done (stopped)" in line
        assert "all_reduce #1 (float32, SUM, 10 elements)" in line

        deadline = time.monotonic() + DEADLINE_S
        told: dict[int, Any] = {}
        while not all(told.get(pid) for pid in pids):  # on a busy machine one may be too slow
            assert time.monotonic() < deadline, told
            done = programs.command("status", "--json")
            told = {answer["pid"]: answer["status"] for answer in json.loads(done.said)}
            assert done.status == int(None in told.values()), done.said  # of one that is no rank of this test, say
        assert told[pids[0]]["groups"][0]["size"] == 3

        ranks.tell(1, "go on")
        for rank in range(3):
            assert ranks.line(rank) == "done"
        assert _status.behind(until(ranks, pids, "done", "done", "done")) == []
        for rank in range(3):
            ranks.tell(rank, "end")
            assert ranks.ends(rank) == 0
    assert not sockets_of(pids)


def test_status_can_be_turned_off() -> None:
    with Programs(HANGING, 1, {"SAGECOMM_STATUS": "off"}) as ranks:
        pid = int(ranks.line(0))
        assert ranks.line(0) == "done"
        assert not sockets_of([pid])
        ranks.tell(0, "end")
        assert ranks.ends(0) == 0


def answer(pid: int, *groups: tuple[str, list[int]], **command: Any) -> _status.Answer:
    """Returns the status answer of a process on this host. A group has a name and the pids of its ranks."""
    told = []
    for name, pids in groups:
        ranks = [
            {"rank": i, "global_rank": i, "host": "here", "pid": p, "state": "idle", "issued": 0}
            for i, p in enumerate(pids)
        ]
        told.append({"group": name, "desc": "d", "rank": pids.index(pid), "ranks": ranks})
    known = _status.Command(**({"line": "python train.py", "started": None, "job": None} | command))
    return _status.Answer(pid, {"host": "here", "groups": told}, known)


def test_jobs_are_what_groups_join() -> None:
    answers = [
        answer(1, ("0", [1, 2]), job="torchrun x"),
        answer(2, ("0", [1, 2]), ("1", [2, 3])),
        answer(3, ("1", [2, 3])),
        answer(7, ("0", [7, 8])),
        _status.Answer(8, None),
        answer(9),
    ]
    jobs = _status.jobs(answers)
    assert [[a.pid for a in job.answers] for job in jobs] == [[1, 2, 3], [7, 8], [9]]
    printed = _status.text(answers)
    assert "job torchrun x, 3 processes here" in printed
    assert "job of pid 7, 2 processes here\n" in printed
    assert "job of pid 9, 1 process here\n" in printed
    assert "pid 8 does not answer" in printed


def positions(*states: tuple[str, int]) -> _status.Group:
    """A group whose ranks are in these states of the device lane, and have called as many collectives there."""
    ranks = [
        {"rank": i, "global_rank": i, "host": "here", "pid": 2**22 + 1 + i, "state": "idle", "issued": 0}
        | {"device": {"state": state, "issued": issued}}
        for i, (state, issued) in enumerate(states)
    ]
    return _status.Group("0", "d", ranks, None, {0}, "staged")


@pytest.mark.parametrize(
    ("states", "behind"),
    [
        ([("done", 2), ("done", 2)], []),
        ([("in", 2), ("done", 1)], [1]),
        ([("in", 2), ("late", 2)], [1]),
        ([("late", 2), ("done", 1)], [1]),  # it comes first, whatever the stream of the other one does
        ([("late", 2), ("late", 2)], []),  # all wait for their own devices
        ([("failed", 2), ("late", 2), ("left", 1)], [1]),
    ],
)
def test_ranks_that_are_behind_on_devices(states: list[tuple[str, int]], behind: list[int]) -> None:
    group = positions(*states)
    assert _status.behind_on_devices(group) == behind
    assert _status.behind(group) == []
    lines = _status._described(group, 0)
    at = lines.index("  on devices, engine staged")
    assert lines[at + 2].split() == [
        "0",
        states[0][0],
        *(["none", "yet"]),
        *(["its", "own", "stream"] if states[0][0] == "late" else []),
    ]
    assert (lines[-1] == f"  behind on devices: {', '.join(f'rank {rank}' for rank in behind)}") == bool(behind)


def test_what_the_system_says_of_a_process(tmp_path: Path) -> None:
    of = tmp_path / "12"
    of.mkdir()
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\n")
    (of / "stat").write_text("12 (a ) b) S " + " ".join(["0"] * 18) + f" {5 * os.sysconf('SC_CLK_TCK')} 0\n")
    (of / "cmdline").write_bytes(b"python\0train.py\0")
    (of / "environ").write_bytes(b"SLURM_JOB_ID=77\0MASTER_ADDR=a\0MASTER_PORT=29500\0TORCHELASTIC_RUN_ID=none\0")
    assert _status.command_of(12, tmp_path) == _status.Command("python train.py", 1005, "Slurm 77, store at a:29500")
    assert _status.command_of(0, tmp_path) == _status.Command(None, None, None)


def test_the_status_is_watched_until_it_is_interrupted(monkeypatch, capsys) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(_status, "collect", list)
    monkeypatch.setattr(_status.time, "sleep", nap)
    assert main(["status", "--watch", "0.5"]) == 0
    assert naps == [0.5, 0.5]
    assert capsys.readouterr().out.count("no process of this user") == 2


def test_the_status_needs_no_torch() -> None:
    code = "import runpy, sys; sys.argv = ['-m', 'status']; sys.orig_argv = ['python', '-m', 'sagecomm', 'status']"
    code += (
        "\ntry: runpy.run_module('sagecomm', run_name='__main__')\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_status_without_a_job_in_words() -> None:
    assert "no process" in _status.text([])
    assert _status.text([_status.Answer(2**22 + 1, None)]) == f"pid {2**22 + 1} does not answer"


HALF = json.dumps(
    {
        "groups": [
            {
                "group": "0",
                "desc": "",
                "rank": 0,
                "ranks": [
                    {"rank": 0, "global_rank": 0, "host": "h", "pid": 1, "state": "in", "issued": 1, "device": {}}
                ],
            }
        ]
    }
).encode()


@pytest.mark.parametrize("told", [b"", b"nothing", b"[1]", b'{"groups": [{}]}', b'{"groups": [{"ranks": 1}]}', HALF])
def test_status_is_not_deceived_by_what_is_no_status(told: bytes) -> None:
    name = f"{_status.PREFIX}{os.geteuid()}-{os.getpid()}-{uuid.uuid4().int}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(told)

        thread = threading.Thread(target=answer)
        thread.start()
        assert _status.ask(name) == _status.Answer(os.getpid(), None)
        thread.join()


def call_twice(prefix: str) -> None:
    for _ in range(2):
        dist.all_reduce(torch.ones(1))
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(torch.ones(1))
    sagecomm.dump_flight_recorder(prefix)


def test_stacks_say_who_called(world, tmp_path: Path) -> None:
    options = sagecomm.Options(settings={"fr_stacks": "on"})
    world(2).run(call_twice, str(tmp_path / "rank_"), options=options)
    for rank in range(2):
        entries = pickle.loads((tmp_path / f"rank_{rank}").read_bytes())["entries"]
        assert len(entries) == 3
        lines = []
        for entry in entries:
            (own,) = [frame for frame in entry["frames"] if frame["name"] == "call_twice"]
            assert own["filename"] == __file__
            lines.append(own["line"])
        assert lines[0] == lines[1] < lines[2]
        assert entries[0]["frames"] == entries[1]["frames"]


def in_a_timeline() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 18))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()


def test_timelines_of_ranks_can_be_put_together(fresh_world, tmp_path: Path) -> None:
    fresh_world(2, {"SAGECOMM_TRACE": str(tmp_path / "%r.json")}).run(in_a_timeline)
    events = [event for rank in range(2) for event in json.loads((tmp_path / f"{rank}.json").read_text())]
    assert {event["pid"] for event in events} == {0, 1}
    for rank in range(2):
        mine = [event for event in events if event["pid"] == rank]
        assert len([event for event in mine if event["ph"] == "b" and event["name"] == "all_reduce"]) == 4
        assert {"publish", "reduce", "collect"} <= {event["name"] for event in mine if event["ph"] == "X"}
        assert [e["args"]["dropped"] for e in mine if e["name"] == "end"] == [0]
