"""Layers that are split among the ranks of a group, as in Megatron-LM.

    up = sagecomm.nn.ColumnParallelLinear(1024, 4096, group=manager.tp_group)
    down = sagecomm.nn.RowParallelLinear(4096, 1024, group=manager.tp_group)
    y = down(torch.nn.functional.gelu(up(x)))      # one all_reduce forwards, one backwards

docs/parallelism.md has pictures.
"""

from sagecomm.nn._embedding import VocabParallelEmbedding
from sagecomm.nn._linear import ColumnParallelLinear, RowParallelLinear

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding"]
