"""torchrun's elastic agent and a rank that is killed: all ranks start again, go on from the checkpoint and finish. They
have one store in all runs, and do not meet what is left there of a run that ended before its ranks had met."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest
import torch

from elastic_rank import DEADLY_RANK, DEADLY_STEP, SAVED_EVERY, STEPS, WIDTH, gradient
from programs import DEADLINE_S, Programs, abstract_sockets, abstract_sockets_of_others

RANKS = 4
MARK = "MARK_OF_A_TEST"

# torchrun with a function in the place of a command: its ranks are forks of a process that has imported torch.
LAUNCHER = """
    import multiprocessing
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args
    from elastic_rank import train

    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed", "sagecomm", "elastic_rank"])
    options = "--nproc-per-node 4 --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id test"
    config, _, _ = config_from_args(parse_args([*options.split(), "--start-method", "forkserver", "script"]))
    torch.save(elastic_launch(config, train)({directory!r}), {result!r})
"""


def marked(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment, those that have ended aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def uninterrupted() -> tuple[list[float], torch.Tensor]:
    weights, seen = torch.zeros(WIDTH), []
    for step in range(STEPS):
        mean = torch.stack([gradient(weights, rank, step) for rank in range(RANKS)]).mean(0)
        seen.append(mean.sum().item())
        weights -= 0.1 * mean
    return seen, weights


Result = tuple[int, int, list[float], torch.Tensor]  # of train()


def check_results(results: dict[int, Result], errors: str) -> None:
    """Checks that all ranks went on from the checkpoint before DEADLY_STEP, and came to what a run without a death
    comes to."""
    assert sorted(results) == list(range(RANKS)), errors
    resumed = DEADLY_STEP - DEADLY_STEP % SAVED_EVERY
    seen, weights = uninterrupted()
    for rank, (_, first, sums, final) in results.items():
        assert first == resumed, f"rank {rank} began with step {first}\n{errors}"
        torch.testing.assert_close(torch.tensor(sums), torch.tensor(seen[resumed:]), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(final, weights, rtol=0, atol=1e-5)
        assert torch.equal(final, results[0][3]), f"rank {rank} has other weights than rank 0"


def check_failures(directory: Path, *culprits: int) -> None:
    """The agent may have ended a survivor before that could write what it saw."""
    for text in directory.glob("failure of rank *"):
        assert text.read_text().startswith("PeerFailure: "), text.read_text()
        assert any(f"rank {culprit}" in text.read_text() for culprit in culprits), text.read_text()


def await_end(mark: str) -> None:
    """Returns when no process of a job is left."""
    deadline = time.monotonic() + DEADLINE_S
    while left := marked(mark):
        assert time.monotonic() < deadline, f"processes {left} of the job have not ended"
        os.sched_yield()


@pytest.mark.long
def test_all_ranks_start_again_and_finish(tmp_path):
    mark, result, sockets = uuid.uuid4().hex, tmp_path / "result", abstract_sockets()
    (tmp_path / "pids").mkdir()
    script = LAUNCHER.format(directory=str(tmp_path), result=str(result))
    # To log the exception that a failed rank is to the agent, torch would import its compiler: for seconds.
    with Programs(script, 1, {MARK: mark, "LOGLEVEL": "CRITICAL"}) as launcher:
        launcher.end_well(2 * DEADLINE_S)  # the launcher starts a dozen processes, one after the other
        errors = launcher.errors(0)
    results = torch.load(result)
    check_results(results, errors)
    assert [result[0] for result in results.values()] == [2] * RANKS, errors
    check_failures(tmp_path, DEADLY_RANK)
    await_end(mark)
    pids = {path.name for path in (tmp_path / "pids").iterdir()}
    assert len(pids) > 2 * RANKS, "and those of the first run that came so far"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("sagecomm-") and pids & set(name.split("-"))]
    deadline = time.monotonic() + DEADLINE_S  # others' sockets come and go between the two looks
    while left_over := abstract_sockets() - sockets - abstract_sockets_of_others():
        assert time.monotonic() < deadline, left_over
