"""Groups and processes: creation, shutdown, signals, fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm import _C
from shim_harness import (
    CPU,
    MANUAL,
    PEER_FAILURE,
    all_reduce,
    backend,
    backend_options,
    fake,
    interrupt_when,
    raises,
    scenario,
)


@contextmanager
def subgroup():
    made = dist.new_group([0, 1], backend="fake_core")
    try:
        yield made
    finally:
        if made in c10d._world.pg_map:
            dist.destroy_process_group(made)


@scenario
def shutdown_is_idempotent() -> None:
    groups = fake.fake_groups()
    with subgroup() as made:
        direct = made._get_backend(CPU)
        assert fake.fake_groups() == groups + 1
        dist.all_reduce(torch.ones(1), group=made)
        direct.shutdown()
        direct.shutdown()
        assert fake.fake_groups() == groups
        raises(sagecomm.Aborted, lambda group=made: dist.all_reduce(torch.ones(1), group=group), "has shut group")
        assert direct._get_sequence_number_for_group() == 1
        direct.abort()
    del direct, made
    gc.collect()
    assert fake.fake_groups() == groups


@scenario
def cause_that_comes_while_the_group_is_destroyed_is_kept() -> None:
    with subgroup() as made:
        fake.fake_last_status(PEER_FAILURE)
        made._get_backend(CPU).shutdown()
        raises(sagecomm.PeerFailure, lambda group=made: dist.all_reduce(torch.ones(1), group=group))
    fake.fake_last_status(0)
    with subgroup() as made:
        fake.fake_group_status(PEER_FAILURE)
        made._get_backend(CPU).shutdown()
        raises(sagecomm.PeerFailure, lambda group=made: dist.all_reduce(torch.ones(1), group=group))


@scenario
def destructor_destroys() -> None:
    groups = fake.fake_groups()
    options = backend_options(dist.HashStore())
    made = _C.create_backend(options, {})
    assert fake.fake_groups() == groups + 1
    del made
    assert fake.fake_groups() == groups


FOR_EVER = 2**31 - 1


@scenario
def end_of_a_group_waits_in_slices() -> None:
    with subgroup() as made:
        fake.fake_settle_after(3)
        made._get_backend(CPU).shutdown()
        assert fake.fake_slices() == 4
        assert fake.fake_patient()


@scenario
def ctrl_c_ends_the_wait_at_the_end_of_a_group() -> None:
    groups = fake.fake_groups()
    for whole in (False, True):
        made = dist.new_group([0, 1], backend="fake_core")
        fake.fake_settle_after(FOR_EVER)
        end = (lambda made=made: dist.destroy_process_group(made)) if whole else made._get_backend(CPU).shutdown
        with interrupt_when(lambda: fake.fake_await_slices(2)):
            raises(KeyboardInterrupt, end)
        assert fake.fake_stopped() == 1, "the core gives up what is left"
        assert fake.fake_groups() == groups, "the core's group is destroyed all the same"
        assert (made in c10d._world.pg_map) != whole
        if not whole:
            fake.fake_settle_after(0)
            dist.destroy_process_group(made)


class SignalAtTheSecondCall:
    """In place of c10d.GroupMember: a signal comes when destroy_process_group() looks at it for the second time."""

    looks = 0

    def __getattr__(self, name: str) -> object:
        if name == "NON_GROUP_MEMBER":
            SignalAtTheSecondCall.looks += 1
            if self.looks == 2:
                signal.raise_signal(signal.SIGINT)
        return getattr(dist.GroupMember, name)


@scenario
def another_signal_in_the_end_of_a_group() -> None:
    """It comes before torch has forgotten the group: torch forgets it all the same, and the first one is raised."""
    names = iter(["first", "second"])

    def handle(*_: object) -> None:
        raise KeyboardInterrupt(next(names))

    made = dist.new_group([0, 1], backend="fake_core")
    fake.fake_settle_after(FOR_EVER)
    with interrupt_when(lambda: fake.fake_await_slices(2)):
        signal.signal(signal.SIGINT, handle)
        c10d.GroupMember = SignalAtTheSecondCall()
        try:
            raises(KeyboardInterrupt, lambda: dist.destroy_process_group(made), "first")
        finally:
            c10d.GroupMember = dist.GroupMember
    assert next(names, None) is None
    assert made not in c10d._world.pg_map


@scenario
def abort_ends_the_wait_at_the_end_of_a_group() -> None:
    with subgroup() as made:
        direct = made._get_backend(CPU)
        fake.fake_settle_after(FOR_EVER)
        aborted: list[int] = []

        def abort(direct=direct) -> None:
            fake.fake_await_slices(2)
            direct.abort()
            aborted.append(fake.fake_aborted())
            fake.fake_settle()

        thread = threading.Thread(target=abort)
        thread.start()
        direct.shutdown()
        thread.join(60)
        assert aborted == [1]
        assert not fake.fake_stopped()


@scenario
def ctrl_c_while_another_thread_ends_a_group() -> None:
    """The signal is the main thread's: the other one waits on, until the group is aborted."""
    groups = fake.fake_groups()
    made = dist.new_group([0, 1], backend="fake_core")
    direct = made._get_backend(CPU)
    raised: list[BaseException] = []
    over = threading.Event()

    def end(made=made) -> None:
        try:
            dist.destroy_process_group(made)
        except BaseException as error:
            raised.append(error)
        over.set()

    fake.fake_settle_after(FOR_EVER)
    thread = threading.Thread(target=end, daemon=True)

    def begin_and_wait() -> None:
        thread.start()  # the signal comes when it has waited, so not before this call
        over.wait()

    with interrupt_when(lambda: fake.fake_await_slices(2)):
        raises(KeyboardInterrupt, begin_and_wait)
    fake.fake_await_slices(fake.fake_slices() + 2)
    assert not over.is_set()
    direct.abort()
    aborted = fake.fake_aborted()
    fake.fake_settle()
    thread.join(60)
    assert (aborted, fake.fake_stopped(), raised) == (1, 0, [])
    assert made not in c10d._world.pg_map
    assert fake.fake_groups() == groups


@scenario
def signals_in_a_brief_end_of_a_group() -> None:
    made = _C.create_backend(backend_options(dist.HashStore()), {})
    fake.fake_settle_after(FOR_EVER)
    try:
        raise LookupError
    except LookupError:
        with interrupt_when(lambda: fake.fake_await_slices(2)):
            raises(KeyboardInterrupt, made.shutdown)
    assert (fake.fake_patient(), fake.fake_stopped()) == (0, 1)


@scenario
def brief_ends_of_a_group() -> None:
    """Where an exception is being handled, and in a destructor."""
    for how in ("except", "finally", "with", "destructor"):
        made = _C.create_backend(backend_options(dist.HashStore()), {})
        fake.fake_settle_after(2)
        try:
            if how == "with":
                with Closing(made):
                    raise LookupError
            try:
                raise LookupError
            except LookupError:
                if how == "except":
                    made.shutdown()
                raise
            finally:
                if how == "finally":
                    made.shutdown()
        except LookupError:
            pass
        del made
        gc.collect()
        assert (fake.fake_slices(), fake.fake_patient()) == (3, 0), how


class Closing:
    """Shuts a backend down at the end of a block."""

    def __init__(self, backend: _C.ProcessGroupSagecomm) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._backend.shutdown()


@scenario
def store_is_lent_to_the_core() -> None:
    store = dist.HashStore()
    options = backend_options(store)
    fake.fake_want_key(b"wanted")
    thread = threading.Thread(target=lambda: (store.wait(["fake/hello"]), store.set("wanted", "here")))
    thread.start()
    _C.create_backend(options, {})
    thread.join(60)
    assert store.get("fake/hello") == b"world"
    assert fake.fake_got() == b"here"
    fake.fake_want_key(b"never")
    options.timeout = timedelta(milliseconds=250)
    raises(dist.DistBackendError, lambda: _C.create_backend(options, {}), "the key did not appear in time")
    options = backend_options(store := dist.HashStore())
    with interrupt_when(lambda: store.wait(["fake/hello"])):
        raises(KeyboardInterrupt, lambda: _C.create_backend(options, {}))


@scenario
def ctrl_c_leaves_a_synchronous_op_and_its_memory_alone() -> None:
    class Buffer(bytearray):
        pass

    fake.fake_script(MANUAL, 0)
    memory = Buffer(64)
    alive = weakref.ref(memory)
    issued = backend()._get_sequence_number_for_group()
    live = fake.fake_live_works()
    with interrupt_when(lambda: fake.fake_await(live + 1, issued + 1)):
        raises(KeyboardInterrupt, lambda memory=memory: dist.all_reduce(torch.frombuffer(memory, dtype=torch.int32)))
    del memory
    gc.collect()
    assert alive() is not None
    fake.fake_finish_elsewhere(0, 1)
    gc.collect()
    assert alive() is None


@scenario
def ctrl_c_interrupts_wait() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()
    with interrupt_when(fake.fake_await_waiter):
        raises(KeyboardInterrupt, work.wait)
    assert not work.is_completed()
    fake.fake_finish_elsewhere(0, 1)
    assert work.wait()


@scenario
def forked_child_is_refused() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls = fake.fake_calls()
            raises(RuntimeError, lambda: dist.all_reduce(torch.ones(1)))
            assert fake.fake_calls() == calls + 1
            dist.destroy_process_group()
            del work
            gc.collect()
            assert fake.fake_calls() == calls + 1  # destructors leave the core alone
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fake.fake_finish_elsewhere(0, 1)
    assert work.wait()


@scenario
def core_is_loaded_once() -> None:
    raises(RuntimeError, lambda: _C.load_core("/nowhere/libsagecomm.so"), "already loaded from")
