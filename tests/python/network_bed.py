"""Hosts that are network namespaces of this machine, joined by a switch: what crosses between them goes over TCP and
an interface of each host, as between machines, and can be cut off.

The switch is a namespace too, so beds do not see each other. A process that is killed leaves names, which
why_not() removes.
It needs root and iproute2; why_not() says what lacks. Cables may have a rate, for which the kernel must have the token
bucket filter (tbf); why_no_rate() says what lacks. They may have a delay and lose frames (slow_cable.py), for which the
kernel must have tap devices; why_no_delay() says what lacks.

As a program it starts a command for each rank, with those variables of torchrun that name ranks, on hosts of such a
network:

    python tests/python/network_bed.py --hosts 2 --ranks 2 --rate 1gbit python -m sagecomm bench all_reduce
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"  # of each bed, behind its own switch
NETWORK_6 = "fd00:77:"  # the same with IPv6
PORT = 29500  # of the store on host 0
MOST_HOSTS = 254

# A cable that has a rate: bytes that pass at once after a rest, as many as pass while the machine is late at a rate of
# some gigabits, and how long what waits in front of it waits at most, as in the queue of a switch.
BURST = "96kb"
QUEUE = "10ms"

END_S = 10.0  # until a rank that is to end is killed

_numbers = itertools.count()


class NetworkError(AssertionError):
    """A command for a network failed."""


def command(*words: str) -> str:
    """What a command prints."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip()
        raise NetworkError(f"{' '.join(words)}: {reason}") from error


def ip(*words: str) -> str:
    return command("ip", *words)


def remove_abandoned() -> None:
    """Removes namespaces of processes that were killed. Their names have the process; one whose number another process
    has by now stays."""
    for path in Path("/run/netns").glob("sagecomm-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, timeout=20)


@contextmanager
def trial() -> Iterator[str]:
    """A namespace to find out what can be done."""
    name = f"sagecomm-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    ip("netns", "add", name)
    try:
        yield name
    finally:
        ip("netns", "del", name)


@cache
def why_not() -> str:
    """Why there can be no bed, "" if there can."""
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    try:
        remove_abandoned()
        with trial():
            return ""
    except NetworkError as error:
        return f"network namespaces cannot be made: {error}"


@cache
def why_no_ipv6() -> str:
    """Why there can be no bed with IPv6, "" if there can."""
    if why := why_not():
        return why
    try:
        with trial() as name:
            ip("-n", name, "address", "add", "fd00:77::1/64", "dev", "lo")
            return ""
    except NetworkError as error:
        return f"there is no IPv6: {error}"


@cache
def why_no_rate() -> str:
    """Why cables can have no rate, "" if they can."""
    if why := why_not():
        return why
    if shutil.which("tc") is None:
        return "there is no tc command (iproute2)"
    try:
        with trial() as name:
            limit(name, "lo", "1gbit")
            return ""
    except NetworkError as error:
        return f"interfaces cannot have a rate: {error}"


@cache
def why_no_delay() -> str:
    """Why cables can have no delay, "" if they can."""
    if why := why_not():
        return why
    try:
        with trial() as name:
            ip("-n", name, "tuntap", "add", "dev", "tap0", "mode", "tap")
            return ""
    except NetworkError as error:
        return f"tap devices cannot be made: {error}"


def why_no_bounded_backoff() -> str:
    """Why the kernel sends again later and later while nothing is acknowledged, "" if that can be bounded."""
    if Path("/proc/sys/net/ipv4/tcp_rto_max_ms").exists():
        return ""
    return "this kernel is older than Linux 6.15"


def limit(namespace: str, interface: str, rate: str) -> None:
    """Limits what an interface sends."""
    bucket = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
    command("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *bucket)


def slow_cable(one: str, other: str, delay_ms: float, loss: float) -> subprocess.Popen[bytes]:
    """Starts a cable between two ends, namespace:interface, and returns when both devices are there."""
    seed = random.randrange(1 << 32)
    options = ["--delay-ms", str(delay_ms), "--loss", str(loss), "--seed", str(seed)]
    words = [sys.executable, str(Path(__file__).with_name("slow_cable.py")), *options, one, other]
    if loss:
        print("network_bed.py:", *words[1:])  # the seed
    cable = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert cable.stdout is not None
    if cable.stdout.readline() != b"ready\n":
        cable.kill()
        cable.communicate()
        raise NetworkError(f"there is no cable from {one} to {other}")
    return cable


class Network:
    """A number of hosts. Host 0 has address(0), and so on. Each cable lets `rate` pass in each direction, such as 1gbit
    (tc(8) has the units); without one, as much as the machine can. What crosses it comes `delay_ms` later in each
    direction, and that part `loss` of its frames is lost. With `ipv6` hosts have addresses of IPv6 alone."""

    def __init__(self, hosts: int, rate: str = "", delay_ms: float = 0, loss: float = 0, *, ipv6: bool = False) -> None:
        self.hosts = hosts
        self.ipv6 = ipv6
        self.rate = rate
        self.delay_ms = delay_ms
        self.loss = loss
        self._cables: list[subprocess.Popen[bytes]] = []
        self._prefix = f"sagecomm-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{self._prefix}-switch"
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            ip("-n", self._switch, "link", "set", "switch", "up")
            for host in range(hosts):
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def _connect(self, host: int) -> None:
        name = self.namespace(host)
        ip("netns", "add", name)
        if self.delay_ms or self.loss:
            self._cables.append(slow_cable(f"{name}:eth0", f"{self._switch}:port{host}", self.delay_ms, self.loss))
        else:
            ip("-n", self._switch, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self._switch, "link", "set", f"port{host}", "master", "switch", "up")
        ip("-n", name, "link", "set", "eth0", "up")
        if self.ipv6:
            self.add_ipv6(host)
        else:
            ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        if self.rate:
            limit(name, "eth0", self.rate)
            limit(self._switch, f"port{host}", self.rate)

    def namespace(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        return f"{NETWORK_6}:{host + 1:x}" if self.ipv6 else f"{NETWORK}.{host + 1}"

    def add_ipv6(self, host: int) -> None:
        """Gives a host an address of IPv6, which it may use at once."""
        words = ("address", "add", f"{NETWORK_6}:{host + 1:x}/64", "dev", "eth0", "nodad")
        ip("-n", self.namespace(host), *words)

    def shorten(self, host: int, most: int, long: int = 9000) -> None:
        """Lets a host believe that the network passes packets of `long` bytes, and its cable drop longer ones than
        `most`. The host cuts what it sends into packets itself, since cables pass what a card would cut."""
        ip("-n", self.namespace(host), "link", "set", "eth0", "mtu", str(long), "gso_max_segs", "1")
        ip("-n", self._switch, "link", "set", f"port{host}", "mtu", str(most))

    def environments(self, *sizes: int) -> list[dict[str, str]]:
        """The environment of each rank where hosts have that many ranks (World, TEST_NETWORK_NAMESPACE)."""
        return [
            {
                "SAGECOMM_HOSTID": f"h{host}",
                "TEST_NETWORK_NAMESPACE": self.namespace(host),
                "MASTER_ADDR": self.address(0),
            }
            for host, size in enumerate(sizes)
            for _ in range(size)
        ]

    def pull(self, host: int) -> None:
        """Pulls the cable of a host."""
        ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def plug(self, host: int) -> None:
        """Plugs the cable of a host in again."""
        ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def isolate(self, host: int, on: bool = True) -> None:
        """Lets the switch pass nothing from or to a host, or pass it again. Cables stay connected, and hosts know each
        other's addresses of Ethernet, so no kernel learns of it."""
        for one, other in itertools.permutations(range(self.hosts), 2) if on else ():
            (interface,) = json.loads(ip("-json", "-n", self.namespace(other), "link", "show", "eth0"))
            words = ("neigh", "replace", self.address(other), "lladdr", interface["address"], "dev", "eth0")
            ip("-n", self.namespace(one), *words, "nud", "permanent")
        ip("-n", self._switch, "link", "set", f"port{host}", *(("nomaster",) if on else ("master", "switch")))

    def drop(self, source: int, destination: int) -> None:
        """Lets a host drop what it sends to another one, also answers."""
        ip("-n", self.namespace(source), "route", "add", "blackhole", f"{self.address(destination)}/32")

    def sent(self, host: int) -> int:
        """Bytes that a host has sent, with the headers of what the kernel gives to the interface at once."""
        (interface,) = json.loads(ip("-json", "-statistics", "-n", self.namespace(host), "link", "show", "eth0"))
        return int(interface["stats64"]["tx"]["bytes"])

    def close(self) -> None:
        for cable in self._cables:
            cable.kill()
            cable.communicate()
        for name in [*map(self.namespace, range(self.hosts)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def start(network: Network, ranks: int, words: list[str], by_node: bool = False) -> int:
    """Starts a command for each of so many ranks on each host, and waits for all. When one fails, the others are ended.
    Ranks are numbered host by host, or else so that neighbours are on different hosts. Returns the exit status."""
    sizes = [ranks] * network.hosts
    environments = network.environments(*sizes)
    places = [(host, local) for host in range(network.hosts) for local in range(ranks)]
    if by_node:
        places.sort(key=lambda place: place[1])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank, (host, local) in enumerate(places):
            variables = {
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                **os.environ,
                **environments[host * ranks],
                "MASTER_PORT": str(PORT),
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(sum(sizes)),
                "LOCAL_WORLD_SIZE": str(ranks),
            }
            at = ["ip", "netns", "exec", network.namespace(host)]
            running.append(subprocess.Popen([*at, *words], env=variables))
        for each in as_they_end(running):
            if each.returncode != 0:
                print(f"network_bed.py: a rank, pid {each.pid}, ended with {each.returncode}", file=sys.stderr)
                return 1
        return 0
    finally:
        for each in running:
            each.terminate()
        for each in running:
            with suppress(subprocess.TimeoutExpired):
                each.wait(END_S)
            each.kill()
            each.wait()


def as_they_end(running: list[subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    left = list(running)
    while left:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for each in [each for each in left if each.poll() is not None]:
            left.remove(each)
            yield each


def main() -> int:
    parser = argparse.ArgumentParser(description="Start a command for each rank on hosts that a network joins.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="of each host; 1 by default")
    parser.add_argument("--by-node", action="store_true", help="number ranks as `mpirun --map-by node` does")
    parser.add_argument("--rate", default="", help="of each cable and direction, such as 1gbit; no limit by default")
    parser.add_argument("--delay-ms", type=float, default=0, help="of each cable and direction")
    parser.add_argument("--loss", type=float, default=0, help="the part of frames that a cable loses, such as 0.01")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    parsed = parser.parse_args()
    if not parsed.command:
        parser.error("name the command that each rank runs, behind the options")
    if not 1 <= parsed.hosts <= MOST_HOSTS or parsed.ranks < 1:
        parser.error(f"1 to {MOST_HOSTS} hosts, and 1 rank or more of each")
    if parsed.delay_ms < 0 or not 0 <= parsed.loss < 1:
        parser.error("a delay of 0 ms or more, and a loss of 0 or more, below 1")
    slow = parsed.delay_ms or parsed.loss
    if why := why_not() or (parsed.rate and why_no_rate()) or (slow and why_no_delay()):
        parser.error(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that ranks and namespaces go too
    with Network(parsed.hosts, parsed.rate, parsed.delay_ms, parsed.loss) as network:
        status = start(network, parsed.ranks, parsed.command, parsed.by_node)
        if status == 0:
            print(*(f"host {host} has sent {network.sent(host)} bytes" for host in range(network.hosts)), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
