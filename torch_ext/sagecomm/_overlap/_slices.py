"""In how many slices an operator computes and communicates. The core decides; this finds out what it needs to know."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _native
from sagecomm._explain import ask
from sagecomm._groups import member

# Of the product that is timed: long enough that its time is no overhead, about 1 ms at 100 GFLOP/s.
_ROWS, _WIDTH = 256, 512
_TIMED = 3


def number_of_slices(
    op: str,
    nbytes: int,
    *,
    parts: int,
    operations: int,
    like: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> int:
    """Returns in how many slices a collective and the computation beside it are predicted to take the least time.

    All ranks of the group get the same number, because they ask the cost model the same question. The first question
    about tensors of a type on a device times a product of matrices and agrees on its time and on the number of
    computing threads, with an all_reduce of the group. Groups of other backends have no cost model and one slice.

    An answer follows from the question, from what was agreed, and from the tuning settings of the group. None of these
    changes while the group lives, so answers are remembered as long: a rank that called torch.set_num_threads()
    later would otherwise choose other slices than its peers.

    Args:
        op: The collective, as explain() names it.
        nbytes: Of its tensor, or of each rank's block.
        parts: The most slices that there can be.
        operations: Multiplications and additions of the whole computation.
        like: A tensor of the type and on the device that are computed with.
        group: The process group; the default one if None.
    """
    if parts < 2:
        return 1
    # On the way of every operator, also of those with one slice: bench/overlap.py has what it costs.
    question = (op, nbytes, parts, operations, like.dtype, like.is_cpu or like.device)
    answers = _answers.get(id(group or dist.group.WORLD))
    slices = answers.get(question) if answers else None
    if slices is None:
        pg = member(group, "overlap")
        slices = _ask(op, nbytes, parts, operations, like, pg)
        _remember(question, slices, pg)
    return slices


def spans(count: int, slices: int) -> list[slice]:
    """Cuts `count` rows into at most so many slices, which differ in length in the last one only."""
    rows = max(1, -(-count // slices))
    return [slice(at, min(at + rows, count)) for at in range(0, count, rows)]


def checked(slices: int | None, otherwise: int) -> int:
    """Returns the caller's number of slices, or the other one if it is None. Raises ValueError if it is below 1."""
    if slices is None:
        return otherwise
    if slices < 1:
        raise ValueError(f"sagecomm: slices={slices}: expected None or a whole number from 1")
    return slices


# To questions that were asked before, by id() of the group, which is faster than a WeakKeyDictionary. A rank that has
# forgotten one asks the core again, and no other rank.
_answers: dict[int, dict[tuple[Any, ...], int]] = {}
_MOST_ANSWERS = 4096


def _remember(question: tuple[Any, ...], slices: int, group: dist.ProcessGroup) -> None:
    key = id(group)
    if key not in _answers:
        _answers[key] = {}
        weakref.finalize(group, _answers.pop, key)
    if len(_answers[key]) >= _MOST_ANSWERS:
        _answers[key].clear()
    _answers[key][question] = slices


def _ask(op: str, nbytes: int, parts: int, operations: int, like: torch.Tensor, group: Any) -> int:
    if dist.get_world_size(group) == 1:
        return 1
    try:
        backend = group._get_backend(like.device)
    except RuntimeError:  # it serves no such tensors; the operation says so
        return 1
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not hasattr(backend, "group_number"):
        return 1
    number = backend.group_number()
    on_device = like.device.type != "cpu"
    per_operation, threads = _speed(number, like.device, like.dtype, group)
    overlap = {"seconds": operations * per_operation, "parts": parts, "threads": 0 if on_device else threads}
    answer = ask(_native.load().explain, op=op, bytes=nbytes, group=number, device=on_device, overlap=overlap)
    return int(answer["overlap"]["slices"])


# Agreed by all ranks of a group, so no entry may be dropped on one rank alone. There are few types and devices.
_speeds: dict[tuple[int, str, torch.dtype], tuple[float, int]] = {}


def _speed(number: int, device: torch.device, dtype: torch.dtype, group: dist.ProcessGroup | None) -> tuple[float, int]:
    """Returns the seconds of a multiplication or addition and the number of computing threads, of the rank that has
    most."""
    key = (number, device.type, dtype)
    if key not in _speeds:
        mine = [1e12 * _time_of_a_product(device, dtype) / (2 * _ROWS * _WIDTH * _WIDTH), torch.get_num_threads()]
        most = torch.tensor(mine, dtype=torch.float32, device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        picoseconds, threads = most.tolist()
        _speeds[key] = (picoseconds * 1e-12, int(threads))
    return _speeds[key]


@torch.no_grad()
def _time_of_a_product(device: torch.device, dtype: torch.dtype) -> float:
    a = torch.ones(_ROWS, _WIDTH, dtype=dtype, device=device)
    b = torch.ones(_WIDTH, _WIDTH, dtype=dtype, device=device)
    times = []
    for _ in range(1 + _TIMED):
        _finish(device)
        started = time.perf_counter()
        torch.mm(a, b)
        _finish(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])  # the first one warms up


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
