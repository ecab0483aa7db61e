"""Which operations are measured, with which sizes, types, reductions and roots. Conventions are those of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Operations whose size is that of one block for each rank, together."""
POINT_TO_POINT = ("send_recv", "shift")

REDUCTIONS = {
    "sum": "SUM",
    "prod": "PRODUCT",
    "min": "MIN",
    "max": "MAX",
    "avg": "AVG",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
"""Names of the command line and of torch.distributed.ReduceOp."""

TYPE_NAMES = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
TYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}  # those of nccl-tests that torch has not


@dataclass(frozen=True)
class Case:
    """One row of the table, backends aside."""

    op: str
    type: str  # torch's name of the element type
    redop: str  # none where nothing is reduced
    root: int  # -1 without a root
    count: int  # elements of the tensor, or of one rank's block

    def itemsize(self) -> int:
        import torch

        size: int = getattr(torch, self.type).itemsize
        return size

    def block_bytes(self) -> int:
        """Returns the bytes of one rank's tensor, or of one block."""
        return self.count * self.itemsize()

    def size(self, ranks: int) -> int:
        """Returns the size column: bytes of the tensor, or of all blocks."""
        return self.block_bytes() * (ranks if self.op in BLOCKS else 1)

    def fields(self, ranks: int) -> dict[str, Any]:
        return {
            "op": self.op,
            "bytes": self.size(ranks),
            "count": self.count,
            "type": self.type,
            "redop": self.redop,
            "root": self.root,
        }


def cases(
    op: str, sizes: tuple[int, ...], types: tuple[str, ...], redops: tuple[str, ...], root: int | None, ranks: int
) -> Iterator[Case]:
    """Yields the cases of an operation; root None stands for all of them, one after the other. A size is rounded down
    to whole elements in each block, but to one at least. Sizes that come out alike are one case."""
    if op == "barrier":
        yield Case(op, "uint8", "none", -1, 0)
        return
    import torch

    roots = [-1] if op not in ROOTED else range(ranks) if root is None else [root]
    parts = ranks if op in BLOCKS else 1
    for kind in types:
        counts = [max(1, size // getattr(torch, kind).itemsize // parts) for size in sizes]
        for redop in redops if op in REDUCING else ("none",):
            for of in roots:
                for count in dict.fromkeys(counts):
                    yield Case(op, kind, redop, of, count)


def bus_factor(op: str, ranks: int) -> float:
    """Returns bus bandwidth / algorithm bandwidth. Source: nccl-tests, doc/PERFORMANCE.md; gather and scatter as its
    programs have them."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in BLOCKS else 1.0
