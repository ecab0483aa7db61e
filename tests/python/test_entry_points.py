"""`pip install` is enough: no import of ours, nothing started before the first group. test_registration.py has the
rest of what torch asks of a plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d as c10d

from programs import Programs


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


def test_no_import_starts_a_go_runtime():
    """Threads before and after: a Go runtime would bring some, as the first group then does."""
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
    dist.init_process_group({name!r})
    t = torch.ones(5)
    dist.all_reduce(t)
    say(t[0].item(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", ["sagecomm", "cpu:sagecomm"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_the_name_is_enough_under_a_launcher(name, autoload):
    if autoload == "0" and not hasattr(c10d.Backend, "_ensure_backend_registered"):
        pytest.skip("this torch does not look for backends by their names")
    with Programs(BY_NAME.format(name=name), 1, {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}, fresh=True) as ranks:
        assert ranks.line(0) == "1.0 ProcessGroupSagecomm"
        ranks.end_well()


def torchrun(script: Path, text: str, *options: str) -> str:
    """What two ranks of a job that ends well have said."""
    script.write_text(text)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [*launch, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torchrun(tmp_path):
    said = torchrun(
        tmp_path / "script.py",
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('sagecomm')\n"
        "t = torch.ones(3)\n"
        "dist.all_reduce(t)\n"
        "os.write(1, f'sum {t[0].item()}\\n'.encode())\n"  # in one piece: both ranks have the same pipe
        "dist.destroy_process_group()\n",
    )
    assert said.count("sum 2.0") == 2, said


# torchrun keeps one store for all runs of a job: what ranks of an earlier one wrote is of processes that have ended.
# In the first run rank 1 ends at once, in the second when all have met, and its peers with it.
RESTARTED = """
import os, signal, torch, torch.distributed as dist
run, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
if run == 0 and rank == 1:
    os._exit(1)
dist.init_process_group("sagecomm")
t = torch.full((3,), 10.0 ** run)
dist.all_reduce(t)
if run == 1 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(t)
os.write(1, f"run {run}: sum {t[0].item()}\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_restarts(tmp_path):
    said = torchrun(tmp_path / "script.py", RESTARTED, "--max-restarts", "3")
    assert said.count("run 2: sum 400.0") == 2, said
