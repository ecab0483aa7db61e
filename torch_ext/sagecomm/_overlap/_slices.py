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
    known = _known.get(id(group or dist.group.WORLD))
    slices = known.answers.get(question) if known else None
    if slices is None:
        pg = member(group, "overlap")
        slices = _ask(op, nbytes, parts, operations, like, pg)
        answers = _known_of(pg).answers
        if len(answers) >= _MOST_ANSWERS:
            answers.clear()
        answers[question] = slices
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


class _Known:
    """What is known of a group.

    A rank that has forgotten an answer asks the core again, and no other rank. Speeds are agreed by all ranks of the
    group, so none may be dropped on one rank alone while the group lives. There are few types and devices.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[Any, ...], int] = {}
        self.speeds: dict[tuple[str, torch.dtype], tuple[float, int]] = {}


# By id() of the group, which is faster than a WeakKeyDictionary.
_known: dict[int, _Known] = {}
_MOST_ANSWERS = 4096


def _known_of(group: dist.ProcessGroup) -> _Known:
    key = id(group)
    if key not in _known:
        _known[key] = _Known()
        weakref.finalize(group, _known.pop, key)
    return _known[key]


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
    per_operation, threads = _speed(like.device, like.dtype, group)
    overlap = {"seconds": operations * per_operation, "parts": parts, "threads": 0 if on_device else threads}
    answer = ask(_native.load().explain, op=op, bytes=nbytes, group=number, device=on_device, overlap=overlap)
    return int(answer["overlap"]["slices"])


def _speed(device: torch.device, dtype: torch.dtype, group: dist.ProcessGroup) -> tuple[float, int]:
    """Returns the seconds of a multiplication or addition and the number of computing threads, of the rank that has
    most."""
    speeds, key = _known_of(group).speeds, (device.type, dtype)
    if key not in speeds:
        mine = [1e12 * _time_of_a_product(device, dtype) / (2 * _ROWS * _WIDTH * _WIDTH), torch.get_num_threads()]
        most = torch.tensor(mine, dtype=torch.float32, device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        picoseconds, threads = most.tolist()
        speeds[key] = (picoseconds * 1e-12, int(threads))
    return speeds[key]


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
