"""How the shim translates tensors and arguments for the core, and answers torch's questions about them."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm import _C
from shim_harness import (
    ALL_GATHER,
    BARRIER,
    BROADCAST,
    DEADLINE,
    FAIL,
    INVALID,
    MANUAL,
    NATIVE,
    OK,
    OK_WORK,
    PEER_FAILURE,
    RECV,
    REDUCE,
    SEND,
    WAITS,
    all_reduce,
    backend,
    backend_options,
    create,
    fake,
    last,
    raises,
    scenario,
)


@scenario
def outputs_that_are_not_contiguous_are_written_back() -> None:
    for async_op in (False, True):
        for script in (OK, OK_WORK, WAITS):
            fake.fake_script(script, 2)
            base = torch.zeros(3, 4)
            view = base.t()[1:3]
            view.copy_(torch.arange(6.0).reshape(2, 3))
            work = dist.all_reduce(view, async_op=async_op)
            if async_op:
                work.wait(DEADLINE)
            assert torch.equal(view, 2 * torch.arange(6.0).reshape(2, 3))
            assert base[:, 0].sum() == 0
            assert base[:, 3].sum() == 0
            outputs = [torch.zeros(2, 2).t(), torch.zeros(2, 2)]
            work = dist.all_gather(outputs, torch.arange(4.0).reshape(2, 2).t(), async_op=async_op)
            if async_op:
                assert work.wait(DEADLINE)
                assert [t.tolist() for t in work.get_future().wait()] == [[[0, 2], [1, 3]]] * 2
            assert [t.tolist() for t in outputs] == [[[0, 2], [1, 3]]] * 2
            del work


@scenario
def lazy_conjugates_are_resolved() -> None:
    outputs = [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj()]
    backend().allgather([outputs], [torch.tensor([1 + 2j, 3 - 1j]).conj()]).wait()
    for output in outputs:
        assert output.tolist() == [1 - 2j, 3 + 1j]


@scenario
def tensors_that_require_grad() -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    backend().allreduce([leaf]).wait()
    assert leaf.is_leaf
    strided = torch.ones(2, 3, requires_grad=True)
    view = strided.t()
    backend().allreduce([view]).wait()
    assert strided.detach().sum() == 12


@scenario
def zero_elements() -> None:
    for tensor in (torch.zeros(0), torch.zeros(3, 0).t()):
        dist.all_reduce(tensor)
        assert (last().n_in, last().n_out) == (1, 1)


@scenario
def operations_arrive_as_they_were_called() -> None:
    seven = torch.zeros(7, dtype=torch.float64)
    dist.broadcast(seven, 0)
    assert (last().kind, last().root, last().n_in, last().n_out, last().dtype) == (BROADCAST, 0, 1, 1, 12)
    dist.broadcast(seven, 1)
    assert (last().kind, last().root, last().n_in, last().n_out) == (BROADCAST, 1, 0, 1)
    dist.reduce(seven, 0, op=dist.ReduceOp.MAX)
    assert (last().kind, last().root, last().n_in, last().n_out, last().reduce_op) == (REDUCE, 0, 1, 1, 4)
    dist.reduce(seven, 1)
    assert (last().kind, last().root, last().n_in, last().n_out, last().reduce_op) == (REDUCE, 1, 1, 0, 0)
    dist.barrier()
    assert (last().kind, last().n_in, last().n_out) == (BARRIER, 0, 0)
    many = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(many, torch.ones(2))
    assert (last().kind, last().n_in, last().n_out) == (ALL_GATHER, 1, 2)
    assert many[1].tolist() == [1.0, 1.0]
    dist.all_gather_into_tensor(torch.zeros(4), torch.ones(2))
    assert (last().kind, last().n_in, last().n_out) == (ALL_GATHER, 1, 1)


@scenario
def point_to_point() -> None:
    before = backend()._get_sequence_number_for_group()
    dist.send(torch.ones(3), 1, tag=5)
    assert (last().kind, last().root, last().tag, last().n_in, last().n_out) == (SEND, 1, 5, 1, 0)
    assert dist.recv(torch.ones(3), 1, tag=6) == 1
    assert (last().kind, last().root, last().tag, last().n_in, last().n_out) == (RECV, 1, 6, 0, 1)
    for script in (OK_WORK, WAITS):
        fake.fake_script(script, 2)
        assert dist.recv(torch.ones(3)) == 1  # a recv from any source returns the source
        assert last().root == -1
        assert dist.irecv(torch.ones(3), 1).wait()
    assert backend()._get_sequence_number_for_group() == before


@scenario
def reductions_and_their_factor() -> None:
    one = torch.ones(1)
    names = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    for number, name in enumerate(names):
        dist.all_reduce(one.int(), op=getattr(dist.ReduceOp, name))
        assert last().reduce_op == number
    for factor in (0.25, torch.tensor([0.25])):
        dist.all_reduce(one, op=dist._make_nccl_premul_sum(factor))
        assert (last().reduce_op, last().factor) == (8, 0.25)


@scenario
def types_have_their_numbers() -> None:
    names = (
        "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool float16 bfloat16 float32 float64 complex64 complex128"
    )
    for number, name in enumerate(names.split()):
        backend().allreduce([torch.zeros(2, dtype=getattr(torch, name))])
        assert last().dtype == number, name
    for number, name in enumerate(["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"], start=15):
        dist.broadcast(torch.ones(2).to(getattr(torch, f"float8_{name}")), 0)
        assert last().dtype == number, name


@scenario
def timeouts_are_passed_on() -> None:
    options = dist.AllreduceOptions()
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 0
    options.timeout = timedelta(seconds=2)
    work = backend().allreduce([torch.ones(1)], options)
    assert last().timeout_ns == 2_000_000_000
    if hasattr(work, "timeout"):  # older torch has no binding for it
        assert work.timeout == timedelta(seconds=2)
    backend()._set_default_timeout(timedelta(seconds=77))
    assert fake.fake_timeout_set() == 77_000_000_000
    assert backend().options._timeout == timedelta(seconds=77)


@scenario
def ephemeral_time_ends_with_the_first_operation_after_it() -> None:
    direct = backend()
    direct._set_default_timeout(timedelta(seconds=50))
    direct._add_ephemeral_timeout(timedelta(seconds=5))
    fake.fake_script(MANUAL, 0)
    _, first = all_reduce()
    assert last().timeout_ns == 55 * 10**9
    fake.fake_script(OK, 0)
    direct._add_ephemeral_timeout(timedelta(seconds=2))
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 57 * 10**9
    direct.allreduce_coalesced([torch.ones(1), torch.ones(2)])
    assert last().timeout_ns == 55 * 10**9, "the 2 s ended with the operation before, the 5 s wait for the first one"
    fake.fake_finish_elsewhere(0, 1)
    first.wait()
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 0
    direct._add_ephemeral_timeout(timedelta(seconds=3))
    fake.fake_script(FAIL, INVALID)
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(1)))
    fake.fake_script(OK, 0)
    direct.allreduce_coalesced([torch.ones(1), torch.ones(2)])
    assert last().timeout_ns == 53 * 10**9, "what is refused ends nothing"
    direct.allreduce_coalesced([torch.ones(1), torch.ones(2)])
    assert last().timeout_ns == 0


@scenario
def ephemeral_time_counts_for_sparse_sums() -> None:
    direct = backend()
    direct._set_default_timeout(timedelta(seconds=50))
    direct._add_ephemeral_timeout(timedelta(seconds=5))
    fake.fake_script(MANUAL, 0)
    sparse = dist.all_reduce(torch.eye(3).to_sparse(), async_op=True)
    assert last().timeout_ns == 55 * 10**9
    if hasattr(sparse, "timeout"):  # older torch has no binding for it
        assert sparse.timeout == timedelta(seconds=55)
    fake.fake_script(OK, 0)
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 55 * 10**9
    fake.fake_finish_elsewhere(PEER_FAILURE, 1)
    raises(sagecomm.PeerFailure, sparse.wait)
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 0, "what was given to the sparse sum ended with it"
    direct._add_ephemeral_timeout(timedelta(seconds=3))
    fake.fake_script(FAIL, INVALID)
    raises(RuntimeError, lambda: dist.all_reduce(torch.eye(3).to_sparse()))
    fake.fake_script(OK, 0)
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 53 * 10**9, "what is refused ends nothing"
    dist.all_reduce(torch.ones(1))
    assert last().timeout_ns == 0


@scenario
def a_window_has_the_longest_of_its_timeouts() -> None:
    options = dist.AllreduceOptions()
    for first, second, longest in ((2, None, 50), (2, 77, 77), (None, 77, 77), (None, None, 50)):
        backend()._set_default_timeout(timedelta(seconds=50))
        backend()._start_coalescing()
        for seconds in first, second:
            options.timeout = timedelta(milliseconds=-1) if seconds is None else timedelta(seconds=seconds)
            backend().allreduce([torch.ones(1)], options)
        backend()._end_coalescing().wait()
        assert last().timeout_ns == longest * 10**9


@scenario
def properties() -> None:
    direct = backend()
    assert type(direct) is _C.ProcessGroupSagecomm
    assert direct.name() == "sagecomm"
    assert (direct.rank(), direct.size()) == (0, 2)
    assert direct.options.settings == {"debug": "WARN", "tune": "x"}
    assert direct.options.group_name == c10d._get_default_group().group_name
    made = create(backend_options(dist.HashStore()), None)  # the fake keeps the settings of the last group alone
    assert fake.fake_options() == b"debug=WARN;tune=x;"
    del made
    assert _C.describe_environment() == "[]"
    assert _C.describe_devices() == "[{}]"
    assert _C.go_entries() == 42
    assert _C.built_for() == ".".join(torch.__version__.split(".")[:2])
    assert direct.stats_json().rstrip() == "{}"


@scenario
def profiler_sees_every_operation() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(2))
        fake.fake_script(MANUAL, 0)
        _, work = all_reduce()
        fake.fake_finish_elsewhere(0, 1)
        work.wait()
        fake.fake_script(FAIL, PEER_FAILURE)
        raises(sagecomm.PeerFailure, lambda: dist.all_reduce(torch.ones(2)))
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts[f"{dist.get_backend()}:all_reduce"] == 3
    assert counts["record_param_comms"] == 3


@scenario
def works_leave_the_registry_when_they_are_waited_for() -> None:
    NATIVE._set_allow_inflight_collective_as_graph_input(True)
    try:
        _, work = all_reduce()
        assert NATIVE._get_work_registry_size() == 1
        work.wait()
        assert NATIVE._get_work_registry_size() == 0
    finally:
        NATIVE._set_allow_inflight_collective_as_graph_input(False)
