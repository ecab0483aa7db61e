"""GPUs as NVML describes them: `python -m sagecomm topo` and TopologyManager.

The tests run them in processes whose loader finds the emulator's libnvidia-ml.so.1 (tests/emulator/nvml) and binds all
symbols at once, as LD_BIND_NOW=1 asks. Each is a new process, because the loader reads its variables at the start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import programs
from sagecomm import _topo_picture

LONG = pytest.mark.long

LIBRARY = "libnvidia-ml.so.1"
EMULATOR = Path(__file__).resolve().parents[1] / "emulator"

H100 = """\
  NVIDIA GPUs
    0: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:1b:00.0, node 0, 18 NVLinks of version 4.0
    1: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:43:00.0, node 0, 18 NVLinks of version 4.0
    2: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:52:00.0, node 0, 18 NVLinks of version 4.0
    3: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:61:00.0, node 0, 18 NVLinks of version 4.0
    4: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:9d:00.0, node 1, 18 NVLinks of version 4.0
    5: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:c3:00.0, node 1, 18 NVLinks of version 4.0
    6: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:d1:00.0, node 1, 18 NVLinks of version 4.0
    7: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, 0000:df:00.0, node 1, 18 NVLinks of version 4.0
             0     1     2     3     4     5     6     7
       0     -  NV18  NV18  NV18  NV18  NV18  NV18  NV18
       1  NV18     -  NV18  NV18  NV18  NV18  NV18  NV18
       2  NV18  NV18     -  NV18  NV18  NV18  NV18  NV18
       3  NV18  NV18  NV18     -  NV18  NV18  NV18  NV18
       4  NV18  NV18  NV18  NV18     -  NV18  NV18  NV18
       5  NV18  NV18  NV18  NV18  NV18     -  NV18  NV18
       6  NV18  NV18  NV18  NV18  NV18  NV18     -  NV18
       7  NV18  NV18  NV18  NV18  NV18  NV18  NV18     -
    links: NVLink (28 pairs)
"""

PCIE = """\
  NVIDIA GPUs
    0: NVIDIA L4, 21.5 GiB, compute capability 8.9, 0000:3b:00.0, node 0
    1: NVIDIA L4, 21.5 GiB, compute capability 8.9, 0000:af:00.0, node 0
           0    1
      0    -  PHB
      1  PHB    -
    links: host bridge (1 pair)
"""

# What a test asks of a process: one start of Python answers all of it.
ASK = """
import contextlib, io, json, runpy, tempfile
from pathlib import Path
from sagecomm import TopologyManager

def topo(*arguments):
    sys.argv = ["sagecomm", "topo", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_module("sagecomm", run_name="__main__")
    return said.getvalue()

manager = TopologyManager()
with tempfile.TemporaryDirectory() as folder:
    text = topo("--svg", folder + "/host.svg")
    picture = Path(folder, "host.svg").read_text()
links = [[link.kind, link.ends, link.count] for link in manager.links]
say(json.dumps({"text": text, "picture": picture, "json": json.loads(topo("--json"))["gpus"], "links": links}))
"""


@pytest.fixture(scope="module")
def built() -> Path:
    command = [sys.executable, EMULATOR / "build.py", "nvml", "nvml_without_nvlink"]
    subprocess.run(command, check=True, timeout=120)
    return EMULATOR / "build"


def environment(built: Path, machine: str, library: str = "nvml", **more: str) -> dict[str, str]:
    machine = str(EMULATOR / "nvml" / "machines" / f"{machine}.txt")
    return {"LD_LIBRARY_PATH": str(built / library), "LD_BIND_NOW": "1", "EMULATOR_NVML": machine, **more}


def ask(script: str, variables: dict[str, str]) -> str:
    """What a new process says."""
    with programs.Programs(script, 1, variables, fresh=True) as process:
        said = process.line(0)
        assert process.ends(0) == 0, process.errors(0)
    return said


def gpus_of(text: str) -> str:
    _, head, rest = text.partition("  NVIDIA GPUs\n")
    return head + rest


def test_eight_gpus_behind_switches(built: Path) -> None:
    answer = json.loads(ask(ASK, environment(built, "h100")))
    assert gpus_of(answer["text"]) == H100
    assert len(answer["json"]["links"]) == len(answer["links"]) == 28
    assert answer["links"][0] == ["nvlink", ["0000:1b:00.0", "0000:43:00.0"], 18]
    drawn = ElementTree.fromstring(answer["picture"])
    colours = [line.attrib["stroke"] for line in drawn.iter("{http://www.w3.org/2000/svg}line")]
    assert colours == [_topo_picture.CLASSES["NVLink"][0]] * 29  # 28 pairs and the legend


@pytest.mark.parametrize(
    ("machine", "variables", "expected"),
    [
        pytest.param("pcie", {}, PCIE, marks=LONG),
        pytest.param(
            "none",
            {},
            "  NVIDIA GPUs\n    none: the driver has 0 GPUs, and none that this process may use\n",
            marks=LONG,
        ),
        pytest.param("not-loaded", {}, "  NVIDIA GPUs\n    none: NVML does not start: Driver Not Loaded\n", marks=LONG),
        pytest.param(
            "pcie",
            {"CUDA_VISIBLE_DEVICES": "1"},
            PCIE + "    visible to CUDA: 1, with CUDA_VISIBLE_DEVICES=1\n",
            marks=LONG,
        ),
    ],
    ids=["two cards", "no GPUs", "no driver", "one visible card"],
)
def test_text_of_other_machines(built: Path, machine: str, variables: dict[str, str], expected: str) -> None:
    # The command's process is this one's child, without torch, which the command does not need.
    done = subprocess.run(
        [sys.executable, "-m", "sagecomm", "topo"],
        env={**os.environ, **environment(built, machine, **variables)},
        capture_output=True,
        text=True,
        timeout=programs.DEADLINE_S,
        check=True,
    )
    assert gpus_of(done.stdout) == expected


VISIBLE = """
import ctypes, json, os
from sagecomm import _native
settings = ["1,0", "GPU-00000001-0000-0000-0000-000000000000", "MIG-22222222-0000-0000-0000-000000000000"]
for setting in settings:
    os.environ["CUDA_VISIBLE_DEVICES"] = setting  # what the process says now counts
    visible = json.loads(_native.load().topology())["gpus"]["visible"]
    assert visible["setting"] == setting, visible
    devices = visible["devices"]
    say([device["gpu"] for device in devices], *(device.get("instance", "-") for device in devices))

# NVML counts who has started it: the core leaves it running for others.
del os.environ["CUDA_VISIBLE_DEVICES"]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint()
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1, "it runs although nobody has started it"
assert nvml.nvmlInit_v2() == 0
assert len(json.loads(_native.load().topology())["gpus"]["list"]) == 2
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 2
assert nvml.nvmlShutdown() == 0
assert nvml.nvmlShutdown() == 1, "somebody else has left it running"
say("counted")
"""


@pytest.mark.long
def test_gpus_that_are_visible_and_a_library_that_runs_already(built: Path) -> None:
    with programs.Programs(VISIBLE, 1, environment(built, "mig"), fresh=True) as process:
        assert process.line(0) == "[1, 0] - -"
        assert process.line(0) == "[1] -"
        assert process.line(0) == "[1] MIG-22222222-0000-0000-0000-000000000000"
        assert process.line(0) == "counted"
        assert process.ends(0) == 0, process.errors(0)


GROUP = """
import ctypes, sagecomm
ctypes.CDLL(os.environ["NVML"])  # the loader finds the library by its name from now on
if "DRIVER" in os.environ:  # a process uses CUDA if it has loaded the driver
    ctypes.CDLL(os.environ["DRIVER"])
dist.init_process_group("sagecomm")
links = sagecomm.explain("all_reduce", 8, device=True)["device_links"]
say(*(f"{link['class']}: {link['pairs']};" for link in links))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("machine", "visible", "expected"),
    [
        pytest.param("h100", "0,1", "NVLink: 1;", marks=LONG),
        pytest.param("pcie", "1,0", "host bridge: 1;", marks=LONG),
        ("pcie", "1", "same device: 1;"),  # LOCAL_RANK, modulo what CUDA sees
        ("not-loaded", "0,1", "not known: 1;"),
    ],
)
def test_ranks_tell_each_other_of_links(built: Path, machine: str, visible: str, expected: str) -> None:
    more = {
        "CUDA_VISIBLE_DEVICES": visible,
        "DRIVER": str(built / "libcuda.so.1"),
        "NVML": str(built / "nvml" / LIBRARY),
    }
    with programs.Programs(GROUP, 2, environment(built, machine, **more)) as ranks:
        assert ranks.lines() == [expected] * 2
        ranks.end_well()


def test_processes_without_cuda_do_not_start_nvml(built: Path) -> None:
    variables = environment(built, "h100", NVML=str(built / "nvml" / LIBRARY))
    with programs.Programs(GROUP, 2, variables) as ranks:
        assert ranks.lines() == ["not known: 1;"] * 2
        ranks.end_well()


@pytest.mark.long
def test_the_command_explains_links(built: Path) -> None:
    command = [sys.executable, "-m", "sagecomm", "explain", "--device", "--ranks", "16", "--hosts", "2", "--json"]
    variables = {**os.environ, **environment(built, "a100")}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=programs.DEADLINE_S, check=True
    )
    links = json.loads(done.stdout)["device_links"]
    assert [(link["class"], link["pairs"], link.get("nvlinks")) for link in links] == [
        ("NVLink", 56, 12),
        ("network", 64, None),
    ]


@LONG
def test_a_library_without_functions_of_nvlink(built: Path) -> None:
    answer = json.loads(ask(ASK, environment(built, "h100", "nvml_without_nvlink")))
    assert len(answer["json"]["list"]) == 8
    assert answer["links"] == []
    assert answer["json"]["links"][6] == {"a": 0, "b": 7, "class": "socket", "path": "SYS", "p2p": True}
