"""DDP on tensors of an accelerator, for test_device_training.py: what ranks do, on any device.

Each function returns a digest of the parameters. The CPU's run has the same digest: operators of the emulated devices
have the CPU's bits, and sagecomm adds in rank order on every device."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._dynamo  # torch.optim imports it at its first use, for seconds
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from device_calls import take_device

STEPS = 30
CLASSES = 5


def digest(tensors: Iterable[torch.Tensor]) -> str:
    text = hashlib.sha256()
    for tensor in tensors:
        text.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def convolutions() -> nn.Module:
    """With buffers, which DDP broadcasts before each step."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)),
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    target = torch.randint(CLASSES, (8,), generator=generator)
    return torch.randn(8, 3, 6, 6, generator=generator) + target.view(8, 1, 1, 1), target


def low_rank() -> power_sgd.PowerSGDState:
    """Whole gradients for two steps, then products of narrow matrices: an all_reduce in the callback of another."""
    return power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)


HOOKS: dict[str, Callable[[], tuple[Any, Callable[..., Any]]]] = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, default_hooks.bf16_compress_hook),
    "PowerSGD": lambda: (low_rank(), power_sgd.powerSGD_hook),
}
MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "convolutions": convolutions}


# Without oneDNN, whose convolutions are the CPU's alone.
@torch.backends.mkldnn.flags(enabled=False)
def data_parallel(device: str, model: str, hook: str | None, joined: bool = False) -> str:
    """Trains with DDP and AdamW, in several buckets, and with batches that come from pinned memory. `joined`: the
    operations are joined, so callbacks of futures run in the order of the calls."""
    torch.manual_seed(dist.get_rank())  # DDP broadcasts rank 0's parameters
    on_device = device != "cpu"
    # Elsewhere callbacks of several buckets would issue PowerSGD's collectives in any order.
    one_bucket = hook == "PowerSGD" and not joined
    net = DistributedDataParallel(MODELS[model]().to(device), bucket_cap_mb=1 if one_bucket else 0.001)
    if hook is not None:
        net.register_comm_hook(*HOOKS[hook]())
    # foreach is the default on CUDA alone, and rounds in another order.
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        if on_device:
            x, y = (t.pin_memory().to(device, non_blocking=True) for t in (x, y))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    first, last = (torch.stack(part).mean().item() for part in (losses[:5], losses[-5:]))
    assert last < 0.9 * first, losses
    return digest([*net.state_dict().values()])


def called(function: str, *arguments: Any) -> str:
    """Calls `module:function` with the arguments."""
    module, _, name = function.partition(":")
    return str(getattr(importlib.import_module(module), name)(*arguments))


def under_fake_cuda(rank: int, size: int, store: str, function: str, *arguments: Any) -> str:
    """Calls `module:function` with the arguments, in a child of cuda_bed.py."""
    import fake_cuda

    take_device(rank)
    dist.init_process_group("sagecomm", init_method=f"file://{store}", rank=rank, world_size=size)
    result = called(function, *arguments)
    fake_cuda.check()
    dist.destroy_process_group()
    return result
