"""torch's dumps of its flight recorder hold our operations, in its format."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from flight import (
    COLLECTIVES,
    bindings,
    every_collective,
    names,
    ours,
    read,
    read_json,
    send_and_receive,
    with_recorder,
)
from worlds import World

WorldOf = Callable[[int], World]
FreshWorldOf = Callable[..., World]

P2P_NUMBERS = 10**12  # p2p operations are numbered from there on, far from collectives

pytestmark = with_recorder


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


def of_kind(dump: dict[str, Any], p2p: bool) -> list[str]:
    return [name for name, entry in zip(names(dump), ours(dump), strict=True) if entry["is_p2p"] == p2p]


def test_p2p_names_both_ends(world: WorldOf) -> None:
    first, second = world(2).run(send_and_receive)
    # The source of the recv is known, because it is complete.
    assert of_kind(first, p2p=True) == ["send 0->1", "recv 0<-1"]
    assert of_kind(second, p2p=True) == ["recv 1<-0", "send 1->0"]
    for dump in (first, second):
        # The start of a short collective is estimated, so on a busy machine it may stand before a p2p operation.
        assert of_kind(dump, p2p=False) == ["barrier", "barrier"]
        p2p = [e for e in ours(dump) if e["is_p2p"]]
        assert [e["input_sizes"] + e["output_sizes"] for e in p2p] == [[[6]], [[2]]]
        assert [e["input_dtypes"] + e["output_dtypes"] for e in p2p] == [["Short"], ["Short"]]
        assert [e["p2p_seq_id"] - P2P_NUMBERS for e in p2p] == [1, 2]
        assert [e["collective_seq_id"] for e in ours(dump) if not e["is_p2p"]] == [1, 2]
        assert {e["state"] for e in p2p} == {"completed"}


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
