"""Trains a small CNN on handwritten digits with DistributedDataParallel, on CPU, over sagecomm and then over gloo.

    python examples/train_digits.py                      two ranks that this script starts; both backends; a table
    torchrun --nproc-per-node 2 examples/train_digits.py --backend sagecomm         one backend, torchrun's ranks

The images are scikit-learn's copy of the UCI digits (1,797 of 8x8 pixels), which ship inside that package. Both runs
start from the same seeds, so with two ranks, where a + b has one result, they must end with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32  # per rank
TEST_IMAGES = 360
WANTED_ACCURACY = 0.95
COMMUNICATION_ROUNDS = 200


@dataclass
class Result:
    """What one rank has to tell of one run."""

    backend: str
    step_ms: float  # median over all steps after the first epoch
    communication_ms: float  # median of the all_reduces of one step's gradients with nothing else running
    accuracy: float
    digest: str  # of the bits of all parameters


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),  # its buffers make DDP broadcast in every step
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def load_images() -> tuple[torch.Tensor, torch.Tensor]:
    """All images in one shuffled order that every rank shares, and their digits."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


class Progress:
    """A bar on a terminal, one line per epoch elsewhere. Silent on all ranks but the first."""

    def __init__(self, backend: str, epochs: int, steps: int) -> None:
        self._head = backend
        self._epochs, self._steps = epochs, steps
        self._shown = dist.get_rank() == 0
        self._bar = self._shown and sys.stdout.isatty()

    def step(self, epoch: int, step: int) -> None:
        if self._bar:
            filled = 24 * step // self._steps
            bar = "#" * filled + "." * (24 - filled)
            print(f"\r{self._head:9} epoch {epoch}/{self._epochs} [{bar}] {step}/{self._steps}", end="", flush=True)

    def epoch(self, epoch: int, loss: float, accuracy: float) -> None:
        if self._shown:
            start = "\r\033[K" if self._bar else ""
            print(
                f"{start}{self._head:9} epoch {epoch}/{self._epochs}  loss {loss:.4f}  test accuracy {accuracy:.2%}",
                flush=True,
            )


def train(backend: str, epochs: int) -> Result:
    """Trains inside the process group that is initialised already."""
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = load_images()
    test_images, test_labels = images[:TEST_IMAGES], labels[:TEST_IMAGES]
    images, labels = images[TEST_IMAGES:], labels[TEST_IMAGES:]
    steps = len(labels) // (BATCH * size)

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    progress = Progress(backend, epochs, steps)
    step_times: list[float] = []
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        # The same order on every rank; each takes its share of every global batch.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(())
        for step in range(steps):
            at = (step * size + rank) * BATCH
            chosen = order[at : at + BATCH]
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            if epoch > 1:  # the first one warms up caches, and DDP rebuilds its buckets
                step_times.append(time.perf_counter() - started)
            total += loss.detach()
            progress.step(epoch, step + 1)
        accuracy = evaluate(model.module, test_images, test_labels)
        dist.all_reduce(total)
        progress.epoch(epoch, total.item() / (steps * size), accuracy)

    return Result(
        backend,
        1e3 * statistics.median(step_times),
        1e3 * communication_time(model),
        accuracy,
        digest(model.module),
    )


@torch.no_grad()
def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    right = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


def communication_time(model: DistributedDataParallel) -> float:
    """Median time of the all_reduces of one step's gradients, in DDP's buckets, without computation beside them."""
    sizes = model._get_ddp_logging_data().get("rebuilt_bucket_sizes") or ""
    counts = [int(bytes_) // 4 for bytes_ in sizes.split(",") if bytes_.strip()]
    counts = counts or [sum(p.numel() for p in model.parameters())]
    buckets = [torch.zeros(count) for count in counts]
    times = []
    for _ in range(COMMUNICATION_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def digest(model: nn.Module) -> str:
    """Of parameters only: BatchNorm's running statistics are each rank's own until the next forward()."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def gather(result: Result) -> list[Result]:
    """Results of all ranks, on every rank."""
    results: list[Result | None] = [None] * dist.get_world_size()
    dist.all_gather_object(results, result)
    return [r for r in results if r is not None]


def run_rank(rank: int, size: int, backend: str, epochs: int, directory: str) -> None:
    """Body of a process started by compare()."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{directory}/store-{backend}", rank=rank, world_size=size)
    results = gather(train(backend, epochs))
    if rank == 0:
        torch.save([vars(result) for result in results], f"{directory}/results-{backend}.pt")
    dist.barrier()  # gloo of torch 2.15 may abort the process of a rank whose peers end before it
    dist.destroy_process_group()


def check(results: list[Result]) -> list[str]:
    """What is wrong with a run, in words."""
    faults = []
    if len({result.digest for result in results}) != 1:
        faults.append(f"{results[0].backend}: ranks ended with different parameters")
    if results[0].accuracy <= WANTED_ACCURACY:
        faults.append(
            f"{results[0].backend}: test accuracy {results[0].accuracy:.2%} is not above {WANTED_ACCURACY:.0%}"
        )
    return faults


def print_table(runs: list[list[Result]]) -> None:
    """Times are those of the slowest rank."""
    print(f"\n{'backend':10}{'step':>12}{'communication':>17}{'test accuracy':>16}   parameters (sha256)")
    for results in runs:
        step = max(result.step_ms for result in results)
        communication = max(result.communication_ms for result in results)
        first = results[0]
        print(f"{first.backend:10}{step:9.3f} ms{communication:14.3f} ms{first.accuracy:16.2%}   {first.digest[:16]}")
    print(
        "step: median of one training step, forward to optimizer, slowest rank\n"
        "communication: median time to all_reduce one step's gradients by themselves, no computation beside it"
    )


def compare(backends: list[str], size: int, epochs: int) -> int:
    """Runs the training once per backend, each in new processes, and compares."""
    runs: list[list[Result]] = []
    with tempfile.TemporaryDirectory() as directory:
        for backend in backends:
            print(f"{backend}: starting {size} ranks", flush=True)
            mp.spawn(run_rank, (size, backend, epochs, directory), nprocs=size)
            runs.append([Result(**fields) for fields in torch.load(f"{directory}/results-{backend}.pt")])
    print_table(runs)
    faults = [fault for results in runs for fault in check(results)]
    if len({results[0].digest for results in runs}) == 1:
        if len(runs) > 1:
            print(f"{' and '.join(backends)} ended with the same bits in every parameter")
    elif size <= 2:
        faults.append("the backends ended with different parameters")
    else:
        print("the parameters differ in their last bits: with more than two ranks the order of summation matters")
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


def join(backend: str, epochs: int) -> int:
    """Takes part in a job that a launcher started."""
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    results = gather(train(backend, epochs))
    faults = check(results)
    if dist.get_rank() == 0:
        print_table([results])
        for fault in faults:
            print(f"FAILED: {fault}", file=sys.stderr)
    dist.destroy_process_group()
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="sagecomm")
    parser.add_argument("--against", default="gloo", help="backend to compare with, or 'none'; not under torchrun")
    parser.add_argument("--ranks", type=int, default=2, help="not under torchrun")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is not timed")
    if "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ:
        return join(arguments.backend, arguments.epochs)
    backends = [arguments.backend]
    if arguments.against not in ("none", arguments.backend):
        backends.append(arguments.against)
    return compare(backends, arguments.ranks, arguments.epochs)


if __name__ == "__main__":
    sys.exit(main())
