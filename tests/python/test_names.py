"""The names of operations in torch's profiles, also where sagecomm is registered under a second name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from worlds import World

OPS = ("all_reduce", "send", "recvAnySource")


def profiler_names(group: Any) -> list[str]:
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3), group=group)
        sent = dist.isend(torch.ones(1), (rank + 1) % size, group=group)
        dist.recv(torch.ones(1), group=group)  # from any rank
        assert sent is not None
        sent.wait()
    ours = {f"{dist.get_backend(group)}:{op}" for op in OPS}
    others = {f"{name}:{op}" for name in ("sagecomm", "gloo") for op in OPS} - ours
    names = [event.name for event in profile.events()]
    assert not others & set(names), names
    return [name for name in names if name in ours]


def profiles() -> list[str]:
    c10d.Backend._plugins["GLOO"] = c10d.Backend._plugins["SAGECOMM"]
    alias = dist.new_group(backend="gloo")
    assert dist.get_backend(alias) == "gloo"
    return [*profiler_names(None), *profiler_names(alias)]


def test_profiler_names_have_the_backend_that_torch_knows(fresh_world: Callable[[int], World]) -> None:
    for names in fresh_world(2).run(profiles):
        assert names == [f"{name}:{op}" for name in ("sagecomm", "gloo") for op in OPS]
