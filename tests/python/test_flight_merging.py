"""Merging our records into torch's dump, without any group."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from flight import with_recorder
from sagecomm import _flight

pytestmark = with_recorder


def group_of(name: str, entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    status = {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 8}
    config = {"name": name, "desc": "undefined", "ranks": "[0, 1]"}
    group = {"id": 1, "pg_id": 0, "group": name, "rank": 0, "size": 2, "config": config, "status": status}
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
