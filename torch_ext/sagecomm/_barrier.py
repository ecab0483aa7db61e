"""The barrier that torch.distributed keeps for gloo."""

import warnings
from datetime import timedelta

import torch.distributed as dist


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits until all ranks have called it. After `timeout` it raises `CollectiveTimeout`, which names all missing
    ranks.

    It replaces `torch.distributed.monitored_barrier`, which accepts gloo only. Unlike there, every rank raises, and
    every error names all missing ranks, so `wait_all_ranks` changes nothing. The group cannot be used afterwards: a
    rank that comes late must not meet the others in another call.

    Args:
        group: The process group; the default one if None.
        timeout: How long to wait; 0 to look only; the group's timeout if None.
        wait_all_ranks: As in torch.distributed; accepted and not needed.
    """
    pg = group or dist.group.WORLD
    if pg is None:
        raise ValueError("sagecomm: monitored_barrier: call init_process_group first")
    if not isinstance(pg, dist.ProcessGroup):  # GroupMember.NON_GROUP_MEMBER, of new_group()
        warnings.warn("sagecomm: monitored_barrier: this rank is not in the group; nothing is done", stacklevel=2)
        return
    given = {} if timeout is None else {"timeout": timeout}
    pg.monitored_barrier(wait_all_ranks=wait_all_ranks, **given)  # type: ignore[attr-defined]  # torch's types leave it out
