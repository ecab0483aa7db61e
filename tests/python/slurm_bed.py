"""A Slurm of two nodes on this machine, in a folder of its own, without munge. The nodes are two daemons, so ranks on
both share the kernel, the network and the memory.

It needs root and a slurmd that was built for several on one machine, as Debian's is; why_not() says what lacks.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("slurmctld", "slurmd", "sinfo", "salloc", "srun", "scancel")
START_S = 60.0

CONFIGURATION = """\
ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
KillWait=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no bed, "" if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"there is no {absent[0]} (Slurm)"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    return ""


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


class Slurm:
    """The daemons, until close(). The first node has this machine's name, so that ranks can look it up."""

    def __init__(self, folder: Path) -> None:
        host = socket.gethostname().partition(".")[0]
        self.nodes = (host, f"{host}x")  # in this order in all lists, which Slurm sorts
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._folder, self._daemons = folder, list[subprocess.Popen[bytes]]()
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(folder=folder, host=host, nodes=self.nodes, ports=free_ports(3))
        )
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (folder / name).mkdir()
        try:
            self._start("slurmctld", "-D")
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node)
            self._wait()
        except BaseException:
            self.close()
            raise

    def _start(self, *command: str) -> None:
        with (self._folder / f"{command[0]}-{command[-1]}.log").open("w") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while self._states() != ["idle", "idle"]:
            assert all(daemon.poll() is None for daemon in self._daemons), self.log()
            assert time.monotonic() < deadline, self.log()

    def _states(self) -> list[str]:
        command = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=START_S, check=False
        )
        return done.stdout.split()

    def log(self) -> str:
        return "\n".join(path.read_text() for path in self._folder.glob("*.log"))

    def close(self) -> None:
        if self._daemons:
            subprocess.run(
                ["scancel", "--user=root"], env=self.environment, capture_output=True, timeout=START_S, check=False
            )
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(START_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
