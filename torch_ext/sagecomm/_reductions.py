"""Names of reductions."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch.distributed as dist

# What users pass: a name, or torch's own `dist.ReduceOp.SUM`, whose type differs from that of `dist.ReduceOp(...)`.
Reduction: TypeAlias = "str | dist.ReduceOp | dist.ReduceOp.RedOpType"

_NAMES: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def reduce_op(op: Reduction, call: str) -> Any:
    """Returns torch's reduction. Raises ValueError for an unknown name, TypeError for another type."""
    if isinstance(op, str):
        try:
            return _NAMES[op]
        except KeyError:
            raise ValueError(f"sagecomm: {call}: unknown reduction {op!r}, there are: {', '.join(_NAMES)}") from None
    if isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        return op
    raise TypeError(f"sagecomm: {call}: expected a reduction such as 'sum' or ReduceOp.SUM, got {op!r}")
