"""Trains a small transformer with tensor and data parallelism, on CPU, with communication that hides behind computing.

    python examples/transformer.py                        tp x dp = 2x1, 1x2 and 2x2, each beside one process; a table
    torchrun --nproc-per-node 4 examples/transformer.py --tp 2         torchrun's ranks; dp is what is left

Every way to split the same model and the same batches must come to the same losses. What overlaps:

- A block's attention and perceptron each end in a sum over the tp ranks. The batch goes through the blocks in two
  halves: while the sum of one half travels, the other half is computed. Chained pipelines do this across blocks.
- Backwards, the gradient of a column-parallel layer's input is summed while that of its weight is computed, and the
  gradients of a layer are averaged over the dp ranks while those of the layer before are computed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

import sagecomm
from sagecomm.nn import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

LAYERS, WIDTH, HEAD_WIDTH, VOCABULARY = 2, 64, 16, 32
LENGTH, BATCH = 16, 16  # the batch is that of all dp ranks together
TOLERANCE = 1e-4  # of losses, relative: ranks add in another order than one process


class Attention(nn.Module):
    """Causal attention. Each rank has a part of the heads: the outputs of `qkv` are ordered by head."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = ColumnParallelLinear(WIDTH, 3 * WIDTH, group=group)
        self.out = RowParallelLinear(WIDTH, WIDTH, group=group)

    def start(self, x: torch.Tensor) -> sagecomm.InFlight:
        heads = self.qkv(self.norm(x)).unflatten(-1, (-1, 3, HEAD_WIDTH)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(*heads.unbind(-2), is_causal=True)
        return self.out.start(attended.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = ColumnParallelLinear(WIDTH, 4 * WIDTH, group=group)
        self.down = RowParallelLinear(4 * WIDTH, WIDTH, group=group)

    def start(self, x: torch.Tensor) -> sagecomm.InFlight:
        return self.down.start(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """The batch goes through it in `parts`: with two, one is computed while the other's sum travels."""

    def __init__(self, group: dist.ProcessGroup, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.embed = VocabParallelEmbedding(VOCABULARY, WIDTH, group=group)
        self.halves = nn.ModuleList(half(group) for _ in range(LAYERS) for half in (Attention, Perceptron))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = ColumnParallelLinear(WIDTH, VOCABULARY, bias=False, group=group, gather_output=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        parts: Iterator[torch.Tensor] = iter(self.embed(tokens).chunk(self.parts))
        for half in self.halves:
            parts = residual(half, parts)
        return self.head(self.norm(torch.cat(list(parts))))


def residual(half: nn.Module, parts: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Each part plus what half a block makes of it. The next part is computed while the sum of one travels."""
    started = sagecomm.pipeline(parts, lambda x: (x, half.start(x)), lambda pair: pair[1])
    return (x + summed.wait() for x, summed in started)


def batch(step: int, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow each of them: this part of the step's batch."""
    generator = torch.Generator().manual_seed(step)
    rows = [torch.randint(VOCABULARY, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        rows.append((5 * rows[-1] + torch.randint(3, (BATCH,), generator=generator)) % VOCABULARY)
    tokens = torch.stack(rows, 1).chunk(parts)[part]
    return tokens[:, :-1], tokens[:, 1:]


@dataclass
class Result:
    losses: list[float]  # of the whole batch
    step_ms: float  # median, of the slowest rank


def train(tp: int, steps: int, overlapped: bool = True) -> Result:
    """Trains inside the process group that is initialised already, with as many replicas as tp leaves ranks for."""
    manager = sagecomm.ProcessGroupManager(tp=tp, dp=dist.get_world_size() // tp)
    torch.manual_seed(1)  # alike on all ranks: split layers take their part of the same parameters
    model = Transformer(manager.tp_group, parts=2 if overlapped else 1)
    scheduler = sagecomm.OverlapScheduler(model, manager.dp_group) if overlapped else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses, times = [], []
    for step in range(steps):
        tokens, following = batch(step, manager.dp_rank, manager.dp_world_size)
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        if scheduler is not None:
            scheduler.wait()
        else:
            sagecomm.fused_allreduce_gradients(model.parameters(), manager.dp_group)
        optimizer.step()
        times.append(time.perf_counter() - started)
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, manager.dp_group)
        losses.append(mean.item())
    slowest = torch.tensor(statistics.median(times[len(times) // 4 :]))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    manager.destroy()
    return Result(losses, 1e3 * slowest.item())


def run_rank(rank: int, size: int, tp: int, steps: int, overlapped: bool, directory: str) -> None:
    """Body of a process started by compare()."""
    torch.set_num_threads(1)
    dist.init_process_group("sagecomm", init_method=f"file://{directory}/store", rank=rank, world_size=size)
    result = train(tp, steps, overlapped)
    if rank == 0:
        torch.save(vars(result), f"{directory}/result.pt")
    dist.destroy_process_group()


def start_ranks(tp: int, dp: int, steps: int, overlapped: bool) -> Result:
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run_rank, (tp * dp, tp, steps, overlapped, directory), nprocs=tp * dp)
        return Result(**torch.load(f"{directory}/result.pt"))


def difference(got: list[float], want: list[float]) -> float:
    """The largest relative difference of two lists of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True))


def compare(steps: int) -> int:
    """Trains in one process, then in every way to split the model and the batch over two and four ranks."""
    alone = start_ranks(1, 1, steps, overlapped=False)
    print(f"{'tp x dp':8}{'overlap':>9}{'step':>12}{'first loss':>13}{'last loss':>12}{'apart by':>11}")
    print(f"{'1 x 1':8}{'':>9}{alone.step_ms:9.2f} ms{alone.losses[0]:13.4f}{alone.losses[-1]:12.4f}")
    worst = 0.0
    for tp, dp in ((2, 1), (1, 2), (2, 2)):
        for overlapped in (False, True):
            got = start_ranks(tp, dp, steps, overlapped)
            apart = difference(got.losses, alone.losses)
            worst = max(worst, apart)
            row = f"{tp} x {dp}", "yes" if overlapped else "no", got.step_ms, got.losses[0], got.losses[-1], apart
            print("{:8}{:>9}{:9.2f} ms{:13.4f}{:12.4f}{:11.1e}".format(*row))
    if worst > TOLERANCE:
        print(f"FAILED: losses differ from those of one process by up to {worst:.1e}", file=sys.stderr)
        return 1
    print("step: median time of a training step on the slowest rank; apart by: largest relative difference of a loss")
    return 0


def join(tp: int, steps: int) -> int:
    """Takes part in a job that a launcher started."""
    torch.set_num_threads(1)
    dist.init_process_group("sagecomm")
    result = train(tp, steps)
    if dist.get_rank() == 0:
        dp = dist.get_world_size() // tp
        print(
            f"tp={tp} dp={dp}: loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f}, {result.step_ms:.2f} ms a step"
        )
    dist.destroy_process_group()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tp", type=int, default=2, help="ranks that share the layers, under torchrun")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    if "RANK" in os.environ:
        return join(arguments.tp, arguments.steps)
    return compare(arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
