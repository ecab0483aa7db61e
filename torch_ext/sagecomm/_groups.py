"""Process groups as users pass them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def member(group: dist.ProcessGroup | None, call: str) -> dist.ProcessGroup:
    """Returns the group, the default one if None. Raises ValueError where there is none, or this rank is not in it."""
    pg: object = group or dist.group.WORLD
    if pg is None:
        raise ValueError(f"sagecomm: {call}: call init_process_group first")
    if not isinstance(pg, dist.ProcessGroup):  # GroupMember.NON_GROUP_MEMBER, of new_group()
        raise ValueError(f"sagecomm: {call}: this rank is not in the group")
    return pg


def rank_in_group(group: dist.ProcessGroup, rank: int, call: str) -> int:
    """Returns the rank in the group of a rank of the job. Raises ValueError where it is not in the group."""
    try:
        found = dist.get_group_rank(group, rank)
    except ValueError:
        found = -1
    if not 0 <= found < group.size():  # torch does not look in the default group
        ranks = dist.get_process_group_ranks(group)
        raise ValueError(f"sagecomm: {call}: rank {rank} of the job is not in the group of the ranks {ranks}")
    return found


def backend_names(group: dist.ProcessGroup) -> dict[str, str]:
    """Returns the name of the group's backend for each type of device that it serves, as in init_process_group."""
    config = c10d.BackendConfig(c10d.Backend(dist.get_backend_config(group))).get_device_backend_map()
    names = {}
    for device in map(torch.device, group._device_types):
        name = str(group._get_backend(device).name())  # of some backends it is that of a version
        names[device.type] = name if name == "sagecomm" else str(config.get(device.type, name))
    return names
