"""What tests of failures share: the error of a call with its times, and a meeting without a collective, the cause on
which ranks agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from promises import most

AGREED_S = 3.0


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(torch.device("cpu"))


def caught(call: Callable[[], Any]) -> tuple[dist.DistBackendError, float, float]:
    """Returns the error of a call, when the call began and when the error came."""
    began = time.monotonic()
    try:
        work = call()
        if work is not None:
            work.wait()
    except dist.DistBackendError as error:
        return error, began, time.monotonic()
    raise AssertionError("the call succeeded")


def meet() -> None:
    """Waits until all ranks are here, without a collective."""
    store = c10d._get_default_store()
    store.set(f"met {dist.get_rank()}", "")
    store.wait([f"met {rank}" for rank in range(dist.get_world_size())])


def common_cause(store: Any, ranks: Sequence[int]) -> str:
    """Compares the text that a new call raises on these ranks until it is the same on all. A rank that has waited too
    long for the others raises its own record until all have agreed on the first cause."""
    deadline, number = time.monotonic() + most(AGREED_S), 0
    while True:
        text = str(caught(dist.barrier)[0])
        store.set(f"cause {number} of {dist.get_rank()}", text)
        texts = {store.get(f"cause {number} of {rank}").decode() for rank in ranks}
        if len(texts) == 1:
            return text
        assert time.monotonic() < deadline, f"ranks keep different causes: {texts}"
        number += 1


def sum_of_ones() -> float:
    t = torch.ones(10)
    dist.all_reduce(t)
    return t[0].item()
