"""Which backends there are, and which one "auto" takes."""

from __future__ import annotations

import json
import socket
from collections import Counter
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d as c10d

from sagecomm import _native
from sagecomm.backends.placing import GLOO, SAGECOMM

AUTO = "auto"
NAMES = (SAGECOMM, GLOO, "nccl", "hccl", "cncl")
# The packages that register the backends that torch itself does not bring.
_PLUGINS = {"hccl": "torch_npu", "cncl": "torch_mlu"}


def missing(name: str) -> str | None:
    """Returns what a backend lacks here, in words, or None if it can be used."""
    if name == SAGECOMM:
        try:
            _native.check_build(torch.__version__)
        except RuntimeError as error:
            return str(error).removeprefix("sagecomm: ")
        return None
    if not dist.is_backend_available(name):
        if name in _PLUGINS:
            return f"{_PLUGINS[name]}, which brings {name}, is not imported or not installed"
        return f"this torch ({torch.__version__}) was built without {name}"
    if name == GLOO:
        return None
    served = c10d.Backend.backend_capability.get(name, [])
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type not in served:
        return f"{name} needs a device of type {' or '.join(served)}, and torch sees {here.type if here else 'none'}"
    return None


def check(name: str) -> None:
    """Raises for a name that is none, and for a backend that cannot be used here.

    Raises:
        ValueError: There is no such backend.
        RuntimeError: What it needs is not there.
    """
    if name not in (AUTO, *NAMES):
        here = [known for known in NAMES if missing(known) is None]
        raise ValueError(
            f"sagecomm: create_comm_backend: unknown backend {name!r}, there are: {AUTO}, {', '.join(NAMES)} (usable "
            f"here: {', '.join(here)})"
        )
    reason = None if name == AUTO else missing(name)
    if reason is not None:
        raise RuntimeError(f"sagecomm: create_comm_backend: {name} cannot be used: {reason}")


@dataclass(frozen=True)
class Facts:
    """What one rank has. Ranks exchange them, because all must choose alike."""

    host: str
    sagecomm: str | None  # what it lacks
    device: str | None  # type of its accelerators
    devices: int  # number of accelerators that it sees
    vendor: str | None  # torch's default backend for them, if it can be used


def facts() -> Facts:
    device = torch.accelerator.current_accelerator(check_available=True)
    vendor = c10d.Backend.default_device_backend_map.get(device.type) if device else None
    if vendor in (SAGECOMM, GLOO) or (vendor is not None and not dist.is_backend_available(vendor)):
        vendor = None
    count = torch.accelerator.device_count() if device else 0
    return Facts(socket.gethostname(), missing(SAGECOMM), device.type if device else None, count, vendor)


def agree(store: Store, rank: int, size: int) -> list[Facts]:
    """Returns the facts of all ranks. Raises what the store raises where a rank does not come in time."""
    store.set(str(rank), json.dumps(asdict(facts())))
    return [Facts(**json.loads(store.get(str(each)))) for each in range(size)]


def choose(ranks: list[Facts]) -> tuple[str, str]:
    """Returns what to pass to init_process_group, and why.

    The library of the accelerators' vendor carries their tensors if every rank has an accelerator to itself, and
    sagecomm everything else. Without sagecomm's native libraries gloo takes its place.
    """
    lacking = next(((i, each.sagecomm) for i, each in enumerate(ranks) if each.sagecomm is not None), None)
    host, host_why = SAGECOMM, "sagecomm carries tensors on the CPU"
    if lacking is not None:
        host, host_why = GLOO, f"gloo carries tensors on the CPU: rank {lacking[0]} has no sagecomm: {lacking[1]}"
    first = ranks[0]
    if all(each.device is None for each in ranks):
        return host, f"no rank has an accelerator; {host_why}"
    if first.vendor is None or any((each.device, each.vendor) != (first.device, first.vendor) for each in ranks):
        return host, f"the ranks do not all have accelerators of one type with a library of its own; {host_why}"
    on_host = Counter(each.host for each in ranks)
    if any(on_host[each.host] > each.devices for each in ranks):
        return host, f"{first.vendor} needs an accelerator for each rank, and some ranks share one; {host_why}"
    why = f"every rank has an accelerator of type {first.device}, whose tensors {first.vendor} carries; {host_why}"
    return f"cpu:{host},{first.device}:{first.vendor}", why
