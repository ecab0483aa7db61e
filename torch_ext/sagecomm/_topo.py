"""python -m sagecomm topo: what the core says of this host (sagecomm.h, topology), as text for people.

The cpus are shown by NUMA node, with the devices that are near to it; those of no node by package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sagecomm._format import many

_Json = dict[str, Any]


@dataclass(frozen=True)
class Mesh:
    """The accelerators of one maker, and how each pair reaches each other."""

    name: str
    facts: dict[int, str]  # what is known of each, by its number
    cells: dict[
        tuple[int, int], str
    ]  # of each pair: "NV18", "HCCS", "MLU" or the path through the PCI tree, as nvidia-smi names them
    classes: dict[tuple[int, int], str]  # of each pair: the class of links, as `explain --device` names it
    more: list[str]


def text(host: _Json) -> str:
    lines = [title(host), *_indented(summary(host))]
    for name, facts in blocks(host):
        lines += [f"  {name}", *_indented(_indented(facts))]
    return "\n".join(lines)


def title(host: _Json) -> str:
    named = host["host"]
    boot = f" (boot id {named['boot_id']})" if "boot_id" in named else ""
    return f"host {named.get('name', 'of unknown name')}{boot}"


def summary(host: _Json) -> list[str]:
    """What the host has, and what of it this process may use."""
    return [line for line in (_summary(host), _process(host)) if line]


def blocks(host: _Json) -> list[tuple[str, list[str]]]:
    """The parts of the host, by name, each with a line for each fact. Accelerators with their links come last."""
    found: list[tuple[str, list[str]]] = []
    rest = cpus(host.get("online", ""))
    nodes: list[_Json] = host.get("nodes", [])
    devices = _devices(host)
    for node in nodes:
        mine = cpus(node.get("cpus", ""))
        rest -= mine
        where = [_package(package) for package in host.get("packages", []) if cpus(package["cpus"]) & mine]
        facts = [*_processors(host, mine, where), _memory(node, nodes), *devices.pop(node["id"], [])]
        found.append((f"node {node['id']}", facts))
    for package in host.get("packages", []):
        if mine := cpus(package["cpus"]) & rest:
            found.append((_package(package), _processors(host, mine)))
    elsewhere = devices.pop(None, [])
    for number, facts in sorted(devices.items()):  # nodes that are not known otherwise
        found.append((f"node {number}", facts))
    found.append(("near to no node in particular" if nodes else "devices", elsewhere))
    found += [(mesh.name, _mesh(mesh)) for mesh in meshes(host)]
    return [(name, lines) for name, facts in found if (lines := [fact for fact in facts if fact])]


def cpus(kernel_list: str) -> set[int]:
    """ "0-3,8" -> {0, 1, 2, 3, 8}"""
    found: set[int] = set()
    for part in filter(None, kernel_list.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def kernel_list(numbers: Iterable[int]) -> str:
    """{0, 1, 2, 3, 8} -> "0-3,8" """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _summary(host: _Json) -> str:
    packages = host.get("packages", [])
    counts = []
    if packages:
        cores = sum(len(package["cores"]) for package in packages)
        online = len(cpus(host["online"]))
        counts = [many(len(packages), "package"), many(cores, "core"), many(online, "cpu")]
    if "offline" in host:
        counts.append(f"{len(cpus(host['offline']))} more offline")
    if "memory_bytes" in host:
        counts.append(f"memory {_size(host['memory_bytes'])}")
    return ": ".join(filter(None, [host.get("cpu_model", ""), ", ".join(counts)]))


def _process(host: _Json) -> str:
    process = host["process"]
    facts = []
    if "cpus" in process:
        facts.append(f"cpus {process['cpus']} ({len(cpus(process['cpus']))})")
    if "cpu_quota" in process:
        facts.append(f"as much time as {process['cpu_quota']:g} cpus have")
    if "memory_nodes" in process:
        facts.append(f"memory of nodes {process['memory_nodes']}")
    if "device_files" in process:
        facts.append(f"/dev/{{{','.join(process['device_files'])}}}")
    return f"this process may use {', '.join(facts)}" if facts else ""


def _processors(host: _Json, mine: set[int], where: Sequence[str] = ()) -> list[str]:
    """The cpus of a node or package: which they are, how they share cores and caches."""
    if not mine:
        return ["no cpus"]
    cores = [cpus(core["cpus"]) for package in host.get("packages", []) for core in package["cores"]]
    threads = Counter(len(core) for core in cores if core & mine)
    facts = [
        many(n, "core") + (f" of {many(size, 'thread')}" if size > 1 else "") for size, n in sorted(threads.items())
    ]
    caches = Counter(
        (cache["level"], cache.get("bytes", 0)) for cache in host.get("caches", []) if cpus(cache["cpus"]) & mine
    )
    kinds = [
        f"L{level}" + (f" {n} x" if n > 1 else "") + (f" {_size(size)}" if size else " of unknown size")
        for (level, size), n in sorted(caches.items())
    ]
    return [
        ": ".join(filter(None, [f"cpus {kernel_list(mine)}", ", ".join([*facts, *where])])),
        f"caches: {', '.join(kinds)}" if kinds else "",
    ]


def _memory(node: _Json, nodes: Sequence[_Json]) -> str:
    facts = [f"memory {_size(node['memory_bytes'])}"] if "memory_bytes" in node else []
    others = [
        f"{distance} to node {other['id']}"
        for other, distance in zip(nodes, node.get("distances", []), strict=False)
        if other is not node
    ]
    if others:
        facts.append(f"distance {', '.join(others)}")
    return "; ".join(facts)


def _devices(host: _Json) -> dict[int | None, list[str]]:
    """The lines of a node's accelerators and adapters; of no node: None."""
    found: dict[int | None, list[str]] = {}
    for devices, line in (("accelerators", _accelerator), ("rdma", _adapter), ("interfaces", _interface)):
        for device in host.get(devices, []):
            found.setdefault(device.get("node"), []).append(line(device))
    return found


def _accelerator(device: _Json) -> str:
    # As lspci -nn writes them, to look them up.
    ids = f"{device['vendor']}:{device.get('device', '?')}".replace("0x", "")
    maker = f"{device['vendor_name']} {ids}" if "vendor_name" in device else ids
    driver = f"driver {device['driver']}" if "driver" in device else "no driver"
    return f"{device['address']}: {device['kind']}, {maker}, {driver}"


# What the table of links says for links of a maker's own kind.
_OWN = {"hccs": "HCCS", "mlulink": "MLU"}


def meshes(host: _Json) -> list[Mesh]:
    """The accelerators that have links: by maker as sysfs shows them, then GPUs as NVIDIA's driver does."""
    found = []
    links: list[_Json] = host.get("links", [])
    ends = {end for link in links for end in link["ends"]}
    makers: dict[str, list[str]] = {}
    for device in host.get("accelerators", []):
        if device["address"] in ends:
            makers.setdefault(device["vendor_name"], []).append(device["address"])
    for maker, addresses in makers.items():
        number = {address: index for index, address in enumerate(addresses)}
        mine = {(number[link["ends"][0]], number[link["ends"][1]]): link for link in links if link["ends"][0] in number}
        facts = {index: address for address, index in number.items()}
        own = {pair: _OWN[link["kind"]] for pair, link in mine.items() if link["kind"] in _OWN}
        more = [
            f"{name} is not known: {host[key]}"
            for of, key, name in (("Huawei", "no_hccs", "HCCS"), ("Cambricon", "no_mlulink", "MLU-Link"))
            if maker == of and key in host
        ]
        found.append(Mesh(f"{maker} accelerators", facts, _named(mine, "path") | own, _named(mine, "class"), more))
    gpus: _Json = host.get("gpus", {})
    facts = {gpu["index"]: _gpu(gpu) for gpu in gpus.get("list", [])}
    pairs = {(link["a"], link["b"]): link for link in gpus.get("links", [])}
    nvlinks = {pair: f"NV{link['nvlinks']}" for pair, link in pairs.items() if "nvlinks" in link}
    more = [] if facts or "why" not in gpus else [f"none: {gpus['why']}"]
    more += [_visible(gpus["visible"])] if "visible" in gpus else []
    return [*found, Mesh("NVIDIA GPUs", facts, _named(pairs, "path") | nvlinks, _named(pairs, "class"), more)]


def _named(links: dict[tuple[int, int], _Json], key: str) -> dict[tuple[int, int], str]:
    return {pair: str(link.get(key, "?")) for pair, link in links.items()}


def _mesh(mesh: Mesh) -> list[str]:
    """A line for each accelerator, and a matrix of what lies between them."""
    lines = [f"{number}: {fact}" for number, fact in mesh.facts.items()]
    if len(mesh.facts) > 1:
        cells = mesh.cells | {(b, a): cell for (a, b), cell in mesh.cells.items()}
        rows = [["", *map(str, mesh.facts)]]
        rows += [[str(a), *("-" if a == b else cells.get((a, b), "?") for b in mesh.facts)] for a in mesh.facts]
        width = max(len(cell) for row in rows for cell in row)
        lines += ["  ".join(f"{cell:>{width}}" for cell in row).rstrip() for row in rows]
        counts = [f"{name} ({many(n, 'pair')})" for name, n in Counter(mesh.classes.values()).items()]
        lines.append(f"links: {', '.join(counts)}")
    return lines + mesh.more


def _visible(visible: _Json) -> str:
    """What CUDA sees of the GPUs, in the order of its device numbers."""
    devices = [
        f"{device['gpu']}" + (f" ({device['instance']})" if "instance" in device else "")
        for device in visible["devices"]
    ]
    why = f": {visible['why']}" if "why" in visible else ""
    return f"visible to CUDA: {', '.join(devices) or 'none'}, with CUDA_VISIBLE_DEVICES={visible['setting']}{why}"


def _gpu(gpu: _Json) -> str:
    facts = [
        gpu.get("name", "of unknown name"),
        _size(gpu["memory_bytes"]) if "memory_bytes" in gpu else "",
        f"compute capability {gpu['compute_capability']}" if "compute_capability" in gpu else "",
        gpu.get("address", ""),
        f"node {gpu['node']}" if "node" in gpu else "",
        _nvlinks(gpu) if "nvlinks" in gpu else "",
    ]
    return ", ".join(filter(None, facts))


def _nvlinks(gpu: _Json) -> str:
    version = f" of version {gpu['nvlink_version']}" if "nvlink_version" in gpu else ""
    return many(gpu["nvlinks"], "NVLink") + version


def _adapter(adapter: _Json) -> str:
    facts = []
    for port in adapter.get("ports", []):
        rate = _rate(port["gbps"] * 1000) if "gbps" in port else None
        known = [port.get("link"), rate, port.get("state")]
        facts.append(" ".join(filter(None, [f"port {port['number']}", *known])))
    if "interfaces" in adapter:
        facts.append(f"as {', '.join(adapter['interfaces'])}")
    return f"{adapter['name']}: RDMA{''.join(f', {fact}' for fact in facts)}"


def _interface(interface: _Json) -> str:
    facts = ["up" if interface["up"] else "down"]
    if interface.get("loopback"):
        facts.append("loopback")
    if "mbps" in interface:
        facts.append(_rate(interface["mbps"]))
    if "mtu" in interface:
        facts.append(f"MTU {interface['mtu']}")
    return f"{interface['name']}: {', '.join(facts)}"


def _package(package: _Json) -> str:
    return f"package {package.get('id', 'of unknown number')}"


def _size(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{_short(size)} {unit}"
        size /= 1024
    return f"{_short(size)} TiB"


def _rate(mbps: float) -> str:
    return f"{_short(mbps / 1000)} Gb/s" if mbps >= 1000 else f"{_short(mbps)} Mb/s"


def _short(number: float) -> str:
    """One digit behind the point, if it is not 0."""
    return f"{number:.1f}".removesuffix(".0")
