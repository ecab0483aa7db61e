"""torch's dumps of its flight recorder hold our operations, in its format, and its analyser understands them."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.flight_recorder.components.types import COLLECTIVES as ANALYSED

import analyser
from analyser import analyse
from sagecomm import _flight
from worlds import World

WorldOf = Callable[[int], World]
FreshWorldOf = Callable[..., World]

MESSAGE_NUMBERS = 10**12  # messages are numbered from there on, far from collectives

bindings: Any = torch._C._distributed_c10d
pytestmark = pytest.mark.skipif(
    not hasattr(bindings, "_dump_fr_trace"), reason="this torch has no flight recorder for all backends"
)


def read(**how: Any) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(bindings._dump_fr_trace(**how))
    return dump


def read_json(**how: Any) -> dict[str, Any]:
    dump: dict[str, Any] = json.loads(bindings._dump_fr_trace_json(**how))
    return dump


def ours(dump: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in dump.get("entries", []) if entry["profiling_name"].startswith("c10d:")]


def names(dump: dict[str, Any]) -> list[str]:
    return [entry["profiling_name"].removeprefix("c10d:") for entry in ours(dump)]


def every_collective() -> None:
    t = torch.ones(3, 4)
    dist.all_reduce(t)
    dist.broadcast(t.to(torch.bfloat16), 1)
    dist.reduce(t.to(torch.int64), 0)
    dist.barrier()
    dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(5))
    dist.all_gather_into_tensor(torch.zeros(10, dtype=torch.uint8), torch.ones(5, dtype=torch.uint8))
    dist.all_reduce(torch.zeros(0))
    dist.reduce_scatter_tensor(torch.zeros(5), torch.ones(10))
    dist.all_to_all_single(torch.zeros(6), torch.ones(6))
    rank = dist.get_rank()
    dist.gather(torch.ones(4), [torch.zeros(4), torch.zeros(4)] if rank == 0 else None)
    dist.scatter(torch.ones(4), [torch.zeros(4), torch.zeros(4)] if rank == 0 else None)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4))
    work = dist.all_reduce(t.double(), op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()


# Name, sizes of the input, sizes of the output, type.
COLLECTIVES = [
    ("all_reduce", [[12]], [[12]], "Float"),
    ("broadcast", [[12]], [[12]], "BFloat16"),
    ("reduce", [[12]], [[12]], "Long"),
    ("barrier", [], [], ""),
    ("all_gather", [[5]], [[10]], "Float"),
    ("all_gather", [[5]], [[10]], "Byte"),
    ("all_reduce", [[0]], [[0]], "Float"),
    ("reduce_scatter", [[10]], [[5]], "Float"),
    ("all_to_all", [[0]], [[0]], "Float"),  # there is no length that all ranks have
    ("gather", [[4]], [[8]], "Float"),
    ("scatter", [[8]], [[4]], "Float"),
    ("all_reduce", [[7]], [[7]], "Float"),
    ("all_reduce", [[12]], [[12]], "Double"),
]


def dump_collectives() -> tuple[dict[str, Any], dict[str, Any], int, int]:
    before = time.time_ns()
    every_collective()
    return read(), read_json(), before, time.time_ns()


def test_dumps_hold_exactly_what_was_called(world: WorldOf) -> None:
    for dump, as_json, before, after in world(2).run(dump_collectives):
        entries = ours(dump)
        assert [
            (e["profiling_name"], e["input_sizes"], e["output_sizes"], e["input_dtypes"], e["output_dtypes"])
            for e in entries
        ] == [
            (f"c10d:{name}", inputs, outputs, [dtype] * len(inputs), [dtype] * len(outputs))
            for name, inputs, outputs, dtype in COLLECTIVES
        ]
        numbers = list(range(1, len(COLLECTIVES) + 1))
        assert [e["collective_seq_id"] for e in entries] == numbers
        assert [e["op_id"] for e in entries] == numbers
        assert [e["record_id"] for e in dump["entries"]] == list(range(len(dump["entries"])))
        (name,) = {e["process_group"][0] for e in entries}
        (pg_id,) = {e["pg_id"] for e in entries}
        times = []
        for e in entries:
            assert e["process_group"] == (name, "default_pg")
            assert (e["state"], e["retired"], e["is_p2p"], e["timeout_ms"]) == ("completed", True, False, 60_000)
            assert e["thread_id"].isdigit()
            assert e["thread_name"] == "MainThread"
            assert e["frames"] == []
            times += [e["time_created_ns"], e["time_discovered_started_ns"], e["time_discovered_completed_ns"]]
            assert e["duration_ms"] == (times[-1] - times[-2]) / 1e6
        assert times == sorted(times)
        # The clocks are read one after the other, and the processor may be taken away in between.
        slack = 30_000_000_000
        assert before - slack <= times[0]
        assert times[-1] <= after + slack
        assert dump["pg_config"][name] == {"name": name, "desc": "default_pg", "ranks": "[0, 1]"}
        last = len(COLLECTIVES)
        assert dump["pg_status"][str(pg_id)] == {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": last,
        }
        assert dump["version"] == as_json["version"]

        # The same as JSON, without stacks, with tuples as lists and the status as text.
        assert as_json["pg_config"] == dump["pg_config"]
        assert as_json["pg_status"][str(pg_id)]["last_completed_collective"] == str(last)
        for e in entries:
            del e["frames"]
            e["process_group"] = list(e["process_group"])
        # The scale from ticks to times is taken anew for each dump.
        for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms"):
            for e in [*entries, *ours(as_json)]:
                e.pop(key)
        assert ours(as_json) == entries


def exchange_messages() -> dict[str, Any]:
    rank, t = dist.get_rank(), torch.arange(6, dtype=torch.int16)
    dist.barrier()
    if rank == 0:
        dist.send(t, 1, tag=3)
        dist.recv(t[:2])
    else:
        dist.recv(t, 0, tag=3)
        dist.send(t[:2], 0)
    dist.barrier()
    return read()


def test_messages_name_both_ends(world: WorldOf) -> None:
    first, second = world(2).run(exchange_messages)
    # The source of the recv is known, because it is complete.
    assert names(first) == ["barrier", "send 0->1", "recv 0<-1", "barrier"]
    assert names(second) == ["barrier", "recv 1<-0", "send 1->0", "barrier"]
    for dump in (first, second):
        messages = [e for e in ours(dump) if e["is_p2p"]]
        assert [e["input_sizes"] + e["output_sizes"] for e in messages] == [[[6]], [[2]]]
        assert [e["input_dtypes"] + e["output_dtypes"] for e in messages] == [["Short"], ["Short"]]
        assert [e["p2p_seq_id"] - MESSAGE_NUMBERS for e in ours(dump)] == [0, 1, 2, 2]
        assert [e["collective_seq_id"] for e in ours(dump)] == [1, 1, 1, 2]
        assert {e["state"] for e in messages} == {"completed"}


def wait_alone(size: int) -> list[dict[str, Any]]:
    """Rank 0 begins an operation that the others join only after rank 0 has looked at the record."""
    store = c10d._get_default_store()
    dumps = []
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(torch.ones(size), async_op=True)
        assert work is not None
        deadline = time.monotonic() + 60
        while ours(read())[-1]["state"] == "scheduled" and time.monotonic() < deadline:
            pass
        dumps = [read(), read(onlyActive=True), read_json(onlyActive=True)]
        store.set("looked", b"1")
        work.wait()
        dumps.append(read(onlyActive=True))
    else:
        dist.all_reduce(torch.ones(1))
        store.wait(["looked"])
        dist.all_reduce(torch.ones(size))
        dumps = [read()]
    return dumps


@pytest.mark.parametrize("size", [2, 1 << 20])
def test_an_operation_that_waits_for_a_peer_is_started(world: WorldOf, size: int) -> None:
    (whole, active, active_json, after), _ = world(2).run(wait_alone, size)
    assert [e["state"] for e in ours(whole)] == ["completed", "started"]
    (hanging,) = ours(active)
    assert (hanging["profiling_name"], hanging["collective_seq_id"], hanging["retired"]) == (
        "c10d:all_reduce",
        2,
        False,
    )
    assert hanging["time_discovered_started_ns"] > 0
    assert hanging["time_discovered_completed_ns"] is None
    assert "duration_ms" not in hanging
    assert [e["time_discovered_completed_ns"] for e in ours(active_json)] == [0]
    assert whole["pg_status"][str(hanging["pg_id"])] == {
        "last_enqueued_collective": 2,
        "last_started_collective": 2,
        "last_completed_collective": 1,
    }
    assert ours(after) == []


def many() -> tuple[dict[str, Any], dict[str, Any], str]:
    for n in range(1, 9):
        dist.all_reduce(torch.ones(n))
    wrapped: Any = bindings._dump_fr_trace
    theirs: bytes = wrapped.sagecomm_wraps()
    return read(), read_json(), "same" if bindings._dump_fr_trace() == theirs else "ours"


def test_the_size_of_the_buffer_is_honoured(fresh_world: FreshWorldOf) -> None:
    for dump, as_json, which in fresh_world(2, {"TORCH_FR_BUFFER_SIZE": "5"}).run(many):
        assert [e["collective_seq_id"] for e in ours(dump)] == [4, 5, 6, 7, 8]
        assert [e["input_sizes"] for e in ours(dump)] == [[[n]] for n in range(4, 9)]
        # As in torch's dumps, the three oldest entries were overwritten.
        assert [e["record_id"] for e in ours(dump)] == [3, 4, 5, 6, 7]
        assert len(ours(as_json)) == 5
        assert which == "ours"


@pytest.mark.parametrize("variable", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_zero_turns_it_off(fresh_world: FreshWorldOf, variable: str) -> None:
    for dump, as_json, which in fresh_world(1, {variable: "0"}).run(many):
        assert ours(dump) == ours(as_json) == []
        assert which == "same"


def bad_buffer_size() -> None:
    with pytest.raises(RuntimeError, match="TORCH_FR_BUFFER_SIZE"):
        dist.init_process_group("sagecomm", store=dist.HashStore(), rank=0, world_size=1)


def test_a_bad_size_of_the_buffer_is_refused(fresh_world: FreshWorldOf) -> None:
    fresh_world(1, {"TORCH_FR_BUFFER_SIZE": "many"}).run(bad_buffer_size, backend=None)


def prefixed() -> list[str]:
    dist.all_reduce(torch.ones(1))
    return [entry["profiling_name"] for entry in read()["entries"]]


def test_the_prefix_can_be_set(fresh_world: FreshWorldOf) -> None:
    assert fresh_world(1, {"SAGECOMM_FR_PREFIX": "xccl"}).run(prefixed) == [["xccl:all_reduce"]]


def in_a_subgroup() -> dict[str, Any]:
    group = dist.new_group([0, 2], group_desc="ends")
    assert {config["desc"] for config in read()["pg_config"].values()} == {
        "default_pg",
        *(["ends"] if dist.get_rank() != 1 else []),
    }, "before the first operation"
    dist.barrier()
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(2), group=group)
    return read()


def test_groups_are_listed_with_their_global_ranks(fresh_world: FreshWorldOf) -> None:
    # Processes of its own: torch lists gloo's groups for as long as the process lives.
    for rank, dump in enumerate(fresh_world(3).run(in_a_subgroup)):
        groups = {config["desc"]: config["ranks"] for config in dump["pg_config"].values()}
        expected = {"default_pg": "[0, 1, 2]"} | ({"ends": "[0, 2]"} if rank != 1 else {})
        assert groups == expected
        assert [e["process_group"][1] for e in ours(dump)] == ["default_pg"] + (["ends"] if rank != 1 else [])
        assert len({e["pg_id"] for e in ours(dump)}) == len(expected) == len(dump["pg_status"])


def what_dumps_leave_out() -> dict[str, Any]:
    wrapped: Any = bindings._dump_fr_trace
    dist.all_reduce(torch.ones(1))
    found: dict[str, Any] = {
        "no collectives": read(includeCollectives=False),
        "no stacks": read(includeStackTraces=False),
        "wrapped once": not hasattr(wrapped.sagecomm_wraps, "sagecomm_wraps"),
        "documented": wrapped.__doc__ == wrapped.sagecomm_wraps.__doc__,
    }
    if hasattr(bindings, "_reset_fr_trace"):
        found["other backend"] = read(backend="nccl2")
        found["by name"] = read(backend="sagecomm")
        bindings._reset_fr_trace()
        dist.barrier()
        found["after reset"] = read()
    dist.destroy_process_group()
    found["destroyed"] = bindings._dump_fr_trace() == wrapped.sagecomm_wraps()
    return found


def test_what_dumps_leave_out(fresh_world: FreshWorldOf) -> None:
    (found,) = fresh_world(1).run(what_dumps_leave_out)
    assert "entries" not in found["no collectives"]
    assert len(found["no collectives"]["pg_config"]) == 1
    assert "frames" not in ours(found["no stacks"])[0]
    assert found["wrapped once"]
    assert found["documented"]
    if "after reset" in found:
        assert ours(found["other backend"]) == []
        assert found["other backend"]["pg_config"] == {}
        assert names(found["by name"]) == ["all_reduce"]
        assert names(found["after reset"]) == ["barrier"]
    assert found["destroyed"]


def beside_gloo() -> dict[str, Any]:
    other = dist.new_group(backend="gloo")
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(2), group=other)
    dist.all_reduce(torch.ones(3))
    return read()


def test_entries_of_other_backends_stay(fresh_world: FreshWorldOf) -> None:
    for dump in fresh_world(2).run(beside_gloo):
        numel = [
            (e["profiling_name"], e["input_sizes"]) for e in dump["entries"] if "all_reduce" in e["profiling_name"]
        ]
        assert numel == [
            ("c10d:all_reduce", [[1]]),
            ("gloo:all_reduce", [[2]]),
            ("c10d:all_reduce", [[3]]),
        ]
        assert [e["record_id"] for e in dump["entries"]] == list(range(len(dump["entries"])))
        theirs = {e["pg_id"] for e in dump["entries"] if e["profiling_name"].startswith("gloo:")}
        assert not theirs & {e["pg_id"] for e in ours(dump)}
        assert len(dump["pg_status"]) == 2


# ---- torch's analyser ----


# Environment in which our operations have a name that the analyser takes.
ANALYSABLE = {"SAGECOMM_FR_PREFIX": analyser.prefix()}


def all_kinds_and_dump(prefix: str | None) -> bytes:
    every_collective()
    dist.all_reduce(torch.eye(100).to_sparse())
    exchange_messages()
    if prefix is not None:
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
        bindings._dump_fr_trace_file(dist.get_rank())
    dump: bytes = bindings._dump_fr_trace()
    return dump


def write(directory: Path, dumps: list[bytes]) -> Path:
    directory.mkdir()
    for rank, dump in enumerate(dumps):
        (directory / f"rank_{rank}").write_bytes(dump)
    return directory


@pytest.mark.skipif("barrier" not in ANALYSED, reason="the analyser of this torch knows no barrier")
def test_the_analyser_finds_no_mismatch_where_there_is_none(fresh_world: FreshWorldOf, tmp_path: Path) -> None:
    dumps = fresh_world(2, ANALYSABLE).run(all_kinds_and_dump, None)
    database, printed = analyse(write(tmp_path / "dumps", dumps))
    assert "error" not in printed.lower()
    assert "Not all ranks" not in printed
    assert "mismatch" not in printed.lower()
    assert len(database.collectives) == len(COLLECTIVES) + 5
    assert all(each.pass_check and each.type_of_mismatch is None for each in database.collectives)
    assert len(database.ncclcalls) == 2 * len(database.collectives)
    assert [(group.desc, group.size) for group in database.groups] == [("default_pg", 2)]


def hanging_dumps() -> bytes:
    """Rank 1 stays away from the second all_reduce until both have been dumped."""
    store = c10d._get_default_store()
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert work is not None
        dump: bytes = bindings._dump_fr_trace()
        store.wait(["other dumped"])
        store.set("dumped", b"1")
        work.wait()
    else:
        dump = bindings._dump_fr_trace()
        store.set("other dumped", b"1")
        store.wait(["dumped"])
        dist.all_reduce(torch.ones(4))
    return dump


def test_the_analyser_names_the_rank_that_stays_away(fresh_world: FreshWorldOf, tmp_path: Path) -> None:
    _, printed = analyse(write(tmp_path / "dumps", fresh_world(2, ANALYSABLE).run(hanging_dumps)))
    assert "Not all ranks joining collective, sequence number: 2" in printed, printed
    assert "missing ranks: {1}" in printed, printed


@pytest.mark.skipif(not hasattr(bindings, "_dump_fr_trace_file"), reason="this torch writes no dumps of all backends")
def test_dumps_are_written_where_torch_writes_them(fresh_world: FreshWorldOf, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    fresh_world(2, ANALYSABLE).run(all_kinds_and_dump, str(directory / "rank_"))
    database, _ = analyse(directory)
    assert len(database.collectives) == len(COLLECTIVES) + 5


# ---- torch's own recorder ----


def hooks_of_a_plain_group() -> int:
    dist.all_reduce(torch.ones(1))
    return len(c10d._world.pg_flight_recorder_hooks)


@pytest.mark.skipif(not hasattr(c10d, "_maybe_attach_flight_recorder"), reason="this torch attaches no recorder")
def test_torch_attaches_its_recorder_only_beside_another_backend(
    world: WorldOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world(2).run(hooks_of_a_plain_group) == [0, 0]

    attached = []

    class Hook:
        @staticmethod
        def attach(pg: Any, ranks: list[int]) -> str:
            attached.append((pg.name, ranks))
            return "hook"

    class Group:
        def __init__(self, name: str) -> None:
            self.name = name
            self._device_types = ["cpu"]

    if not hasattr(dist.Backend, "UNRECORDED"):
        dist.Backend.register_backend("unrecorded", lambda *_: None, devices=["cuda"])
    monkeypatch.setattr(c10d, "FlightRecorderHook", Hook)
    monkeypatch.setattr(c10d._world, "_pg_flight_recorder_hooks", {}, raising=False)
    for name in ("sagecomm", "cpu:sagecomm,cuda:unrecorded", "cpu:sagecomm,cuda:gloo"):
        config = c10d.BackendConfig(dist.Backend(name))
        attach: Any = c10d._maybe_attach_flight_recorder
        attach(Group(name), config, [0, 1])
    assert attached == [("cpu:sagecomm,cuda:unrecorded", [0, 1])]


# ---- merging, without a group ----


def group_of(name: str, entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    status = {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 8}
    config = {"name": name, "desc": "undefined", "ranks": "[0, 1]"}
    group = {"id": 1, "group": name, "rank": 0, "size": 2, "config": config, "status": status}
    return {**group, "capacity": 4, "total": len(entries), "entries": entries, **more}


def record(op: str, created: int, state: str = "completed") -> dict[str, Any]:
    return {"profiling_name": f"c10d:{op}", "time_created_ns": created, "state": state, "thread_id": "1"}


def empty() -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}


def test_record_ids_count_on_where_older_entries_were_lost() -> None:
    records = [record("send 0->1", 1), record("all_reduce", 2), record("send 0->1", 3)]
    dump = _flight.merge(empty(), [group_of("0", records, total=12)], {})
    assert [e["record_id"] for e in dump["entries"]] == [9, 10, 11]


def test_a_group_that_torch_records_is_not_repeated() -> None:
    theirs = {"process_group": ("mixed", ""), "profiling_name": "sagecomm:all_reduce", "time_created_ns": 1}
    dump = {**empty(), "entries": [{**theirs, "record_id": 0, "state": "scheduled"}]}
    groups = [group_of("mixed", [record("barrier", 2)]), group_of("plain", [record("barrier", 3)])]
    dump = _flight.merge(dump, groups, {})
    assert [e["process_group"][0] for e in dump["entries"]] == ["mixed", "plain"]
    assert list(dump["pg_config"]) == ["plain"]


def test_torchs_dump_survives_whatever_goes_wrong() -> None:
    class Broken:
        def flight_records(self) -> str:
            raise RuntimeError("no core")

    theirs = pickle.dumps(empty())
    dump = _flight._wrap_pickle(lambda *_, **__: theirs, Broken())
    with pytest.warns(UserWarning, match="no core"):
        assert dump() == theirs
    written = []
    _flight._wrap_file(lambda rank, **_: written.append(rank), Broken())(3)
    assert written == [3]


def test_a_dump_is_read_as_plain_data() -> None:
    with pytest.raises(pickle.UnpicklingError, match="Path"):
        _flight._load_pickle(pickle.dumps({"entries": [Path()]}))
