"""More of what ranks of test_device_tensors.py do with tensors of an accelerator: each operation, what is refused, and
failures. PROGRAMS has these programs and those of device_programs.py, which say how they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions
from torch.distributed import _functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

import device_programs as order
import sagecomm
from device_programs import FEW, SUM, N, accelerator, expect, full, held, main_stream, mine
from older_torch import KNOWS_CAPTURES

# ---- all operations ----


def both_ways(call: Callable[..., Any]) -> None:
    """Calls the operation with async_op False and True."""
    for async_op in (False, True):
        work = call(async_op)
        if work is not None:
            work.wait()


def operations() -> None:
    rank, dev = dist.get_rank(), accelerator()
    blocks = [full(10 * rank + i) for i in range(2)]

    def checked(call: Callable[..., Any], outputs: Callable[[], list[tuple[torch.Tensor, float]]]) -> None:
        for async_op in (False, True):
            work = call(async_op)
            if work is not None:
                work.wait()
            for tensor, value in outputs():
                expect(tensor, value)
                tensor.fill_(-1)

    x = full(5.0 if rank == 1 else 0)
    both_ways(lambda a: dist.broadcast(x, 1, async_op=a))
    expect(x, 5)
    outs = [full(-1), full(-1)]
    checked(lambda a: dist.all_gather(outs, full(mine()), async_op=a), lambda: [(outs[0], 1), (outs[1], 2)])
    one = full(-1)
    checked(lambda a: dist.reduce_scatter(one, blocks, async_op=a), lambda: [(one, 10 + 2 * rank)])
    checked(
        lambda a: dist.reduce_scatter_tensor(one, torch.cat(blocks), op=dist.ReduceOp.AVG, async_op=a),
        lambda: [(one, 5 + rank)],
    )
    checked(lambda a: dist.all_to_all(outs, blocks, async_op=a), lambda: [(outs[0], rank), (outs[1], 10 + rank)])
    uneven = full(-1, 3 if rank == 0 else 5)
    splits = [[1, 3], [2, 2]][rank], [[1, 2], [3, 2]][rank]
    give = full(mine(), sum(splits[0]))
    checked(
        lambda a: dist.all_to_all_single(uneven, give, splits[1], splits[0], async_op=a),
        lambda: [(uneven[: splits[1][0]], 1), (uneven[splits[1][0] :], 2)],
    )
    gathered = outs if rank == 0 else None
    checked(
        lambda a: dist.gather(full(mine()), gathered, dst=0, async_op=a),
        lambda: [(outs[0], 1), (outs[1], 2)] if rank == 0 else [],
    )
    checked(lambda a: dist.scatter(one, blocks if rank == 1 else None, src=1, async_op=a), lambda: [(one, 10 + rank)])
    both_ways(lambda a: dist.barrier(device_ids=[accelerator().index], async_op=a))
    both_ways(lambda a: dist.barrier(async_op=a))
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8):
        y = full(mine(), dtype=dtype)
        dist.all_reduce(y)
        expect(y, SUM)
    flags = torch.tensor([rank == 0, False, True], device=dev)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False, True]
    group = dist.distributed_c10d._get_default_group()
    two = torch.full((2, N), -1.0, device=dev)
    expect(functional.all_gather_tensor(full(mine()), 0, group)[N:], 2)  # coalesced calls of one tensor
    expect(functional.reduce_scatter_tensor(torch.cat(blocks), "sum", 0, group), 10 + 2 * rank)
    expect(functional.all_reduce(full(mine()), "sum", group), SUM)
    two.copy_(functional.all_to_all_single(torch.stack(blocks), None, None, group))
    expect(two[0], rank)
    expect(two[1], 10 + rank)
    empty = torch.empty(0, device=dev)
    both_ways(lambda a: dist.all_reduce(empty, async_op=a))


def long_tensors() -> None:
    """Longer than a chunk, so that it comes in units."""
    n = 3 << 20
    x = torch.arange(n, dtype=torch.float32, device=accelerator()) * mine()
    dist.all_reduce(x)
    assert torch.equal(x, torch.arange(n, dtype=torch.float32, device=accelerator()) * SUM)
    y = torch.arange(n, dtype=torch.int32, device=accelerator())
    if dist.get_rank() == 1:
        y.zero_()
    work = dist.broadcast(y, 0, async_op=True)
    work.wait()
    assert torch.equal(y, torch.arange(n, dtype=torch.int32, device=accelerator()))
    block = y.new_empty(n // 2)
    dist.reduce_scatter_tensor(block, y)
    assert torch.equal(block, 2 * y.chunk(2)[dist.get_rank()])
    dist.all_gather_into_tensor(y, block)
    assert torch.equal(y, 2 * torch.arange(n, dtype=torch.int32, device=accelerator()))


def futures() -> None:
    x = full(mine())
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda f: [t * 2 for t in f.value()])
    expect(future.wait()[0], SUM)
    expect(doubled.wait()[0], 2 * SUM)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    late = work.get_future()
    expect(late.wait()[0], 2 * SUM)
    dist.barrier(device_ids=[accelerator().index], async_op=True).get_future().wait()


def devices_of_objects() -> None:
    """Objects and barriers stay on the CPU."""
    assert set(dist.get_backend_config().split(",")) == {f"{d}:sagecomm" for d in ("cpu", accelerator().type)}
    assert dist.distributed_c10d._get_object_coll_device() == "cpu"
    got: list[Any] = [None, None]
    with held(main_stream()):  # they wait for no stream
        dist.all_gather_object(got, dist.get_rank())
        dist.barrier()
    assert got == [0, 1]


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def modes_see_nothing() -> None:
    """Copies of the library are not for modes of the user, nor for autograd."""
    x = full(mine()).requires_grad_()
    group = dist.distributed_c10d._get_default_group()._get_backend(accelerator())
    options = AllreduceOptions()
    with Counting() as mode, torch.no_grad():
        work = group.allreduce([x.detach()[::2]], options)
        before = list(mode.seen)
        work.wait()
    assert before.count("aten.detach.default") == 1, before
    assert not any("copy_" in name or "empty" in name for name in mode.seen), mode.seen
    expect(x[::2].detach(), SUM)


# ---- what is refused, and failures ----


def refusals() -> None:
    on = accelerator()
    name = on.type
    x = full(mine())
    works = f"not supported on {name} yet; move the tensor to the CPU, or name another backend for {name}"
    if name == "cuda":  # simdev has no sparse tensors
        indices = torch.zeros(1, 1, dtype=torch.int64, device=on)
        sparse = torch.sparse_coo_tensor(indices, full(1, 1), (N,), check_invariants=False)
        with pytest.raises(RuntimeError, match=f"all_reduce: sparse tensors are {works}"):
            dist.all_reduce(sparse)
    backend = dist.distributed_c10d._get_default_group()._get_backend(on)
    with pytest.raises(RuntimeError, match="output 1 is on cpu, the tensors before it are on"):
        backend.allgather([[full(0), torch.zeros(N)]], [x], AllgatherOptions())
    with pytest.raises(RuntimeError, match=f"output 0 is on {on}, the tensors before it are on cpu"):
        backend.allgather([[full(0), full(0)]], [torch.zeros(N)], AllgatherOptions())
    other = torch.device(name, 1 - on.index)
    with pytest.raises(RuntimeError, match=f"is on {other}, the tensors before it are on {on}"):
        backend.allgather([[full(0), full(0).to(other)]], [x], AllgatherOptions())
    with pytest.raises(RuntimeError, match=f"tensor 0 is on meta, but this group was configured for cpu, {name}"):
        backend.allreduce([torch.empty(3, device="meta")], AllreduceOptions())
    with pytest.raises(RuntimeError, match="BAND is not defined for float32"):
        dist.all_reduce(full(1), op=dist.ReduceOp.BAND)
    dist.all_reduce(x)
    expect(x, SUM)


@contextmanager
def captured(stream: Any = None) -> Iterator[None]:
    torch.accelerator.synchronize()
    if accelerator().type == "cuda":
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            yield
        return
    import simdev

    side = stream or torch.Stream(accelerator())
    with side:
        simdev._device.begin_capture(side)
        yield
        simdev._device.end_capture(side)


def captures_are_refused() -> None:
    """The capture goes on, and so does the group."""
    x, rows = full(mine()), torch.full((N, 2), mine(), device=accelerator())[:, 0]
    peer, group = 1 - dist.get_rank(), dist.distributed_c10d._get_default_group()

    def window() -> None:
        with dist._coalescing_manager(device=accelerator()):
            dist.all_reduce(x)
            dist.all_reduce(rows)

    def batch() -> None:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, rows, peer)])

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "send": lambda: dist.send(x, peer),
        "recv": lambda: dist.irecv(rows, peer, tag=1),
        "(coalesced|send|recv)": batch,
        "(coalesced|all_reduce)[a-z_]*": window,
        "barrier": lambda: dist.barrier(device_ids=[accelerator().index]),
        "broadcast": lambda: dist.broadcast(rows, 0),
    }
    with captured():
        for name, call in calls.items():
            with pytest.raises(RuntimeError, match=rf"sagecomm: .*{name}.*stream.* is being captured"):
                call()
    if captures_are_told():
        for same in (False, True):
            begins_before_a_capture(group, x, rows, same)
    dist.all_reduce(x)
    expect(x, SUM)
    dist.all_reduce(rows)
    expect(rows, SUM)


def captures_are_told() -> bool:
    """Whether torch knows that a stream is being captured."""
    told = False
    if KNOWS_CAPTURES:
        with captured(), suppress(RuntimeError):
            told = torch.accelerator.current_stream().is_capturing()
    return told


def begins_before_a_capture(group: dist.ProcessGroup, x: torch.Tensor, rows: torch.Tensor, same: bool) -> None:
    """A coalescing window that ends in a capture, of the stream in which it began or of another one."""
    began = (torch.cuda.Stream if accelerator().type == "cuda" else torch.Stream)(accelerator())
    with began:
        group._start_coalescing(accelerator())
        dist.all_reduce(x)
        dist.broadcast(rows, 1)
    with (
        captured(began if same else None),
        pytest.raises(RuntimeError, match=r"sagecomm: .*stream.* is being captured"),
    ):
        group._end_coalescing(accelerator())


def other_backend_strings() -> None:
    name = accelerator().type
    only = dist.new_group(backend=f"cpu:gloo,{name}:sagecomm")
    x, c = full(mine()), torch.full((3,), mine())
    dist.all_reduce(x, group=only)
    dist.all_reduce(c, group=only)
    expect(x, SUM)
    expect(c, SUM)
    half = dist.new_group(backend=f"cpu:sagecomm,{name}:gloo")
    with pytest.raises(RuntimeError, match=f"tensor 0 is on {accelerator()}, but this group was configured for cpu$"):
        half._get_backend(torch.device("cpu")).allreduce([full(1)], AllreduceOptions())
    dist.all_reduce(c, group=half)
    expect(c, 2 * SUM)
    both = dist.new_group(backend=f"cpu:sagecomm,{name}:sagecomm")
    for tensor in (x, c):
        tensor.fill_(mine())
        dist.all_reduce(tensor, group=both)
        expect(tensor, SUM)


MINUTE = timedelta(minutes=1)


def mismatch() -> None:
    x = full(mine(), N + dist.get_rank())
    try:
        work = dist.all_reduce(x, async_op=True)
    except sagecomm.CollectiveMismatch:  # the peer has found out already
        pass
    else:
        with pytest.raises(sagecomm.CollectiveMismatch):
            work.wait(MINUTE)  # until the operation has ended, also where a stream could wait
        assert work.is_completed()
        with pytest.raises(sagecomm.CollectiveMismatch):
            work.wait()
        with pytest.raises(sagecomm.CollectiveMismatch):
            work.get_future().wait()
    with pytest.raises(sagecomm.CollectiveMismatch):
        dist.all_reduce(full(1))
    x.fill_(5)
    expect(x, 5)


def peer_leaves() -> str:
    """Rank 1 ends in the middle of an operation; rank 0 raises."""
    x = full(mine())
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        os._exit(3)
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(sagecomm.PeerFailure) as raised:
        work.wait(MINUTE)
    with pytest.raises(sagecomm.PeerFailure):
        dist.all_reduce(x)
    x.fill_(5)
    expect(x, 5)
    return str(raised.value)


def training() -> None:
    """DDP gives the same parameters as one process with the whole batch."""
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    data, target = torch.randn(8, 8), torch.randn(8, 4)
    shared = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    shared.load_state_dict(plain.state_dict())
    model = torch.nn.parallel.DistributedDataParallel(shared.to(accelerator()), bucket_cap_mb=0.001)
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    for net, x, y in ((plain, data, target), (model, data[half].to(accelerator()), target[half].to(accelerator()))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
        for _ in range(FEW):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b.cpu())


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    """Runs all programs, in a child of cuda_bed.py."""
    run_under_fake_cuda(rank, size, store, [captures_are_refused, *PROGRAMS])


def take_device(rank: int) -> None:
    """NCCL has a device for each rank. With other engines the ranks share the current one."""
    if os.environ.get("SAGECOMM_ENGINE") == "nccl":
        torch.cuda.set_device(rank)


def run_under_fake_cuda(rank: int, size: int, store: str, programs: list[Callable[[], Any]]) -> None:
    import fake_cuda

    run_in_groups(rank, size, store, programs, fake_cuda.check)


def run_in_groups(
    rank: int, size: int, store: str, programs: list[Callable[[], Any]], check: Callable[[], None]
) -> None:
    """Runs each program in a group of its own, and raises what the emulator has found."""
    for number, program in enumerate(programs):
        dist.init_process_group("sagecomm", init_method=f"file://{store}-{number}", rank=rank, world_size=size)
        try:
            program()
            check()
        except Exception as error:
            raise AssertionError(f"{program.__name__}: {type(error).__name__}: {error}") from error
        dist.destroy_process_group()


PROGRAMS: list[Callable[[], Any]] = [
    order.producer_is_late,
    order.wait_on_another_stream,
    order.wait_twice,
    order.synchronous_call_without_a_wait,
    order.wait_in_another_thread,
    order.issue_on_several_streams,
    order.two_groups_in_opposite_order,
    order.host_goes_on_beside_a_held_stream,
    order.work_is_dropped,
    order.tensors_are_dropped,
    order.outputs_are_dropped,
    order.work_and_tensors_are_dropped,
    order.input_is_written_after_the_wait,
    order.not_contiguous,
    order.several_in_flight,
    operations,
    long_tensors,
    futures,
    devices_of_objects,
    modes_see_nothing,
    refusals,
    other_backend_strings,
    mismatch,
]
