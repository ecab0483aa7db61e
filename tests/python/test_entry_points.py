"""`pip install` is enough: no import of ours, nothing started before the first group. test_registration.py has the
rest of what torch asks of a plugin."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d as c10d

import sagecomm
from programs import Programs
from selection import quickly


def output(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_no_import_starts_a_go_runtime():
    """An import starts no thread, and so no Go runtime; the first group starts one."""
    code = """
        import os
        def threads(): return len(os.listdir("/proc/self/task"))
        def loaded(): return "libsagecomm" in open("/proc/self/maps").read()
        import torch
        without = threads()
        import sagecomm
        assert threads() == without and not loaded()
        import torch.distributed as dist
        dist.Backend("sagecomm")
        sagecomm.Options()
        assert threads() == without and not loaded()
        dist.init_process_group("sagecomm", store=dist.HashStore(), rank=0, world_size=1)
        assert threads() > without and loaded()
        print(without)
    """
    # With the entry point left out, `import torch` cannot have loaded anything of ours.
    assert output(code) == output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


BY_NAME = """
    assert "sagecomm" not in sys.argv
    dist.init_process_group("cpu:sagecomm")
    t = torch.ones(5)
    dist.all_reduce(t)
    say(t[0].item(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
    dist.destroy_process_group()
"""


# That name alone is tested in test_registration.py, and below under torchrun.
@pytest.mark.parametrize("autoload", quickly([], ["0", "1"]))
def test_the_name_is_enough_under_a_launcher(autoload):
    if autoload == "0" and not hasattr(c10d.Backend, "_ensure_backend_registered"):
        pytest.skip("this torch does not look for backends by their names")
    with Programs(BY_NAME, 1, {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}, fresh=True) as ranks:
        assert ranks.line(0) == "1.0 ProcessGroupSagecomm"
        ranks.end_well()


def test_torchrun(tmp_path):
    """The command itself; restarts are tested in test_elastic.py."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('sagecomm')\n"
        "t = torch.ones(3)\n"
        "dist.all_reduce(t)\n"
        "os.write(1, f'sum {t[0].item()}\\n'.encode())\n"  # in one piece: both ranks have the same pipe
        "dist.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2, done.stdout


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The console script, without an installation of it."""
    return subprocess.run(
        [sys.executable, "-c", "import _sagecomm_autoload as a; a.command()", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_console_script_is_the_module():
    (script,) = (e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "sagecomm")
    assert script.value == "_sagecomm_autoload:command"
    assert command("--version").stdout == f"sagecomm {sagecomm.__version__}\n"
    # Without a command it prints the help, which is no error.
    helped = command()
    assert helped.returncode == 0
    assert all(verb in helped.stdout for verb in ("env", "status", "topo", "explain", "simulate", "tune"))
    assert command("watch").returncode == 2


@pytest.mark.long
def test_unknown_variables_are_warned_of():
    said = command("env", SAGECOMM_DEBIG="INFO")
    assert said.returncode == 0
    assert "? SAGECOMM_DEBIG=INFO\n      sagecomm: SAGECOMM_DEBIG is set but there is no such variable; " in said.stdout
    assert "did you mean SAGECOMM_DEBUG?" in said.stdout


@pytest.mark.long
def test_env_tells_which_devices_there_are(tmp_path: Path):
    """A line for each vendor. The libraries of the emulator are those of a machine with two devices of each."""
    none = command("env").stdout
    for name, runtime, library in (("npu", "Ascend", "libascendcl.so"), ("mlu", "Cambricon", "libcnrt.so")):
        assert f"\n  {name}: no {runtime} runtime: {library}: cannot open shared object file" in none, none
    emulator = Path(__file__).resolve().parents[1] / "emulator"
    subprocess.run([sys.executable, emulator / "build.py", "acl", "cnrt", "hccl", "cncl"], check=True, timeout=300)
    two = command("env", LD_LIBRARY_PATH=str(emulator / "build")).stdout
    assert "\n  npu: 2 devices (libascendcl.so); engine hccl\n  mlu: 2 devices (libcnrt.so); engine cncl" in two, two
    for name in ("libascendcl.so", "libcnrt.so", "libemulator.so"):
        (tmp_path / name).symlink_to(emulator / "build" / name)
    lacking = command("env", LD_LIBRARY_PATH=str(tmp_path)).stdout
    absent = "cannot open shared object file"
    assert f"\n  npu: 2 devices (libascendcl.so); not hccl: no HCCL: libhccl.so: {absent}" in lacking, lacking
    assert f"\n  mlu: 2 devices (libcnrt.so); not cncl: no CNCL: libcncl.so: {absent}" in lacking, lacking
