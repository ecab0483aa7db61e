"""How a Work ends: waiting, dropping, Futures."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

import sagecomm
from shim_harness import (
    DEADLINE,
    MANUAL,
    NATIVE,
    OK,
    OK_WORK,
    PEER_FAILURE,
    WAITS,
    all_reduce,
    backend,
    check_peer_failure,
    fake,
    last,
    raises,
    scenario,
    sequence_number,
)
from torch_copies import without_copies


@scenario
def synchronous_op_is_complete_when_it_returns() -> None:
    before = backend()._get_sequence_number_for_group()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 4
    assert last().flags == 0
    assert backend()._get_sequence_number_for_group() == before + 1
    opts = dist.AllreduceOptions()
    opts.asyncOp = False
    work = backend().allreduce([tensor], opts)
    assert work.is_completed()
    assert work.is_success()
    assert sequence_number(work) in (before + 2, None)
    assert work.wait()
    assert work.wait(timedelta(seconds=1))
    assert work.result()[0] is tensor
    assert work.get_future().wait()[0] is tensor
    work.synchronize()


@scenario
def work_has_its_own_number_when_other_threads_issue_at_once() -> None:
    fake.fake_number_others(5)
    before = backend()._get_sequence_number_for_group()
    opts = dist.AllreduceOptions()
    opts.asyncOp = False
    inline = backend().allreduce([torch.ones(4)], opts)
    assert sequence_number(inline) in (before + 1, None)
    assert sequence_number(backend().allreduce_coalesced([torch.ones(4)], dist.AllreduceCoalescedOptions())) in (
        before + 7,
        None,
    )
    fake.fake_script(MANUAL, 0)
    _, later = all_reduce()
    assert sequence_number(later) in (before + 13, None)
    fake.fake_finish(0)
    assert sequence_number(later) in (before + 13, None)


@scenario
def synchronous_op_that_takes_long_is_waited_for() -> None:
    fake.fake_script(WAITS, 3)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 4


@scenario
def asynchronous_op_completes_later() -> None:
    fake.fake_script(MANUAL, 0)
    tensor, work = all_reduce()
    assert last().flags == 1
    assert not work.is_completed()
    assert not work.is_success()
    assert sequence_number(work) in (backend()._get_sequence_number_for_group(), None)
    assert tensor.tolist() == [1.0] * 4
    fake.fake_finish_elsewhere(0, 1)
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert tensor.tolist() == [2.0] * 4


@scenario
def asynchronous_op_may_complete_inside_issue() -> None:
    for script in (OK, OK_WORK):
        fake.fake_script(script, 0)
        tensor, work = all_reduce()
        assert work.is_completed()
        assert work.get_future().wait()[0] is tensor
        del work


@scenario
def waiter_helps_until_the_end() -> None:
    fake.fake_script(WAITS, 4)
    tensor, work = all_reduce()
    assert work.wait(DEADLINE)
    assert tensor.tolist() == [2.0] * 4


@scenario
def many_threads_wait_for_one_work() -> None:
    fake.fake_script(MANUAL, 0)
    tensor, work = all_reduce()
    seen: list[float] = []
    threads = [threading.Thread(target=lambda: (work.wait(DEADLINE), seen.append(tensor[0].item()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    fake.fake_finish_elsewhere(0, 0)
    fake.fake_join()
    for thread in threads:
        thread.join(60)
    assert seen == [2.0] * 4


@scenario
def waiter_completes_a_work_whose_done_is_queued() -> None:
    """A waiter that has the final status does not wait for a done function that is queued behind another one."""
    fake.fake_script(WAITS, 2)  # the first done function is the Future's own
    fake.fake_hold_done(1)
    tensor = torch.ones(2, 2).t()
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    assert work.wait(DEADLINE)
    assert tensor.sum() == 8
    assert future.done()
    fake.fake_run_held()  # must change nothing but release the core's reference


@scenario
def dropped_work_leaves_the_tensor_to_the_operation() -> None:
    class Buffer(bytearray):
        pass

    fake.fake_script(MANUAL, 0)
    memory = Buffer(16)
    alive = weakref.ref(memory)
    work = dist.all_reduce(torch.frombuffer(memory, dtype=torch.int32), async_op=True)
    del memory, work
    gc.collect()
    assert alive() is not None
    fake.fake_finish_elsewhere(0, 1)  # a thread that Python does not know drops the last reference
    gc.collect()
    assert alive() is None


@scenario
def future_before_and_after_completion() -> None:
    fake.fake_script(MANUAL, 0)
    tensor, work = all_reduce()
    early = work.get_future()
    chained = early.then(lambda f: f.value()[0].sum().item())
    assert not early.done()
    fake.fake_finish_elsewhere(0, 1)
    assert early.wait()[0] is tensor
    assert chained.wait() == 8.0
    assert work.get_future().then(lambda f: f.value()[0].sum().item()).wait() == 8.0
    assert work.get_future_result().wait() == 0


@scenario
def future_of_a_short_operation_gives_it_time_to_finish() -> None:
    fake.fake_script(WAITS, 1)
    tensor, work = all_reduce()
    future = work.get_future()
    assert future.done()
    assert future.value()[0] is tensor
    tensor, work = all_reduce(n=20_000)
    future = work.get_future()
    assert not future.done()
    work.wait(DEADLINE)
    assert future.wait()[0] is tensor


@scenario
def future_callback_may_issue_and_wait() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()

    def again(future: torch.futures.Future) -> float:
        assert work.is_completed()
        assert work.wait(DEADLINE)
        fake.fake_script(WAITS, 2)
        inner = future.value()[0].clone()
        dist.all_reduce(inner, async_op=True).wait(DEADLINE)
        return inner[0].item()

    chained = work.get_future().then(again)
    fake.fake_finish_elsewhere(0, 1)
    assert chained.wait() == 4.0


@scenario
def exception_in_a_callback_stays_in_its_future() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()

    def broken(_: torch.futures.Future) -> None:
        raise KeyError("mine")

    chained = work.get_future().then(broken)
    fake.fake_finish_elsewhere(0, 1)
    assert work.wait(DEADLINE)
    raises(RuntimeError, chained.wait, "mine")


@scenario
def futures_race_with_completion() -> None:
    fake.fake_script(MANUAL, 0)
    for round_ in range(300):
        _, work = all_reduce()
        status = PEER_FAILURE if round_ % 3 == 0 else 0
        fake.fake_finish_elsewhere(status, 0)
        future = work.get_future()
        chained = future.then(lambda f: f.value()[0][0].item())
        fake.fake_join()
        if status:
            check_peer_failure(raises(sagecomm.PeerFailure, future.wait))
            raises(sagecomm.PeerFailure, lambda w=work: w.wait(DEADLINE))
            raises(RuntimeError, chained.wait)
        else:
            assert chained.wait() == 2.0
        del work, future, chained


@scenario
def output_that_cannot_be_written_fails_the_group() -> None:
    """The peers have made the operation. They learn by the failure of the group that this rank has not."""
    fake.fake_script(MANUAL, 0)
    column = torch.ones(4, 2)[:, 0]
    work = dist.all_reduce(column, async_op=True)
    column.resize_(3)
    fake.fake_finish(0)
    check_unwritten(work.wait, f"in all_reduce #{backend()._get_sequence_number_for_group()}: ", "")


def check_unwritten(call: Callable[[], object], what: str, why: str) -> None:
    """The call fails, and so does the group, with the reason."""
    text = what + "an output on cpu cannot be written: " + why
    error = raises(dist.DistBackendError, call, text)
    assert "; peers hold the operation for complete, so make a new group" in str(error)
    raises(dist.DistBackendError, lambda: dist.all_reduce(torch.ones(4)), text)


def gather_without_copies(async_op: bool, error: BaseException) -> None:
    opts = NATIVE.AllgatherOptions()
    opts.asyncOp = async_op
    rows = [torch.ones(4, 2)[:, 0], torch.ones(4), torch.ones(4)][: dist.get_world_size()]
    inputs = torch.ones(4)
    with without_copies(error, "CPU"):
        work = backend().allgather([rows], [inputs], opts)
    assert work.is_completed()
    assert not work.is_success()
    work.wait()


@scenario
def inline_output_that_cannot_be_written_fails_the_group() -> None:
    ran: list[object] = []
    backend().register_completion_hook(81, lambda *_: ran.append(1))
    for async_op in (False, True):
        number = backend()._get_sequence_number_for_group() + 1
        refusal = ValueError("no copies here")
        check_unwritten(
            lambda a=async_op, e=refusal: gather_without_copies(a, e),
            f"in all_gather #{number}: ",
            "ValueError: no copies here",
        )
        fake.fake_reset()
    backend().unregister_completion_hook(81)
    assert not ran, "a hook of completed operations runs for one that has failed"


@scenario
def interrupt_on_another_thread_while_an_output_is_written_is_raised_by_the_wait() -> None:
    """The operation ends on a thread of the core before the main thread waits, which raises the interrupt once."""
    fake.fake_script(MANUAL, 0)
    opts = NATIVE.AllgatherOptions()
    rows = [torch.ones(4, 2)[:, 0], torch.ones(4), torch.ones(4)][: dist.get_world_size()]
    work = backend().allgather([rows], [torch.ones(4)], opts)
    with without_copies(KeyboardInterrupt(), "CPU"):
        fake.fake_finish_elsewhere(0, 0)
        fake.fake_join()
    raises(KeyboardInterrupt, work.wait).with_traceback(None)  # it is torch's for a while, and its frames have the Work
    raises(dist.DistBackendError, work.wait, "an output on cpu cannot be written: ")


@scenario
def output_that_cannot_be_written_after_an_abort_raises_the_abort_and_logs_the_reason() -> None:
    fake.fake_script(MANUAL, 0)
    fake.fake_hold_done(1)
    column = torch.ones(4, 2)[:, 0]
    work = dist.all_reduce(column, async_op=True)
    column.resize_(3)
    fake.fake_finish(0)
    backend().abort()
    with stderr_text() as printed:
        fake.fake_run_held()
    raises(sagecomm.Aborted, work.wait)
    assert "all_reduce: rank 0: an output on cpu cannot be written: " in printed[0], printed
    fake.fake_reset()


@contextlib.contextmanager
def stderr_text() -> Iterator[list[str]]:
    """Gives a list of what was printed inside, once that is over."""
    texts: list[str] = []
    before = os.dup(2)
    with tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 2)
        try:
            yield texts
        finally:
            os.dup2(before, 2)
            os.close(before)
            printed.seek(0)
            texts.append(printed.read())


@scenario
def interrupt_while_an_output_is_written_is_raised_and_fails_the_group() -> None:
    for script in (OK, WAITS):
        fake.fake_script(script, 1)
        raises(KeyboardInterrupt, lambda: gather_without_copies(False, KeyboardInterrupt()))
        raises(dist.DistBackendError, lambda: dist.all_reduce(torch.ones(4)), "an output on cpu cannot be written: ")
        fake.fake_reset()
