"""The four cases of fusion_cases.py: computation and communication, one after the other and fused.

A fused form is a call of the library, which works on groups of every backend: sagecomm.CommFusionBuffer,
conv2d_all_reduce, linear_all_reduce, pipeline. The cost model chooses the number of slices, unless the program is told
one. Groups of gloo have no model, and one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

import sagecomm
from sagecomm._overlap._formula import Hidden, hidden

FORMS = ("computation", "communication", "in fused calls", "plain", "fused")
Group = dist.ProcessGroup


# ---- what is measured ----


@dataclass
class Result:
    """What was measured of one case on one backend. Times are medians over blocks, of the slowest rank."""

    case: str
    backend: str
    ranks: int
    nbytes: int  # that communication sums
    seconds: dict[str, float]  # by form
    calls: tuple[int, int]  # collectives of the plain form, and of the fused one
    copy_seconds: float  # of a copy of as many bytes, by all ranks at once
    same: bool  # the forms have the result that they must have
    reported: str = ""

    def hidden(self) -> Hidden:
        """Returns which part of the fused form's own collectives costs no time, and what is possible."""
        s = self.seconds
        return hidden(s["fused"], communicate=s["in fused calls"], overlappable=s["computation"])

    def fusing(self) -> float:
        """Returns by which factor the collectives of the fused form take less time than those of the plain one, with
        nothing computed: what is gained without any overlap."""
        return self.seconds["communication"] / self.seconds["in fused calls"]

    def bandwidth(self, form: str) -> float:
        """Returns bus bandwidth / bandwidth of the copy."""
        return 2 * (self.ranks - 1) / self.ranks * self.copy_seconds / self.seconds[form]


# ---- the collectives of a form, with nothing computed ----


class Calls(TorchDispatchMode):
    """Within it, the collectives of torch.distributed are seen: `seen` has tensors like those of each one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[torch.Tensor]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. To skip its compiler, torch would import it, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, call: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if call.namespace == "c10d":
            self.seen.append([torch.zeros_like(tensor) for tensor in args[0]])
        return call(*args, **(kwargs or {}))


def collectives(form: Callable[[Group], None], group: Group) -> list[list[torch.Tensor]]:
    """Returns tensors like those of each all_reduce of a form."""
    with Calls() as calls:
        form(group)
    return calls.seen


def one_by_one(calls: Sequence[Sequence[torch.Tensor]], group: Group) -> None:
    """Makes the collectives of a plain form."""
    for (tensor,) in calls:
        dist.all_reduce(tensor, group=group)


def in_flight(calls: Sequence[Sequence[torch.Tensor]], group: Group) -> None:
    """Makes the collectives of a fused form."""
    works = [started(tensors, group) for tensors in calls]
    for work in works:
        work.wait()


def started(tensors: Sequence[torch.Tensor], group: Group) -> dist.Work | Future[list[torch.Tensor]]:
    """Starts to sum tensors over the ranks with one collective."""
    if len(tensors) > 1:
        return sagecomm.fused_all_reduce(tensors, group=group, async_op=True)
    work = dist.all_reduce(tensors[0], group=group, async_op=True)
    assert work is not None
    return work


# ---- the cases ----


class Case:
    """One case on one rank. A subclass has its data, and its forms for a group: computation() computes without
    communication, plain() computes, then communicates, and fused() communicates while it computes. The result of both
    is the sum over the ranks of what computation() leaves behind."""

    name: str

    def outputs(self) -> Sequence[torch.Tensor]:
        """Returns what a form has left behind."""
        raise NotImplementedError

    def computation(self) -> None:
        raise NotImplementedError

    def plain(self, group: Group) -> None:
        raise NotImplementedError

    def fused(self, group: Group) -> None:
        raise NotImplementedError

    def reported(self, result: Result) -> str:
        """Returns what the case is measured by."""
        raise NotImplementedError


class Gradients(Case):
    """A training step of an MLP on a batch of each rank. Gradients are averaged over the ranks."""

    name = "gradients"

    def __init__(self, scale: int, slices: int | None = None) -> None:
        width, self.layers, self.batch = 128 * scale, 6, 8 * scale
        torch.manual_seed(1)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(self.layers)))
        self.parameters = list(self.model.parameters())
        torch.manual_seed(2 + dist.get_rank())
        self.input = torch.randn(self.batch, width)
        third = sum(parameter.nbytes for parameter in self.parameters) / 3
        self.bucket = sagecomm.CommFusionBuffer(max_size_mb=third / 2**20)
        self.group: Group | None = None  # of the step that is under way, if it is fused
        self.flying: list[Future[list[torch.Tensor]]] = []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)

    def flops(self) -> float:
        """Returns the floating-point operations of a step on one rank: forward 2 for each weight, backward 4."""
        return 6.0 * self.batch * sum(parameter.numel() for parameter in self.parameters)

    def backward(self) -> None:
        self.model.zero_grad()
        self.model(self.input).square().mean().backward()

    def computation(self) -> None:
        self.backward()
        self.average()

    def plain(self, group: Group) -> None:
        self.backward()
        for gradient in self.outputs():
            dist.all_reduce(gradient, group=group)
        self.average()

    def fused(self, group: Group) -> None:
        self.group, self.flying = group, []
        self.backward()
        self.flush()
        self.group = None
        for bucket in self.flying:
            bucket.wait()
        self.average()

    def gradient_is_ready(self, parameter: torch.Tensor) -> None:
        if self.group is not None:
            assert parameter.grad is not None
            self.bucket.add_tensor(parameter.grad)
            if self.bucket.full:
                self.flush()

    def flush(self) -> None:
        if len(self.bucket):
            self.flying.append(self.bucket.flush_and_all_reduce(self.group, async_op=True))

    def average(self) -> None:
        for gradient in self.outputs():
            gradient /= dist.get_world_size()

    def outputs(self) -> Sequence[torch.Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def reported(self, result: Result) -> str:
        speeds = [result.ranks * self.flops() / result.seconds[form] / 1e12 for form in ("plain", "fused")]
        widths = [100 * result.bandwidth(form) for form in ("communication", "in fused calls")]
        return f"{speeds[0]:.4f} -> {speeds[1]:.4f} TFLOPS, bandwidth {widths[0]:.0f} -> {widths[1]:.0f} % of a copy's"


class Sliced(Case):
    """A case with one output, which the library computes in slices."""

    output: torch.Tensor

    def compute(self) -> torch.Tensor:
        raise NotImplementedError

    def computation(self) -> None:
        self.output = self.compute()

    def plain(self, group: Group) -> None:
        self.output = self.compute()
        dist.all_reduce(self.output, group=group)

    def outputs(self) -> Sequence[torch.Tensor]:
        return [self.output]


class Convolution(Sliced):
    """A convolution whose input channels are spread over the ranks: each has a summand of the output."""

    name = "convolution"

    def __init__(self, scale: int, slices: int | None = None) -> None:
        torch.manual_seed(2 + dist.get_rank())
        self.input = torch.randn(16, 4 * scale, 32, 32)
        self.weight = torch.randn(4 * scale, 4 * scale, 3, 3)
        self.slices = slices

    def compute(self) -> torch.Tensor:
        return F.conv2d(self.input, self.weight, padding=1)

    def fused(self, group: Group) -> None:
        self.output = sagecomm.conv2d_all_reduce(self.input, self.weight, padding=1, group=group, slices=self.slices)

    def reported(self, result: Result) -> str:
        return f"computation / communication {result.seconds['computation'] / result.seconds['communication']:.2f}"


class Chunks(Sliced):
    """The gradient of a large matrix, input^T x gradient of the output."""

    name = "chunks"

    def __init__(self, scale: int, slices: int | None = None) -> None:
        torch.manual_seed(2 + dist.get_rank())
        self.inputs, self.gradients = torch.randn(8 * scale, 256 * scale), torch.randn(8 * scale, 256 * scale)
        self.slices = slices

    def compute(self) -> torch.Tensor:
        return torch.mm(self.inputs.T, self.gradients)

    def fused(self, group: Group) -> None:
        self.output = sagecomm.linear_all_reduce(self.inputs.T, self.gradients.T, group=group, slices=self.slices)

    def reported(self, result: Result) -> str:
        shares = [result.seconds["computation"] / result.seconds[form] for form in ("plain", "fused")]
        return f"utilization {100 * shares[0]:.0f} -> {100 * shares[1]:.0f} %"


class Pipeline(Case):
    """A sequence of items, each of which is computed and then summed over the ranks."""

    name = "pipeline"
    items = 8

    def __init__(self, scale: int, slices: int | None = None) -> None:
        torch.manual_seed(2 + dist.get_rank())
        self.inputs = torch.randn(self.items, 64 * scale, 64 * scale) / scale
        self.sums = torch.empty_like(self.inputs)

    def compute(self, item: int) -> torch.Tensor:
        return torch.mm(self.inputs[item], self.inputs[item], out=self.sums[item])

    def computation(self) -> None:
        for item in range(self.items):
            self.compute(item)

    def plain(self, group: Group) -> None:
        for item in range(self.items):
            dist.all_reduce(self.compute(item), group=group)

    def fused(self, group: Group) -> None:
        for _ in sagecomm.pipeline(
            range(self.items), self.compute, lambda item: started([item], group), depth=self.items
        ):
            pass

    def outputs(self) -> Sequence[torch.Tensor]:
        return list(self.sums)

    def reported(self, result: Result) -> str:
        speeds = [self.items / result.seconds[form] for form in ("plain", "fused")]
        efficiency = 100 * result.hidden().efficiency
        return f"{speeds[0]:.0f} -> {speeds[1]:.0f} items/s, efficiency of overlap {efficiency:.0f} %"


CASES: tuple[Callable[[int, int | None], Case], ...] = (Gradients, Convolution, Chunks, Pipeline)
