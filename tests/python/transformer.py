"""A small transformer of four layers that the tests of parallel training share, its data, and what one process makes of
it: what several processes must come to as well, within rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # torch.optim imports it at its first use, for seconds; here, ranks preload it
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

LAYERS = 4
WIDTH = 32
HEAD_WIDTH = 8
VOCABULARY = 64
LENGTH = 16
BATCH = 16
STEPS = 20
FEW_STEPS = 5  # the number for variants of a training that takes STEPS
LARGEST_NORM = 1.0


class Attention(nn.Module):
    """Attention. The number of heads follows from the width of the matrices, so a shard has a part of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Residual(nn.Module):
    """Half a layer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.norm, self.body = nn.LayerNorm(WIDTH), body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.norm(x))


class Transformer(nn.Module):
    """The same parameters in every process that makes one."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(11)
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = nn.ModuleList(
                nn.Sequential(Residual(Attention()), Residual(FeedForward())) for _ in range(LAYERS)
            )
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(step: int, part: int = 0, parts: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow each of them: one of `parts` equal parts of what a step learns from."""
    generator = torch.Generator().manual_seed(step)
    rows = [torch.randint(VOCABULARY, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        noise = torch.randint(3, (BATCH,), generator=generator)
        rows.append((5 * rows[-1] + noise) % VOCABULARY)
    tokens = torch.stack(rows, 1).chunk(parts)[part]
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclass
class History:
    """Of every step the loss of the whole batch and the norm of its gradient: a sum where an average belongs shows in
    the norm, even where the optimizer hides it."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def check(self, want: History, what: str, tolerance: float = 1e-5, steps: int = STEPS) -> None:
        assert len(self.losses) == len(self.norms) == steps
        for name in ("losses", "norms"):
            got, other = torch.tensor(getattr(self, name)), torch.tensor(getattr(want, name)[:steps])
            apart = ((got - other) / other).abs()
            assert apart.max() <= tolerance, (
                f"{what}: {name} of step {int(apart.argmax())} are apart by {float(apart.max()):.1e}:\n{got}\n{other}"
            )
        learnt = 0.8 if steps == STEPS else 1.0
        assert self.losses[-1] < learnt * self.losses[0], f"{what}: nothing was learnt: {self.losses}"


def fit(
    model: nn.Module, learn: Callable[[int], float], clip: Callable[[], torch.Tensor], steps: int = STEPS
) -> History:
    """`learn` goes forwards and backwards and returns the loss; `clip` limits the norm of the gradient to LARGEST_NORM
    and returns what it was."""
    # Not Adam, to which a sum of gradients is as good as an average.
    optimizer, history = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), History()
    for step in range(steps):
        optimizer.zero_grad()
        history.losses.append(learn(step))
        history.norms.append(clip().item())
        optimizer.step()
    return history


def clip_all(model: nn.Module) -> torch.Tensor:
    """Of tensors and of DTensors, which are put together by the meshes that they are on."""
    meshes: dict[Any, list[nn.Parameter]] = {}
    for each in model.parameters():
        meshes.setdefault(getattr(each, "device_mesh", None), []).append(each)
    norms = []
    for parameters in meshes.values():
        norm = nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = nn.utils.get_total_norm(norms)
    for parameters in meshes.values():
        nn.utils.clip_grads_with_norm_(parameters, LARGEST_NORM, total)
    return total


def one_process() -> History:
    """Trains in one process, the reference."""
    model = Transformer()

    def learn(step: int) -> float:
        tokens, targets = batch(step)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        return loss.item()

    return fit(model, learn, lambda: clip_all(model))
