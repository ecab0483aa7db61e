"""torch's analyser understands the dumps, and torch's own recorder stays away from groups that record themselves."""

from __future__ import annotations

import os
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
from flight import COLLECTIVES, bindings, every_collective, send_and_receive, with_recorder
from worlds import World

WorldOf = Callable[[int], World]
FreshWorldOf = Callable[..., World]

pytestmark = with_recorder


# ---- torch's analyser ----


# Environment in which our operations have a name that the analyser takes.
ANALYSABLE = {"SAGECOMM_FR_PREFIX": analyser.prefix()}


def all_kinds_and_dump(prefix: str | None) -> bytes:
    every_collective()
    dist.all_reduce(torch.eye(100).to_sparse())
    send_and_receive()
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
    assert len(database.collectives) == len(COLLECTIVES) + 5, printed
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
    database, printed = analyse(directory)
    assert len(database.collectives) == len(COLLECTIVES) + 5, printed


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
