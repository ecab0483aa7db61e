"""Hosts that are network namespaces of this machine, joined by a switch: what crosses between them goes over TCP and
an interface of each host, as between machines, and can be cut off.

The switch is a namespace too, so beds do not see each other, and a process that is killed leaves nothing but names.
It needs root and iproute2; why_not() says what lacks.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from typing import Any

NETWORK = "10.77.0"  # of each bed, behind its own switch

_numbers = itertools.count()


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def why_not() -> str:
    """Why there can be no bed, "" if there can."""
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    name = f"sagecomm-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except AssertionError as error:
        return f"network namespaces cannot be made: {error}"
    return ""


class Network:
    """A number of hosts. Host 0 has address(0), and so on."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
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
        ip("-n", self._switch, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self._switch, "link", "set", f"port{host}", "master", "switch", "up")
        ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")

    def namespace(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

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

    def drop(self, source: int, destination: int) -> None:
        """Lets a host drop what it sends to another one, also answers."""
        ip("-n", self.namespace(source), "route", "add", "blackhole", f"{self.address(destination)}/32")

    def close(self) -> None:
        for name in [*map(self.namespace, range(self.hosts)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
