"""Makes a communication backend: of a job that runs, or of one that it begins."""

from __future__ import annotations

import os
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from sagecomm._groups import backend_names, member
from sagecomm._log import logger
from sagecomm.backends import choice
from sagecomm.backends.choice import AUTO
from sagecomm.backends.counter import Counter
from sagecomm.backends.group import GroupBackend
from sagecomm.backends.placing import SAGECOMM
from sagecomm.backends.protocol import CommBackendProtocol
from sagecomm.options import Options
from sagecomm.topology import TopologyManager

_CALL = "create_comm_backend"

# Groups that were made for a backend that the job's own group does not have, by that group's name, the backend and its
# tuning. All ranks make the same calls, so they find one, or make it, together.
_made: weakref.WeakValueDictionary[tuple[str, str, str], dist.ProcessGroup] = weakref.WeakValueDictionary()


def create_comm_backend(
    backend_type: str = "auto",
    *,
    group: dist.ProcessGroup | None = None,
    topology_manager: TopologyManager | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
) -> CommBackendProtocol:
    """Returns the operations of a process group, on the backend of a name.

    All ranks of the group call it in the same order as their collectives. In a job that is initialised it attaches to
    the group if the group has that backend, and otherwise makes a group of the same ranks that has it, once; only a
    group of all ranks of the job can be made again like that. Without a job it initialises one, from the environment of
    torchrun or from `rank` and `world_size`. Either way `torch.distributed.destroy_process_group` ends the job.

    Args:
        backend_type: "sagecomm", "gloo", "nccl", "hccl" or "cncl". "auto" takes what the group has; for a new job
            sagecomm, with the library of the accelerators' vendor for their tensors if every rank has one of its own,
            or gloo where sagecomm is not built. The logger "sagecomm" says which and why at level INFO, and so does
            standard error under SAGECOMM_DEBUG=INFO.
        group: The process group; the default one if None.
        topology_manager: How algorithms are chosen. If it asks for another choice than the default one, the backend has
            a group of its own, of sagecomm.
        rank: Of this process in a new job. None: RANK of the environment.
        world_size: Number of ranks of a new job. None: WORLD_SIZE of the environment. A job of one rank needs no
            address.
        init_method: URL under which the ranks of a new job meet. None: "env://", which needs MASTER_ADDR and
            MASTER_PORT.
        timeout: Of a new job or group, and of its operations. None: torch's default.

    Raises:
        ValueError: There is no backend of that name; this rank is not in the group; the group is a part of the job and
            lacks the backend; `rank` or `world_size` contradict the job; or nothing says which job this process is part
            of.
        RuntimeError: The backend cannot be used here. The message says what is missing.
    """
    choice.check(backend_type)
    tune = topology_manager.tune if topology_manager is not None else ""
    if tune and backend_type not in (AUTO, SAGECOMM):
        raise ValueError(
            f"sagecomm: {_CALL}: topology_manager asks for {tune!r}, which only sagecomm follows: "
            f"{backend_type} chooses its algorithms itself"
        )
    if not dist.is_initialized():
        if group is not None:
            raise ValueError(f"sagecomm: {_CALL}: a group was given, and the job is not initialised")
        _begin(backend_type, rank, world_size, init_method, timeout)
    else:
        _check_place(rank, world_size)
    base = member(group, _CALL)
    has = backend_names(base)
    if tune:
        choice.check(SAGECOMM)
        backend_type = SAGECOMM
        fits = _tune_of(base) == tune
    else:
        fits = backend_type in (AUTO, *has.values())
    if fits:
        _say("attached to group %s, which has %s", base.group_name, ", ".join(f"{n} for {d}" for d, n in has.items()))
        return GroupBackend(base, Counter())
    return GroupBackend(_another(base, backend_type, tune, timeout), Counter())


def _begin(
    name: str, rank: int | None, world_size: int | None, init_method: str | None, timeout: timedelta | None
) -> None:
    store, rank, world_size = _meet(rank, world_size, init_method, timeout)
    # Which job of this store it is. A process that lives longer than another one, as workers of Ray do, has begun more
    # jobs than its peer, so it is the store that counts.
    number, why = store.add(f"sagecomm/create_comm_backend/begun/{rank}", 1) - 1, "as asked"
    if name == AUTO:
        exchange = PrefixStore(f"sagecomm/create_comm_backend/{number}", store)
        name, why = choice.choose(choice.agree(exchange, rank, world_size))
    _say("initialising %s as rank %d of %d: %s", name, rank, world_size, why)
    # As torch does with a store of its own. A job that follows another one in the store of torchrun's agent must not
    # find the keys of the other one.
    job = PrefixStore(f"default_pg/{number}" if number else "default_pg", store)
    dist.init_process_group(name, store=job, rank=rank, world_size=world_size, timeout=timeout)


def _meet(
    rank: int | None, world_size: int | None, init_method: str | None, timeout: timedelta | None
) -> tuple[Store, int, int]:
    """Returns the store of a new job, this rank's number and the number of ranks."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"sagecomm: {_CALL}: rank and world_size are given together or not at all")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"sagecomm: {_CALL}: rank {rank} of {world_size}: expected 0 to world_size - 1")
    here = "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ
    if init_method is None and world_size == 1 and not here:
        return HashStore(), 0, 1
    if init_method is None and not (here and (rank is not None or {"RANK", "WORLD_SIZE"} <= os.environ.keys())):
        raise ValueError(
            f"sagecomm: {_CALL}: this process is part of no job: start it with torchrun, or pass rank and world_size "
            "and set MASTER_ADDR and MASTER_PORT (or pass init_method), or call init_process_group first"
        )
    bounds = {} if timeout is None else {"timeout": timeout}
    found = rendezvous(
        init_method or "env://",
        -1 if rank is None else rank,
        -1 if world_size is None else world_size,
        **bounds,
    )
    store, rank, world_size = next(found)
    if timeout is not None:
        store.set_timeout(timeout)
    return store, rank, world_size


def _check_place(rank: int | None, world_size: int | None) -> None:
    for name, given, actual in (("rank", rank, dist.get_rank()), ("world_size", world_size, dist.get_world_size())):
        if given is not None and given != actual:
            raise ValueError(f"sagecomm: {_CALL}: {name} {given} was given, and the job's is {actual}")


def _tune_of(group: dist.ProcessGroup) -> str | None:
    """Returns how a group of sagecomm was asked to choose algorithms, or None if it is none of sagecomm."""
    for device, name in backend_names(group).items():
        if name == SAGECOMM:
            backend: Any = group._get_backend(torch.device(device))
            return str(getattr(backend, "wrapped_pg", backend).options.settings.get("tune", ""))
    return None


def _another(base: dist.ProcessGroup, name: str, tune: str, timeout: timedelta | None) -> dist.ProcessGroup:
    """Returns the group with the ranks of another one that has the backend and its tuning.

    Torch names groups by a count, so they are made by all ranks of the job or go without a name that all know.
    """
    key = (base.group_name, name, tune)
    found = _made.get(key)
    if found is not None and found in c10d._world.pg_map:  # the job may have ended since, and another begun
        return found
    ranks = dist.get_process_group_ranks(base)
    if len(ranks) < dist.get_world_size():
        options = f", pg_options=sagecomm.Options(settings={{'tune': {tune!r}}})" if tune else ""
        raise ValueError(
            f"sagecomm: {_CALL}: group {base.group_name} of {len(ranks)} ranks is no group of {name}"
            f"{tune and f' with {tune!r}'}, and another one for a part of the job must be made by all of its ranks: "
            f"call torch.distributed.new_group({ranks}, backend={name!r}{options}) on all ranks and pass that group"
        )
    arguments: dict[str, Any] = {"pg_options": Options(settings={"tune": tune})} if tune else {}
    if ranks != sorted(ranks):
        arguments["sort_ranks"] = False
    made = dist.new_group(ranks, timeout=timeout, backend=name, group_desc=f"{_CALL}:{name}", **arguments)
    assert isinstance(made, dist.ProcessGroup)
    why = tune and f": {tune}"
    _say("made group %s of %s for the ranks of group %s%s", made.group_name, name, base.group_name, why)
    _made[key] = made
    return made


def _say(text: str, *arguments: object) -> None:
    logger().info(f"{_CALL}: {text}", *arguments)
