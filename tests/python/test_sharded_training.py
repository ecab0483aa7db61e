"""Fully sharded training, of both kinds that torch has: four ranks come to what one process does, and gloo."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.func import functional_call

import reference as ref
import transformer
from selection import quickly
from transformer import LARGEST_NORM, History, Transformer

RANKS = 4
BESIDE_GLOO = "fully_shard"  # the case that is compared with gloo too, for all steps
SCALE = 2.0  # a factor of the loss, which the reduction divides out again
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def sharded(replicas: int = 1, factor: float | None = None, **how: Any) -> nn.Module:
    shape = (replicas, RANKS // replicas) if replicas > 1 else (RANKS,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model = Transformer()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, **how)
        if factor is not None:
            module.set_gradient_divide_factor(factor)
    return model


def sharded_first_kind() -> nn.Module:
    policy = ModuleWrapPolicy({nn.Sequential})
    return FullyShardedDataParallel(Transformer(), auto_wrap_policy=policy, device_id=torch.device("cpu"))


# Each with the way in which torch reduces its gradients.
MODELS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "fully_shard": (sharded, {"reduce_scatter AVG float32"}),
    "fully_shard, replicated": (lambda: sharded(2), {"reduce_scatter AVG float32", "all_reduce AVG float32"}),
    "fully_shard, factor": (lambda: sharded(factor=SCALE * RANKS), {"reduce_scatter PREMUL_SUM float32"}),
    "fully_shard, bf16": (lambda: sharded(mp_policy=BF16), {"reduce_scatter AVG bfloat16"}),
    "fully_shard, bf16, factor": (
        lambda: sharded(factor=SCALE * RANKS, mp_policy=BF16),
        {"reduce_scatter PREMUL_SUM bfloat16"},
    ),
    "FullyShardedDataParallel": (sharded_first_kind, {"reduce_scatter SUM float32", "all_reduce SUM float32"}),
}


@contextlib.contextmanager
def reductions() -> Iterator[set[str]]:
    """Records the reductions that torch.distributed is asked for meanwhile."""
    seen: set[str] = set()

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, op: Any = dist.ReduceOp.SUM, **kwargs: Any) -> Any:
            dtype = next(t.dtype for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor))
            which = next(each for each in ("SUM", "AVG", "PREMUL_SUM") if op == getattr(dist.ReduceOp, each))
            seen.add(f"{name.removesuffix('_single')} {which} {ref.name(dtype)}")
            return function(*args, op=op, **kwargs)

        return noted

    with contextlib.ExitStack() as patches:
        for name in ("reduce_scatter_single", "all_reduce"):
            patches.enter_context(mock.patch.object(dist, name, noting(name, getattr(dist, name))))
        yield seen


def steps_of(kind: str) -> int:
    return transformer.STEPS if kind == BESIDE_GLOO else transformer.FEW_STEPS


def train(kind: str) -> History:
    rank, size = dist.get_rank(), dist.get_world_size()
    make, asked_for = MODELS[kind]
    model = make()
    scale = SCALE if "factor" in kind else 1.0

    def learn(step: int) -> float:
        tokens, targets = transformer.batch(step, rank, size)
        loss = transformer.loss_of(model(tokens), targets)
        (scale * loss).backward()
        return loss.item()

    def clip() -> torch.Tensor:
        if isinstance(model, FullyShardedDataParallel):
            return model.clip_grad_norm_(LARGEST_NORM)
        return transformer.clip_all(model)

    with reductions() as seen:
        history = transformer.fit(model, learn, clip, steps_of(kind))
    assert seen == asked_for
    losses = torch.tensor(history.losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    history.losses = losses.tolist()
    return history


def one_process_bf16() -> History:
    """Each rank's share in bf16, one after the other; their gradients as shared memory promises to reduce them."""
    model = Transformer()

    def learn(step: int) -> float:
        losses, gradients = [], []
        for part in range(RANKS):
            rounded = {name: p.detach().bfloat16().requires_grad_() for name, p in model.named_parameters()}
            tokens, targets = transformer.batch(step, part, RANKS)
            loss = transformer.loss_of(functional_call(model, rounded, (tokens,)), targets)
            gradients.append(torch.autograd.grad(loss, list(rounded.values())))
            losses.append(loss.item())
        for parameter, shares in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = ref.in_rank_order("AVG", list(shares)).float()
        return sum(losses) / RANKS

    return transformer.fit(model, learn, lambda: transformer.clip_all(model), transformer.FEW_STEPS)


@pytest.fixture(scope="module")
def references(pool, reference) -> dict[str, History]:
    bf16 = pool.world(1).run(one_process_bf16, backend=None)[0]
    return {transformer.one_process.__name__: reference, one_process_bf16.__name__: bf16}


@pytest.mark.parametrize("kind", quickly([BESIDE_GLOO, "FullyShardedDataParallel"], MODELS))
def test_four_ranks_train_as_one_process_and_gloo(world, references, kind):
    in_bf16 = "bf16" in kind
    want = references["one_process_bf16" if in_bf16 else "one_process"]
    ours = world(RANKS).run(train, kind)
    for rank, history in enumerate(ours):
        history.check(want, f"{kind}, rank {rank}", 1e-2 if in_bf16 else 1e-5, steps_of(kind))
    if kind == BESIDE_GLOO:
        for rank, (mine, other) in enumerate(zip(ours, world(RANKS).run(train, kind, backend="gloo"), strict=True)):
            mine.check(other, f"{kind}, rank {rank}, beside gloo")
