"""Reads what torch's `env://` needs out of the variables of launchers that do not set it: srun of Slurm, and the
launchers of MPI libraries. docs/hosts.md has a table of them.

The module starts nothing and asks nobody: it reads the environment, and needs no torch.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["environment"]

VARIABLE = "SAGECOMM_LAUNCHER"
_THIS_HOST = "127.0.0.1"

# Ports of stores, if nobody chooses one: above those that Linux gives to connections (32768 to 60999). Steps of a job
# that run at the same time have different ones, and so have jobs whose numbers follow each other.
_FIRST_PORT, _PORTS = 61440, 4096
_PORTS_PER_STEP = 509  # odd, so that no two of 4096 steps have the same port


@dataclass(frozen=True)
class _Launcher:
    """A launcher and the names of its variables. It has started a process that has both `size_name` and
    `local_rank_name`."""

    name: str
    title: str
    rank_name: str
    size_name: str
    local_rank_name: str
    local_size_name: str = ""  # "": it has none
    job_name: str = ""  # the text is another one for each job


_SLURM = _Launcher(
    "slurm",
    "srun",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",  # SLURM_NTASKS is also set in batch scripts, which srun has not started
    "SLURM_LOCALID",
)

# The order in which they are looked for. Slurm is last, because mpirun uses srun to start its own processes. srun may
# set PMI_RANK as well, but no MPI_LOCALRANKID.
_ALL = (
    _Launcher(
        "openmpi",
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    _Launcher(
        "mvapich2",
        "mpirun_rsh of MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "hydra",
        "mpiexec of MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "I_MPI_HYDRA_UUID",  # MPICH has none
    ),
    _SLURM,
)
LAUNCHERS = {launcher.name: launcher for launcher in _ALL}
CHOICES = ("off", "auto", *LAUNCHERS)


def environment(launcher: str = "auto", environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns those of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT that the environment lacks, as the
    launcher of this process has them.

    Call it before `init_process_group`, in programs that `srun python` or `mpirun python` starts:

        os.environ.update(sagecomm.launchers.environment())

    SAGECOMM_LAUNCHER=auto does the same at `import torch`, for programs that are not to be changed. What is set stays.
    Where RANK and WORLD_SIZE are set, as by torchrun, nothing is missing, whatever has started torchrun.

    Args:
        launcher: `slurm`, `openmpi`, `hydra` (MPICH, Intel MPI) or `mvapich2`. `auto`: the one whose variables are
            there, none if there is none; an MPI's before Slurm's.
        environ: To read instead of `os.environ`.

    Raises:
        ValueError: A variable is missing, or contradicts another one; the text names it. Nothing is guessed.
    """
    environ = os.environ if environ is None else environ
    if launcher not in CHOICES:
        raise ValueError(f"sagecomm: {VARIABLE}={launcher}: one of {', '.join(CHOICES)} is accepted")
    if launcher == "off" or (environ.get("RANK") and environ.get("WORLD_SIZE")):
        return {}
    if launcher == "auto":
        found = [name for name in LAUNCHERS if _has_started(LAUNCHERS[name], environ)]
        if not found:
            return {}
        launcher = found[0]
    return _Reading(LAUNCHERS[launcher], environ).variables()


def apply() -> None:
    """Sets the variables that SAGECOMM_LAUNCHER asks for.

    Raises:
        ValueError: As environment(). No variable is set then.
    """
    asked = os.environ.get(VARIABLE, "").strip().lower()
    if asked not in ("", "off"):
        os.environ.update(environment(asked))


def _has_started(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    return launcher.size_name in environ and launcher.local_rank_name in environ


@dataclass(frozen=True)
class _Reading:
    """The variables of one process."""

    launcher: _Launcher
    environ: Mapping[str, str]

    def variables(self) -> dict[str, str]:
        rank, size = self._number(self.launcher.rank_name), self._number(self.launcher.size_name)
        if rank >= size:
            raise self._error(
                f"{self.launcher.rank_name}={rank} and {self.launcher.size_name}={size} contradict each other"
            )
        read = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(self._number(self.launcher.local_rank_name)),
        }
        for name, of in (("RANK", self.launcher.rank_name), ("WORLD_SIZE", self.launcher.size_name)):
            if self.environ.get(name, read[name]) not in ("", read[name]):
                raise self._error(
                    f"{name}={self.environ[name]} is set, and {of}={read[name]}: unset {name}, or set RANK and "
                    "WORLD_SIZE both"
                )
        missing = {name: value for name, value in read.items() if not self.environ.get(name)}
        for name, derive in (("MASTER_ADDR", self._address), ("MASTER_PORT", self._port)):
            if not self.environ.get(name):
                missing[name] = derive()
        return missing

    def _address(self) -> str:
        if self.launcher is not _SLURM:
            if self._number(self.launcher.local_size_name) == self._number(self.launcher.size_name):
                return _THIS_HOST
            raise self._missing("MASTER_ADDR", "does not say on which host rank 0 is", "that host's name or address")
        if self._number("SLURM_STEP_NUM_NODES") == 1:
            return _THIS_HOST
        # A list of the nodes of all components is sorted by name, and rank 0 is on one of the first component's.
        if "SLURM_HET_SIZE" in self.environ:
            raise self._missing(
                "MASTER_ADDR",
                "does not say on which node of a heterogeneous job rank 0 is",
                "the first node of the step's first component, as in SLURM_JOB_NODELIST_HET_GROUP_0",
            )
        if self.environ.get("SLURM_DISTRIBUTION") == "arbitrary":
            raise self._missing(
                "MASTER_ADDR",
                "does not say where --distribution=arbitrary has put rank 0",
                "the first line of SLURM_HOSTFILE",
            )
        return self._first_node("SLURM_STEP_NODELIST")

    def _port(self) -> str:
        if self.launcher is _SLURM:
            number = self._number("SLURM_JOB_ID") + _PORTS_PER_STEP * self._number("SLURM_STEP_ID")
            return str(_FIRST_PORT + number % _PORTS)
        if job := self.environ.get(self.launcher.job_name):
            return str(_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS)
        raise self._missing(
            "MASTER_PORT",
            "has no name of the job from which a port could follow",
            "a port that is free on rank 0's host",
        )

    def _first_node(self, name: str) -> str:
        """Returns the first node of a list as Slurm writes it: gpu[03-05,9],login, or rack[0-1]n[1-4]."""
        text = self.environ.get(name, "")
        first = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+(?=,|$)", text)
        node = re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""
        if not re.fullmatch(r"[\w.:-]+", node):
            raise self._error(f"{name}={text} is no list of nodes: set MASTER_ADDR")
        return node

    def _number(self, name: str) -> int:
        text = self.environ.get(name)
        if text is None:
            raise self._error(f"{name} is not set: start the program with {self.launcher.title}")
        if not (text.isascii() and text.isdigit()):
            raise self._error(f"{name}={text} is not a whole number")
        return int(text)

    def _missing(self, name: str, why: str, what: str) -> ValueError:
        return self._error(f"{name} is not set, and {self.launcher.title} {why}: set {name} on all ranks to {what}")

    def _error(self, text: str) -> ValueError:
        return ValueError(f"sagecomm: launcher {self.launcher.name}: {text}")
