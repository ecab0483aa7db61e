"""Ray Train on two hosts that a network joins (network_bed.py), with a raylet on each. The Ray is the one that
`make test-frameworks` installs, which also runs the script of docs/frameworks.md on one host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import network_bed
from network_bed import Network

BIN = Path(__file__).resolve().parents[2] / "build" / "frameworks" / "bin"
PORT = 6379
TRAIN_S = 200.0  # until a script that is to end counts as hanging
END_S = 30.0  # until a raylet that is to end is killed
READY = "Ray runtime started"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why := network_bed.why_not()), reason=why),
    pytest.mark.skipif(not (BIN / "ray").exists(), reason="there is no Ray: `make test-frameworks` installs it"),
]

TRAIN = """
import json
import os
import sys

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train():
    import torch
    import torch.distributed as dist

    t = torch.full((100_000,), float(dist.get_rank()))
    dist.all_reduce(t)
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (dist.get_backend(), os.environ["SAGECOMM_HOSTID"], t[-1].item()))
    return ranks


ray.init(address=sys.argv[1])
torch_config = TorchConfig(backend="sagecomm")
trainer = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=4), torch_config=torch_config)
print("ranks", json.dumps(trainer.fit().return_value), flush=True)
"""


class Cluster:
    """Two raylets with two processors each, one on each host of a network. `place` has their sessions and logs, and a
    short name: Ray makes Unix sockets some way below it."""

    def __init__(self, network: Network, place: str) -> None:
        self._network, self._place = network, place
        self._raylets: list[subprocess.Popen[str]] = []
        self.address = f"{network.address(0)}:{PORT}"
        try:
            self._start(0, "--head", "--port", str(PORT), "--include-dashboard=false")
            self._start(1, "--address", self.address)
        except BaseException:
            self.close()
            raise

    def at(self, host: int, *words: str) -> subprocess.Popen[str]:
        """Starts a command on a host, whose output is one pipe."""
        ours = {
            "HOME": self._place,
            "RAY_TMPDIR": self._place,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Without it Ray's workers have the least priority but four, and a busy machine makes minutes of seconds.
            "RAY_worker_niceness": "0",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(int(TRAIN_S)),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "SAGECOMM_HOSTID": f"h{host}",
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self._network.namespace(host), *words],
            env={**os.environ, **ours},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _start(self, host: int, *options: str) -> None:
        node = ("--block", "--node-ip-address", self._network.address(host), "--num-cpus=2")
        raylet = self.at(host, str(BIN / "ray"), "start", *node, "--object-store-memory=80000000", *options)
        self._raylets.append(raylet)
        assert raylet.stdout is not None
        said = []
        for line in raylet.stdout:
            said.append(line)
            if READY in line:
                return
        raise AssertionError(f"there is no raylet on host {host}:\n{''.join(said)}")

    def close(self) -> None:
        """Ends the raylets, and whatever is left on the hosts. Both end at once: the first one would wait for 30 s when
        it is alone."""
        for raylet in self._raylets:
            raylet.terminate()
        for raylet in self._raylets:
            try:
                raylet.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                raylet.kill()
        for host in range(self._network.hosts):
            for pid in network_bed.ip("netns", "pids", self._network.namespace(host)).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for raylet in self._raylets:
            raylet.communicate()


@contextmanager
def cluster() -> Iterator[Cluster]:
    with Network(2) as network, tempfile.TemporaryDirectory(prefix="sagecomm-", ignore_cleanup_errors=True) as place:
        raylets = Cluster(network, place)
        try:
            yield raylets
        finally:
            raylets.close()


def test_ray_train_on_two_hosts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with cluster() as raylets:
        driver = raylets.at(0, str(BIN / "python"), str(tmp_path / "train.py"), raylets.address)
        said, _ = driver.communicate(timeout=TRAIN_S)
    assert driver.returncode == 0, said
    (answer,) = (line.removeprefix("ranks ") for line in said.splitlines() if line.startswith("ranks "))
    ranks = json.loads(answer)
    assert sorted(ranks) == [["sagecomm", host, 6.0] for host in ("h0", "h0", "h1", "h1")]
