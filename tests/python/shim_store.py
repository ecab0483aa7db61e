"""The store that lasts as long as a group: the core claims keys in it from threads of its own."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

import programs
from sagecomm import _C
from shim_harness import backend_options, fake, interrupt_when, raises, scenario

LONG_S = 60.0  # until a thread counts as hanging
PR_SET_PDEATHSIG = 1


def make_group(store: dist.Store, timeout: timedelta | None = None) -> None:
    """Makes a group that prepares the store, and destroys it."""
    fake.fake_last()
    options = backend_options(store)
    if timeout is not None:
        options.timeout = timeout
    _C.create_backend(options, {})


def claimer_of(store: dist.Store) -> int:
    """Returns the number of what a group has prepared."""
    before = fake.fake_claimers()
    make_group(store)
    assert fake.fake_claimers() == before + 1, refusal()
    return before


def refusal() -> str:
    fake.fake_refusal.restype = ctypes.c_char_p
    return fake.fake_refusal().decode()


def claim(claimer: int, value: str) -> str:
    text = ctypes.create_string_buffer(512)
    status = fake.fake_claim(claimer, b"cause", value.encode(), text, ctypes.c_size_t(len(text)))
    assert status == 0, text.value
    return text.value.decode()


def server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def client(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def prefixed(store: dist.Store) -> dist.Store:
    return dist.PrefixStore("outer", dist.PrefixStore("inner", store))


def check_one_claim_wins(one: dist.Store, other: dist.Store) -> None:
    for wrap in (prefixed, lambda store: store):
        claimers = [claimer_of(wrap(store)) for store in (one, other, one)]
        assert [claim(c, f"of {i}") for i, c in enumerate(claimers)] == ["of 0"] * len(claimers)
        assert wrap(one).get("cause") == wrap(other).get("cause") == b"of 0"
        for c in claimers:
            fake.fake_release_claimer(c)
    assert one.get("cause") == b"of 0"  # goes on


@scenario
def one_claim_wins_in_a_tcp_store() -> None:
    for kind in (True, False):
        serving = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=kind)
        check_one_claim_wins(serving, dist.TCPStore("127.0.0.1", serving.port, is_master=False, use_libuv=kind))


@scenario
def one_claim_wins_in_a_file_store() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        stores = [dist.FileStore(path, 2) for _ in range(2)]
        check_one_claim_wins(*stores)
        claimer = claimer_of(stores[0])
        del stores
        assert os.path.exists(path), "the clone counts as a user"
        fake.fake_release_claimer(claimer)
        assert not os.path.exists(path), "the last user removes the file"


@scenario
def one_claim_wins_in_a_hash_store() -> None:
    store = dist.HashStore()
    check_one_claim_wins(store, store)
    claimer = claimer_of(prefixed(store))
    del store
    assert claim(claimer, "late") == "of 0"
    fake.fake_release_claimer(claimer)


class OfPython(dist.Store):
    """A store that is written in Python. A group needs no more than this to be made here."""

    def set(self, key: str, value: bytes) -> None:
        pass


@scenario
def store_of_python_is_refused() -> None:
    store = OfPython()
    for given in (store, prefixed(store)):
        before = fake.fake_claimers()
        make_group(given)
        assert fake.fake_claimers() == before
        assert "PythonStore cannot be used after the group was made" in refusal()
        assert "written in Python" in refusal()


@scenario
def claim_beside_a_wait_in_the_users_store() -> None:
    """Without a clone it would wait as well, because a TCPStore is locked during a wait."""
    serving = server()
    users = client(serving.port)
    claimer = claimer_of(prefixed(users))
    waiting = threading.Thread(target=lambda: users.wait(["end"], timedelta(seconds=10 * LONG_S)))
    waiting.start()
    while True:  # until a call in the store does not return before and during the claim: it is locked
        call = threading.Thread(target=users.check, args=(["end"],))
        call.start()
        call.join(0.1)
        if not call.is_alive():
            continue
        assert claim(claimer, "meanwhile") == "meanwhile"
        assert waiting.is_alive()
        if call.is_alive():
            break
    serving.set("end", "")
    for thread in (waiting, call):
        thread.join(LONG_S)
        assert not thread.is_alive()
    fake.fake_release_claimer(claimer)


def start_server() -> tuple[int, int]:
    """Starts a process that serves a store, and ends with this one at the latest. Returns its id and the port."""
    end, write = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        store = server()
        os.write(write, f"{store.port}\n".encode())
        while True:
            signal.pause()
    os.close(write)
    with os.fdopen(end) as lines:
        return child, int(lines.readline())


@contextmanager
def server_elsewhere() -> Iterator[tuple[int, int]]:
    child, port = start_server()
    try:
        yield child, port
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def claim_in_a_stopped_server(child: int, port: int) -> tuple[int, int]:
    """Begins a claim that does not end, and returns the claimer, and another one of the same server."""
    claimers = claimer_of(prefixed(client(port))), claimer_of(client(port))
    os.kill(child, signal.SIGSTOP)
    programs.await_stop(child)
    fake.fake_claim_elsewhere(claimers[0])
    return claimers


@scenario
def claim_in_a_stopped_server_holds_up_no_other_release() -> None:
    with server_elsewhere() as (child, port):
        hanging, other = claim_in_a_stopped_server(child, port)
        fake.fake_release_claimer(other)
        assert fake.fake_claiming() == 1
        serving = server()  # other stores go on as well
        elsewhere = claimer_of(serving)
        assert claim(elsewhere, "mine") == "mine"
        fake.fake_release_claimer(elsewhere)
        os.kill(child, signal.SIGCONT)
        fake.fake_await_claims()
        assert claim(hanging, "late") == "elsewhere"
        fake.fake_release_claimer(hanging)


def connections(port: int) -> int:
    """Counts this process's connections to a port of this host."""
    inodes = set()
    for family in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{family}") as table:
            for fields in map(str.split, list(table)[1:]):
                if int(fields[2].split(":")[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}") in inodes
    return found


@scenario
def groups_share_one_connection_to_a_server() -> None:
    with server_elsewhere() as (_, port):
        stores = [prefixed(client(port)), client(port)]
        before = connections(port)

        def make() -> None:
            for store in stores:
                make_group(store)

        first = fake.fake_claimers()
        threads = [threading.Thread(target=make) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        claimers = list(range(first, fake.fake_claimers()))
        assert len(claimers) == 10
        found = [claim(c, f"of {c}") for c in claimers]
        assert sorted(map(found.count, set(found))) == [5, 5]  # within the prefix and without
        assert connections(port) == before + 1, (connections(port), before)
        for c in claimers[:-1]:
            fake.fake_release_claimer(c)
        assert claim(claimers[-1], "of the last") == found[-1]
        assert connections(port) == before + 1
        fake.fake_release_claimer(claimers[-1])
        wait_until(lambda: connections(port) == before)


@scenario
def server_in_the_place_of_another_one_is_asked() -> None:
    with server_elsewhere() as (_, port):
        old = claimer_of(client(port))
        assert claim(old, "old") == "old"
    serving = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    new = claimer_of(serving)
    assert claim(new, "new") == "new"
    assert serving.get("cause") == b"new"
    for c in (old, new):
        fake.fake_release_claimer(c)


def claimer_in_no_time(store: dist.Store) -> int:
    """A group is made that waits for no clone, though it would have time."""
    began = time.monotonic()
    claimer = claimer_of(store)
    assert time.monotonic() - began < 5
    return claimer


def claims_wait_for(child: int, claimers: list[int], known: str) -> None:
    """Checks that claims wait until a stopped server goes on, and find what is known there, "" for nothing."""
    for claimer in claimers:
        fake.fake_claim_elsewhere(claimer)
    assert fake.fake_claiming() == len(claimers)
    os.kill(child, signal.SIGCONT)
    fake.fake_await_claims()
    for claimer in claimers:
        assert claim(claimer, "late") == (known or "elsewhere")
        fake.fake_release_claimer(claimer)


@scenario
def stopped_server_holds_up_no_group() -> None:
    """It takes connections and answers nothing."""
    with server_elsewhere() as (child, port):
        store = client(port)
        os.kill(child, signal.SIGSTOP)
        programs.await_stop(child)
        # the second one finds what the first one has begun
        claims_wait_for(child, [claimer_in_no_time(store) for _ in range(2)], "")


@scenario
def stopped_server_of_groups_holds_up_no_other_group() -> None:
    with server_elsewhere() as (child, port):
        store = client(port)
        first = claimer_of(store)
        assert claim(first, "first") == "first"
        os.kill(child, signal.SIGSTOP)
        programs.await_stop(child)
        claims_wait_for(child, [claimer_in_no_time(store)], "first")
        fake.fake_release_claimer(first)


@scenario
def dead_server_holds_up_no_group() -> None:
    """Torch goes on trying to connect for minutes, and finds a server that comes back."""
    with server_elsewhere() as (_, port):
        store = client(port)
    claimer = claimer_in_no_time(store)
    fake.fake_claim_elsewhere(claimer)
    assert fake.fake_claiming() == 1
    serving = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    fake.fake_await_claims()
    assert serving.get("cause") == b"elsewhere"
    fake.fake_release_claimer(claimer)


@scenario
def clone_does_not_keep_the_users_store() -> None:
    """A server that its user gives back ends, also while a clone waits for it."""
    with server_elsewhere() as (child, port):
        store = client(port)
        before = connections(port)
        os.kill(child, signal.SIGSTOP)
        programs.await_stop(child)
        claimer = claimer_in_no_time(store)
        wait_until(lambda: connections(port) == before + 1)
        del store
        assert connections(port) == before
        claims_wait_for(child, [claimer], "")


@contextmanager
def locked_file() -> Iterator[dist.FileStore]:
    """A store whose file another process seems to have locked."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        store = dist.FileStore(path, 3)
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield store


@scenario
def locked_file_holds_up_no_group() -> None:
    with locked_file() as store:
        before = fake.fake_claimers()
        began = time.monotonic()
        make_group(store, timedelta(seconds=0.3))
        assert 0.3 <= time.monotonic() - began < LONG_S
        assert "did not answer in time" in refusal()
        assert fake.fake_claimers() == before


@scenario
def ctrl_c_ends_the_wait_for_a_file() -> None:
    with locked_file() as store:
        groups = fake.fake_groups()
        with interrupt_when(fake.fake_await_preparing):
            raises(KeyboardInterrupt, lambda: make_group(store, timedelta(seconds=10 * LONG_S)))
        assert fake.fake_groups() == groups
        assert "interrupted by a signal" in refusal()


def wait_until(condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < LONG_S
        time.sleep(0.001)


def claim_that_does_not_end() -> None:
    """For a process that ends then, and its server with it."""
    claim_in_a_stopped_server(*start_server())
    assert fake.fake_claiming() == 1


def clone_that_is_not_there(given_back: bool) -> None:
    """For a process that ends while a clone is made, which the group may have given back, and its server with it."""
    child, port = start_server()
    store = client(port)
    before = connections(port)
    os.kill(child, signal.SIGSTOP)
    programs.await_stop(child)
    claimer = claimer_in_no_time(store)
    wait_until(lambda: connections(port) == before + 1)
    if given_back:
        fake.fake_release_claimer(claimer)


@scenario
def claim_without_a_server_says_why() -> None:
    with server_elsewhere() as (_, port):
        claimer = claimer_of(client(port))
        assert claim(claimer, "before") == "before"
    text = ctypes.create_string_buffer(512)
    assert fake.fake_claim(claimer, b"cause", b"mine", text, ctypes.c_size_t(len(text))) == -1
    assert text.value
    assert b"frame #" not in text.value, "a stack of C++"
    fake.fake_release_claimer(claimer)
