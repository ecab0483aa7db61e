"""torch's distributed checkpoints: saved by four ranks, at once or beside training, and loaded by two."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import reference as ref
import transformer
from transformer import Transformer

STEPS = 3


def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> None:
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        tokens, targets = transformer.batch(step, dist.get_rank(), dist.get_world_size())
        transformer.loss_of(model(tokens), targets).backward()
        optimizer.step()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Returns the whole tensors of a checkpoint, put together from their shards."""
    whole = {name: p.full_tensor() for name, p in model.state_dict().items()}
    for name, p in model.named_parameters():
        whole |= {f"{name} {key}": optimizer.state[p][key].full_tensor() for key in ("exp_avg", "exp_avg_sq")}
    return {name: ref.digest([t]) for name, t in whole.items()}


def save(at_once: str, beside: str) -> dict[str, str]:
    model, optimizer = sharded()
    train(model, optimizer, 0)
    saved = digests(model, optimizer)
    dcp.save(state(model, optimizer), checkpoint_id=at_once)
    # A thread of torch's saves, on a group of its own: its calls and the main thread's have no order.
    saving = dcp.async_save(state(model, optimizer), checkpoint_id=beside, process_group=dist.new_group())
    train(model, optimizer, STEPS)
    saving.result()
    assert digests(model, optimizer) != saved
    return saved


def load(path: str) -> dict[str, str]:
    model, optimizer = sharded()
    loaded = state(model, optimizer)
    dcp.load(loaded, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    return digests(model, optimizer)


def test_two_ranks_load_what_four_have_saved(world, tmp_path):
    paths = [str(tmp_path / name) for name in ("at once", "beside")]
    saved = world(4).run(save, *paths)
    assert saved == saved[:1] * 4
    for path in paths:
        assert world(2).run(load, path) == saved[:2], path
