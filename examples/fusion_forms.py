"""The four cases of fusion_cases.py: computation and communication, one after the other and fused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

FORMS = ("computation", "communication", "plain", "fused")
Group = dist.ProcessGroup


# ---- how the fused forms call communication: the only place that knows ----


def reduce_bucket(tensors: Sequence[torch.Tensor], group: Group) -> Callable[[], object]:
    """Begins to sum several tensors over the ranks as one collective. Returns what waits for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # all_reduce_coalesced is called deprecated
        return dist.all_reduce_coalesced(list(tensors), group=group, async_op=True).wait


def reduce_slice(tensor: torch.Tensor, group: Group) -> Callable[[], object]:
    """Begins to sum one slice of a larger tensor over the ranks. Returns what waits for it."""
    return dist.all_reduce(tensor, group=group, async_op=True).wait


def pipelined(count: int, compute: Callable[[int], torch.Tensor], group: Group) -> None:
    """Computes items 0 to count-1; each is summed over the ranks while the next one is computed."""
    waits = [reduce_slice(compute(k), group) for k in range(count)]
    for wait in waits:
        wait()


# ---- what is measured ----


@dataclass
class Result:
    """What was measured of one case on one backend. Times are medians over blocks, of the slowest rank."""

    case: str
    backend: str
    ranks: int
    nbytes: int  # that communication sums
    seconds: dict[str, float]  # by form
    copy_seconds: float  # of a copy of as many bytes, by all ranks at once
    same: bool  # plain and fused have the same result
    reported: str = ""

    def hidden(self) -> float:
        s = self.seconds
        return (s["computation"] + s["communication"] - s["fused"]) / s["communication"]

    def efficiency(self) -> float:
        s = self.seconds
        return self.hidden() * s["communication"] / min(s["computation"], s["communication"])

    def bandwidth(self) -> float:
        """Returns bus bandwidth / bandwidth of the copy."""
        return 2 * (self.ranks - 1) / self.ranks * self.copy_seconds / self.seconds["communication"]


# ---- the cases ----


class Case:
    """One case on one rank. A subclass has its data, and its forms for a group: computation() computes without
    communication, plain() computes, then communicates, and fused() communicates while it computes."""

    name: str
    communicated: Sequence[torch.Tensor]  # what communication alone sums, one all_reduce each

    def result(self) -> torch.Tensor:
        """Returns what plain() and fused() have left behind."""
        raise NotImplementedError

    def reported(self, result: Result) -> str:
        """Returns what the case is measured by."""
        raise NotImplementedError

    def communication(self, group: Group) -> None:
        for tensor in self.communicated:
            dist.all_reduce(tensor, group=group)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.communicated)


class Gradients(Case):
    """A training step of an MLP on a batch of each rank. Gradients are averaged over the ranks."""

    name = "gradients"

    def __init__(self, scale: int) -> None:
        width, self.layers, self.batch = 128 * scale, 6, 8 * scale
        torch.manual_seed(1)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(self.layers)))
        self.parameters = list(self.model.parameters())
        self.communicated = [torch.zeros_like(parameter) for parameter in self.parameters]
        torch.manual_seed(2 + dist.get_rank())
        self.input = torch.randn(self.batch, width)
        self.bucket_bytes = self.nbytes() // 3
        self.group: Group | None = None  # of the step that is under way, if it is fused
        self.bucket: list[torch.Tensor] = []
        self.waits: list[Callable[[], object]] = []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)

    def flops(self) -> float:
        """Returns the floating-point operations of a step on one rank: forward 2 for each weight, backward 4."""
        return 6.0 * self.batch * sum(parameter.numel() for parameter in self.parameters)

    def computation(self) -> None:
        self.model.zero_grad()
        self.model(self.input).square().mean().backward()

    def plain(self, group: Group) -> None:
        self.computation()
        for parameter in self.parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=group)
        self.average()

    def fused(self, group: Group) -> None:
        self.group, self.waits = group, []
        self.computation()
        self.flush()
        self.group = None
        for wait in self.waits:
            wait()
        self.average()

    def gradient_is_ready(self, parameter: torch.Tensor) -> None:
        if self.group is not None:
            assert parameter.grad is not None
            self.bucket.append(parameter.grad)
            if sum(gradient.nbytes for gradient in self.bucket) >= self.bucket_bytes:
                self.flush()

    def flush(self) -> None:
        if self.bucket:
            assert self.group is not None
            self.waits.append(reduce_bucket(self.bucket, self.group))
            self.bucket = []

    def average(self) -> None:
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()

    def result(self) -> torch.Tensor:
        return torch.cat([parameter.grad.flatten() for parameter in self.parameters if parameter.grad is not None])

    def reported(self, result: Result) -> str:
        speeds = [result.ranks * self.flops() / result.seconds[form] / 1e12 for form in ("plain", "fused")]
        return f"{speeds[0]:.4f} -> {speeds[1]:.4f} TFLOPS, bandwidth {100 * result.bandwidth():.0f} % of a copy's"


class Sliced(Case):
    """A case with one output, which can be computed slice by slice."""

    output: torch.Tensor
    slices = 4

    def __init__(self, output: torch.Tensor) -> None:
        self.output, self.communicated = output, [torch.zeros_like(output)]
        torch.manual_seed(2 + dist.get_rank())

    def compute(self, k: int, of: int) -> torch.Tensor:
        """Computes slice k of `of` slices, and returns it."""
        raise NotImplementedError

    def computation(self) -> None:
        self.compute(0, 1)

    def plain(self, group: Group) -> None:
        dist.all_reduce(self.compute(0, 1), group=group)

    def fused(self, group: Group) -> None:
        pipelined(self.slices, lambda k: self.compute(k, self.slices), group)

    def result(self) -> torch.Tensor:
        return self.output


class Convolution(Sliced):
    """A convolution whose input channels are spread over the ranks: each has a summand of the output."""

    name = "convolution"

    def __init__(self, scale: int) -> None:
        super().__init__(torch.empty(4 * self.slices, 4 * scale, 32, 32))
        self.input = torch.randn(4 * self.slices, 4 * scale, 32, 32)
        self.weight = torch.randn(4 * scale, 4 * scale, 3, 3)

    def compute(self, k: int, of: int) -> torch.Tensor:
        return self.output.chunk(of)[k].copy_(F.conv2d(self.input.chunk(of)[k], self.weight, padding=1))

    def reported(self, result: Result) -> str:
        return f"computation / communication {result.seconds['computation'] / result.seconds['communication']:.2f}"


class Chunks(Sliced):
    """The gradient of a large matrix, input^T x gradient of the output."""

    name = "chunks"

    def __init__(self, scale: int) -> None:
        super().__init__(torch.empty(256 * scale, 256 * scale))
        self.inputs, self.gradients = torch.randn(8 * scale, 256 * scale), torch.randn(8 * scale, 256 * scale)

    def compute(self, k: int, of: int) -> torch.Tensor:
        return torch.mm(self.inputs.T.chunk(of)[k], self.gradients, out=self.output.chunk(of)[k])

    def reported(self, result: Result) -> str:
        shares = [result.seconds["computation"] / result.seconds[form] for form in ("plain", "fused")]
        return f"utilization {100 * shares[0]:.0f} -> {100 * shares[1]:.0f} %"


class Pipeline(Sliced):
    """A sequence of items, each of which is computed and then summed over the ranks."""

    name = "pipeline"
    slices = 8

    def __init__(self, scale: int) -> None:
        super().__init__(torch.empty(self.slices, 64 * scale, 64 * scale))
        self.inputs = torch.randn(self.slices, 64 * scale, 64 * scale) / scale
        self.communicated = [torch.zeros_like(item) for item in self.output]

    def compute(self, k: int, of: int) -> torch.Tensor:
        return torch.mm(self.inputs[k], self.inputs[k], out=self.output[k])

    def computation(self) -> None:
        for k in range(self.slices):
            self.compute(k, self.slices)

    def plain(self, group: Group) -> None:
        for k in range(self.slices):
            dist.all_reduce(self.compute(k, self.slices), group=group)

    def reported(self, result: Result) -> str:
        items = [self.slices / result.seconds[form] for form in ("plain", "fused")]
        return f"{items[0]:.0f} -> {items[1]:.0f} items/s, efficiency of overlap {100 * result.efficiency():.0f} %"


CASES: tuple[Callable[[int], Case], ...] = (Gradients, Convolution, Chunks, Pipeline)
