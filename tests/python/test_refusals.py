"""What cannot be done is refused by name, before anything is sent, and leaves the group as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


def refused(text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except RuntimeError as error:
        assert re.search(text, str(error)), f"{text!r} is not in: {error}"
        # The caller's mistake, not the group's failure.
        assert not isinstance(error, dist.DistBackendError), f"{type(error)}: {error}"
        return
    raise AssertionError(f"not refused: {text}")


def still_works() -> None:
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == [float(dist.get_world_size())] * 3


def tensors_without_memory() -> None:
    freed, shrunk = torch.ones(1000), torch.ones(1000)
    strided = shrunk[10:900:3]
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(3000)
    whole = torch.ones(1000)
    for call in (
        lambda: dist.all_reduce(shrunk),
        lambda: dist.all_reduce(strided),
        lambda: dist.all_reduce(freed),
        lambda: dist.broadcast(freed, 0),
        lambda: dist.all_gather_into_tensor(torch.ones(1000 * dist.get_world_size()), freed),
        lambda: dist.all_gather([freed] * dist.get_world_size(), whole),
        lambda: dist.send(freed, (dist.get_rank() + 1) % dist.get_world_size()),
    ):
        refused("lies outside its storage", call)
    dist.all_reduce(freed[:0])
    still_works()


def test_tensors_without_memory(world):
    world(2).run(tensors_without_memory)


def through_torch() -> None:
    refused("sagecomm: all_reduce: AVG is not defined for bool", bool_average)
    try:
        dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)
    except ValueError as error:
        assert "does not support" in str(error)
    else:
        raise AssertionError("torch let MAX of complex numbers pass")
    still_works()


def bool_average() -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG)


@pytest.mark.smoke
def test_the_user_sees_the_refusal(world):
    world(2).run(through_torch)


def bad_tensors() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    sparse = torch.eye(3).to_sparse()
    meta = torch.empty(3, device="meta")
    ones = torch.ones(3)
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    refused("sagecomm: all_reduce: of sparse tensors only the sum", lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX))
    refused("sagecomm: reduce: .*[sS]parse", lambda: backend().reduce([sparse]))
    refused("sagecomm: broadcast: .*[sS]parse", lambda: backend().broadcast([sparse]))
    refused("sagecomm: all_reduce: tensor 0 is on meta, but .* cpu", lambda: backend().allreduce([meta]))
    refused("sagecomm: all_reduce: .*unsupported type QInt8", lambda: backend().allreduce([quantized]))
    refused("sagecomm: all_reduce: takes a list of one tensor, got 2", lambda: backend().allreduce([ones, ones]))
    outputs = [torch.zeros(3) for _ in range(size)]
    refused("sagecomm: all_gather: output 0 is on meta", lambda: backend().allgather([[meta] * size], [ones]))
    mixed = [*outputs[:-1], torch.zeros(3, dtype=torch.float64)]
    refused(f"sagecomm: all_gather: output {size - 1} is Double", lambda: backend().allgather([mixed], [ones]))
    short = [torch.zeros(2) for _ in range(size)]
    refused(
        "all_gather: input 0 has 3 elements, this rank's output has 2", lambda: backend().allgather([short], [ones])
    )
    refused(f"takes one list of {size} output tensors, got one of", lambda: dist.all_gather([*outputs, ones], ones))
    refused("all_gather: the output has 5 elements, .* need", lambda: dist.all_gather_into_tensor(torch.zeros(5), ones))
    for op, opts in (("broadcast", dist.BroadcastOptions()), ("reduce", dist.ReduceOptions())):
        for root in (-1, size):
            opts.rootRank = root
            refused(f"sagecomm: {op}: invalid root rank: {root}", lambda o=op, p=opts: getattr(backend(), o)([ones], p))
    refused("sagecomm: send: invalid destination rank", lambda: backend().send([ones], size, 0))
    refused("sagecomm: recv: invalid source rank", lambda: backend().recv([ones], size, 0))
    refused("sagecomm: send: invalid tag: -4", lambda: backend().send([ones], (rank + 1) % size, -4))
    refused("sagecomm: recv: invalid tag: -4", lambda: backend().recv([ones], (rank + 1) % size, -4))
    still_works()


@pytest.mark.parametrize("size", [1, 2])
def test_tensors_lists_ranks_and_tags(world, size):
    world(size).run(bad_tensors)


def shared_elements() -> None:
    expanded = torch.ones(1).expand(5)
    for call in (
        lambda: dist.all_reduce(expanded),
        lambda: dist.broadcast(expanded, 1 - dist.get_rank()),
        lambda: dist.all_reduce(expanded, async_op=True),
        lambda: dist.all_gather([expanded, expanded], torch.ones(5)),
    ):
        refused("elements that share memory, as after expand", call)
    dist.broadcast(torch.ones(5) if dist.get_rank() else expanded.clone(), 0)
    still_works()


def test_outputs_whose_elements_share_memory(world):
    world(2).run(shared_elements)
