"""The libraries with NCCL's and HCCL's interface on host memory. Ranks are on several hosts and meet at unique ids."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest

import network_bed
import test_hccl_facade as hccl
from facade_processes import in_processes
from nccl_facade import INT32, INVALID_USAGE, REMOTE_ERROR, SUM, Error, Library
from network_bed import Network
from promises import kept
from selection import quickly
from test_nccl_facade import as_pynccl, unique_id

DEATH_S = 3.0  # until a death is an error on all ranks
N = 1 << 18

needs_network = pytest.mark.skipif(bool(why := network_bed.why_not()), reason=why)


def on_hosts(sizes: tuple[int, ...]) -> list[dict[str, str]]:
    return [{"SAGECOMM_HOSTID": f"h{host}"} for host, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("sizes", quickly([(1, 1)], [(1, 1), (2, 2), (1, 1, 1)]), ids=str)
def test_operations_of_pynccl(sizes: tuple[int, ...]) -> None:
    in_processes(as_pynccl, unique_id, sum(sizes), environments=on_hosts(sizes))


@pytest.mark.parametrize("sizes", quickly([(1, 1)], [(1, 1), (2, 2)]), ids=str)
def test_operations_of_pyhccl(sizes: tuple[int, ...]) -> None:
    in_processes(hccl.as_pyhccl, hccl.root_info, sum(sizes), environments=on_hosts(sizes))


def total(library: Library, comm: ctypes.c_void_p, size: int) -> None:
    """Adds up large tensors."""
    numbers = (ctypes.c_int32 * N)(*range(N))
    library.call("ncclAllReduce", numbers, numbers, N, INT32, SUM, comm, None)
    assert numbers[N - 1] == size * (N - 1)


def derived(unique_id: bytes, rank: int, size: int) -> None:
    """Two groups are split off, the first rank of each on another host, and one that has all ranks in falling order."""
    library = Library()
    comm = library.communicator(size, unique_id, rank)
    total(library, comm, size)
    for color, members in ((rank % 2, size // 2), (0, size)):
        part = library.split(comm, color, -rank)
        total(library, part, members)
        library.call("ncclCommDestroy", part)
    library.call("ncclCommDestroy", comm)


@pytest.mark.parametrize("sizes", quickly([(1, 1)], [(1, 1), (2, 2)]), ids=str)
def test_groups_that_are_split_off(sizes: tuple[int, ...]) -> None:
    in_processes(derived, unique_id, sum(sizes), environments=on_hosts(sizes))


def killed(folder: str, dying: int, unique_id: bytes, rank: int, size: int) -> None:
    """One rank is killed while all add up again and again. The others tell when and why they have failed."""
    library = Library()
    comm = library.communicator(size, unique_id, rank)
    numbers = (ctypes.c_int32 * 1000)()
    failed = None
    for turn in range(1_000_000):
        if rank == dying and turn == 20:
            Path(folder, "death").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            library.call("ncclAllReduce", numbers, numbers, 1000, INT32, SUM, comm, None)
        except Error as error:
            failed = error
            break
    assert failed is not None
    assert failed.result == REMOTE_ERROR, failed
    assert f"rank {dying} (host " in str(failed), failed
    kept(time.monotonic() - float(Path(folder, "death").read_text()), DEATH_S, "an error for a death")
    library.call("ncclCommAbort", comm)


@pytest.mark.parametrize(
    "case", quickly([((1, 1, 1), 0)], [(sizes, dying) for sizes in ((1, 1, 1), (2, 2)) for dying in (0, 2)]), ids=str
)
def test_a_rank_that_is_killed(tmp_path: Path, case: tuple[tuple[int, ...], int]) -> None:
    """All others name it, also where it is that which made the id and whose process decides about the first cause."""
    sizes, dying = case
    of_the_job = partial(killed, str(tmp_path), dying)
    in_processes(of_the_job, unique_id, sum(sizes), signal.SIGKILL, environments=on_hosts(sizes), dying=dying)


def internet_sockets() -> int:
    """The number of sockets of this process that are no Unix sockets."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    found += one.family in (socket.AF_INET, socket.AF_INET6)
        except OSError:  # it is the descriptor of the listing
            continue
    return found


def forks(unique_id: bytes, rank: int, size: int) -> None:
    """A forked child keeps no connection of the store of the id, or of links: it would hide the end of its parent."""
    library = Library()
    comm = library.communicator(size, unique_id, rank)
    total(library, comm, size)
    assert internet_sockets() >= 2  # a link and a claimer, or the server's end of one
    if (child := os.fork()) == 0:
        os._exit(min(internet_sockets(), 100))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    total(library, comm, size)
    library.call("ncclCommDestroy", comm)


def test_forked_children() -> None:
    in_processes(forks, unique_id, 2, environments=on_hosts((1, 1)))


def started_twice(folder: str, unique_id: bytes, rank: int, size: int) -> None:
    """The last two ranks are both rank 1. Their timeouts begin when all processes are there."""
    library = Library()
    Path(folder, str(rank)).touch()
    while len(os.listdir(folder)) < size:
        time.sleep(0.01)
    with pytest.raises(Error, match="rank 1 was started twice" if rank > 0 else r"not arrived: rank 2\b"):
        library.communicator(size, unique_id, min(rank, 1))


@pytest.mark.long
def test_two_ranks_with_one_number(tmp_path: Path) -> None:
    environments = [each | {"SAGECOMM_TIMEOUT": "5"} for each in on_hosts((1, 1, 1))]
    environments[0]["SAGECOMM_TIMEOUT"] = "9"  # its process serves the store
    in_processes(partial(started_twice, str(tmp_path)), unique_id, 3, environments=environments)


def in_namespaces(network: Network, sizes: tuple[int, ...], maker: dict[str, str]) -> list[dict[str, str]]:
    """The environments of ranks. The first one, which makes the id, has variables of its own. An empty one counts as
    not set."""
    environments = [each | {"MASTER_ADDR": "", "SAGECOMM_SOCKET_IFNAME": ""} for each in network.environments(*sizes)]
    environments[0] |= maker
    return environments


@needs_network
@pytest.mark.long
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("variable", ["MASTER_ADDR", "SAGECOMM_SOCKET_IFNAME"])
def test_ids_in_a_network(sizes: tuple[int, ...], variable: str) -> None:
    """Only the process that makes the id has to know where it listens."""
    with Network(2) as network:
        value = network.address(0) if variable == "MASTER_ADDR" else "eth0"
        environments = in_namespaces(network, sizes, {variable: value})
        in_processes(as_pynccl, unique_id, sum(sizes), environments=environments)
        if sizes == (2, 2):
            in_processes(derived, unique_id, 4, environments=environments)
        assert all(network.sent(host) > (N if sizes == (2, 2) else 1000) for host in range(2)), "data crossed no cable"


@needs_network
@pytest.mark.long
def test_a_maker_of_the_id_that_is_killed_in_a_network(tmp_path: Path) -> None:
    with Network(3) as network:
        environments = in_namespaces(network, (1, 1, 1), {"SAGECOMM_SOCKET_IFNAME": "eth0"})
        of_the_job = partial(killed, str(tmp_path), 0)
        in_processes(of_the_job, unique_id, 3, signal.SIGKILL, environments=environments, dying=0)


def beside_a_local_one(unique_id: bytes, rank: int, size: int) -> None:
    """A group of this host is there already, for which the process listens on loopback. The one that is split off from
    the other one has its first rank here."""
    library = Library()
    local = library.communicator(1, library.unique_id(), 0) if rank > 0 else None
    comm = library.communicator(size, unique_id, rank)
    part = library.split(comm, 0, -rank)
    total(library, part, size)
    library.call("ncclCommDestroy", part)
    library.call("ncclCommDestroy", comm)
    if local:
        total(library, local, 1)
        library.call("ncclCommDestroy", local)


@needs_network
@pytest.mark.long
def test_a_group_of_one_host_before_one_of_two() -> None:
    with Network(2) as network:
        environments = in_namespaces(network, (1, 1), {"SAGECOMM_SOCKET_IFNAME": "eth0"})
        in_processes(beside_a_local_one, unique_id, 2, environments=environments)


def refused(unique_id: bytes, rank: int, size: int) -> None:
    if rank == 0:
        return
    with pytest.raises(Error, match="set SAGECOMM_SOCKET_IFNAME or MASTER_ADDR for that process") as refusal:
        Library().communicator(size, unique_id, rank)
    assert refusal.value.result == INVALID_USAGE


@needs_network
@pytest.mark.long
def test_an_id_of_another_machine_that_says_loopback() -> None:
    with Network(2) as network:
        in_processes(refused, unique_id, 2, environments=in_namespaces(network, (1, 1), {}))
