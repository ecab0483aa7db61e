"""What ranks of test_cuda_graphs.py and test_nccl_graphs.py do: operations in CUDA graphs, on a device that the ranks
share, or with the engine nccl on devices of their own."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import fake_cuda
import sagecomm
from device_nccl import calls, device, join_group, raised, ranks, same
from device_programs import held

Step = Callable[[], Any]
CHUNK = 2 << 20  # bytes of a slot of captured operations


def value(rank: int, launch: int, n: int) -> torch.Tensor:
    """A rank's input of a launch: whole numbers, so that sums are exact."""
    return ((torch.arange(n) * (rank + 1) + launch * 7) % 101).float()


class Case:
    """An operation in a graph: its input, its output, and what the output is on the CPU."""

    def __init__(self, name: str, n: int) -> None:
        self.name, self.n = name, n
        size, like = dist.get_world_size(), {"device": device()}
        lengths = {  # of inputs and outputs
            "all_reduce": (n, n),
            "reduce": (n, n),
            "broadcast": (n, n),
            "all_gather": (n, n * size),
            "gathered_list": (n, n * size),
            "reduce_scatter": (n * size, n),
            "all_to_all": (n * size, n * size),
            "uneven": (n * size, n * size),
            "not_contiguous": (2 * n, 2 * n),
        }
        self.input = torch.zeros(lengths[name][0], **like)
        self.output = torch.zeros(lengths[name][1], **like)

    def issue(self, group: Any = None, async_op: bool = False) -> Any:
        x, y, size = self.input, self.output, dist.get_world_size()
        how = {"group": group, "async_op": async_op}
        if self.name in ("all_reduce", "reduce", "broadcast", "not_contiguous"):
            y.copy_(x)
        if self.name == "all_reduce":
            return dist.all_reduce(y, **how)
        if self.name == "not_contiguous":
            return dist.all_reduce(y.view(-1, 2)[:, 1], **how)
        if self.name == "reduce":
            return dist.reduce(y, size - 1, **how)
        if self.name == "broadcast":
            return dist.broadcast(y, size - 1, **how)
        if self.name == "all_gather":
            return dist.all_gather_into_tensor(y, x, **how)
        if self.name == "gathered_list":
            parts = [torch.empty_like(x) for _ in ranks()]
            work = dist.all_gather(parts, x, **how)
            if work is not None:
                work.wait()
            torch.cat(parts, out=y)
            return None
        if self.name == "reduce_scatter":
            return dist.reduce_scatter_tensor(y, x, **how)
        if self.name == "all_to_all":
            return dist.all_to_all_single(y, x, **how)
        return dist.all_to_all_single(self.uneven(y, dist.get_rank()), x, self.splits(dist.get_rank(), False),
                                      self.splits(dist.get_rank(), True), **how)  # fmt: skip

    def splits(self, rank: int, sends: bool) -> list[int]:
        """Rank r sends n / 2 elements to the next rank, 3 n / 2 to the one before, n to others."""
        size, extra = dist.get_world_size(), self.n // 2
        out = [self.n for _ in ranks()]
        if sends:
            out[(rank + 1) % size] -= extra
            out[(rank - 1) % size] += extra
        else:
            out[(rank - 1) % size] -= extra
            out[(rank + 1) % size] += extra
        return out

    def uneven(self, y: torch.Tensor, rank: int) -> torch.Tensor:
        return y[: sum(self.splits(rank, False))]

    def fill(self, launch: int) -> None:
        self.input.copy_(value(dist.get_rank(), launch, len(self.input)))

    def check(self, launch: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        inputs = [value(r, launch, len(self.input)) for r in ranks()]
        want = {
            "all_reduce": lambda: sum(inputs),
            "reduce": lambda: sum(inputs) if rank == size - 1 else inputs[rank],
            "broadcast": lambda: inputs[-1],
            "all_gather": lambda: torch.cat(inputs),
            "gathered_list": lambda: torch.cat(inputs),
            "reduce_scatter": lambda: sum(inputs)[rank * self.n : (rank + 1) * self.n],
            "all_to_all": lambda: torch.cat([x[rank * self.n : (rank + 1) * self.n] for x in inputs]),
            "uneven": lambda: torch.cat([x.split(self.splits(r, True))[rank] for r, x in enumerate(inputs)]),
            "not_contiguous": lambda: torch.stack(
                [inputs[rank].view(-1, 2)[:, 0], sum(x.view(-1, 2)[:, 1] for x in inputs)], 1
            ).flatten(),
        }[self.name]()
        got = self.uneven(self.output, rank) if self.name == "uneven" else self.output
        same(got, want, f"{self.name} of {self.n}, launch {launch}")


OPERATIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gathered_list", "reduce_scatter", "all_to_all", "uneven",
    "not_contiguous",
)  # fmt: skip


def graph_of(steps: Step) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    return graph


def own_devices() -> bool:
    return os.environ.get("SAGECOMM_ENGINE") == "nccl"


def join(rank: int, size: int, store: str) -> None:
    join_group(rank, size, store, rank if own_devices() else 0)


def begin(rank: int, size: int, store: str) -> None:
    join(rank, size, store)
    warm()
    if own_devices():  # NCCL connects the ranks in the first call of a kind
        for name in OPERATIONS:
            Case(name, 2).issue()


def warm(group: Any = None) -> None:
    """Makes the communicator."""
    dist.all_reduce(torch.ones(1, device=device()), group=group)


def in_group(rank: int, size: int, store: str, name: str, *arguments: Any) -> Any:
    """Runs one function of this file in a group that has a communicator."""
    begin(rank, size, store)
    try:
        result = globals()[name](*arguments)
        fake_cuda.check()
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    dist.destroy_process_group()
    return result


def on_a_gpu() -> None:
    """What gpu_check.py runs."""
    warm()
    works()
    replays([1, 5000, CHUNK // 4 + 1], 20)
    together(20)
    streams(20)
    torch.cuda.synchronize()


def replays(lengths: list[int], launches: int) -> int:
    """Each operation in a graph of its own. Returns how many were captured, by the statistics."""
    before = sagecomm.get_stats()
    cases = [Case(name, n) for n in lengths for name in OPERATIONS]
    graphs = [graph_of(case.issue) for case in cases]
    for launch in range(launches):
        for case, graph in zip(cases, graphs, strict=True):
            case.fill(launch)
            graph.replay()
        for case in cases:
            case.check(launch)
    stats = sagecomm.get_stats()
    assert stats["sequence"] == before["sequence"], "captured operations have no numbers"
    counted = sum(of["count"] for of in stats["ops"].values())
    assert counted <= before["sequence"], "captured operations are not counted among others, which were the warm-up"
    return int(stats["captured"] - before["captured"])


def together(launches: int) -> None:
    """A graph of many operations with computation between them, launched in turns with another graph and with
    operations outside of graphs, which nobody waits for on the host."""
    size = dist.get_world_size()
    cases = [Case(name, 1000 + 7 * i) for i, name in enumerate(OPERATIONS)]
    x, doubled = torch.zeros(64, device=device()), torch.zeros(64, device=device())

    def all_of_them() -> None:
        for case in cases:
            work = case.issue(async_op=True)
            x.add_(1)
            if work is not None:
                work.wait()
            dist.all_reduce(x)
        dist.barrier(device_ids=[torch.cuda.current_device()])

    def another() -> None:
        dist.broadcast(x, 0)
        torch.mul(x, 2, out=doubled)
        dist.all_reduce(doubled)

    graphs = [graph_of(all_of_them), graph_of(another)]
    eager, wanted = torch.ones(10, device=device()), 1.0
    for launch in range(launches):
        x.fill_(launch)
        for case in cases:
            case.fill(launch)
        graphs[0].replay()
        dist.all_reduce(eager, async_op=True).wait()
        graphs[1].replay()
        graphs[1].replay()
        eager.div_(2)
        wanted *= size / 2
        total = float(launch)
        for _ in cases:
            total = (total + 1) * size
        same(x, torch.full((64,), total), "sums between the operations")
        same(doubled, torch.full((64,), 2 * total * size), "what the second graph computes")
        same(eager, torch.full((10,), wanted), "the operation between the graphs")
        for case in cases:
            case.check(launch)


def ahead(launches: int) -> None:
    """Rank 0 launches all at once, and the others come later, in streams that are held."""
    rank = dist.get_rank()
    case, kept = Case("all_reduce", 5000), torch.zeros(launches, 5000, device=device())
    graph = graph_of(case.issue)
    gathers = Case("all_gather", 300)
    gather = graph_of(gathers.issue)
    told = c10d._get_default_store()
    inputs = [value(rank, launch, 5000).to(device()) for launch in range(launches)]
    gathers.fill(0)
    torch.cuda.synchronize()
    if rank != 0:
        told.wait(["launched"])
    for launch in range(launches):
        case.input.copy_(inputs[launch])
        graph.replay()
        gather.replay()
        kept[launch].copy_(case.output)
    if rank == 0:
        told.set("launched", "")
    for launch in range(launches):
        same(kept[launch], sum(value(r, launch, 5000) for r in ranks()), f"launch {launch}")
    gathers.check(0)


def streams(launches: int) -> None:
    """Operations of one capture in two streams that nothing else orders, and a group whose ranks are others."""
    size = dist.get_world_size()
    group = dist.new_group(list(range(size))[::-1], backend="sagecomm")
    warm(group)
    cases = [Case("all_reduce", 700), Case("all_gather", 50), Case("all_reduce", 9000)]
    side = torch.cuda.Stream()

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            cases[0].issue()
        cases[1].issue()
        cases[2].issue(group)
        torch.cuda.current_stream().wait_stream(side)

    graph = graph_of(both)
    for launch in range(launches):
        for case in cases:
            case.fill(launch)
        graph.replay()
        for case in cases:
            case.check(launch)


def refusal(call: Step) -> str:
    """The text of the error that a call raises."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def refusals(rank: int, size: int, store: str) -> list[str]:
    """What graphs cannot hold is refused by name, and the group goes on."""
    join(rank, size, store)
    x, texts = torch.ones(4, device=device()), []

    def refused(call: Step) -> None:
        graph_of(lambda: texts.append(refusal(call)))

    refused(lambda: dist.all_reduce(x))
    dist.all_reduce(x)
    refused(lambda: dist.isend(x, (rank + 1) % size).wait())
    if own_devices():
        refused(lambda: dist.all_gather_into_tensor(torch.empty(4 * size, device=device()), x))
        refused(lambda: dist.all_to_all_single(torch.empty(size, device=device()), torch.ones(size, device=device())))
        refused(lambda: dist.all_reduce(x.int(), dist.ReduceOp.BXOR))  # not NCCL's
        graph_of(lambda: dist.all_reduce(x))
    dist.all_reduce(x)
    assert x.tolist() == [float(size**2)] * 4
    fake_cuda.check()
    dist.destroy_process_group()
    return texts


def cannot_join(rank: int, size: int, store: str) -> str:
    """The error of a group that cannot be made."""
    return refusal(lambda: join(rank, size, store))


def works() -> None:
    """The Work of a captured operation is complete at once. Waiting for it brings a stream into the capture, and does
    nothing when the capture is over."""
    size = dist.get_world_size()
    x, y = torch.ones(4, device=device()), torch.zeros(4, device=device())
    kept: list[Any] = []
    side = torch.cuda.Stream()

    def in_two_streams() -> None:
        kept.append(dist.all_reduce(x, async_op=True))
        with torch.cuda.stream(side):
            kept[0].wait()
            torch.mul(x, 2, out=y)
            barrier = dist.barrier(async_op=True, device_ids=[torch.cuda.current_device()])
        barrier.wait()
        torch.cuda.current_stream().wait_stream(side)

    graph = graph_of(in_two_streams)
    assert kept[0].is_completed()
    kept[0].wait()
    assert x.tolist() == [1] * 4, "nothing runs in a capture"
    assert y.tolist() == [0] * 4, "nothing runs in a capture"
    for launch in range(1, 3):
        graph.replay()
        assert x.tolist() == [size**launch] * 4
        assert y.tolist() == [2 * size**launch] * 4


def given_up() -> None:
    """A capture that one rank gives up leaves no trace."""
    rank = dist.get_rank()
    case = Case("all_reduce", 100)

    def broken() -> None:
        case.issue()
        if rank == 0:
            case.output.sum().item()  # which captures forbid

    if rank == 0:
        text = refusal(lambda: graph_of(broken))
        assert "captur" in text, text
    else:
        graph_of(broken)
    torch.cuda.synchronize()
    graph = graph_of(lambda: [case.issue() for _ in range(2)] and None)
    for launch in range(3):
        case.fill(launch)
        graph.replay()
        case.check(launch)


# ---- failures


def peer_dies(rank: int, size: int, store: str, seed: int) -> str:
    """The last rank dies at a random moment, while graphs are running. Returns what the next operation raises."""
    begin(rank, size, store)
    chance = random.Random(seed)
    case = Case("all_reduce", chance.choice([100, 100_000]))
    graph = graph_of(lambda: [case.issue() for _ in range(20)] and None)
    last, late = chance.randrange(0, 30), chance.random() * 0.02
    case.fill(0)
    torch.cuda.synchronize()
    dist.barrier()

    def work() -> None:
        for launch in range(10_000):
            if rank == size - 1 and launch == last:
                time.sleep(late)
                os.kill(os.getpid(), signal.SIGKILL)
            graph.replay()
            if launch % 5 == 4:
                torch.cuda.synchronize()
                dist.all_reduce(torch.ones(1))  # on the CPU

    text = raised(work)
    for _ in range(3):  # later launches do not hang either
        graph.replay()
    torch.cuda.synchronize()
    return text + " / " + raised(lambda: dist.all_reduce(torch.ones(1, device=device())))


def aborted(rank: int, size: int, store: str) -> str:
    """Rank 0 aborts while its graph waits for a rank that launches nothing."""
    begin(rank, size, store)
    case = Case("all_gather", 1000)
    graph = graph_of(case.issue)
    dist.barrier()
    told = c10d._get_default_store()
    if rank > 0:
        told.set(f"rank {rank} has a graph", "")
    if rank == size - 1:
        told.wait(["aborted"])
    else:
        graph.replay()
        if rank == 0:
            told.wait([f"rank {other} has a graph" for other in range(1, size)])
            c10d._get_default_group()._get_backend(torch.device("cuda")).abort()
            told.set("aborted", "")
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    return raised(lambda: dist.all_reduce(torch.ones(1, device=device())))


def destroyed(rank: int, size: int, store: str) -> str:
    """A graph is launched when its group is gone: on each rank, then on one whose peers have left."""
    begin(rank, size, store)
    case = Case("all_reduce", 1000)
    graph = graph_of(lambda: [case.issue() for _ in range(5)] and None)
    case.fill(0)
    graph.replay()
    torch.cuda.synchronize()
    told = c10d._get_default_store()
    if rank == 0:
        told.wait([f"rank {other} has left" for other in range(1, size)])
        graph.replay()  # peers set no tokens any more
        torch.cuda.synchronize()
    dist.destroy_process_group()
    graph.replay()
    torch.cuda.synchronize()
    if rank > 0:
        told.set(f"rank {rank} has left", "")
        told.wait(["done"])
    else:
        told.set("done", "")
    return fake_cuda.report() if fake_cuda.report_count() else ""


def failure(call: Step) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def eager_fails(rank: int, size: int, store: str) -> str:
    """An operation outside of graphs fails on a communicator that graphs use, whose abort waits for them. Nothing of
    the operation comes any more, so its memory is given back. Graphs go on."""
    begin(rank, size, store)
    case = Case("all_reduce", 1000)
    graph = graph_of(case.issue)
    tensors = [torch.ones(1_000_000, device=device())]
    torch.cuda.synchronize()
    if rank == 0:
        assert fake_cuda.emulator().emulator_plan(b"ncclGroupEnd@1=#3") == 0
    text = failure(lambda: dist.all_reduce(tensors[0], async_op=True).wait(timedelta(seconds=30)))
    taken = torch.cuda.memory_allocated()
    tensors.clear()
    begun = time.monotonic()
    while torch.cuda.memory_allocated() > taken - 4_000_000:  # a thread of the host lets go of the tensor
        assert time.monotonic() < begun + 10, "the memory is kept"
        time.sleep(0.001)
    graph.replay()
    torch.cuda.synchronize()
    fake_cuda.check()
    return text


def capture_fails(rank: int, size: int, store: str) -> str:
    """A call in a capture returns an error, and a thread of the library queues its kernels later. They come before the
    call of the collective raises: afterwards the stream is captured no more."""
    begin(rank, size, store)
    case, texts = Case("all_reduce", 1000), []
    if rank == 0:
        assert fake_cuda.emulator().emulator_plan(b"ncclGroupEnd@1=late#3@100") == 0

        def fails() -> None:
            texts.append(failure(case.issue))
            assert "late kernels" in calls(), "they come behind the error"

        graph_of(fails)
    else:
        x = torch.ones(1, device=device())
        texts.append(failure(lambda: dist.all_reduce(x, async_op=True).wait(timedelta(seconds=30))))
    return str(texts[0])


def running(rank: int, size: int, store: str) -> None:
    """A graph is running when all ranks have destroyed the group. It is not cut at once."""
    begin(rank, size, store)
    case = Case("all_reduce", 1000)
    graph = graph_of(case.issue)
    case.fill(0)
    told = c10d._get_default_store()
    with held(torch.cuda.current_stream()):
        graph.replay()
        dist.destroy_process_group()
        begun = time.monotonic()
        told.set(f"rank {rank} has left", "")
        told.wait([f"rank {other} has left" for other in range(size)])
        looks = time.monotonic()
        while time.monotonic() < looks + 0.5:
            assert "Abort" not in calls() or time.monotonic() > begun + 4
            time.sleep(0.01)  # between two looks
    torch.cuda.synchronize()
    if time.monotonic() < begun + 4:
        same(case.output, sum(value(r, 0, 1000) for r in range(size)), "a graph that was running")
        fake_cuda.check()


def lingers(rank: int, size: int, store: str) -> None:
    """The process of rank 0 ends, as far as the library is concerned, when the other rank needs no graph any more."""
    begin(rank, size, store)
    case = Case("all_reduce", 1000)
    graph = graph_of(case.issue)
    graph.replay()
    torch.cuda.synchronize()
    told = c10d._get_default_store()
    if rank == 0:
        told.set("the process ends", "")
        begun = time.monotonic()
        sagecomm._C.shutdown()
        assert told.check(["the other rank leaves"]) or time.monotonic() > begun + 4
    else:
        told.wait(["the process ends"])
        time.sleep(0.5)  # in which an end that waits for nothing is over
        told.set("the other rank leaves", "")
        dist.destroy_process_group()


def gone(rank: int, size: int, store: str) -> str:
    """Graphs of a group that is gone do not wait for its peers for ever. The communicator is not ended before them."""
    begin(rank, size, store)
    case = Case("all_reduce", 1000)
    graph = graph_of(lambda: [case.issue() for _ in range(5)] and None)
    case.fill(0)
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        graph.replay()
        torch.cuda.synchronize()
    assert "Destroy" not in calls()
    return fake_cuda.report() if fake_cuda.report_count() else ""
