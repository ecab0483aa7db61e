"""The process groups of four-dimensional parallelism."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from sagecomm.parallel._layout import DIMENSIONS, JOINT, Layout


class ProcessGroupManager:
    """Groups for tensor (tp), context (cp), pipeline (pp) and data parallelism (dp) over all ranks of the job.

        manager = ProcessGroupManager(tp=2, dp=2)
        dist.all_reduce(gradient, group=manager.dp_group)

    Every rank must make it, with the same numbers. A group with the same ranks as another one is that group, so a
    job with cp=1 has no further group for `cp_dp`.

    Args:
        tp: Number of ranks that share a layer. The next rank differs in it, so these ranks stand on one host.
        cp: Number of ranks that share a sequence.
        pp: Number of stages that share the layers.
        dp: Number of replicas.
        device_type: That of `device_mesh`; that of the accelerator if torch has one and the groups' backend serves it,
            else "cpu".
        timeout: Of the operations of the groups; that of the job if None.
        backend: Of the groups, as for `dist.new_group`; that of the job if None. With a backend or options of its own,
            a group of all ranks is made anew too.
        pg_options: Options of the groups, as for `dist.new_group`.

    For each dimension X of tp, cp, pp, dp there are `X_group`, `X_group_ids` (its ranks in the job), `X_rank` (in the
    group), `X_world_size`, `X_first_rank` and `X_last_rank` (in the job); for the pairs `cp_dp` and `pp_dp` there are
    `_group`, `_group_ids` and `_world_size`. Ranks in `cp_send_rank`, `pp_next_rank` and so on are those of the job, as
    `dist.send` takes them.

    Raises:
        ValueError: The product of the numbers is not the number of ranks, torch has no such type of device, or there
            is no job.
    """

    tp_rank: int
    cp_rank: int
    pp_rank: int
    dp_rank: int
    tp_group: dist.ProcessGroup
    cp_group: dist.ProcessGroup
    pp_group: dist.ProcessGroup
    dp_group: dist.ProcessGroup
    cp_dp_group: dist.ProcessGroup
    pp_dp_group: dist.ProcessGroup
    tp_group_ids: list[int]
    cp_group_ids: list[int]
    pp_group_ids: list[int]
    dp_group_ids: list[int]
    cp_dp_group_ids: list[int]
    pp_dp_group_ids: list[int]
    tp_world_size: int
    cp_world_size: int
    pp_world_size: int
    dp_world_size: int
    cp_dp_world_size: int
    pp_dp_world_size: int
    tp_first_rank: int
    cp_first_rank: int
    pp_first_rank: int
    dp_first_rank: int
    tp_last_rank: int
    cp_last_rank: int
    pp_last_rank: int
    dp_last_rank: int

    def __init__(
        self,
        tp: int = 1,
        cp: int = 1,
        pp: int = 1,
        dp: int = 1,
        *,
        device_type: str | None = None,
        timeout: timedelta | None = None,
        backend: str | None = None,
        pg_options: Any = None,
    ) -> None:
        self.layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp)
        if not dist.is_initialized():
            raise ValueError("sagecomm: ProcessGroupManager: call init_process_group first")
        self.global_rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        if self.layout.size != self.world_size:
            raise ValueError(
                f"sagecomm: ProcessGroupManager: {self.layout} are {self.layout.size} ranks, but the job has "
                f"{self.world_size}: the product must be the number of ranks"
            )
        if device_type is not None:
            _check_device_type(device_type)
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.global_rank))
        world: Any = dist.group.WORLD
        self.world_group = world
        self._made: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup] = {}
        if backend is None and pg_options is None:
            self._made[(tuple(range(self.world_size)),)] = self.world_group
        how = {"timeout": timeout, "backend": backend, "pg_options": pg_options}
        place = dict(zip(DIMENSIONS, self.layout.place(self.global_rank), strict=True))
        for kind in (*DIMENSIONS, *JOINT):
            ids = self.layout.group_of(kind, self.global_rank)
            setattr(self, f"{kind}_group", self._group(kind, how))
            setattr(self, f"{kind}_group_ids", ids)
            setattr(self, f"{kind}_world_size", len(ids))
            if kind in DIMENSIONS:
                setattr(self, f"{kind}_rank", place[kind])
                setattr(self, f"{kind}_first_rank", ids[0])
                setattr(self, f"{kind}_last_rank", ids[-1])
        self.device_mesh = self._mesh(device_type or _device_type(self.tp_group))

    def _group(self, kind: str, how: dict[str, Any]) -> dist.ProcessGroup:
        """Makes all groups of a kind, on every rank in the same order, and returns the own one."""
        all_groups = self.layout.groups(kind)
        key = tuple(map(tuple, all_groups))
        if key not in self._made:
            own, _ = dist.new_subgroups_by_enumeration(all_groups, **how, group_desc=kind)
            assert isinstance(own, dist.ProcessGroup)  # every rank is in a group of each kind
            self._made[key] = own
        return self._made[key]

    def _mesh(self, device_type: str) -> DeviceMesh:
        """The mesh with the dimensions (dp, pp, cp, tp), over the same groups."""
        groups = [getattr(self, f"{kind}_group") for kind in DIMENSIONS]
        grid = torch.arange(self.world_size, device="cpu").view(self.layout.shape)
        return DeviceMesh.from_group(groups, device_type, mesh=grid, mesh_dim_names=DIMENSIONS)

    @property
    def cp_send_rank(self) -> int:
        """The next rank of the ring of context parallelism; the own one if cp is 1."""
        return self.cp_group_ids[(self.cp_rank + 1) % self.cp_world_size]

    @property
    def cp_recv_rank(self) -> int:
        """The previous rank of the ring of context parallelism."""
        return self.cp_group_ids[self.cp_rank - 1]

    @property
    def pp_is_first_stage(self) -> bool:
        """Report whether this rank is in the first stage of its pipeline."""
        return self.pp_rank == 0

    @property
    def pp_is_last_stage(self) -> bool:
        """Report whether this rank is in the last stage of its pipeline."""
        return self.pp_rank == self.pp_world_size - 1

    @property
    def pp_next_rank(self) -> int | None:
        """The rank of the next stage; None on the last one."""
        return None if self.pp_is_last_stage else self.pp_group_ids[self.pp_rank + 1]

    @property
    def pp_prev_rank(self) -> int | None:
        """The rank of the previous stage; None on the first one."""
        return None if self.pp_is_first_stage else self.pp_group_ids[self.pp_rank - 1]

    def get_info(self) -> dict[str, Any]:
        """Returns the rank in the job, the number of ranks, and by kind the rank in the group and the group's ranks."""
        info: dict[str, Any] = {"rank": self.global_rank, "world_size": self.world_size}
        for kind in (*DIMENSIONS, *JOINT):
            ids = getattr(self, f"{kind}_group_ids")
            info[kind] = {"rank": ids.index(self.global_rank), "world_size": len(ids), "ranks": list(ids)}
        return info

    def destroy(self) -> None:
        """Destroys the groups that this object has made; the job's own group stays. All ranks must call it. Nothing is
        left to do when the job was destroyed, or the second time."""
        global _manager
        if _manager is self:
            _manager = None
        made = [group for group in self._made.values() if group is not self.world_group]
        self._made.clear()
        if self._job_lives():
            for group in made:
                dist.destroy_process_group(group)

    def _job_lives(self) -> bool:
        """Report whether the job is initialised in which this object was made."""
        return dist.group.WORLD is self.world_group

    def __str__(self) -> str:
        return f"{self.layout}, rank {self.global_rank}"


_manager: ProcessGroupManager | None = None


def setup_process_group_manager(
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    dp: int = 1,
    *,
    device_type: str | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
) -> ProcessGroupManager:
    """Makes the manager that get_process_group_manager() returns everywhere in this process, and returns it.

    There is one in a job, as there is one default group: destroy() it before the next one is made. Arguments are those
    of ProcessGroupManager.

    Raises:
        ValueError: There is a manager of this job already, or the arguments are wrong.
    """
    global _manager
    if _manager is not None and _manager._job_lives():
        raise ValueError(f"sagecomm: setup_process_group_manager: there is {_manager} already: destroy() it first")
    _manager = None  # its job was destroyed, and its groups with it
    _manager = ProcessGroupManager(
        tp, cp, pp, dp, device_type=device_type, timeout=timeout, backend=backend, pg_options=pg_options
    )
    return _manager


def get_process_group_manager() -> ProcessGroupManager:
    """Returns the manager of this process. Raises RuntimeError if setup_process_group_manager() was not called in this
    job, or the manager was destroyed."""
    if _manager is None or not _manager._job_lives():
        raise RuntimeError("sagecomm: call setup_process_group_manager(tp, cp, pp, dp) first")
    return _manager


def _check_device_type(name: str) -> None:
    try:
        known = torch.device(name).type == name
    except RuntimeError:
        known = False
    if not known:
        raise ValueError(
            f"sagecomm: ProcessGroupManager: {name!r} is no type of device of this torch: pass 'cpu', 'cuda' or "
            "another one without an index"
        )


def _device_type(group: dist.ProcessGroup) -> str:
    """The type of device that models of this job are on, as far as one can know without them."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    served = {device.type for device in group._device_types}
    return accelerator.type if accelerator is not None and accelerator.type in served else "cpu"
