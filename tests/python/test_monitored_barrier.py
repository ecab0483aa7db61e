"""The barrier that names who is missing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from worlds import Pool, World


def together() -> None:
    for _ in range(3):
        sagecomm.monitored_barrier()
        sagecomm.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)


def test_all_arrive(world: Callable[[int], World]) -> None:
    for n in 1, 3:
        world(n).run(together)


def some_stay_away() -> str:
    dist.barrier()
    store = c10d._get_default_store()
    if dist.get_rank() in (1, 3):
        store.wait(["given up"])
        with pytest.raises(sagecomm.CollectiveTimeout) as late:
            dist.barrier()  # fails, because the others have left
        return str(late.value)
    with pytest.raises(sagecomm.CollectiveTimeout) as missing:
        sagecomm.monitored_barrier(timeout=timedelta(seconds=2 if dist.get_rank() == 0 else 60))
    store.set("given up", "")
    return str(missing.value)


def looks_once() -> None:
    dist.barrier()
    store = c10d._get_default_store()
    if dist.get_rank() == 1:
        store.set("passed", "")  # else the failure might end the first barrier of this rank
        store.wait(["given up"])
        return
    store.wait(["passed"])
    with pytest.raises(sagecomm.CollectiveTimeout, match="not arrived: rank 1") as raised:
        sagecomm.monitored_barrier(timeout=timedelta(0))
    assert str(raised.value).startswith("Rank 0 timed out in monitoredBarrier after 0 ms; ")
    store.set("given up", "")


def test_no_time_at_all(mortals: Pool) -> None:
    mortals.world(2).run(looks_once)


def test_all_missing_are_named(mortals: Pool) -> None:
    texts = mortals.world(4).run(some_stay_away)
    for text in texts:
        assert "not arrived: rank 1" in text
        assert "; rank 3" in text
    # Programs written for gloo look for its words, which are in the errors of rank 0 and of the others.
    assert texts[0].startswith("Rank 1 failed to pass monitoredBarrier in 2000 ms; sagecomm: group ")
    words = "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
    assert texts[2].startswith(words + "; sagecomm: group ")
    assert texts[1].startswith("sagecomm: group "), "a barrier has no words of a monitored one"
