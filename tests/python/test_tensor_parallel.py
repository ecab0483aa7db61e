"""Tensor parallel training with DTensor, with a sequence split among the ranks, and with layers sharded as well: four
ranks come to what one process does, and to what gloo does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import transformer
from selection import quickly
from transformer import History, Transformer

RANKS = 4
BESIDE_GLOO = "tensor"  # the case that is compared with gloo too, for all steps


def plan(sequence: bool) -> dict[str, Any]:
    """Activations between the matrices are the same on all ranks or, with `sequence`, split by positions."""
    between = Shard(1) if sequence else Replicate()
    styles = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    for half, inner, outer in ((0, "qkv", ["out"]), (1, ["up"], ["down"])):
        styles |= {f"layers.*.{half}.body.{name}": ColwiseParallel() for name in inner}
        styles |= {f"layers.*.{half}.body.{name}": RowwiseParallel(output_layouts=between) for name in outer}
    if sequence:
        gather = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
        styles |= {"norm": SequenceParallel(), "layers.*.*.norm": SequenceParallel(), "layers.*.*.body": gather}
    return styles


def split(sequence: bool) -> tuple[nn.Module, int]:
    mesh = init_device_mesh("cpu", (RANKS,))
    return parallelize_module(Transformer(), mesh, plan(sequence)), 1


def split_and_sharded() -> tuple[nn.Module, int]:
    mesh = init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(Transformer(), mesh["tensor"], plan(sequence=True))
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh["data"])
    return model, 2


# Each with the number of parts of a batch.
MODELS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "tensor": lambda: split(sequence=False),
    "tensor and sequence": lambda: split(sequence=True),
    "tensor, sequence and data": split_and_sharded,
}


def steps_of(kind: str) -> int:
    return transformer.STEPS if kind == BESIDE_GLOO else transformer.FEW_STEPS


def train(kind: str) -> History:
    model, parts = MODELS[kind]()
    part = dist.get_rank() * parts // RANKS
    assert all(isinstance(p, DTensor) for name, p in model.named_parameters() if "body" in name)

    def learn(step: int) -> float:
        tokens, targets = transformer.batch(step, part, parts)
        loss = transformer.loss_of(model(tokens), targets)
        loss.backward()
        return loss.item()

    history = transformer.fit(model, learn, lambda: transformer.clip_all(model), steps_of(kind))
    losses = torch.tensor(history.losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    history.losses = losses.tolist()
    return history


@pytest.mark.parametrize("kind", quickly(["tensor, sequence and data"], MODELS))
def test_four_ranks_train_as_one_process_and_gloo(world, reference, kind):
    ours = world(RANKS).run(train, kind)
    for rank, history in enumerate(ours):
        history.check(reference, f"{kind}, rank {rank}", steps=steps_of(kind))
    if kind == BESIDE_GLOO:
        for rank, (mine, other) in enumerate(zip(ours, world(RANKS).run(train, kind, backend="gloo"), strict=True)):
            mine.check(other, f"{kind}, rank {rank}, beside gloo")
