"""Ranks in processes of their own measure the links between their hosts, as they do unless SAGECOMM_PROBE is off, and
choose alike by what was measured. The hosts are those of test_hosts.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import torch
import torch.distributed as dist

import host_stores
import sagecomm
from failing import sum_of_ones
from programs import DEADLINE_S, await_stop, in_background
from promises import kept
from selection import quickly
from worlds import World, on_hosts

Shape = tuple[int, ...]
Answer = dict[str, Any]
PAUSE_S = 1.0  # longer than all probes of a process may take


def explained(group: dist.ProcessGroup | None = None) -> Answer:
    """What this rank chooses in a group, and that the group works."""
    block = torch.full((50_000,), float(dist.get_rank(group)))
    dist.all_reduce(block, group=group)
    size = dist.get_world_size(group)
    assert block.eq(size * (size - 1) / 2).all()
    return sagecomm.explain("all_reduce", 4 * len(block), group)


def choices(members: Sequence[Sequence[int]]) -> dict[str, Answer]:
    """What this rank chooses in the default group, in some of its ranks, and in all of them once more."""
    out = {"default": explained()}
    for ranks in members:
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            out[str(ranks)] = explained(group)
    out["again"] = explained(dist.new_group())
    return out


def alike(answers: list[dict[str, Answer]], hosts: dict[str, int]) -> None:
    """Requires that all ranks of a group choose alike, by links of so many hosts."""
    for name, count in hosts.items():
        first, *others = (answer[name] for answer in answers if name in answer)
        assert all(other == first for other in others), name
        probed = first["probed_links"]
        assert probed["pairs"] == count * (count - 1) // 2, name
        assert 0 <= probed["measured"] <= probed["pairs"], name
        assert all((cost in probed) == (probed["measured"] > 0) for cost in ("latency", "step", "byte")), name


@pytest.mark.parametrize("processors", ["", "1"])
@pytest.mark.parametrize("shape", quickly([(2, 2)], [(2, 2), (1, 1, 1, 1)]), ids=str)
def test_ranks_choose_alike(fresh_world: Callable[..., World], shape: Shape, processors: str) -> None:
    environment = on_hosts(*shape, SAGECOMM_PROBE="on", **({"GOMAXPROCS": processors} if processors else {}))
    members = ((1, 2, 3), (3, 1))  # in which other ranks are the lowest ones of their hosts
    answers = fresh_world(sum(shape), environment).run(choices, members)
    hosts_of = [host for host, size in enumerate(shape) for _ in range(size)]
    hosts = {str(ranks): len({hosts_of[rank] for rank in ranks}) for ranks in members}
    alike(answers, {"default": len(shape), **hosts, "again": len(shape)})
    # Nothing is measured twice: what was measured for the first group holds for the last one.
    before, after = (answers[0][name]["probed_links"] for name in ("default", "again"))
    assert after["measured"] >= before["measured"]
    if before["measured"] == before["pairs"]:
        assert after == before


def test_nothing_is_said_to_be_measured_with_the_probe_off(fresh_world: Callable[..., World]) -> None:
    answers = fresh_world(2, on_hosts(1, 1)).run(choices, ())
    assert answers[1]["default"]["probed_links"] == {"pairs": 1, "measured": 0}


@pytest.mark.long
def test_a_process_that_is_stopped_while_links_are_made(fresh_world: Callable[..., World], tmp_path: Path) -> None:
    """Others wait for it no longer than it is stopped, and no rank chooses otherwise for it."""
    ranks = fresh_world(3, on_hosts(1, 1, 1, SAGECOMM_PROBE="on"))
    path = tmp_path / "store"
    outcomes = in_background(ranks, choices, (), store=partial(host_stores.in_a_file, str(path)))
    pid = ranks.pids()[2]
    deadline = time.monotonic() + DEADLINE_S
    while not (path.exists() and b"/addresses/2" in path.read_bytes()):
        assert time.monotonic() < deadline, "rank 2 does not come to its links"
        time.sleep(0.001)
    os.kill(pid, SIGSTOP)
    try:
        await_stop(pid)
        threading.Event().wait(PAUSE_S)
    finally:
        os.kill(pid, SIGCONT)
    went_on = time.monotonic()
    told = outcomes.result(90)
    kept(time.monotonic() - went_on, 3, "making the groups")
    for outcome in told:
        assert outcome.ok, outcome.trace
    alike([outcome.value for outcome in told], {"default": 3, "again": 3})
    assert ranks.run(sum_of_ones) == [3] * 3
