"""python -m sagecomm topo: the text, from the core's golden files of recorded trees; the command on this machine."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import programs
from sagecomm import _topo, _topo_picture

MEMORY = re.compile(r"memory [\d.]+ \wiB")
GOLDEN = Path(__file__).parents[2] / "internal" / "topo" / "testdata"

TWO_SOCKETS = """\
host gpu-node-17 (boot id 5b0f6d1c-9d0e-4f7e-8a63-2c1f0e9b7a55)
  Intel(R) Xeon(R) Platinum 8480C: 2 packages, 8 cores, 16 cpus, 16 more offline, memory 2.2 TiB
  this process may use cpus 0-1,8-9 (4), as much time as 4 cpus have, memory of nodes 0-2
  node 0
    cpus 0-3,8-11: 4 cores of 2 threads, package 0
    caches: L2 4 x 2 MiB, L3 105 MiB
    memory 1007.5 GiB; distance 21 to node 1, 14 to node 2
    0000:03:00.0: VGA controller, 1a03:2000, driver ast
    0000:1b:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:43:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:52:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:61:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    mlx5_0: RDMA, port 1 InfiniBand 400 Gb/s ACTIVE, as ibp24s0
    mlx5_1: RDMA, port 1 InfiniBand 400 Gb/s ACTIVE, as ibp64s0
    mlx5_4: RDMA, port 1 Ethernet 100 Gb/s ACTIVE, as enp41s0np0
    enp41s0np0: up, 100 Gb/s, MTU 9000
    ibp24s0: up, 400 Gb/s, MTU 4092
    ibp64s0: up, 400 Gb/s, MTU 4092
  node 1
    cpus 4-7,12-15: 4 cores of 2 threads, package 1
    caches: L2 4 x 2 MiB, L3 105 MiB
    memory 1008 GiB; distance 21 to node 0, 24 to node 2
    0000:9d:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:c3:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:d1:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    0000:df:00.0: 3D controller, NVIDIA 10de:2330, driver nvidia
    mlx5_2: RDMA, port 1 InfiniBand 400 Gb/s ACTIVE, as ibp154s0
    mlx5_3: RDMA, port 1 InfiniBand 10 Gb/s DOWN, as ibp192s0
    ibp154s0: up, 400 Gb/s, MTU 4092
    ibp192s0: down, MTU 4092
  node 2
    no cpus
    memory 252.2 GiB; distance 14 to node 0, 24 to node 1
  near to no node in particular
    lo: up, loopback, MTU 65536
  NVIDIA accelerators
    0: 0000:1b:00.0
    1: 0000:43:00.0
    2: 0000:52:00.0
    3: 0000:61:00.0
    4: 0000:9d:00.0
    5: 0000:c3:00.0
    6: 0000:d1:00.0
    7: 0000:df:00.0
             0     1     2     3     4     5     6     7
       0     -  NODE  NODE  NODE   SYS   SYS   SYS   SYS
       1  NODE     -  NODE  NODE   SYS   SYS   SYS   SYS
       2  NODE  NODE     -  NODE   SYS   SYS   SYS   SYS
       3  NODE  NODE  NODE     -   SYS   SYS   SYS   SYS
       4   SYS   SYS   SYS   SYS     -  NODE  NODE  NODE
       5   SYS   SYS   SYS   SYS  NODE     -  NODE  NODE
       6   SYS   SYS   SYS   SYS  NODE  NODE     -  NODE
       7   SYS   SYS   SYS   SYS  NODE  NODE  NODE     -
    links: host bridge (12 pairs), socket (16 pairs)"""

ASCEND = """\
host npu-node-3
  1 package, 16 cores, 16 cpus, memory 1.5 TiB
  this process may use cpus 0-7 (8), memory of nodes 0, /dev/{davinci0,davinci1,davinci2,davinci3}
  node 0
    cpus 0-7: 8 cores, package of unknown number
    distance 20 to node 1
    0000:83:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0000:84:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0000:c3:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0000:c4:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
  node 1
    cpus 8-15: 8 cores, package of unknown number
    distance 20 to node 0
    0001:03:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0001:04:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0001:43:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
    0001:44:00.0: processing accelerator, Huawei 19e5:d802, driver devdrv_device_driver
  Huawei accelerators
    0: 0000:83:00.0
    1: 0000:84:00.0
    2: 0000:c3:00.0
    3: 0000:c4:00.0
    4: 0001:03:00.0
    5: 0001:04:00.0
    6: 0001:43:00.0
    7: 0001:44:00.0
             0     1     2     3     4     5     6     7
       0     -   PIX  NODE  NODE   SYS   SYS   SYS   SYS
       1   PIX     -  NODE  NODE   SYS   SYS   SYS   SYS
       2  NODE  NODE     -   PIX   SYS   SYS   SYS   SYS
       3  NODE  NODE   PIX     -   SYS   SYS   SYS   SYS
       4   SYS   SYS   SYS   SYS     -   PIX  NODE  NODE
       5   SYS   SYS   SYS   SYS   PIX     -  NODE  NODE
       6   SYS   SYS   SYS   SYS  NODE  NODE     -   PIX
       7   SYS   SYS   SYS   SYS  NODE  NODE   PIX     -
    links: PCI switch (4 pairs), host bridge (8 pairs), socket (16 pairs)"""

CAMBRICON = """\
host mlu-node-1
  1 package, 8 cores, 8 cpus, memory 503.5 GiB
  this process may use cpus 0-7 (8), memory of nodes 0, /dev/{cambricon_dev0,cambricon_dev1,cambricon_dev2}
  node 0
    cpus 0-7: 8 cores, package of unknown number
    0000:1a:00.0: processing accelerator, Cambricon cabc:0220, driver cambricon-pci-drv
    0000:1f:00.0: processing accelerator, Cambricon cabc:0220, driver cambricon-pci-drv
    0000:23:00.0: processing accelerator, Cambricon cabc:0220, driver cambricon-pci-drv
  Cambricon accelerators
    0: 0000:1a:00.0
    1: 0000:1f:00.0
    2: 0000:23:00.0
           0    1    2
      0    -  PXB  PHB
      1  PXB    -  PHB
      2  PHB  PHB    -
    links: PCI switch (1 pair), host bridge (2 pairs)"""

VIRTUAL_MACHINE = """\
host recorded (boot id 00000000-0000-4000-8000-000000000000)
  Intel(R) Xeon(R) Processor: 1 package, 2 cores, 2 cpus, memory 23.5 GiB
  this process may use cpus 0-1 (2), memory of nodes 0
  node 0
    cpus 0-1: 2 cores, package 0
    caches: L2 2 x 2 MiB, L3 105 MiB
    memory 23.5 GiB
  near to no node in particular
    eth0: up, MTU 1400
    ifb0: down, MTU 1500
    ifb1: down, MTU 1500
    lo: up, loopback, MTU 65536"""

CONTAINER = """\
host trainer-6d9f7 (boot id 7e1cbb1e-60f4-4d51-9b0c-54d5f0c3a1de)
  1 package, 4 cores, 4 cpus, memory 15.3 GiB
  this process may use cpus 0-3 (4), as much time as 1.5 cpus have
  package 0
    cpus 0-3: 4 cores
  devices
    eth0: up, 10 Gb/s, MTU 1450
    lo: up, loopback, MTU 65536"""

BROKEN = """\
host of unknown name
  2 packages, 5 cores, 6 cpus
  node 0
    no cpus
  node 1
    no cpus
  package of unknown number
    cpus 3-5: 3 cores
  package 0
    cpus 0-2: 1 core, 1 core of 2 threads
    caches: L3 of unknown size
  near to no node in particular
    0000:00:05.0: processing accelerator, Huawei 19e5:?, no driver
    mlx5_0: RDMA, port 1, port 2
    eth3: down"""

TEXTS = {
    "two-sockets": TWO_SOCKETS,
    "ascend": ASCEND,
    "cambricon": CAMBRICON,
    "virtual-machine": VIRTUAL_MACHINE,
    "container": CONTAINER,
    "broken": BROKEN,
}


def test_every_recorded_tree_has_its_text():
    assert sorted(TEXTS) == sorted(file.stem for file in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_text_of_a_recorded_tree(name):
    assert _topo.text(json.loads((GOLDEN / f"{name}.json").read_text())) == TEXTS[name]


GPUS = """\
host of unknown name
  NVIDIA GPUs
    0: NVIDIA A100 80GB PCIe, 80 GiB, compute capability 8.0, 0000:1b:00.0, node 0, 12 NVLinks
    2: of unknown name
    3: NVIDIA A100 80GB PCIe, 1 NVLink
             0     2     3
       0     -   PIX  NV12
       2   PIX     -     ?
       3  NV12     ?     -
    links: PCI switch (1 pair), NVLink (1 pair), not known (1 pair)"""


LINKS = [
    {"a": 0, "b": 2, "class": "PCI switch", "path": "PIX"},
    {"a": 0, "b": 3, "class": "NVLink", "path": "SYS", "nvlinks": 12},
    {"a": 2, "b": 3, "class": "not known"},
]


def test_text_of_gpus():
    a100 = {"name": "NVIDIA A100 80GB PCIe", "nvlinks": 12}
    known = {"memory_bytes": 80 << 30, "compute_capability": "8.0", "address": "0000:1b:00.0", "node": 0}
    gpus = {"list": [{"index": 0, **a100, **known}, {"index": 2}, {"index": 3, **a100, "nvlinks": 1}], "links": LINKS}
    host = {"host": {}, "process": {}}
    assert _topo.text({**host, "gpus": gpus}) == GPUS
    none = "host of unknown name\n  NVIDIA GPUs\n    none: no NVIDIA driver: no such file"
    assert _topo.text({**host, "gpus": {"why": "no NVIDIA driver: no such file"}}) == none


SVG = "{http://www.w3.org/2000/svg}"


def test_picture_of_a_recorded_tree():
    host = json.loads((GOLDEN / "two-sockets.json").read_text())
    drawn = ElementTree.fromstring(_topo_picture.svg(host))
    texts = [each.text or "" for each in drawn.iter(SVG + "text")]
    shown = {line.strip() for line in TWO_SOCKETS.splitlines()}
    texts = [text.strip() for text in texts]
    drawn_only = {*"01234567", "host bridge", "socket"}  # in the circle, and what its lines mean
    assert set(texts) == shown | drawn_only
    assert len(list(drawn.iter(SVG + "circle"))) == 8
    width = float(drawn.attrib["width"])
    for box in drawn.iter(SVG + "rect"):
        assert float(box.attrib.get("x", 0)) + float(box.attrib["width"]) <= width


def test_picture_of_gpus():
    """A line for each pair, in the colour of its class, between the circles of its two GPUs."""
    gpus = {"list": [{"index": 0}, {"index": 2}, {"index": 3}], "links": LINKS}
    drawn = ElementTree.fromstring(_topo_picture.svg({"host": {}, "process": {}, "gpus": gpus}))
    circles = list(drawn.iter(SVG + "circle"))
    places = {(each.attrib["cx"], each.attrib["cy"]): index for index, each in zip((0, 2, 3), circles, strict=True)}
    colours = {name: colour for name, (colour, _) in _topo_picture.CLASSES.items()}
    joined = {}
    for line in drawn.iter(SVG + "line"):
        ends = [places.get((line.attrib[f"x{end}"], line.attrib[f"y{end}"])) for end in "12"]
        joined.setdefault(tuple(ends), []).append(line.attrib["stroke"])
    legend = joined.pop((None, None))
    assert legend == [colours[name] for name in ("NVLink", "PCI switch", "not known")]
    assert joined == {(0, 2): [colours["PCI switch"]], (0, 3): [colours["NVLink"]], (2, 3): [colours["not known"]]}


def test_picture_of_npus():
    """A line for each pair; those below one switch are in its colour."""
    drawn = ElementTree.fromstring(_topo_picture.svg(json.loads((GOLDEN / "ascend.json").read_text())))
    colours = {name: colour for name, (colour, _) in _topo_picture.CLASSES.items()}
    strokes = [line.attrib["stroke"] for line in drawn.iter(SVG + "line")]
    assert strokes.count(colours["PCI switch"]) == 4 + 1  # and the legend
    assert strokes.count(colours["host bridge"]) == 8 + 1
    assert strokes.count(colours["socket"]) == 16 + 1
    height = float(drawn.attrib["height"])
    assert all(float(circle.attrib["cy"]) < height for circle in drawn.iter(SVG + "circle"))


def test_npus_that_hccs_joins():
    host = json.loads((GOLDEN / "ascend.json").read_text())
    host["links"][0] |= {"kind": "hccs", "class": "HCCS"}
    text = _topo.text(host)
    assert "       0     -  HCCS  NODE" in text
    assert text.endswith("links: HCCS (1 pair), host bridge (8 pairs), socket (16 pairs), PCI switch (3 pairs)")
    drawn = ElementTree.fromstring(_topo_picture.svg(host))
    strokes = [line.attrib["stroke"] for line in drawn.iter(SVG + "line")]
    assert strokes.count(_topo_picture.CLASSES["HCCS"][0]) == 1 + 1  # and the legend
    unknown = _topo.text(host | {"no_hccs": "no NPU driver"})
    assert unknown.endswith("\n    HCCS is not known: no NPU driver")


def test_mlus_that_mlulink_joins():
    host = json.loads((GOLDEN / "cambricon.json").read_text())
    host["links"][0] |= {"kind": "mlulink", "class": "MLU-Link"}
    text = _topo.text(host)
    assert " MLU " in text
    assert "links: MLU-Link (1 pair)" in text
    assert _topo.text(host | {"no_mlulink": "no MLU driver"}).endswith("\n    MLU-Link is not known: no MLU driver")


def test_the_command_draws(tmp_path):
    programs.command("topo", "--svg", str(tmp_path / "host.svg"))
    drawn = ElementTree.parse(tmp_path / "host.svg").getroot()
    assert any(os.uname().nodename in (each.text or "") for each in drawn.iter(SVG + "text"))


def test_text_of_nothing():
    assert _topo.text({"host": {}, "process": {}}) == "host of unknown name"


def test_a_device_near_to_a_node_that_is_not_known_otherwise():
    host: dict[str, Any] = {"host": {"name": "a"}, "process": {}, "interfaces": [{"name": "e", "up": True, "node": 3}]}
    assert _topo.text(host) == "host a\n  node 3\n    e: up"


@pytest.mark.parametrize("listed", ["", "0", "0-3,8", "1-2,4,6-7"])
def test_lists_of_cpus(listed):
    assert _topo.kernel_list(_topo.cpus(listed)) == listed


def test_the_command_knows_this_machine():
    topology = json.loads(programs.command("topo", "--json").said)
    assert topology["host"]["name"] == os.uname().nodename
    assert _topo.cpus(topology["process"]["cpus"]) == os.sched_getaffinity(0)
    # The memory of a virtual machine may change between two commands.
    said, expected = (MEMORY.sub("", text) for text in (programs.command("topo").said, _topo.text(topology) + "\n"))
    assert said == expected


def test_it_needs_no_group_and_starts_no_thread_of_ours():
    script = (
        "from pathlib import Path\n"
        "from sagecomm import _native\n"
        "assert _native.load().topology()\n"
        "print(*(name.read_text().strip() for name in Path('/proc/self/task').glob('*/comm')))\n"
    )
    threads = programs.run(script).said
    assert "python" in threads, threads
    assert "sagecomm" not in threads, threads
