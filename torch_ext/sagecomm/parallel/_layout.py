"""Which ranks form which group of four-dimensional parallelism: numbers only, no process group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

DIMENSIONS = ("dp", "pp", "cp", "tp")
"""From the slowest to the fastest: ranks that differ in `tp` only are neighbours, and so share a host."""

JOINT = {"cp_dp": ("dp", "cp"), "pp_dp": ("dp", "pp")}
"""Groups over two dimensions: gradients are averaged over `cp_dp`, and parameters that the first and the last stage
share over `pp_dp`."""


@dataclass(frozen=True)
class Layout:
    """How many ranks each dimension has. Rank = ((dp * PP + pp) * CP + cp) * TP + tp, as in Megatron's and picotron's
    default order.

    Raises:
        ValueError: A dimension has no rank.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for name in DIMENSIONS:
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"sagecomm: {name}={getattr(self, name)!r}: expected a whole number from 1")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Numbers of ranks in the order of DIMENSIONS."""
        return (self.dp, self.pp, self.cp, self.tp)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    def rank(self, dp: int, pp: int, cp: int, tp: int) -> int:
        """Returns the rank at a place."""
        return ((dp * self.pp + pp) * self.cp + cp) * self.tp + tp

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Returns the place (dp, pp, cp, tp) of a rank. Raises ValueError for a rank that is not in the layout."""
        if not 0 <= rank < self.size:
            raise ValueError(f"sagecomm: rank {rank} is not in {self}: its ranks are 0 to {self.size - 1}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        dp, pp = divmod(rest, self.pp)
        return dp, pp, cp, tp

    def groups(self, kind: str) -> list[list[int]]:
        """Returns all groups of a kind: a dimension, or a pair of JOINT. Every rank is in one of them.

        Ranks of a group differ in the kind's dimensions only; they stand in ascending order, and so do the groups by
        their first ranks.
        """
        inside = JOINT.get(kind, (kind,))
        outer = [name not in inside for name in DIMENSIONS]
        if all(outer):
            raise ValueError(f"sagecomm: {kind!r} is no group: there are {', '.join([*DIMENSIONS, *JOINT])}")
        groups: dict[tuple[int, ...], list[int]] = {}
        for place in product(*map(range, self.shape)):
            key = tuple(at for at, out in zip(place, outer, strict=True) if out)
            groups.setdefault(key, []).append(self.rank(*place))
        return list(groups.values())

    def group_of(self, kind: str, rank: int) -> list[int]:
        """Returns the ranks of the group of a kind that a rank is in."""
        return next(group for group in self.groups(kind) if rank in group)

    def __str__(self) -> str:
        return f"tp={self.tp} x cp={self.cp} x pp={self.pp} x dp={self.dp}"
