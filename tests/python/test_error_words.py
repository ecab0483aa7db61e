"""Words of gloo's and torch's errors that other people's programs look for are in ours.

The expressions are those of torchft's tests, of torch's own tests of gloo and RPC, and of scripts that restart jobs. By
these words they recognize the failure of a peer, after which a job goes on with fewer ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from worlds import RankError, World

# A peer has left or died, or an operation has timed out.
FAILURES = (
    r"(Connection closed by peer|timed out after|Timed out waiting|no error|Read error)",
    r"(Connection closed by peer|Connection reset by peer|Timed out|timed out|Broken pipe)",
)
PEER_IS_GONE = (*FAILURES, r"Connection closed by peer|Connection reset by peer", r"Connection closed by peer")
TIMEOUT = (*FAILURES, r"timed out after", r" timeout ")


def check(error: BaseException, expressions: tuple[str, ...]) -> None:
    for expression in expressions:
        assert re.search(expression, str(error)), f"{expression} does not match: {error}"


def a_rank_leaves() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return
    with pytest.raises(sagecomm.PeerFailure) as raised:
        dist.all_reduce(torch.ones(3))
    check(raised.value, PEER_IS_GONE)


def test_a_rank_that_has_left(world: Callable[[int], World]) -> None:
    world(2).run(a_rank_leaves)


def a_rank_dies() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(3)
    with pytest.raises(sagecomm.PeerFailure) as raised:
        dist.all_reduce(torch.ones(3))
    check(raised.value, PEER_IS_GONE)
    with pytest.raises(sagecomm.PeerFailure) as raised:
        dist.all_reduce(torch.ones(3))  # later operations raise the same words
    check(raised.value, PEER_IS_GONE)


def test_a_rank_that_has_died(fresh_world: Callable[[int], World]) -> None:
    with pytest.raises(RankError) as raised:
        fresh_world(2).run(a_rank_dies)
    assert [outcome.ok for outcome in raised.value.outcomes] == [True, False]


def a_rank_is_late(function: str) -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if dist.get_rank() == 0:
        with pytest.raises(sagecomm.CollectiveTimeout) as raised:
            getattr(dist, function)(torch.ones(3), group=group)
        check(raised.value, TIMEOUT)
    dist.barrier()


@pytest.mark.parametrize("function", ["all_reduce", "recv"])
def test_an_operation_that_times_out(world: Callable[[int], World], function: str) -> None:
    world(2).run(a_rank_is_late, function)


def a_rank_does_not_come() -> None:
    ranks: Any = [0, 1]
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as raised:
            dist.new_group(ranks, timeout=timedelta(seconds=0.5), use_local_synchronization=True)
        check(raised.value, (*FAILURES, r"timed out after"))
    dist.barrier()


def test_a_rendezvous_that_times_out(fresh_world: Callable[[int], World]) -> None:
    fresh_world(2).run(a_rank_does_not_come)
