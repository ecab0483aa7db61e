"""TopologyManager: what it shows of a host, and that it changes what a group chooses."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm import TopologyManager, create_comm_backend, select_all_reduce_algorithm
from sagecomm.topology import Accelerator, Link, NetworkInterface, NumaNode
from test_topo import GOLDEN
from worlds import World

TWO_SOCKETS = GOLDEN / "two-sockets.json"
GPUS = [each.address for each in TopologyManager.from_file(TWO_SOCKETS).accelerators if each.vendor == "NVIDIA"]


def test_a_recorded_host() -> None:
    manager = TopologyManager.from_file(TWO_SOCKETS)
    assert manager.host == "gpu-node-17"
    first = manager.numa_nodes[0]
    assert first == NumaNode(0, frozenset({0, 1, 2, 3, 8, 9, 10, 11}), first.memory_bytes, (10, 21, 14))
    assert manager.accelerators[1] == Accelerator("0000:1b:00.0", "3D controller", "0x10de", "NVIDIA", "nvidia", 0)
    assert NetworkInterface("enp41s0np0", True, False, 100_000, 0) in manager.interfaces
    assert len(manager.links) == 28
    assert manager.links[0] == Link("pcie", ("0000:1b:00.0", "0000:43:00.0"), 1, "NODE")
    assert not manager.is_fully_connected_nvlink()


def test_a_host_of_npus() -> None:
    manager = TopologyManager.from_file(GOLDEN / "ascend.json")
    assert manager.accelerators[0] == Accelerator(
        "0000:83:00.0", "processing accelerator", "0x19e5", "Huawei", "devdrv_device_driver", 0
    )
    paths = [link.path for link in manager.links]
    assert {path: paths.count(path) for path in paths} == {"PIX": 4, "NODE": 8, "SYS": 16}
    assert {link.kind for link in manager.links} == {"pcie"}


def test_this_host() -> None:
    manager = TopologyManager()
    assert manager.tune == ""
    assert manager.host == Path("/proc/sys/kernel/hostname").read_text().strip()
    assert any(each.loopback for each in manager.interfaces)
    assert set().union(*(node.cpus for node in manager.numa_nodes)) or not manager.numa_nodes


@pytest.mark.parametrize("description", [{}, {"accelerators": []}])
def test_a_description_may_leave_everything_out(description: dict[str, Any]) -> None:
    manager = TopologyManager(description)
    assert (manager.host, manager.numa_nodes, manager.accelerators, manager.interfaces) == ("", (), (), ())
    assert not manager.is_fully_connected_nvlink()


def nvlink(*ends: str) -> dict[str, Any]:
    return {"kind": "nvlink", "ends": ends, "count": 18}


@pytest.mark.parametrize("joined", [True, False])
def test_nvlinks_of_the_driver(joined: bool) -> None:
    description = json.loads(TWO_SOCKETS.read_text())
    addresses = [each["address"] for each in description["accelerators"] if each["vendor"] == "0x10de"]
    pairs = list(itertools.combinations(range(len(addresses)), 2))
    description["gpus"] = {
        "list": [{"index": index, "address": address} for index, address in enumerate(addresses)],
        "links": [{"a": a, "b": b, "path": "SYS", "nvlinks": 18} for a, b in pairs if joined or (a, b) != pairs[3]],
    }
    del description["links"]  # as the core does where the driver knows more
    manager = TopologyManager(description)
    assert len(manager.links) == len(description["gpus"]["links"])
    assert manager.links[0] == Link("nvlink", (addresses[0], addresses[1]), 18, "SYS")
    assert manager.is_fully_connected_nvlink() == joined


@pytest.mark.parametrize(
    ("links", "full"),
    [
        ([nvlink(*pair) for pair in itertools.combinations(GPUS, 2)], True),
        ([nvlink(*pair) for pair in list(itertools.combinations(GPUS, 2))[:-1]], False),
        ([nvlink(gpu, "nvswitch0") for gpu in GPUS], True),
        ([nvlink(gpu, "nvswitch0") for gpu in GPUS[:-1]], False),
        ([nvlink(gpu, f"nvswitch{i % 2}") for i, gpu in enumerate(GPUS)], False),
        ([{"kind": "pcie", "ends": pair} for pair in itertools.combinations(GPUS, 2)], False),
        # A ring of links: two GPUs that have a third one in common are not joined.
        ([nvlink(gpu, GPUS[i - 1]) for i, gpu in enumerate(GPUS)], False),
    ],
)
def test_fully_connected(links: list[dict[str, Any]], full: bool) -> None:
    """The display controller of the host's management, which stands among the accelerators, has no part in it."""
    description = {**json.loads(TWO_SOCKETS.read_text()), "links": links}
    manager = TopologyManager(description)
    assert manager.links[0] == Link(links[0]["kind"], tuple(links[0]["ends"]), links[0].get("count", 1))
    assert manager.is_fully_connected_nvlink() is full
    assert len(GPUS) > 3


@pytest.mark.parametrize("link", [{"kind": "nvlink"}, {"ends": GPUS[:2]}, nvlink(GPUS[0]), nvlink(*GPUS[:1] * 2), 3])
def test_what_is_no_link_is_refused(link: Any) -> None:
    with pytest.raises(ValueError, match="TopologyManager: a link has a kind and two ends"):
        TopologyManager({"links": [link]}).is_fully_connected_nvlink()


@pytest.mark.parametrize(("text", "reason"), [("{", "Expecting"), ("[]", "expected an object")])
def test_a_file_that_describes_no_host_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"TopologyManager: {re.escape(str(path))}: .*{reason}"):
        TopologyManager.from_file(path)


class Joined:
    def is_fully_connected_nvlink(self) -> bool:
        return True


class Apart:
    def is_fully_connected_nvlink(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("nbytes", "devices", "topology", "algorithm"),
    [
        (0, 8, Apart(), "recursive_doubling"),
        (999_999, 8, Joined(), "recursive_doubling"),
        (999_999, 6, Joined(), "ring"),
        (999_999, 6, Apart(), "ring"),
        (1_000_000, 8, Joined(), "ring"),
        (1_000_000, 6, Joined(), "ring"),
        (1_000_000, 8, Apart(), "double_tree"),
        (100_000_000, 6, Apart(), "double_tree"),
        (100_000_000, 6, TopologyManager({}), "double_tree"),
        (1_000_000, 1, Apart(), "local"),
    ],
)
def test_the_rule_for_all_reduce(nbytes: int, devices: int, topology: Any, algorithm: str) -> None:
    assert select_all_reduce_algorithm(nbytes, devices, topology) == algorithm


def test_the_rule_refuses_what_is_no_group() -> None:
    with pytest.raises(RuntimeError, match="0 ranks"):
        select_all_reduce_algorithm(8, 0, Apart())


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"policy": "fastest"}, "fastest"),
        ({"rules": "all_reduce:0-8K:rign"}, "rign"),
        ({"rules": "all_reduce:0-8K:ring;all_reduce:4K-inf:ring"}, "all_reduce"),
    ],
)
def test_a_choice_that_no_group_can_make_is_refused(how: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=f"^sagecomm: .*{re.escape(named)}"):
        TopologyManager(**how)


def chosen(nbytes: int, group: Any) -> str:
    return next(c["algorithm"] for c in sagecomm.explain("all_reduce", nbytes, group)["candidates"] if c["chosen"])


def changed() -> tuple[str, ...]:
    plain = create_comm_backend("sagecomm")
    same = create_comm_backend("sagecomm", topology_manager=TopologyManager())
    manager = TopologyManager(policy="thresholds", rules="all_reduce:0-64:one_shot")
    ruled = create_comm_backend("sagecomm", topology_manager=manager)
    again = create_comm_backend("auto", topology_manager=TopologyManager(policy="thresholds", rules=manager.tune[18:]))
    assert len(c10d._world.pg_map) == 2
    groups = [backend.group for backend in (plain, same, ruled, again)]
    assert groups[0] is groups[1]
    assert groups[2] is groups[3] is not groups[0]
    for backend in plain, ruled:
        total = backend.all_reduce(torch.arange(300_000.0))
        assert torch.equal(total, dist.get_world_size() * torch.arange(300_000.0))
    row = next(row for row in ruled.get_stats()["rows"] if row["op"] == "all_reduce")
    assert manager.hosts(groups[2]) == 1
    names = (*(chosen(n, groups[2]) for n in (64, 4096, 1_000_000)), row["algorithm"])
    assert names == (*(manager.select("all_reduce", n, dist.get_world_size()) for n in (64, 4096, 1_000_000)), names[3])
    with pytest.raises(ValueError, match=r"topology_manager asks for 'policy=thresholds.*gloo chooses its algorithms"):
        create_comm_backend("gloo", topology_manager=manager)
    gloo = create_comm_backend("gloo", topology_manager=TopologyManager())
    assert gloo.all_reduce(torch.ones(1)).item() == dist.get_world_size()
    return names


def test_a_manager_changes_the_choice_of_a_group(world: Callable[[int], World]) -> None:
    assert world(2).run(changed) == [("one_shot", "recursive_doubling", "ring", "ring")] * 2
    assert world(3).run(changed) == [("one_shot", "ring", "ring", "ring")] * 3


def attached() -> None:
    """A group that was made with a choice is taken for a manager that asks for the same one."""
    create_comm_backend("sagecomm", topology_manager=TopologyManager(policy="thresholds"))
    assert len(c10d._world.pg_map) == 1
    create_comm_backend("sagecomm", topology_manager=TopologyManager(rules="all_reduce:ring"))
    assert len(c10d._world.pg_map) == 2


def test_a_group_that_chooses_so_already(world: Callable[[int], World]) -> None:
    world(2).run(attached, options=sagecomm.Options(settings={"tune": "policy=thresholds"}))
