"""What a host is made of, and how the choice of algorithms is set for a group.

The core reads the hardware, and its selector chooses. This module shows what the core has read, and passes tuning
settings to the selector in the grammar of SAGECOMM_TUNE (docs/tuning.md).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from sagecomm import _explain, _native
from sagecomm._topo import cpus

__all__ = [
    "Accelerator",
    "Link",
    "NetworkInterface",
    "NumaNode",
    "TopologyInfo",
    "TopologyManager",
    "select_all_reduce_algorithm",
]

_NVIDIA = "0x10de"  # PCI vendor


class TopologyInfo(Protocol):
    """What `select_all_reduce_algorithm` asks of a topology."""

    def is_fully_connected_nvlink(self) -> bool:
        """Report whether NVLink joins every two accelerators."""


@dataclass(frozen=True)
class NumaNode:
    """A part of a host's memory and the processors near to it."""

    id: int
    cpus: frozenset[int]
    memory_bytes: int | None
    distances: tuple[int, ...]  #: to each node of the host, in their order; 10 to itself


@dataclass(frozen=True)
class Accelerator:
    """A display controller or an accelerator on PCI."""

    address: str  #: domain:bus:device.function
    kind: str  #: name of its PCI class
    vendor_id: str  #: PCI vendor, such as "0x10de"
    vendor: str | None
    driver: str | None  #: kernel driver that is bound to it
    node: int | None  #: NUMA node


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface."""

    name: str
    up: bool
    loopback: bool
    mbps: int | None  #: rate, as far as its driver tells
    node: int | None  #: NUMA node


@dataclass(frozen=True)
class Link:
    """A link between two accelerators, or between one and a switch."""

    kind: str  #: "nvlink", "hccs", "mlulink", "pcie", ...
    ends: tuple[str, str]  #: PCI addresses, or the name of a switch
    count: int  #: parallel links
    path: str | None = None  #: through the PCI tree, as `nvidia-smi topo -m` names it: PIX, PXB, PHB, NODE or SYS


class TopologyManager:
    """The hardware of a host, and how groups made with it choose algorithms.

        backend = sagecomm.create_comm_backend("sagecomm", topology_manager=TopologyManager(policy="thresholds"))

    sagecomm always chooses by topology: how many hosts the ranks are on, whether they share memory and have a processor
    each, and what a probe has measured. `policy` and `rules` replace that choice for the groups of one backend. Where
    SAGECOMM_TUNE is set in the environment, it wins.

    Args:
        description: What `python -m sagecomm topo --json` prints, of this host or another one. None: this host. A list
            `links` in it adds links between accelerators, each with `kind`, `ends` (two PCI addresses, or one and the
            name of a switch) and optionally `count` and `path`. What the core has read of links through PCI is there.
        policy: "predicted" takes the algorithm with the least predicted time, "thresholds" fixed lengths.
        rules: Further clauses in the grammar of SAGECOMM_TUNE, as in "all_reduce:0-8K:one_shot". They win over
            `policy`.

    Raises:
        ValueError: There is no such policy, or a rule that no group can follow.
    """

    tune: str  #: what the groups get, in the grammar of SAGECOMM_TUNE; empty for the default choice

    def __init__(
        self, description: Mapping[str, Any] | None = None, *, policy: str = "predicted", rules: str = ""
    ) -> None:
        clauses = [f"policy={policy}"] if policy != "predicted" else []
        self.tune = ";".join([*clauses, *([rules] if rules else [])])
        self._given = description
        if self.tune:
            try:
                self.select("all_reduce", 0, 2)
            except RuntimeError as error:
                raise ValueError(str(error).replace("explain: ", "TopologyManager: ", 1)) from None

    @classmethod
    def from_file(cls, path: str | Path, *, policy: str = "predicted", rules: str = "") -> TopologyManager:
        """Returns the manager of a host whose description is in a JSON file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It holds no JSON object, or as for the class.
        """
        try:
            description = json.loads(Path(path).read_text())
        except ValueError as error:
            raise ValueError(f"sagecomm: TopologyManager: {path}: {error}") from None
        if not isinstance(description, dict):
            raise ValueError(
                f"sagecomm: TopologyManager: {path}: expected an object, as of python -m sagecomm topo --json"
            )
        return cls(description, policy=policy, rules=rules)

    @functools.cached_property
    def description(self) -> Mapping[str, Any]:
        """The description, as `python -m sagecomm topo --json` prints it."""
        if self._given is not None:
            return self._given
        read: dict[str, Any] = json.loads(_native.load().topology())
        return read

    @property
    def host(self) -> str:
        """The host's name; empty if it is not known."""
        return str(self.description.get("host", {}).get("name", ""))

    def hosts(self, group: dist.ProcessGroup | None = None) -> int:
        """Returns the number of hosts that the ranks of a group of sagecomm are on.

        Raises:
            ValueError: The group is no group of sagecomm, or this rank is not in it.
        """
        return int(_explain.explain("barrier", 0, group)["hosts"])

    @functools.cached_property
    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes of the host."""
        return tuple(
            NumaNode(
                node["id"],
                frozenset(cpus(node.get("cpus", ""))),
                node.get("memory_bytes"),
                tuple(node.get("distances", ())),
            )
            for node in self.description.get("nodes", ())
        )

    @functools.cached_property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """Its accelerators and display controllers."""
        return tuple(
            Accelerator(
                each["address"],
                each["kind"],
                each["vendor"],
                each.get("vendor_name"),
                each.get("driver"),
                each.get("node"),
            )
            for each in self.description.get("accelerators", ())
        )

    @functools.cached_property
    def interfaces(self) -> tuple[NetworkInterface, ...]:
        """Its network interfaces."""
        return tuple(
            NetworkInterface(each["name"], each["up"], each.get("loopback", False), each.get("mbps"), each.get("node"))
            for each in self.description.get("interfaces", ())
        )

    @functools.cached_property
    def links(self) -> tuple[Link, ...]:
        """The links between accelerators: NVLinks as NVIDIA's driver tells them, then those in `links`.

        The core lists there how accelerators of one maker reach each other through PCI (kind "pcie") or
        HCCS or MLU-Link, where the driver of NPUs or MLUs tells it (kinds "hccs" and "mlulink").
        """
        gpus = self.description.get("gpus", {})
        addresses = {gpu["index"]: gpu.get("address", f"GPU {gpu['index']}") for gpu in gpus.get("list", ())}
        nvlinks = [
            Link("nvlink", (addresses[each["a"]], addresses[each["b"]]), each["nvlinks"], each.get("path"))
            for each in gpus.get("links", ())
            if "nvlinks" in each
        ]
        return (*nvlinks, *(_link(each) for each in self.description.get("links", ())))

    def is_fully_connected_nvlink(self) -> bool:
        """Report whether NVLink joins every two GPUs of NVIDIA's in the host, directly or through one switch.

        False where no links are known, and for fewer than two GPUs.
        """
        neighbours: dict[str, set[str]] = {}
        for link in self.links:
            if link.kind == "nvlink":
                first, second = link.ends
                neighbours.setdefault(first, set()).add(second)
                neighbours.setdefault(second, set()).add(first)
        gpus = [each.address for each in self.accelerators if each.vendor_id == _NVIDIA]
        switches = neighbours.keys() - set(gpus)
        reach = {gpu: neighbours.get(gpu, set()) for gpu in gpus}
        pairs = list(itertools.combinations(gpus, 2))
        return bool(pairs) and all(b in reach[a] or reach[a] & reach[b] & switches for a, b in pairs)

    def select(self, op: str, nbytes: int, num_ranks: int, num_hosts: int = 1) -> str:
        """Returns the algorithm that a group made with this manager would use.

        Args:
            op: The collective, such as "all_reduce".
            nbytes: Of the tensor, or of each rank's block.
            num_ranks: Ranks of the group.
            num_hosts: Hosts that they are spread over evenly.

        Raises:
            RuntimeError: There is no such collective, or no such group.
        """
        answer = _explain.ask(
            _native.load().explain,
            op=op,
            bytes=nbytes,
            ranks=num_ranks,
            hosts=num_hosts,
            tune=self.tune,
            device=False,
        )
        return next(str(each["algorithm"]) for each in answer["candidates"] if each["chosen"])


def _link(given: Any) -> Link:
    match given:
        case {"kind": str(kind), "ends": [str(first), str(second)]} if first != second:
            return Link(kind, (first, second), int(given.get("count", 1)), given.get("path"))
    raise ValueError(
        f"sagecomm: TopologyManager: a link has a kind and two ends, as the addresses of two GPUs: {given!r}"
    )


def select_all_reduce_algorithm(data_size: int, num_devices: int, topology: TopologyInfo) -> str:
    """Returns the algorithm that the policy "thresholds" takes for an all_reduce between accelerators.

    Below 1 MB (10^6 bytes) that is "recursive_doubling" if the number of devices is a power of two, else "ring". From 1
    MB on it is "ring" if NVLink joins every two devices, else "double_tree", whose messages cross slow links less
    often. The core has the rule (docs/tuning.md, Policies), and asks for shared memory in place of NVLink where it
    chooses for tensors on the CPU. Where SAGECOMM_TUNE is set in the environment, it wins.

    Args:
        data_size: Bytes of the tensor.
        num_devices: Number of ranks, each with a device of its own.
        topology: Such as a `TopologyManager`.

    Returns:
        A name that rules of SAGECOMM_TUNE know; "local" for one device.

    Raises:
        RuntimeError: There can be no group of so many devices.
    """
    hosts = 1 if topology.is_fully_connected_nvlink() else num_devices
    return TopologyManager({}, policy="thresholds").select("all_reduce", data_size, num_devices, hosts)
