"""Sharded and tensor parallel training on tensors of an accelerator, for test_device_training.py.

Functions are as those of device_training.py. fully_shard gathers and reduces in streams of its own,
ahead of the computation and behind it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel

import test_tensor_parallel
import transformer
from device_training import digest
from transformer import Transformer

STEPS = 4
BF16 = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)  # parameters too, if layer norm had a backward for them here


def train(model: nn.Module, device: str, part: int, parts: int) -> str:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    losses = []
    with sdpa_kernel(SDPBackend.MATH):  # fused attention is a kernel of CUDA's
        for step in range(STEPS):
            tokens, targets = (t.to(device) for t in transformer.batch(step, part, parts))
            optimizer.zero_grad()
            loss = transformer.loss_of(model(tokens), targets)
            loss.backward()
            transformer.clip_all(model)
            optimizer.step()
            losses.append(loss.detach())
    all_losses = torch.stack(losses)
    dist.all_reduce(all_losses)
    assert all_losses[-1].item() < all_losses[0].item(), all_losses
    return digest(p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())


def fully_sharded(device: str, kind: str) -> str:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = Transformer().to(device)
    policy = BF16 if kind == "bf16" else MixedPrecisionPolicy()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=kind != "kept")
    return train(model, device, dist.get_rank(), dist.get_world_size())


def tensor_parallel(device: str, kind: str) -> str:
    """Activations between the matrices are the same on all ranks or, for "sequence", split by positions."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = test_tensor_parallel.plan(sequence=kind == "sequence")
    return train(parallelize_module(Transformer().to(device), mesh, plan), device, 0, 1)


def tensors(device: str, kind: str) -> str:
    """DTensor: placements change in every way, and operators choose collectives themselves."""
    size = dist.get_world_size()
    mesh = init_device_mesh(device, (size,))
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(12, 16, generator=generator).to(device) for _ in range(2))
    results = []
    placements = [Replicate(), Shard(0), Shard(1)]
    for source in placements:
        x, y = distribute_tensor(a, mesh, [source]), distribute_tensor(b, mesh, [source])
        for target in placements:
            moved = x.redistribute(mesh, [target])
            assert torch.equal(moved.full_tensor(), a)
            results += [(moved * 2 + y).full_tensor(), (moved @ y.t()).full_tensor(), moved.sum(0).full_tensor()]
        results += [x.softmax(1).full_tensor(), x.mean().full_tensor(), x.max(1).values.full_tensor()]
    partial = DTensor.from_local(a * (dist.get_rank() + 1), mesh, [Partial()])
    results += [partial.redistribute(mesh, [target]).full_tensor() for target in placements]
    assert torch.equal(results[-1], results[-2])
    return digest(results)


PROGRAMS = {
    "fully_sharded": (fully_sharded, ("plain", "kept", "bf16")),
    "tensor_parallel": (tensor_parallel, ("whole", "sequence")),
    "tensors": (tensors, ("",)),
}
