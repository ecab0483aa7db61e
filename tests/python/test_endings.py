"""How ranks end: with or without destroy, by signals, after a fork. Each test starts its own processes."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from programs import Programs
from promises import kept
from selection import quickly
from worlds import Environment

BEGIN = """
    dist.init_process_group("sagecomm")
    rank = dist.get_rank()
    t = torch.ones(50_000)
    dist.all_reduce(t)
    assert t[-1].item() == 2.0
    shared = [f for f in os.listdir("/dev/shm") if f.startswith("sagecomm-") and str(os.getpid()) in f.split("-")]
    assert shared == [], shared
"""
ENDINGS = {
    "destroy twice": """
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    backend.shutdown()
    backend.abort()
    try:
        dist.destroy_process_group()
    except (AssertionError, ValueError):
        pass                            # torch's own: there is no group any more
    """,
    "never destroyed": "",
    "sys.exit with an operation that nobody joins": """
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        dist.irecv(t.clone(), 1, tag=3)
    sys.exit(0)
    """,
    "works in flight, dropped, with callbacks": """
    for _ in range(50):
        dist.all_reduce(torch.ones(100_000), async_op=True)
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: sum(range(1000)))
    """,
    "works in flight, destroyed": """
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(30)]
    dist.destroy_process_group()
    for work in works:                  # everybody made these calls: destroy waits for them
        work.wait()
        assert work.result()[0][-1].item() == 2.0
    """,
    "an exception": """
    if rank == 1:
        raise ValueError("a bug of the user's")
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        say(type(error).__name__, error.rank)
    """,
    "a daemon thread in a wait": """
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        threading.Thread(target=work.wait, daemon=True).start()
        threading.Thread(target=lambda: dist.recv(t.clone(), 1), daemon=True).start()
    """,
}


QUICK_ENDINGS = ["never destroyed", "works in flight, destroyed", "an exception"]


@pytest.mark.parametrize("ending", quickly(QUICK_ENDINGS, ENDINGS))
def test_ranks_end_as_they_should(tmp_path, ending):
    environment = {"SAGECOMM_SHM_DIR": str(tmp_path)}
    if ending == "never destroyed":
        environment["SAGECOMM_SHM_ATTACH"] = "tmpfs"  # the way that could leave something
    ends_as_it_should(ending, tmp_path, environment)


def ends_as_it_should(ending: str, shm_dir: Path, environment: Environment) -> None:
    with Programs(BEGIN + ENDINGS[ending], 2, environment) as ranks:
        statuses = [ranks.ends(0), ranks.ends(1)]
        errors = [ranks.errors(0), ranks.errors(1)]
        if ending == "an exception":
            assert statuses == [0, 1], errors
            assert ranks.line(0) == "PeerFailure 1"
            assert "a bug of the user's" in errors[1]
        else:
            assert statuses == [0, 0], errors
        for text in errors:
            assert "terminate" not in text, text
            assert "panic" not in text, text
            assert "goroutine" not in text, text
        assert list(shm_dir.iterdir()) == []


FUTURE_AT_EXIT = """
    import atexit
    from sagecomm import _registration
    atexit.unregister(_registration._leave)
    def wait():
        for waits in (work.get_future().wait, work.wait):
            try:
                waits()
            except dist.DistBackendError as error:
                say(type(error).__name__, "was destroyed" in str(error), raised)
    atexit.register(wait)
    atexit.register(_registration._leave)       # it comes first
    raised = []
    def failed(future):
        try:
            future.wait()
        except dist.DistBackendError as error:
            raised.append(type(error).__name__)
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        dist.irecv(t.clone(), 1, tag=3).get_future().add_done_callback(failed)
    else:
        atexit.unregister(wait)
        hear()                                  # it does not leave before rank 0
"""


@pytest.mark.long
def test_futures_end_with_the_process():
    with Programs(BEGIN + FUTURE_AT_EXIT, 2) as ranks:
        assert ranks.ends(0) == 0, ranks.errors(0)
        for _ in range(2):  # the types are those of a group that is destroyed earlier
            assert ranks.line(0) == "Aborted True ['Aborted']"
        ranks.tell(1)
        assert ranks.ends(1) == 0, ranks.errors(1)


# ---- signals ----

CTRL_C = """
    dist.init_process_group("sagecomm")
    t = torch.ones(10)
    dist.all_reduce(t)
    say("ready")
    if dist.get_rank() == 1:
        hear()                          # never calls what rank 0 waits for
        sys.exit(0)
    try:
        dist.all_reduce(t)
    except KeyboardInterrupt:
        say(time.monotonic())
    began = time.monotonic()
    dist.destroy_process_group()
    say(time.monotonic() - began)
    raise KeyboardInterrupt
"""


def test_ctrl_c_then_destroy_and_exit():
    with Programs(CTRL_C, 2) as ranks:
        assert ranks.lines() == ["ready", "ready"]
        ranks.await_sleep(0)  # in the pending collective; Ctrl-C before that is Python's alone
        pressed = ranks.kill(0, signal.SIGINT)
        kept(float(ranks.line(0)) - pressed, 1)  # 0.2 s where the cores are not shared
        assert float(ranks.line(0)) < 10, "destroy waits for what nobody joins"
        assert ranks.ends(0) == -signal.SIGINT, "as Python ends after Ctrl-C"
        ranks.tell(1)
        assert ranks.ends(1) == 0, ranks.errors(1)


CTRL_C_IN_INIT = """
    say("ready")
    try:
        dist.init_process_group("sagecomm", store=dist.HashStore(), rank=0, world_size=2)
    except KeyboardInterrupt:
        say(time.monotonic())
"""


def test_ctrl_c_while_waiting_for_the_other_ranks():
    with Programs(CTRL_C_IN_INIT) as ranks:
        assert ranks.line(0) == "ready"
        ranks.await_sleep(0)
        pressed = ranks.kill(0, signal.SIGINT)
        kept(float(ranks.line(0)) - pressed, 1)
        ranks.end_well()


SIGTERM = """
    def on_term(*_):
        say(time.monotonic())
        sys.exit(7)
    dist.init_process_group("sagecomm")
    t = torch.ones(10)
    dist.all_reduce(t)
    if dist.get_rank() == 0:
        signal.signal(signal.SIGTERM, on_term)
    say("ready")
    dist.barrier() if dist.get_rank() == 0 else dist.recv(t, 0)
"""


def test_sigterm_runs_the_handler_or_ends_the_process():
    with Programs(SIGTERM, 2) as ranks:
        assert ranks.lines() == ["ready", "ready"]
        ranks.await_sleep(0)
        ranks.kill(1, signal.SIGSTOP)  # so that rank 0 does not end by the failure of rank 1
        sent = ranks.kill(0, signal.SIGTERM)
        kept(float(ranks.line(0)) - sent, 1)
        assert ranks.ends(0) == 7, ranks.errors(0)
        ranks.kill(1, signal.SIGTERM)
        ranks.kill(1, signal.SIGCONT)
        assert ranks.ends(1) == -signal.SIGTERM, "no handler: ended by the signal"


# ---- fork ----

FORKED = """
    import sagecomm
    from promises import most
    dist.init_process_group("sagecomm")
    t = torch.ones(1000)
    dist.all_reduce(t)
    pending = dist.all_reduce(torch.ones(100_000), async_op=True)
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    child = os.fork()
    if child == 0:
        failures = []
        def refused(what, call):
            began = time.monotonic()
            try:
                call()
                failures.append(f"{what} succeeded")
            except RuntimeError as error:
                if "fork" not in str(error):
                    failures.append(f"{what}: {error}")
            if time.monotonic() - began > most(1):
                failures.append(f"{what} took {time.monotonic() - began} s")
        refused("all_reduce", lambda: dist.all_reduce(t))
        refused("async", lambda: dist.all_reduce(t, async_op=True))
        refused("send", lambda: dist.send(t, 1 - dist.get_rank()))
        refused("barrier", lambda: dist.barrier())
        refused("new group", lambda: dist.new_group())
        refused("abort", lambda: backend.abort())
        refused("metrics", sagecomm.metrics)
        refused("dump", sagecomm.dump_flight_recorder)
        refused("statistics", lambda: sagecomm.get_stats())
        print("\\n".join(failures), file=sys.stderr, flush=True)
        # Ends as a script does: destroyed or not, the exit handlers must leave the parent alone.
        if dist.get_rank() == 0:
            dist.destroy_process_group()
        sys.exit(len(failures))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    pending.wait()
    for _ in range(20):
        t.fill_(1)
        dist.all_reduce(t)
        assert t[-1].item() == 2.0
    say(status)
    dist.destroy_process_group()
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on():
    with Programs(FORKED, 2) as ranks:
        assert ranks.lines() == ["0", "0"], ranks.errors(0) + ranks.errors(1)
        ranks.end_well()


LOAD_DATA = """
    from torch.utils.data import DataLoader, TensorDataset
    dist.init_process_group("sagecomm")
    total = torch.zeros(1)
    for _ in range(2):
        works = []                      # workers are forked while operations are in flight
        for (batch,) in DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2):
            works.append(dist.all_reduce(torch.ones(60_000), async_op=True))
            total += batch.sum()
        for work in works:
            work.wait()
    dist.all_reduce(total)
    say(total.item())
"""


def test_data_loader_workers():
    with Programs(LOAD_DATA, 2) as ranks:
        assert ranks.lines() == [str(64 * 63 / 2 * 2 * 2)] * 2
        ranks.end_well()


# ---- destroy ----


def destroyed_under_works() -> tuple[float, str]:
    t = torch.ones(1000)
    dist.all_reduce(t)
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return 0.0, ""
    work = dist.all_reduce(t, async_op=True)
    future = work.get_future()
    began = time.monotonic()
    dist.destroy_process_group()
    took = time.monotonic() - began
    texts = []
    for call in (work.wait, future.wait, lambda: backend.allreduce([t]), lambda: backend.barrier()):
        try:
            call()
        except (sagecomm.Aborted, sagecomm.PeerFailure) as error:
            texts.append(str(error))
    assert len(texts) == 4, texts
    return took, texts[2]


def test_destroy_ends_what_is_in_flight_and_refuses_what_comes(world):
    took, text = world(2).run(destroyed_under_works)[0]
    assert took < 30
    # This rank may have noticed that its peer has left before it destroyed its own group.
    assert "has left the group" in text or ("has shut group" in text and "new group" in text), text


def destroyed_from_another_thread() -> list[str]:
    t = torch.ones(100_000)
    dist.all_reduce(t)
    if dist.get_rank() == 1:
        # This rank stays until rank 0 has left.
        try:
            dist.recv(t, 0)
        except (sagecomm.Aborted, sagecomm.PeerFailure) as error:
            return [str(error)]
        return []
    texts: list[str] = []
    group = c10d._get_default_group()

    def wait() -> None:
        try:
            # Not dist.all_reduce, which asks for torch's group once more to log the error: it may be gone by then.
            group.allreduce([t]).wait()
        except (sagecomm.Aborted, sagecomm.PeerFailure) as error:
            texts.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while group._get_sequence_number_for_group() < 2:
        time.sleep(0.001)
    dist.destroy_process_group()
    thread.join(60)
    assert not thread.is_alive()
    return texts


@pytest.mark.long
def test_destroy_while_another_thread_waits(world):
    texts = world(2).run(destroyed_from_another_thread)
    assert [len(t) for t in texts] == [1, 1], texts


def init_again(prefix: str) -> list[float]:
    """A process can destroy its groups and initialise again several times, with some ranks later than others."""
    store, rank = c10d._get_default_store(), dist.get_rank()
    results = []
    for number in range(8):
        if number % 3 == rank:
            time.sleep(0.05)
        dist.destroy_process_group()
        again = dist.PrefixStore(prefix.format(number=number), store)
        dist.init_process_group("sagecomm", store=again, rank=rank, world_size=3)
        t = torch.full((3,), float(number))
        dist.all_reduce(t)
        results.append(t[0].item())
    return results


# torchrun keeps one store for a job, and torch gives all default groups of it the same keys.
@pytest.mark.parametrize("prefix", quickly(["the same"], ["the same", "round {number}"]))
def test_init_and_destroy_again_and_again(fresh_world, prefix):
    assert fresh_world(3).run(init_again, prefix) == [[3.0 * number for number in range(8)]] * 3
