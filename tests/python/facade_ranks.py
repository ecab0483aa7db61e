"""What ranks of test_nccl_torch.py and gpu_check.py do: torch's ProcessGroupNCCL, with sagecomm where NCCL stands."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

import cuda_holds
import fake_cuda
from device_training import called
from nccl_facade import FACADE, FLOAT32, INVALID_USAGE, REMOTE_ERROR, SUM, Error, Library

N = 24
SLOTS = 16 << 20  # bytes of the device that a communicator of the engine cuda has
REDUCED = [
    torch.int8, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda all_ranks: all_ranks.sum(0),
    "PRODUCT": lambda all_ranks: all_ranks.prod(0),
    "MIN": lambda all_ranks: all_ranks.amin(0),
    "MAX": lambda all_ranks: all_ranks.amax(0),
}


def begin(rank: int, size: int, store: str, timeout: int = 60, **options: Any) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        **options,
    )
    if wanted := os.environ.get("GROUP_CLASS"):
        group = c10d._get_default_group()._get_backend(torch.device("cuda"))
        assert type(group).__name__ == wanted, type(group)


def end() -> None:
    cuda_holds.check()
    dist.destroy_process_group()


def values(rank: int, n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A rank's input on the CPU: small numbers, so that all results are exact."""
    return ((torch.arange(n) + rank) % 3 + 1).to(dtype)


def mine(n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return values(dist.get_rank(), n, dtype).cuda()


def empty(n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((n,), 77).to(dtype).cuda()


def ranks() -> range:
    return range(dist.get_world_size())


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert torch.equal(got.cpu(), want.cpu()), f"{what}: {got.cpu().tolist()} instead of {want.cpu().tolist()}"


def reductions() -> None:
    for dtype in REDUCED:
        inputs = torch.stack([values(r, N, dtype) for r in ranks()])
        for name, of in OPS.items():
            want, op = of(inputs.double()).to(dtype), getattr(dist.ReduceOp, name)
            t = mine(dtype=dtype)
            dist.all_reduce(t, op)
            same(t, want, f"all_reduce {name} {dtype}")
        t = mine(dtype=dtype)
        dist.reduce(t, dist.get_world_size() - 1)
        if dist.get_rank() == dist.get_world_size() - 1:
            same(t, inputs.double().sum(0).to(dtype), f"reduce {dtype}")
    inputs = torch.stack([values(r) for r in ranks()])
    t = mine()
    dist.all_reduce(t, dist.ReduceOp.AVG)
    same(t, inputs.mean(0), "AVG")
    for factor in (0.5, torch.tensor([0.25]).cuda()):
        t = mine()
        dist.all_reduce(t, dist._make_nccl_premul_sum(factor))
        same(t, inputs.sum(0) * float(factor), "PREMUL_SUM")
    flags = values(dist.get_rank(), N).eq(1).cuda()
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    same(flags, inputs.eq(1).any(0), "MAX of bool")


def gathers() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    want = [values(r) for r in ranks()]
    got = [empty() for _ in ranks()]
    dist.all_gather(got, mine())
    uneven = [empty(r + 1) for r in ranks()]
    dist.all_gather(uneven, mine(rank + 1))
    for r in ranks():
        same(got[r], want[r], "all_gather")
        same(uneven[r], values(r, r + 1), "all_gather of different lengths")
    whole = empty(size * N)
    dist.all_gather_into_tensor(whole, mine())
    same(whole, torch.cat(want), "all_gather_into_tensor")
    whole.view(size, N)[rank].copy_(mine())
    dist.all_gather_into_tensor(whole, whole.view(size, N)[rank])
    same(whole, torch.cat(want), "all_gather_into_tensor in place")

    total = torch.stack([values(r, size * N) for r in ranks()]).sum(0)
    part = empty()
    dist.reduce_scatter_tensor(part, mine(size * N))
    same(part, total.view(size, N)[rank], "reduce_scatter_tensor")
    dist.reduce_scatter(part, list(mine(size * N).view(size, N)))
    same(part, total.view(size, N)[rank], "reduce_scatter")
    part = empty(rank + 1)
    dist.reduce_scatter(part, [mine(r + 1) for r in ranks()])
    same(part, torch.stack([values(r, rank + 1) for r in ranks()]).sum(0), "reduce_scatter of different lengths")

    root = size - 1
    got = [empty() for _ in ranks()]
    dist.gather(mine(), got if rank == root else None, dst=root)
    if rank == root:
        same(torch.stack(got), torch.stack(want), "gather")
    part = empty()
    dist.scatter(part, [values(r).cuda() for r in ranks()] if rank == root else None, src=root)
    same(part, values(rank), "scatter")
    t = mine()
    dist.broadcast(t, root)
    same(t, values(root), "broadcast")


def exchanges() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    send = [mine(2 * (r + 1)) * (r + 1) for r in ranks()]
    got = [empty(2 * (rank + 1)) for _ in ranks()]
    dist.all_to_all(got, send)
    for r in ranks():
        same(got[r], values(r, 2 * (rank + 1)) * (rank + 1), "all_to_all")
    t = empty(size * N)
    dist.all_to_all_single(t, mine(size * N))
    same(t, torch.cat([values(r, size * N).view(size, N)[rank] for r in ranks()]), "all_to_all_single")
    t = empty(size * (rank + 1))
    dist.all_to_all_single(t, torch.cat([mine(r + 1) for r in ranks()]), [rank + 1] * size, [r + 1 for r in ranks()])
    same(t, torch.cat([values(r, rank + 1) for r in ranks()]), "all_to_all_single of different lengths")

    left, right = (rank - 1) % size, (rank + 1) % size
    t = empty()
    batch = [dist.P2POp(dist.isend, mine(), right), dist.P2POp(dist.irecv, t, left)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(t, values(left), "batch_isend_irecv")
    for n in (1, N, 100_000):  # pairs of ranks, there and back
        t = empty(n)
        if rank % 2 == 0 and right == rank + 1:
            dist.send(mine(n), right)
            dist.recv(t, right)
            same(t, values(rank, n) * 2, "send and recv")
        elif rank % 2 == 1:
            dist.recv(t, left)
            dist.send(t * 2, left)
    dist.barrier()


def coalescing() -> None:
    inputs = [mine(n) for n in (1, N, 3 * N)]
    with c10d._coalescing_manager(device=torch.device("cuda", torch.cuda.current_device()), async_ops=True) as manager:
        for t in inputs:
            dist.all_reduce(t)
    manager.wait()
    for t in inputs:
        same(t, torch.stack([values(r, t.numel()) for r in ranks()]).sum(0), "coalesced all_reduce")
    size = dist.get_world_size()
    whole = [empty(size * n) for n in (2, N)]
    with c10d._coalescing_manager(device=torch.device("cuda", torch.cuda.current_device())):
        for t in whole:
            dist.all_gather_into_tensor(t, mine(t.numel() // size))
    for t in whole:
        same(t, torch.cat([values(r, t.numel() // size) for r in ranks()]), "coalesced all_gather")


def streams() -> None:
    """Nobody waits on the host: what one stream writes late is what another one reads behind the operation."""
    side = torch.cuda.Stream()
    for step in range(5):
        t = empty()
        with torch.cuda.stream(side):
            t.copy_(values(dist.get_rank() + step).pin_memory(), non_blocking=True)
            work = dist.all_reduce(t, async_op=True)
        work.wait()
        doubled = t * 2
        side.wait_stream(torch.cuda.current_stream())
        same(doubled, torch.stack([values(r + step) for r in ranks()]).sum(0) * 2, "all_reduce of a side stream")


def groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(0, size, 2)]
    for first, pair in zip(range(0, size, 2), pairs, strict=True):
        if rank in (first, first + 1):
            t = mine()
            dist.all_reduce(t, group=pair)
            same(t, values(first) + values(first + 1), "all_reduce of a pair")
    t = mine()
    dist.all_reduce(t)
    same(t, torch.stack([values(r) for r in ranks()]).sum(0), "all_reduce of all")


def split() -> None:
    """Requires: the default group is bound to a device, so that torch splits its communicator."""
    rank, size = dist.get_rank(), dist.get_world_size()
    half = dist.split_group(split_ranks=[list(range(size // 2)), list(range(size // 2, size))])
    t = mine()
    dist.all_reduce(t, group=half)
    members = range(size // 2) if rank < size // 2 else range(size // 2, size)
    same(t, torch.stack([values(r) for r in members]).sum(0), "all_reduce of a half")


PROGRAMS = [reductions, gathers, exchanges, coalescing, streams, groups]


def programs(rank: int, size: int, store: str) -> list[str]:
    """Returns what libraries named libnccl this process has mapped."""
    begin(rank, size, store)
    for program in PROGRAMS:
        program()
        cuda_holds.check()
    end()
    return mapped()


def mapped() -> list[str]:
    with open("/proc/self/maps") as lines:
        return sorted(
            {os.path.basename(line.split()[-1]) for line in lines if "nccl" in os.path.basename(line.split()[-1])}
        )


def splits(rank: int, size: int, store: str, nonblocking: bool) -> None:
    if nonblocking:
        os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "1"
    begin(rank, size, store, device_id=torch.device("cuda", rank % torch.cuda.device_count()))
    split()
    reductions()
    legacy = os.environ["GROUP_CLASS"] == "ProcessGroupNCCL"  # its all_to_all takes ncclInProgress for an error
    if not (nonblocking and legacy):
        exchanges()
    end()


def training(rank: int, size: int, store: str, function: str, *arguments: Any) -> str:
    """Calls `module:function` with the arguments."""
    begin(rank, size, store)
    result = called(function, *arguments)
    end()
    return result


def shrinks(rank: int, size: int, store: str, flags: int) -> None:
    """All ranks but the last shrink the default group, with nothing outstanding. The last one sees no failure."""
    begin(rank, size, store, device_id=torch.device("cuda", rank % torch.cuda.device_count()))
    t, names = mine(), c10d._get_default_store()
    dist.all_reduce(t)
    torch.cuda.synchronize()
    if rank == size - 1:
        names.get("shrunk")
        torch.cuda.synchronize()
        group = c10d._get_default_group()._get_backend(torch.device("cuda"))
        assert group.get_error() == ErrorType.SUCCESS
        end()
        return
    group = dist.shrink_group([size - 1], shrink_flags=flags)
    t = values(rank).cuda()
    dist.all_reduce(t, group=group)
    same(t, torch.stack([values(r) for r in range(size - 1)]).sum(0), "all_reduce of a group that was shrunk")
    if rank == 0:
        names.set("shrunk", b"")
    end()


def aborts(rank: int, size: int, store: str) -> str:
    """Rank 0 aborts its group with nothing outstanding. The operation of the others fails, and each can make a new
    group."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else the watchdog of ProcessGroupNCCL ends the process
    os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1"  # else it waits for 60 s if it comes before abort()
    begin(rank, size, store)
    t = mine()
    dist.all_reduce(t)
    torch.cuda.synchronize()
    group = c10d._get_default_group()._get_backend(torch.device("cuda"))
    if rank == 0:
        group.abort()
        text = ""
    else:
        try:
            dist.all_reduce(t)
            torch.cuda.synchronize()
            dist.all_reduce(t)
            text = ""
        except RuntimeError as error:
            text = str(error)
        group.abort()
    dist.destroy_process_group()
    begin(rank, size, f"{store}.again")
    t = mine()
    dist.all_reduce(t)
    same(t, torch.stack([values(r) for r in ranks()]).sum(0), "all_reduce of a new group")
    end()
    return text


# ---- what vLLM's pynccl does


def pointer(t: torch.Tensor) -> int:
    return t.data_ptr()


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def communicator_of(rank: int, size: int, store: str) -> tuple[Library, dist.FileStore, ctypes.c_void_p]:
    """Returns the library, a store that all ranks have, and a communicator of all, on the device of the rank."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    library, names = Library(), dist.FileStore(store, size)
    if rank == 0:
        names.set("id", library.unique_id())
    return library, names, library.communicator(size, names.get("id"), rank)


def pynccl(rank: int, size: int, store: str) -> None:
    """Calls as vLLM's tests of pynccl make them, in a stream of their own and with nothing that waits on the host."""
    library, _, comm = communicator_of(rank, size, store)
    inputs = [values(r) for r in range(size)]
    total = torch.stack(inputs).sum(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            t, whole, part = inputs[rank].cuda(), empty(size * N), empty(N // size)
            library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
            same(t, total, "all_reduce")
            t = inputs[rank].cuda()
            library.call("ncclAllGather", pointer(t), pointer(whole), N, FLOAT32, comm, stream())
            same(whole, torch.cat(inputs), "all_gather")
            library.call("ncclReduceScatter", pointer(t), pointer(part), N // size, FLOAT32, SUM, comm, stream())
            same(part, total.view(size, -1)[rank], "reduce_scatter")
            got = empty()
            library.call("ncclBroadcast", pointer(t), pointer(got), N, FLOAT32, size - 1, comm, stream())
            same(got, inputs[-1], "broadcast")
            library.call("ncclGroupStart")
            for root in range(size):
                at = pointer(whole) + 4 * root * N
                library.call("ncclBroadcast", pointer(t), at, root + 1, FLOAT32, root, comm, stream())
            library.call("ncclGroupEnd")
            for root in range(size):
                same(whole[root * N : root * N + root + 1], inputs[root][: root + 1], "all_gatherv")
            if rank == 0:
                library.call("ncclSend", pointer(t), N, FLOAT32, size - 1, comm, stream())
            elif rank == size - 1:
                library.call("ncclRecv", pointer(got), N, FLOAT32, 0, comm, stream())
                same(got, inputs[0], "send and recv")
    torch.cuda.synchronize()
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()


def several_streams(rank: int, size: int, store: str) -> None:
    """All streams of a group call wait for each other."""
    library, _, comm = communicator_of(rank, size, store)
    streams = [torch.cuda.Stream() for _ in range(3)]
    tensors = []
    for n, each in enumerate(streams):
        with torch.cuda.stream(each):
            tensors.append(mine_of(rank + n))
    library.call("ncclGroupStart")
    for t, each in zip(tensors, streams, strict=True):
        library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, each.cuda_stream)
    library.call("ncclGroupEnd")
    with torch.cuda.stream(streams[1]):  # it is behind what the other streams have done
        for n, t in enumerate(tensors):
            same(t, torch.stack([values(r + n) for r in range(size)]).sum(0), "all_reduce in a stream of its own")
    torch.cuda.synchronize()
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()


def mine_of(rank: int) -> torch.Tensor:
    return values(rank).pin_memory().cuda(non_blocking=True)


def in_one_thread(rank: int, size: int, store: str, ranks: int) -> None:
    """Several ranks in one thread, each with a device of its own, in group calls."""
    assert (rank, size) == (0, 1)
    library = Library()
    comms = (ctypes.c_void_p * ranks)()
    library.call("ncclCommInitAll", comms, ranks, None)
    for _ in range(3):
        tensors = []
        for r in range(ranks):
            with torch.cuda.device(r):
                tensors.append(values(r).cuda())
        library.call("ncclGroupStart")
        for r, t in enumerate(tensors):
            at = torch.cuda.current_stream(r).cuda_stream
            comm = ctypes.c_void_p(comms[r])
            library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, at)
        library.call("ncclGroupEnd")
        for t in tensors:
            same(t, torch.stack([values(r) for r in range(ranks)]).sum(0), "all_reduce of ranks in one thread")
    for r in range(ranks):
        library.call("ncclCommDestroy", ctypes.c_void_p(comms[r]))
    cuda_holds.check()


def captured(rank: int, size: int, store: str) -> str:
    """Returns why an operation in a capture is refused."""
    library, _, comm = communicator_of(rank, size, store)
    t = mine_of(rank)
    text = ""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        try:
            library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
        except Error as error:
            assert error.result == INVALID_USAGE, error
            text = str(error)
    library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
    same(t, torch.stack([values(r) for r in range(size)]).sum(0), "all_reduce after a capture")
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()
    return text


def replayed(rank: int, size: int, store: str) -> None:
    """An operation in a graph, launched with new contents, and one outside of the graph between the launches."""
    library, _, comm = communicator_of(rank, size, store)
    x, y, eager = mine_of(rank), torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    library.call("ncclAllReduce", pointer(x), pointer(y), N, FLOAT32, SUM, comm, stream())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.call("ncclAllReduce", pointer(x), pointer(y), N, FLOAT32, SUM, comm, stream())
    for launch in range(4):
        x.copy_(values(rank) + launch)
        graph.replay()
        library.call("ncclAllReduce", pointer(eager), pointer(eager), N, FLOAT32, SUM, comm, stream())
        same(y, torch.stack([values(r) + launch for r in range(size)]).sum(0), f"launch {launch}")
        same(eager, torch.full((N,), float(size ** (launch + 1))), f"the operation behind launch {launch}")
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()


def aborts_beside_graphs(rank: int, size: int, store: str, kept: bool) -> str:
    """Rank 0 aborts a communicator of which all operations are complete, while a graph has one of them, or when the
    graph is destroyed. Returns what the others hear when they need rank 0."""
    library, names, comm = communicator_of(rank, size, store)
    t = mine_of(rank)
    reduce = ("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm)
    library.call(*reduce, stream())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.call(*reduce, stream())
    graph.replay()
    torch.cuda.synchronize()
    names.set(f"launched {rank}", b"")
    for peer in range(size):
        names.get(f"launched {peer}")
    if not kept:
        del graph
        while fake_cuda.emulator().emulator_objects() > 0:  # the driver tells of the end of a graph a little later
            time.sleep(0.001)
    if rank == 0:
        library.call("ncclCommAbort", comm)
        names.set("aborted", b"")
        return ""
    names.get("aborted")
    try:
        library.call(*reduce, stream())
        while library.asynchronous_error(comm) == 0:
            torch.cuda.synchronize()
        text = library.library.ncclGetLastError(comm).decode()
    except Error as error:
        assert error.result == REMOTE_ERROR, error
        text = str(error)
    library.call("ncclCommDestroy", comm)
    return text


def memory_of_threads(rank: int, size: int, store: str) -> None:
    """Memory that a thread without a context has allocated is that of device 0, and such a thread gives it back."""
    torch.cuda.set_device(0)
    torch.cuda.init()
    mine_of(rank)
    library, at = Library(), ctypes.c_void_p()
    with ThreadPoolExecutor(1) as pool:
        before = torch.cuda.mem_get_info()[0]
        pool.submit(library.call, "ncclMemAlloc", ctypes.byref(at), SLOTS).result()
        assert before - torch.cuda.mem_get_info()[0] >= SLOTS
        library.call("ncclMemFree", at)
        assert torch.cuda.mem_get_info()[0] == before
        library.call("ncclMemAlloc", ctypes.byref(at), SLOTS)
        pool.submit(library.call, "ncclMemFree", at).result()
        assert torch.cuda.mem_get_info()[0] == before


def reduce_all(library: Library, comm: ctypes.c_void_p, tensors: list[torch.Tensor]) -> None:
    library.call("ncclGroupStart")
    for t in tensors:
        library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
    library.call("ncclGroupEnd")


def memory_of_graphs(rank: int, size: int, store: str, told: bool) -> int:
    """Makes a communicator with a graph, destroys both, and so on. Returns how many bytes of the device are gone: as
    soon as they are fewer than two communicators have, where the driver tells of the end of graphs."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    library, names = Library(), dist.FileStore(store, size)
    first = 0
    for cycle in range(5):
        if rank == 0:
            names.set(f"id {cycle}", library.unique_id())
        comm = library.communicator(size, names.get(f"id {cycle}"), rank)
        tensors = [mine_of(rank) for _ in range(2)]
        reduce_all(library, comm, tensors)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            reduce_all(library, comm, tensors)
        graph.replay()
        torch.cuda.synchronize()
        graph.reset()
        del graph
        names.set(f"launched {cycle} {rank}", b"")
        for peer in range(size):
            names.get(f"launched {cycle} {peer}")
        library.call("ncclCommDestroy", comm)
        free, _ = torch.cuda.mem_get_info()
        if cycle == 0:
            first = free
    end = time.monotonic() + 60
    while told and first - torch.cuda.mem_get_info()[0] >= 2 * SLOTS and time.monotonic() < end:
        time.sleep(0.01)
    gone = first - torch.cuda.mem_get_info()[0]
    names.set(f"measured {rank}", b"")
    for peer in range(size):
        names.get(f"measured {peer}")
    return gone


def to_itself(rank: int, size: int, store: str) -> str:
    """Each rank sends to itself, in one buffer and in two, while the buffers are late. Returns why a send alone is
    refused."""
    library, _, comm = communicator_of(rank, size, store)
    x, y, got = mine_of(rank), mine_of(rank + 1), empty()
    library.call("ncclGroupStart")
    for source, target in ((x, x), (y, got)):
        library.call("ncclSend", pointer(source), N, FLOAT32, rank, comm, stream())
        library.call("ncclRecv", pointer(target), N, FLOAT32, rank, comm, stream())
    library.call("ncclAllReduce", pointer(z := mine_of(rank)), pointer(z), N, FLOAT32, SUM, comm, stream())
    library.call("ncclGroupEnd")
    x.add_(1)
    same(x, values(rank) + 1, "a send onto itself")
    same(got, values(rank + 1), "a send to itself")
    same(z, torch.stack([values(r) for r in range(size)]).sum(0), "the all_reduce beside them")
    try:
        library.call("ncclSend", pointer(x), N, FLOAT32, rank, comm, stream())
        text = ""
    except Error as error:
        assert error.result == INVALID_USAGE, error
        text = str(error)
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()
    return text


def host_memory(rank: int, size: int, store: str) -> None:
    """Pinned memory is reduced behind what the stream of the call holds."""
    library, _, comm = communicator_of(rank, size, store)
    t = torch.zeros(N).pin_memory()
    t.copy_(mine_of(rank), non_blocking=True)
    library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
    same(t, torch.stack([values(r) for r in range(size)]).sum(0), "all_reduce of pinned memory")
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()


def of_another_device(rank: int, size: int, store: str) -> None:
    """Group calls on several streams come from a thread whose current device is not that of the communicator."""
    device = rank + 1
    library, names = Library(), dist.FileStore(store, size)
    if rank == 0:
        names.set("id", library.unique_id())
    with torch.cuda.device(device):
        comm = library.communicator(size, names.get("id"), rank)
        streams = [torch.cuda.Stream() for _ in range(2)]
        tensors = []
        for n, each in enumerate(streams):
            with torch.cuda.stream(each):
                tensors.append(mine_of(rank + n))
    torch.cuda.set_device(0)
    library.call("ncclGroupStart")
    for t, each in zip(tensors, streams, strict=True):
        library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, each.cuda_stream)
    library.call("ncclGroupEnd")
    assert torch.zeros(1).pin_memory().cuda().device.index == 0
    with torch.cuda.stream(streams[0]):
        for n, t in enumerate(tensors):
            same(t, torch.stack([values(r + n) for r in range(size)]).sum(0), "all_reduce on another device")
    library.call("ncclCommDestroy", comm)
    cuda_holds.check()


def finalized(rank: int, size: int, store: str) -> str:
    """Rank 0 finalizes a communicator with an operation that no other rank joins. Returns its error."""
    library, names, comm = communicator_of(rank, size, store)
    t, text = mine_of(rank), ""
    library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
    torch.cuda.synchronize()
    if rank == 0:
        library.call("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
        try:
            library.call("ncclCommFinalize", comm)
        except Error as error:
            assert error.result == REMOTE_ERROR, error
            text = str(error)
        names.set("over", b"")
    names.get("over")
    library.call("ncclCommDestroy", comm)
    return text


def aborted_in_finalize(rank: int, size: int, store: str) -> str:
    """Rank 0 finalizes a communicator with an operation that no other rank joins, and aborts it on another thread
    meanwhile. The next operation of the others fails. Returns the error of that, or of the finalization."""
    library, names, comm = communicator_of(rank, size, store)
    t = mine_of(rank)

    def failing(name: str, *arguments: Any) -> Error:
        try:
            library.call(name, *arguments)
        except Error as error:
            return error
        raise AssertionError(f"{name} succeeds")

    reduce = ("ncclAllReduce", pointer(t), pointer(t), N, FLOAT32, SUM, comm, stream())
    library.call(*reduce)
    torch.cuda.synchronize()
    if rank > 0:
        names.get("aborted")
        error = failing(*reduce)
        library.call("ncclCommDestroy", comm)
    else:
        library.call(*reduce)
        with ThreadPoolExecutor(1) as pool:
            finalization = pool.submit(failing, "ncclCommFinalize", comm)
            while "was finalized" not in str(failing("ncclAllReduce", None, None, N, FLOAT32, SUM, comm, stream())):
                pass
            library.call("ncclCommAbort", comm)
            error = finalization.result()
        names.set("aborted", b"")
    assert error.result == REMOTE_ERROR, error
    return str(error)


def on_a_gpu(rank: int, size: int, store: str) -> None:
    """What gpu_check.py runs."""
    assert FACADE.name in programs(rank, size, f"{store}.programs")  # torch 2.11 maps NVIDIA's as well
    training(rank, size, f"{store}.training", "device_training:data_parallel", "cuda", "mlp", "bf16")
    pynccl(rank, size, f"{store}.pynccl")
    if os.environ["SAGECOMM_ENGINE"] == "cuda":
        replayed(rank, size, f"{store}.replayed")
