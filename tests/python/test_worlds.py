"""The tests' own machinery, on gloo: errors, deaths and hangs are reported, and the processes survive them."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from worlds import Hang, RankError

pytestmark = [pytest.mark.smoke, pytest.mark.long]


def rank_sum() -> float:
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t)
    return t.item()


def fail_on(rank: int) -> int:
    rank_sum()  # gloo connects no further once a rank has left
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} was told to")
    return os.getpid()


def die_on(rank: int) -> None:
    rank_sum()  # gloo connects no further once a rank has left
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def hang_on(rank: int) -> None:
    rank_sum()  # gloo connects no further once a rank has left
    if dist.get_rank() == rank:
        threading.Event().wait()


def environment_of(name: str) -> str | None:
    return os.environ.get(name)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_come_by_rank(world, size):
    assert world(size).run(rank_sum, backend="gloo") == [size * (size - 1) / 2] * size


def test_errors_name_the_rank_and_leave_the_processes_usable(world):
    ranks = world(2)
    with pytest.raises(RankError, match=r"(?s)1 of 2 ranks failed.*rank 1.*was told to") as caught:
        ranks.run(fail_on, 1, backend="gloo")
    assert isinstance(caught.value.outcomes[1].error, ValueError)
    assert caught.value.outcomes[0].value == ranks.pids()[0]
    assert ranks.run(rank_sum, backend="gloo") == [1.0, 1.0]


def test_a_death_is_an_outcome(fresh_world):
    outcomes = fresh_world(2).outcomes(die_on, 1, backend="gloo")
    assert outcomes[0].ok
    assert outcomes[1].exitcode == -signal.SIGKILL


def test_a_hang_shows_stacks_and_the_test(fresh_world):
    ranks = fresh_world(2)
    ranks.run(rank_sum, backend="gloo")  # starts the ranks, because the bound below is for ranks that have started
    with pytest.raises(Hang, match=r"(?s)test_a_hang_shows_stacks.*ranks \[(0, )?1\] of 2.*-- rank 1, .*hang_on"):
        ranks.run(hang_on, 1, backend="gloo", hang_bound_s=5)


def test_dead_processes_are_replaced(world):
    ranks = world(2)
    ranks.kill(0)
    assert ranks.outcomes(environment_of, "HOME", backend=None)[0].exitcode == -signal.SIGKILL
    again = world(2)
    assert again.run(rank_sum, backend="gloo") == [1.0, 1.0]
    assert again.pids()[1] == ranks.pids()[1], "who lives keeps its rank"


def test_fresh_worlds_have_their_own_environment(fresh_world):
    assert fresh_world(1, {"SOME_NAME": "some value"}).run(environment_of, "SOME_NAME", backend=None) == ["some value"]
