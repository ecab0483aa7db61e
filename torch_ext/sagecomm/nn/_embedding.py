"""An embedding whose vocabulary is split among ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from sagecomm import autograd
from sagecomm._groups import member
from sagecomm.nn._shards import GroupModule, part_of


class VocabParallelEmbedding(GroupModule):
    """An embedding of which each rank has a part of the vocabulary.

    A rank looks up the tokens that it has, and zeros for the others; the sum over the ranks is the embedding. The
    parameters are a part of those that nn.Embedding would make from the same state of the random generator.

    Args:
        num_embeddings: Of the whole vocabulary; the number of ranks must divide it.
        embedding_dim: Of a token.
        group: The ranks that share the vocabulary; the default group if None.
        sequence_parallel: The output has a part of the rows (its first dimension) on each rank.
        device: Of the parameters.
        dtype: Of the parameters.

    Shapes: with n ranks, (...) -> (..., embedding_dim), tokens being the same on all ranks; with `sequence_parallel`,
    (rows, ...) -> (rows / n, ..., embedding_dim).

    Raises:
        ValueError: The number of ranks does not divide `num_embeddings`, there are no tokens, or this rank is not in
            the group.
        IndexError: forward() got a token, on the host, that is not in the vocabulary. On a device, where looking would
            make the host wait, such a token has zeros.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        group: dist.ProcessGroup | None = None,
        sequence_parallel: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        pg = member(group, "VocabParallelEmbedding")
        if num_embeddings < 1:
            raise ValueError(f"sagecomm: VocabParallelEmbedding: num_embeddings={num_embeddings}: there are no tokens")
        whole = nn.Embedding(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.group, self.sequence_parallel = group, sequence_parallel
        self.num_embeddings = num_embeddings
        own = part_of(whole.weight, 0, pg, "tokens of the vocabulary")
        self.weight = nn.Parameter(own.detach().clone())
        self.first = pg.rank() * own.shape[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the tokens; shapes as for the class."""
        if tokens.device.type == "cpu" and tokens.numel():  # on a device, looking would make the host wait
            low, high = torch.aminmax(tokens)
            if low < 0 or high >= self.num_embeddings:
                raise IndexError(
                    f"sagecomm: VocabParallelEmbedding: tokens are {int(low)} to {int(high)}, but the vocabulary has "
                    f"{self.num_embeddings}"
                )
        at = tokens - self.first
        elsewhere = (at < 0) | (at >= self.weight.shape[0])
        part = F.embedding(at.masked_fill(elsewhere, 0), self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        if self.sequence_parallel:
            return autograd.reduce_scatter(part, group=self.group)
        return autograd.reduce_from_group(part, self.group)

    def extra_repr(self) -> str:
        """What the layer's repr says in its brackets."""
        rows, width = self.weight.shape
        return f"{self.num_embeddings}, {width}, tokens {self.first} to {self.first + rows - 1} here"
