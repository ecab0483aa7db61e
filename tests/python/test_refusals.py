"""Invalid calls raise an error that names the cause, send nothing, and leave the group unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
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
        # A mistake of the caller does not make the group fail.
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


def refusals_that_count_ranks() -> None:
    count = "1 rank" if dist.get_world_size() == 1 else f"{dist.get_world_size()} ranks"
    t, size = torch.ones(6), dist.get_world_size()
    options = c10d.BroadcastOptions()
    options.rootRank = size
    refused(f"the group has {count}$", lambda: backend().broadcast([t], options))
    splits = [1] * (size + 1)
    refused(f"the group has {count}$", lambda: dist.all_to_all_single(t, t, splits, splits))
    need = "needs" if size == 1 else "need"
    refused(f"; {count} with .* each {need} ", lambda: dist.all_gather_into_tensor(torch.ones(6 * size + 1), t))
    refused(f"for each of {count}, got 0", lambda: backend().allgather_coalesced([], [t]))
    still_works()


@pytest.mark.parametrize("size", [1, 2])
def test_refusals_count_the_ranks_of_the_group(world, size):
    world(size).run(refusals_that_count_ranks)


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
    refused(
        f"sagecomm: all_gather: output {size - 1} has the type Double", lambda: backend().allgather([mixed], [ones])
    )
    short = [torch.zeros(2) for _ in range(size)]
    refused(
        "all_gather: input 0 has 3 elements, this rank's output has 2", lambda: backend().allgather([short], [ones])
    )
    refused(f"takes one list of {size} output tensors, got one of", lambda: dist.all_gather([*outputs, ones], ones))
    refused("all_gather: the output has 5 elements; .* need", lambda: dist.all_gather_into_tensor(torch.zeros(5), ones))
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


def wrong_lists() -> tuple[str, str]:
    """Lists that are wrong on all ranks: the errors where every rank sees it, and where rank 1 does."""
    size = dist.get_world_size()
    before = backend()._get_sequence_number_for_group()
    with pytest.raises(RuntimeError) as seen_by_all:
        dist.all_gather([torch.zeros(2) for _ in range(size)], torch.ones(3))
    assert backend()._get_sequence_number_for_group() == before
    t = torch.ones(3)
    dist.all_reduce(t)  # the group still works
    assert t.eq(size).all()

    short = dist.new_group(timeout=timedelta(seconds=1))
    sizes = [3, 4, 3]  # a legal list for ranks 0 and 2, because lengths may differ from rank to rank
    with pytest.raises(RuntimeError) as seen_by_one:
        dist.all_gather([torch.zeros(n) for n in sizes], torch.ones(3), group=short)
    dist.barrier()  # rank 1 stays until the others have given up
    return str(seen_by_all.value), f"{type(seen_by_one.value).__name__}: {seen_by_one.value}"


def test_a_wrong_list_is_refused_by_every_rank_that_sees_it_and_named_to_the_others(world):
    answers = world(3).run(wrong_lists)
    for rank, (seen_by_all, seen_by_one) in enumerate(answers):
        assert "all_gather: input 0 has 3 elements, this rank's output has 2" in seen_by_all
        if rank == 1:
            assert "all_gather: input 0 has 3 elements, this rank's output has 4" in seen_by_one
        else:
            assert seen_by_one.startswith("CollectiveTimeout: ")
            assert "not arrived: rank 1 " in seen_by_one


def _and_a_barrier(call: Callable[[Any, int], Any], group: Any) -> None:
    """Makes the call and a barrier: a gather may complete on a rank that only sends, the barrier does not."""
    call(group, 2)
    dist.barrier(group=group)


def wrong_list_of_a_root() -> list[str]:
    rank, size = dist.get_rank(), dist.get_world_size()
    errors = []
    for call in (
        lambda group, n: dist.gather(
            torch.ones(3), [torch.zeros(n) for _ in range(size)] if rank == 0 else None, 0, group=group
        ),
        lambda group, n: dist.scatter(
            torch.ones(3), [torch.zeros(n) for _ in range(size)] if rank == 0 else None, 0, group=group
        ),
    ):
        short = dist.new_group(timeout=timedelta(seconds=1))
        with pytest.raises(RuntimeError) as raised:
            _and_a_barrier(call, short)
        errors.append(f"{type(raised.value).__name__}: {raised.value}")
        dist.barrier()
    return errors


@pytest.mark.long
def test_a_wrong_list_of_a_root_is_refused_there_and_the_others_time_out_naming_it(world):
    for rank, errors in enumerate(world(2).run(wrong_list_of_a_root)):
        for error, role in zip(errors, ("output 0 has 2 elements", "input 0 has 2 elements"), strict=True):
            if rank == 0:
                assert role in error
            else:
                assert error.startswith("CollectiveTimeout: ")
                assert "rank 0 " in error
