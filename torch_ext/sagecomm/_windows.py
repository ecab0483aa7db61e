"""The state of torch's coalescing manager, which only Python can read. The shim calls these functions."""

import warnings

from torch.distributed import distributed_c10d as c10d


def managed(group: str) -> bool:
    """Returns whether torch's `_coalescing_manager` has a window of the named group open, or has left one open.

    A window that the manager opened and torch has forgotten was left by an exception.
    """
    return any(pg.group_name == group for pg in list(c10d._world.pg_coalesce_state))


def warn_of_left_window(group: str, count: int, first: str) -> None:
    warnings.warn(
        f"sagecomm: group {group}: a coalescing window was left without being closed, as by an exception; its {count} "
        f"operations, beginning with {first}, were not issued",
        stacklevel=2,
    )
