"""Launchers that do not set what torch's env:// reads: what their variables say, and srun and mpirun themselves where
they are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import programs
import slurm_bed
from sagecomm import launchers
from slurm_bed import Slurm

LIMIT_S = 180.0

# Rank 5 of 8 in step 2 of job 1234.
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "node[01-03,7]",
    "SLURM_JOB_NODELIST": "node[00-03,7]",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-h-17@1",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def read(environ: dict[str, str], launcher: str = "auto") -> dict[str, str]:
    return launchers.environment(launcher, environ)


# ---- what the variables say ----


def test_a_step_of_slurm():
    assert read(SRUN) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "node01",
        "MASTER_PORT": str(61440 + 1234 + 2 * 509),
    }


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("login,gpu[1-2]", "login"),
        ("node[7,01-03]", "node7"),
        ("node[01-03,7],other", "node01"),
        ("rack[0-1]n[10-12]", "rack0n10"),
        ("gpu[001-128]-ib0.cluster", "gpu001-ib0.cluster"),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert read({**SRUN, "SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == first


@pytest.mark.parametrize("nodes", ["", ",b", "node[", "node[]", "a b"])
def test_a_list_that_is_none(nodes):
    with pytest.raises(ValueError, match=r"^sagecomm: launcher slurm: SLURM_STEP_NODELIST=.* is no list of nodes"):
        read({**SRUN, "SLURM_STEP_NODELIST": nodes})


def test_steps_and_neighbouring_jobs_have_different_ports():
    jobs = [{**SRUN, "SLURM_JOB_ID": str(n)} for n in range(4096, 4196)]
    steps = [{**SRUN, "SLURM_STEP_ID": str(n)} for n in range(100)]
    for together in (jobs, steps):
        ports = {int(read(environ)["MASTER_PORT"]) for environ in together}
        assert len(ports) == 100
        assert 61440 <= min(ports) <= max(ports) <= 65535


def test_one_node_is_reached_over_loopback():
    assert read({**SRUN, "SLURM_STEP_NUM_NODES": "1"})["MASTER_ADDR"] == "127.0.0.1"


def test_what_srun_has_not_started_belongs_to_no_job():
    batch_script = without(SRUN, "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", "SLURM_STEP_ID")
    shell_of_salloc = without(batch_script, "SLURM_PROCID", "SLURM_LOCALID")
    assert read(batch_script) == read(shell_of_salloc) == {}
    with pytest.raises(ValueError, match=r"launcher slurm: SLURM_STEP_NUM_TASKS is not set: start .* with srun"):
        read(batch_script, "slurm")
    one = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    assert read(one)["WORLD_SIZE"] == "1", "srun --pty bash in an allocation of eight tasks"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"SLURM_HET_SIZE": "2"}, "of a heterogeneous job"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "--distribution=arbitrary"),
    ],
)
def test_a_node_that_slurm_does_not_tell_is_asked_for(more, why):
    with pytest.raises(ValueError, match=rf"MASTER_ADDR is not set, and srun does not say .*{why}"):
        read({**SRUN, **more})
    assert read({**SRUN, **more, "MASTER_ADDR": "b"})["RANK"] == "5"
    assert read({**SRUN, **more, "SLURM_STEP_NUM_NODES": "1"})["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("environ", [OPENMPI, {**HYDRA, "I_MPI_HYDRA_UUID": "5e47"}, {**HYDRA, "MASTER_PORT": "29500"}])
def test_ranks_of_mpi_on_one_host(environ):
    seen = {**environ, **read(environ)}
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["MASTER_ADDR"]) == ("3", "4", "127.0.0.1")
    assert seen["MASTER_PORT"] == "29500" or 61440 <= int(seen["MASTER_PORT"]) <= 65535


def test_jobs_of_mpi_have_different_ports():
    ports = {read({**OPENMPI, "PMIX_NAMESPACE": f"prterun-h-{n}@1"})["MASTER_PORT"] for n in range(20)}
    assert len(ports) > 15


def test_what_mpi_does_not_tell_is_asked_for():
    with pytest.raises(ValueError, match=r"launcher mvapich2: MASTER_ADDR is not set, and .* on which host rank 0 is"):
        read(MVAPICH2)
    with pytest.raises(ValueError, match=r"launcher hydra: MASTER_PORT is not set, and mpiexec of MPICH or Intel MPI"):
        read(HYDRA)
    given = {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert read({**MVAPICH2, **given}) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


def test_the_launcher_that_started_the_process_is_read():
    """mpirun starts its own processes with srun; srun --mpi=pmi2 sets variables of an MPI."""
    assert read({**SRUN, **OPENMPI})["RANK"] == "3"
    assert read({**SRUN, **OPENMPI}, "slurm")["RANK"] == "5"
    assert read({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"})["MASTER_ADDR"] == "node01"
    assert read({}) == {}


def test_torchrun_wins():
    assert read({**SRUN, "RANK": "0", "WORLD_SIZE": "16"}) == {}


def test_what_is_set_stays():
    given = {"MASTER_ADDR": "other", "MASTER_PORT": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}
    assert read({**SRUN, **given}) == {"RANK": "5"}
    assert read({**SRUN, "WORLD_SIZE": ""})["WORLD_SIZE"] == "8"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({**SRUN, "WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, and SLURM_STEP_NUM_TASKS=8: unset WORLD_SIZE, or"),
        ({**SRUN, "RANK": "0"}, "RANK=0 is set, and SLURM_PROCID=5: unset RANK, or"),
        ({**SRUN, "SLURM_PROCID": "8"}, "SLURM_PROCID=8 and SLURM_STEP_NUM_TASKS=8 contradict each other"),
        ({**SRUN, "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x is not a whole number"),
        (without(SRUN, "SLURM_PROCID"), "SLURM_PROCID is not set: start the program with srun"),
        (without(OPENMPI, "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK is not set: start the program with mpirun"),
    ],
)
def test_what_contradicts_or_is_missing_is_named(environ, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        read(environ)


def test_the_texts_are_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    for environ in (
        {**SRUN, "SLURM_HET_SIZE": "2"},
        HYDRA,
        {**SRUN, "WORLD_SIZE": "4"},
        without(SRUN, "SLURM_STEP_NUM_TASKS"),
    ):
        with pytest.raises(ValueError, match="sagecomm: launcher ") as raised:
            read(environ, "hydra" if environ is HYDRA else "slurm")
        assert f"`{str(raised.value).removeprefix('sagecomm: ')}`" in page


def test_the_names_are_those_of_the_documentation():
    done = programs.command("env", "--json", SAGECOMM_LAUNCHER="pbs")
    (variable,) = [v for v in json.loads(done.said)["variables"] if v["name"] == launchers.VARIABLE]
    assert variable["type"] == f"one of {', '.join(launchers.CHOICES)}"
    assert "error" in variable
    with pytest.raises(ValueError, match=f"SAGECOMM_LAUNCHER=pbs: one of {', '.join(launchers.CHOICES)} is accepted"):
        read({}, "pbs")


# ---- what an import does ----

JOIN = """
import os, sys
import torch, torch.distributed as dist
if "RANK" not in os.environ:
    sys.exit("no rank")
dist.init_process_group("sagecomm")
t = torch.ones(3)
dist.all_reduce(t)
names = ("LOCAL_RANK", "MASTER_PORT", "SAGECOMM_HOSTID")
words = [dist.get_rank(), t[0].item(), *(os.environ.get(name, "-") for name in names)]
os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: ranks may have the same pipe
dist.destroy_process_group()
"""

ALONE = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": f"test-{os.getpid()}",
}


def run(command: list[str], environ: dict[str, str], limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Runs a command in an environment of which nothing is a rank's."""
    ours = without(dict(os.environ), "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return subprocess.run(
        command,
        env={**ours, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.mark.long
def test_the_variables_are_set_by_the_import_of_torch_and_on_demand_only():
    python = [sys.executable, "-c", JOIN]
    done = run(python, {**ALONE, "SAGECOMM_LAUNCHER": "auto"})
    assert (done.returncode, done.stdout.split()[:3]) == (0, ["0", "1.0", "0"]), done.stderr
    done = run(python, ALONE)
    assert done.stderr == "no rank\n"


@pytest.mark.long
def test_an_import_warns_of_variables_that_are_missing():
    done = run([sys.executable, "-c", JOIN], {**HYDRA, "SAGECOMM_LAUNCHER": "auto"})
    assert "RuntimeWarning: sagecomm: launcher hydra: MASTER_PORT is not set" in done.stderr
    assert done.stderr.endswith("no rank\n"), "some variables were set"


# ---- the launchers ----

LOOP = """
import os, signal
import torch, torch.distributed as dist
dist.init_process_group("sagecomm")
try:
    for step in range(1_000_000):
        dist.all_reduce(torch.ones(3))
        if (dist.get_rank(), step) == (1, 20):
            os.kill(os.getpid(), signal.SIGKILL)
except dist.DistBackendError as error:
    os.write(1, f"{dist.get_rank()} {type(error).__name__} {error}\\n".encode())
    raise SystemExit(1)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if why := slurm_bed.why_not():
        pytest.skip(why)
    with Slurm(tmp_path_factory.mktemp("slurm")) as bed:
        yield bed


def script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [sys.executable, str(folder / "script.py")]


def srun(slurm: Slurm, command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return run(command, {**slurm.environment, "SAGECOMM_LAUNCHER": "auto", **environ})


def said(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, done.stderr
    return sorted(line.split() for line in done.stdout.splitlines())


TWO_BY_TWO = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]


@pytest.mark.long
def test_srun_on_two_nodes(slurm, tmp_path):
    """Ranks reach the first one by its node's name. Two daemons on a kernel are one host, or two by SAGECOMM_HOSTID."""
    python = script(tmp_path, JOIN)
    ranks = said(srun(slurm, ["srun", *TWO_BY_TWO, *python]))
    assert [rank[:3] for rank in ranks] == [[str(r), "4.0", str(r % 2)] for r in range(4)]
    apart = ["bash", "-c", 'SAGECOMM_HOSTID=$SLURMD_NODENAME exec "$@"', "-", *python]
    ranks = said(srun(slurm, ["srun", *TWO_BY_TWO, *apart]))
    assert [(rank[1], rank[4]) for rank in ranks] == [("4.0", slurm.nodes[r // 2]) for r in range(4)]


@pytest.mark.long
def test_two_steps_of_a_job_at_the_same_time(slurm, tmp_path):
    """They have the same job and the same first node, and meet at different ports."""
    step = " ".join(["srun", "--nodes=1", "--ntasks=2", "--exact", *script(tmp_path, JOIN)])
    both = f"{step} & {step} & wait"
    done = srun(slurm, ["salloc", "--nodes=1", "--ntasks=4", f"--nodelist={slurm.nodes[0]}", "bash", "-c", both])
    ranks = said(done)
    assert [(rank[0], rank[1]) for rank in ranks] == [("0", "2.0")] * 2 + [("1", "2.0")] * 2, done.stderr
    assert len({rank[3] for rank in ranks}) == 2


@pytest.mark.long
def test_a_heterogeneous_job(slurm, tmp_path):
    """Its list of nodes is sorted by name: rank 0 is on the last of them."""
    both = ["salloc", "-n1", "-w", slurm.nodes[1], ":", "-n2", "-w", slurm.nodes[0], "srun", "--het-group=0,1"]
    done = srun(slurm, [*both, *script(tmp_path, JOIN)])
    assert done.returncode != 0
    assert "launcher slurm: MASTER_ADDR is not set, and srun does not say on which node of a heterog" in done.stderr
    ranks = said(srun(slurm, [*both, *script(tmp_path, JOIN)], MASTER_ADDR="127.0.0.1"))
    assert [rank[:3] for rank in ranks] == [["0", "3.0", "0"], ["1", "3.0", "0"], ["2", "3.0", "1"]]


@pytest.mark.long
def test_torchrun_under_srun(slurm, tmp_path):
    (port,) = slurm_bed.free_ports(1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    where = ["--rdzv-backend=static", f"--rdzv-endpoint=127.0.0.1:{port}", "--node-rank", "$SLURM_NODEID"]
    shell = " ".join(["exec", *torchrun, *where, script(tmp_path, JOIN)[1]])
    ranks = said(srun(slurm, ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "bash", "-c", shell]))
    assert [rank[:3] for rank in ranks] == [[str(r), "4.0", str(r % 2)] for r in range(4)]


def check_killed(done: subprocess.CompletedProcess[str], ranks: int) -> None:
    """The launcher ends with an error, and the survivors named rank 1, unless it ended them before they could."""
    assert done.returncode != 0
    for line in done.stdout.splitlines():
        assert re.match(r"[023] PeerFailure .*rank 1 \(host .*died in or after all_reduce", line), line
    assert len(done.stdout.splitlines()) < ranks


@pytest.mark.long
def test_a_rank_of_srun_is_killed(slurm, tmp_path):
    done = srun(slurm, ["srun", *TWO_BY_TWO, *script(tmp_path, LOOP)])
    check_killed(done, 4)
    assert len(done.stdout.splitlines()) == 3, "by default srun ends nobody"
    assert "task 1: Killed" in done.stderr


def mpirun_of_open_mpi() -> str:
    path = shutil.which("mpirun")
    if path is None:
        pytest.skip("there is no mpirun")
    version = run([path, "--version"], {}).stdout
    if "Open MPI" not in version:
        pytest.skip(f"mpirun is not Open MPI's: {version.splitlines()[0]}")
    return path


@pytest.mark.long
def test_mpirun(tmp_path):
    mpirun = [mpirun_of_open_mpi(), "--oversubscribe", "-n", "4", "-x", "SAGECOMM_LAUNCHER"]
    ranks = said(run([*mpirun, *script(tmp_path, JOIN)], {"SAGECOMM_LAUNCHER": "auto"}))
    assert [rank[:3] for rank in ranks] == [[str(r), "4.0", str(r)] for r in range(4)]
    check_killed(run([*mpirun, *script(tmp_path, LOOP)], {"SAGECOMM_LAUNCHER": "auto"}), 4)


@pytest.mark.long
def test_mpirun_in_an_allocation_of_slurm(slurm, tmp_path):
    """It starts a process on each other node with srun, whose variables the ranks there have as well."""
    mpirun = [mpirun_of_open_mpi(), "-x", "MASTER_ADDR", "-x", "SAGECOMM_LAUNCHER", *script(tmp_path, JOIN)]
    ranks = said(srun(slurm, ["salloc", *TWO_BY_TWO, *mpirun], MASTER_ADDR="127.0.0.1"))
    assert [rank[:3] for rank in ranks] == [[str(r), "4.0", str(r % 2)] for r in range(4)]
