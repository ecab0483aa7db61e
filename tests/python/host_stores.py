"""Stores for groups of the tests over hosts, each made out of the store of all tests (World.run(store=...)). The store
of all tests outlives every rank, and common() is that one."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_common: list[Any] = []


def of_the_tests(common: Any, rank: int, size: int) -> Any:
    _common[:] = [common]
    return common


def served_by_rank_0(common: Any, rank: int, size: int) -> dist.TCPStore:
    """The store ends with rank 0."""
    _common[:] = [common]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common.set("port", str(store.port))
        return store
    return dist.TCPStore("127.0.0.1", int(common.get("port")), is_master=False, wait_for_workers=False)


def in_a_file(path: str, common: Any, rank: int, size: int) -> dist.FileStore:
    _common[:] = [common]
    return dist.FileStore(path, size)


def common() -> Any:
    return _common[0]
