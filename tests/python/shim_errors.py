"""Errors, time-outs, abort and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import sagecomm
from shim_harness import (
    ABORTED,
    FAIL,
    MANUAL,
    MISMATCH,
    NATIVE,
    OK,
    PEER_FAILURE,
    SYSTEM,
    TIMEOUT,
    WAITS,
    all_reduce,
    backend,
    check_peer_failure,
    fake,
    group,
    raises,
    scenario,
)


@scenario
def failure_of_an_asynchronous_op() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()
    chained = work.get_future().then(lambda f: f.value())
    fake.fake_finish_elsewhere(PEER_FAILURE, 1)
    assert work.is_completed()
    assert not work.is_success()
    for _ in range(2):  # wait() raises again on every call
        check_peer_failure(raises(sagecomm.PeerFailure, work.wait))
    check_peer_failure(raises(sagecomm.PeerFailure, work.get_future().wait))
    check_peer_failure(raises(sagecomm.PeerFailure, work.get_future().value))
    raises(RuntimeError, chained.wait, "scripted failure -2")  # torch's then() keeps the text only
    assert work.get_future_result().wait() == 2
    elsewhere: list[BaseException] = []
    thread = threading.Thread(target=lambda: elsewhere.append(raises(sagecomm.PeerFailure, work.get_future().wait)))
    thread.start()
    thread.join(60)
    check_peer_failure(elsewhere[0])


@scenario
def failure_of_a_synchronous_op() -> None:
    fake.fake_script(FAIL, PEER_FAILURE)
    check_peer_failure(raises(sagecomm.PeerFailure, lambda: dist.all_reduce(torch.ones(1))))
    check_peer_failure(raises(sagecomm.PeerFailure, all_reduce))


@scenario
def statuses_have_their_types() -> None:
    types = {
        TIMEOUT: sagecomm.CollectiveTimeout,
        MISMATCH: sagecomm.CollectiveMismatch,
        ABORTED: sagecomm.Aborted,
        SYSTEM: dist.DistBackendError,
        -1: RuntimeError,
        -7: dist.DistBackendError,
        -8: RuntimeError,
    }
    for status, kind in types.items():
        fake.fake_script(FAIL, status)
        error = raises(kind, lambda: dist.barrier(), f"scripted failure {status}")
        if kind is sagecomm.CollectiveTimeout:
            assert (error.rank, error.host, error.pid, error.op) == (None, None, None, "all_reduce")


@scenario
def failure_reaches_the_caller_of_a_functional_collective() -> None:
    fake.fake_script(FAIL, PEER_FAILURE)
    name = group().group_name
    check_peer_failure(
        raises(sagecomm.PeerFailure, lambda: torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", name))
    )
    fake.fake_script(WAITS, 2)
    out = torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", name)
    assert torch.ops._c10d_functional.wait_tensor(out).tolist() == [2.0, 2.0]


@scenario
def failure_reaches_the_caller_of_backward() -> None:
    """DDP issues its all_reduces on autograd's thread; the error must come out of backward() as it is."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(3, 4)).sum().backward()
    reference = torch.nn.Linear(4, 2)
    reference.load_state_dict(model.module.state_dict())
    reference(torch.ones(3, 4)).sum().backward()
    assert torch.equal(model.module.weight.grad, reference.weight.grad)  # doubled by the fake, halved by DDP
    loss = model(torch.ones(3, 4)).sum()  # torch has rearranged its buckets now, with collectives of its own
    fake.fake_script(FAIL, PEER_FAILURE)
    check_peer_failure(raises(sagecomm.PeerFailure, loss.backward))
    fake.fake_script(OK, 0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    loss = model(torch.ones(3, 4)).sum()
    fake.fake_script(MANUAL, 0)
    issued = backend()._get_sequence_number_for_group()

    def fail_later() -> None:
        fake.fake_await(1, issued + 1)
        fake.fake_finish(PEER_FAILURE)

    thread = threading.Thread(target=fail_later)
    thread.start()
    check_peer_failure(raises(sagecomm.PeerFailure, loss.backward))
    thread.join(60)


@scenario
def wait_with_a_timeout_leaves_the_op_running() -> None:
    fake.fake_script(MANUAL, 0)
    tensor, work = all_reduce()
    raises(RuntimeError, lambda: work.wait(timedelta(milliseconds=20)), "Operation timed out!")
    assert not work.is_completed()
    fake.fake_finish_elsewhere(0, 1)
    assert work.wait(timedelta(milliseconds=20))
    assert tensor[0] == 2


@scenario
def abort_ends_what_is_pending() -> None:
    fake.fake_script(MANUAL, 0)
    _, work = all_reduce()
    backend().abort()
    backend().abort()
    raises(sagecomm.Aborted, work.wait)
    raises(sagecomm.Aborted, all_reduce)
    assert backend().get_error() == NATIVE.ErrorType.COMM_ERROR
    for status, kind in ((TIMEOUT, "TIMEOUT"), (PEER_FAILURE, "REMOTE_ERROR"), (0, "SUCCESS")):
        fake.fake_group_status(status)
        assert backend().get_error() == getattr(NATIVE.ErrorType, kind)


@scenario
def refusals_name_op_and_tensor() -> None:
    def refused(text: str, call: Callable[[], object]) -> None:
        calls = fake.fake_calls()
        raises(RuntimeError, call, text)
        assert fake.fake_calls() == calls, "it reached the core"

    four = torch.zeros(4)
    direct = backend()
    refused(
        "sagecomm: all_reduce: tensor 0 is on meta, but this group was configured for cpu",
        lambda: direct.allreduce([four.to("meta")]),
    )
    refused("sagecomm: broadcast: tensor 0 is Sparse", lambda: direct.broadcast([four.to_sparse()]))
    refused("takes a list of one tensor, got 2", lambda: direct.allreduce([four, four]))
    refused(
        "sagecomm: all_gather: output 1 has the type Double",
        lambda: direct.allgather([[four, four.double()]], [four.clone()]),
    )
    refused("takes one list of 2 output tensors, got one of 1", lambda: direct.allgather([[four]], [four]))
    refused(
        "input 0 has 4 elements, this rank's output has 3", lambda: direct.allgather([[four[:3], four[:3]]], [four])
    )
    refused("the output has 4 elements", lambda: dist.all_gather_into_tensor(torch.zeros(4), four))
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 7, 0
    refused("sagecomm: broadcast: invalid root rank: 7", lambda: direct.broadcast([four], options))
    refused("sagecomm: send: invalid tag: -1", lambda: direct.send([four], 1, -1))
    refused("sagecomm: recv: invalid source rank: 2", lambda: direct.recv([four], 2, 0))
    quantized = torch.quantize_per_tensor(four, 1.0, 0, torch.quint8)
    refused("sagecomm: all_reduce: tensor 0 has the unsupported type", lambda: direct.allreduce([quantized]))
    refused("takes 2 input tensors, got 1", lambda: direct.alltoall([four], [four]))
    assert direct.supports_coalescing
