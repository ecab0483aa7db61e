"""torchrun on two hosts that a network joins (network_bed.py), one agent on each: a rank is killed, or the whole second
host. The ranks start again, meet, and go on from the checkpoint."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

import pytest
import torch

import network_bed
from elastic_rank import DEADLY_RANK, HELD
from network_bed import Network
from programs import DEADLINE_S, Programs
from test_elastic import MARK, Result, await_end, check_failures, check_results, marked

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why := network_bed.why_not()), reason=why),
]

HOSTS = 2
RENDEZVOUS_PORT = 29600
# Where agents share the store of the rendezvous with their ranks, an agent that joins a later round is not told where
# the store is: the agent of rank 0 tells that in its first round only.
NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# As in test_elastic.py. What the agent starts is in the namespace of its host, too.
LAUNCHER = """
    import multiprocessing
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args
    import worker
    from elastic_rank import train

    worker.enter({namespace!r})
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed", "sagecomm", "elastic_rank"])
    options = "--nnodes 2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d --rdzv-id test"
    options += " --rdzv-endpoint {server}:{port} --local-addr {address}"
    options += " --rdzv-conf is_host={is_host},keep_alive_interval=1"
    config, _, _ = config_from_args(parse_args([*options.split(), "--start-method", "forkserver", "script"]))
    torch.save(elastic_launch(config, train)({directory!r}, {dies}), {result!r})
"""


class Agent(Programs):
    """torchrun on one host."""

    def __init__(self, network: Network, host: int, directory: Path, dies: bool) -> None:
        self.mark = uuid.uuid4().hex
        self.result = directory / f"result of host {host}"
        script = LAUNCHER.format(
            namespace=network.namespace(host),
            server=network.address(0),
            port=RENDEZVOUS_PORT,
            address=network.address(host),
            is_host=int(host == 0),
            directory=str(directory),
            dies=dies,
            result=str(self.result),
        )
        environment = {"SAGECOMM_HOSTID": f"h{host}", MARK: self.mark, "LOGLEVEL": "CRITICAL", NOT_SHARED: "1"}
        super().__init__(script, 1, environment)

    def kill_host(self) -> None:
        """Kills all processes of the host, as its end does."""
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)

    def results(self) -> dict[int, Result]:
        self.end_well(3 * DEADLINE_S)  # the ranks of both hosts start up to four times
        await_end(self.mark)
        results: dict[int, Result] = torch.load(self.result)
        return results


def test_a_rank_is_killed(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    with (
        Network(HOSTS) as network,
        Agent(network, 0, tmp_path, dies=True) as one,
        Agent(network, 1, tmp_path, dies=True) as other,
    ):
        results = one.results() | other.results()
        check_results(results, one.errors(0) + other.errors(0))
    assert [results[rank][0] for rank in (2, 3)] == [2, 2], "the host of the rank that died twice"
    check_failures(tmp_path, DEADLY_RANK)


def test_a_host_is_killed_and_comes_again(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / HELD).touch()
    with Network(HOSTS) as network, Agent(network, 0, tmp_path, dies=False) as one:
        with Agent(network, 1, tmp_path, dies=False) as other:
            deadline = time.monotonic() + 2 * DEADLINE_S
            while len(list(tmp_path.glob("rank * is held"))) < 2:
                assert time.monotonic() < deadline, one.errors(0) + other.errors(0)
                time.sleep(0.01)
            other.kill_host()
            await_end(other.mark)
        (tmp_path / HELD).unlink()
        with Agent(network, 1, tmp_path, dies=False) as again:
            check_results(one.results() | again.results(), one.errors(0) + again.errors(0))
    check_failures(tmp_path, 2, 3)
