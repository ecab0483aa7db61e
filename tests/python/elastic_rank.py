"""The program of a rank in test_elastic.py and test_hosts_elastic.py. It is a separate module, so that a
rank imports little."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 12
SAVED_EVERY = 3
DEADLY_STEP = 7
DEADLY_RANK = 2  # it dies in the first run before the rendezvous, and in the second run at this step
HELD = "held"  # while there is such a file, ranks from DEADLY_RANK on wait at that step for their end
WIDTH = 5000


def gradient(weights: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """A function of the weights, so that a step too many or too few shows in all later ones."""
    data = torch.randn(WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return (weights - data).sin()


def train(directory: str, dies: bool = True) -> tuple[int, int, list[float], torch.Tensor]:
    """Returns the number of the job's run, its first step, the sums of averaged gradients, and the weights. With `dies`
    DEADLY_RANK does."""
    rank, run = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint = Path(directory, "checkpoint")
    Path(directory, "pids", str(os.getpid())).touch()
    if dies and (run, rank) == (0, DEADLY_RANK):
        os._exit(1)
    dist.init_process_group("sagecomm")
    weights, first = torch.zeros(WIDTH), torch.zeros((), dtype=torch.int64)
    if rank == 0 and checkpoint.exists():
        saved = torch.load(checkpoint)
        weights, first = saved["weights"], saved["step"]
    dist.broadcast(first, 0)
    dist.broadcast(weights, 0)
    seen = []
    for step in range(int(first), STEPS):
        mine = gradient(weights, rank, step)
        if dies and (run, rank, step) == (1, DEADLY_RANK, DEADLY_STEP):
            os.kill(os.getpid(), signal.SIGKILL)
        if rank >= DEADLY_RANK and step == DEADLY_STEP and Path(directory, HELD).exists():
            Path(directory, f"rank {rank} is held").touch()
            signal.pause()
        try:
            dist.all_reduce(mine, dist.ReduceOp.AVG)
        except dist.DistBackendError as error:
            Path(directory, f"{rank}.new").write_text(f"{type(error).__name__}: {error}")
            os.replace(Path(directory, f"{rank}.new"), Path(directory, f"failure of rank {rank} in run {run}"))
            raise
        seen.append(mine.sum().item())
        weights -= 0.1 * mine
        if (step + 1) % SAVED_EVERY == 0:
            if rank == 0:
                torch.save({"weights": weights, "step": torch.tensor(step + 1)}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
            dist.barrier()
    dist.destroy_process_group()
    return run, int(first), seen, weights
