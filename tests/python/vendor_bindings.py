"""Bindings of other projects, unmodified, over the libraries that stand where NCCL and HCCL stand. For runs by hand.

    python vendor_bindings.py pynccl WHERE     vLLM's pynccl.py and pynccl_wrapper.py, on fake CUDA with the checker, by
                                               the engines staged and cuda, under the lazy and a random schedule
    python vendor_bindings.py pyhccl WHERE     vllm-ascend's pyhccl.py and pyhccl_wrapper.py, on host memory
    python vendor_bindings.py cupy WHERE       cupy.cuda.nccl, on host memory, with ranks that are threads

WHERE is a wheel, or a folder into which it was unpacked or installed. Small modules stand in for what the two files
import of vLLM, and for torch.npu. Each line that is printed says how many results of each rank were compared with the
right ones; a wrong one is an error. Copies of these calls that need no file of others are in test_nccl_torch.py,
test_nccl_facade.py and test_hccl_facade.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from cuda_bed import CudaBed, fake_cuda
from cuda_holds import check
from facade_processes import in_processes
from nccl_facade import FACADE

RANKS = (2, 4)
ENGINES = ("staged", "cuda")
SCHEDULES = (("lazy", 1), ("random", 1), ("random", 2))
THREADS = 3  # ranks of CuPy
N = 24


def values(rank: int, n: int = N) -> Any:
    """A rank's input on the CPU: small numbers, so that all results are exact in all types."""
    return (torch.arange(n) + rank) % 3 + 1


class Results:
    """Compares results, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def same(self, got: Any, want: Any, what: str) -> None:
        got, want = got.cpu(), want.to(got.dtype)
        assert got.equal(want), f"{what}: {got.tolist()} instead of {want.tolist()}"
        self.count += 1


# ---- the modules of others


class Group:
    """Stands in for vLLM's StatelessProcessGroup: rank, size, and objects that rank 0 gives to the others."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.rank, self.world_size, self.store = rank, size, dist.FileStore(store, size)

    def broadcast_obj(self, made: Any, src: int) -> Any:
        if self.rank == src:
            self.store.set("made", bytes(made))
        return type(made).from_buffer_copy(self.store.get("made"))

    def barrier(self) -> None:
        self.store.set(f"here {self.rank}", b"")
        for rank in range(self.world_size):
            self.store.get(f"here {rank}")


def stand_in(name: str, **members: Any) -> None:
    """Puts a module, and the packages that it is in, where imports find them."""
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], last, module)


def load(name: str, file: Path) -> ModuleType:
    """Imports a file under the name that it has in its package."""
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def communicators(name: str, package: str, folder: str) -> Any:
    """Returns the module of pynccl or pyhccl, with its wrapper under it."""
    stand_in(package)
    load(f"{package}.{name}_wrapper", Path(folder, f"{name}_wrapper.py"))
    return load(f"{package}.{name}", Path(folder, f"{name}.py"))


@contextlib.contextmanager
def found(where: Path, files: Sequence[str]) -> Iterator[Path]:
    """Gives the folder that has the files, which are next to each other in a wheel or somewhere in a folder."""
    with tempfile.TemporaryDirectory() as unpacked:
        if where.suffix == ".whl":
            with zipfile.ZipFile(where) as wheel:
                wheel.extractall(unpacked, [name for name in wheel.namelist() if name.endswith(tuple(files))])
            where = Path(unpacked)
        folders = {file.parent for file in where.rglob(files[0])}
        if len(folders) != 1:
            sys.exit(f"sagecomm: vendor_bindings: {len(folders)} files {files[0]} in {where}, expected one")
        yield folders.pop().resolve()


def report(what: str, counts: Sequence[int]) -> None:
    assert len(set(counts)) == 1, counts
    assert counts[0] > 0, counts
    print(f"{what}: {counts[0]} results on each of {len(counts)} ranks, all right", flush=True)


# ---- vLLM's pynccl


def pynccl_rank(rank: int, size: int, store: str, folder: str) -> int:
    """Runs in a child under fake CUDA. Returns how many results were right."""
    log = SimpleNamespace(
        **dict.fromkeys(("debug", "debug_once", "info", "info_once", "warning_once", "error"), lambda *_: None)
    )
    platform = SimpleNamespace(is_rocm=lambda: False, fp8_dtype=lambda: torch.float8_e4m3fn)
    stand_in("vllm.envs", VLLM_DISABLE_PYNCCL=False, VLLM_USE_NCCL_SYMM_MEM=False)
    stand_in("vllm.logger", init_logger=lambda _: log)
    stand_in("vllm.platforms", current_platform=platform)
    stand_in("vllm.utils.nccl", find_nccl_library=lambda: str(FACADE))  # what VLLM_NCCL_SO_PATH names
    stand_in("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)
    stand_in("vllm.distributed.utils", StatelessProcessGroup=Group)
    pynccl = communicators("pynccl", "vllm.distributed.device_communicators", folder)

    device, results = rank % torch.cuda.device_count(), Results()
    torch.cuda.set_device(device)
    with torch.cuda.stream(torch.cuda.Stream()):  # vLLM has a stream of its own as well
        comm = pynccl.PyNcclCommunicator(Group(rank, size, store), device)
        assert comm.available
        pynccl_reductions(comm, results)
        pynccl_moves(comm, results)
        pynccl_p2p(comm, results)
        window = comm.register_comm_window(values(rank).cuda())
        assert window.value is None  # docs/nccl.md
        comm.deregister_comm_window(window)
        comm.suspend()
        comm.resume()
        kept = pynccl_graph(comm, results) if os.environ["SAGECOMM_ENGINE"] == "cuda" else None
        torch.cuda.synchronize()
        comm.group.barrier()  # an abort beside graphs ends what peers run (docs/nccl.md)
        comm.destroy()
        del kept  # as vLLM does: its graphs go after its communicators
    check()
    return results.count


def pynccl_reductions(comm: Any, results: Results) -> None:
    rank, size = comm.rank, comm.world_size
    inputs = torch.stack([values(r) for r in range(size)])
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    wanted = {ReduceOp.SUM: inputs.sum(0), ReduceOp.MAX: inputs.amax(0), ReduceOp.MIN: inputs.amin(0)}
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, *floats):
        for op, want in wanted.items():
            got = comm.all_reduce(values(rank).to(dtype).cuda(), op=op)
            results.same(got, want, f"all_reduce {op} {dtype}")
        if dtype in floats:
            got = comm.all_reduce(values(rank).to(dtype).cuda(), op=ReduceOp.AVG)
            results.same(got, inputs.double().mean(0), f"all_reduce AVG {dtype}")
    total = sum(values(r, size * N) for r in range(size))
    part = torch.zeros(N, device="cuda")
    comm.reduce_scatter(part, values(rank, size * N).float().cuda())
    results.same(part, total.view(size, N)[rank], "reduce_scatter")
    sizes = [r + 1 for r in range(size)]
    total = sum(values(r, sum(sizes)) for r in range(size))
    part = torch.zeros(sizes[rank], device="cuda")
    comm.reduce_scatterv(part, values(rank, sum(sizes)).float().cuda(), sizes)
    results.same(part, total.split(sizes)[rank], "reduce_scatterv")
    for root in range(size):
        got = torch.zeros(N, device="cuda")
        comm.reduce(got, values(rank).float().cuda(), root)
        results.same(got, inputs.sum(0) if rank == root else torch.zeros(N), f"reduce to {root}")


def pynccl_moves(comm: Any, results: Results) -> None:
    rank, size = comm.rank, comm.world_size
    whole = torch.zeros(size * N, device="cuda")
    comm.all_gather(whole, values(rank).float().cuda())
    results.same(whole, torch.cat([values(r) for r in range(size)]), "all_gather")
    sizes = [r + 1 for r in range(size)]
    whole = torch.zeros(sum(sizes), device="cuda")
    comm.all_gatherv(whole, values(rank, sizes[rank]).float().cuda(), sizes)
    results.same(whole, torch.cat([values(r, r + 1) for r in range(size)]), "all_gatherv")
    for root in range(size):
        t = values(rank).float().cuda()
        comm.broadcast(t, root)
        results.same(t, values(root), f"broadcast from {root}")
        part = torch.zeros(sizes[rank], device="cuda")
        comm.scatter(part, values(rank, sum(sizes)).float().cuda(), sizes, root)
        results.same(part, values(root, sum(sizes)).split(sizes)[rank], f"scatter from {root}")


def pynccl_p2p(comm: Any, results: Results) -> None:
    rank, size = comm.rank, comm.world_size
    t, left, right = torch.zeros(N, device="cuda"), (rank - 1) % size, (rank + 1) % size
    if rank % 2 == 0:
        comm.send(values(rank).float().cuda(), right)
        comm.recv(t, right)
    else:
        comm.recv(t, left)
        comm.send(values(rank).float().cuda(), left)
    results.same(t, values(rank ^ 1), "send and recv")
    for _ in range(2):
        t = torch.zeros(N, device="cuda")
        comm.group_start()
        comm.send(values(rank).float().cuda(), right)
        comm.recv(t, left)
        comm.group_end()
        results.same(t, values(left), "group call")
    t = torch.zeros(N, device="cuda")
    mine = values(rank).float().cuda()
    ops = [(dist.isend, mine, right), (dist.irecv, t, left)]  # P2POp needs a group of torch
    comm.batch_isend_irecv([SimpleNamespace(op=op, tensor=tensor, group_peer=peer) for op, tensor, peer in ops])
    results.same(t, values(left), "batch_isend_irecv")
    eight = torch.zeros(N).to(torch.float8_e4m3fn).cuda()
    comm.group_start()
    comm.send(values(rank).float().to(torch.float8_e4m3fn).cuda(), right)
    comm.recv(eight, left)
    comm.group_end()
    results.same(eight.cpu().float(), values(left), "8-bit floats")


def pynccl_graph(comm: Any, results: Results) -> Any:
    x, y = values(comm.rank).float().cuda(), torch.zeros(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        comm.all_reduce(x, y)
    for launch in range(3):
        x.copy_(values(comm.rank) + launch)
        graph.replay()
        results.same(y, sum(values(r) + launch for r in range(comm.world_size)), f"launch {launch} of a graph")
    return graph


def pynccl(where: Path) -> None:
    fake_cuda.build()
    bed = CudaBed(preload=[fake_cuda.NCCL])  # torch's own; pynccl opens the facade by its path
    try:
        with found(where, ("pynccl.py", "pynccl_wrapper.py")) as folder:
            for size in RANKS:
                for engine in ENGINES:
                    for schedule, seed in SCHEDULES:
                        settings = {"SAGECOMM_ENGINE": engine, "EMULATOR_KICK_MS": "5", "EMULATOR_DEVICES": "4"}
                        counts = bed.ranks(
                            "vendor_bindings:pynccl_rank", size, str(folder), schedule=schedule, seed=seed, **settings
                        )
                        report(f"pynccl: engine {engine}, schedule {schedule}, seed {seed}", counts)
    finally:
        bed.stop()


# ---- vllm-ascend's pyhccl


def pyhccl_rank(folder: str, place: str, _: bytes, rank: int, size: int) -> None:
    log, library = SimpleNamespace(info=lambda *_: None, error=print), str(FACADE.with_name("libsagecomm_hccl.so"))
    stream = SimpleNamespace(npu_stream=0, synchronize=lambda: None)
    torch.npu = SimpleNamespace(device=lambda _: contextlib.nullcontext())
    stand_in("vllm.logger", logger=log)
    stand_in("vllm.distributed.utils", StatelessProcessGroup=Group)
    stand_in("vllm_ascend.utils", find_hccl_library=lambda: library, current_stream=lambda: stream)
    pyhccl = communicators("pyhccl", "vllm_ascend.distributed.device_communicators", folder)

    comm, results = pyhccl.PyHcclCommunicator(Group(rank, size, f"{place}/store"), torch.device("cpu")), Results()
    assert comm.available
    inputs = torch.stack([values(r) for r in range(size)])
    wanted = {
        ReduceOp.SUM: inputs.sum(0),
        ReduceOp.PRODUCT: inputs.prod(0),
        ReduceOp.MAX: inputs.amax(0),
        ReduceOp.MIN: inputs.amin(0),
    }
    integers = (torch.int8, torch.uint8, torch.int32, torch.int64)
    for dtype in (*integers, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for op, want in wanted.items():
            results.same(comm.all_reduce(values(rank).to(dtype), op=op), want, f"all_reduce {op} {dtype}")
        for root in range(size):
            t = values(rank).to(dtype)
            comm.broadcast(t, root)
            results.same(t, values(root), f"broadcast {dtype}")
    comm.hccl.hcclCommDestroy(comm.comm)
    Path(place, f"count {rank}").write_text(str(results.count))


def pyhccl(where: Path) -> None:
    with found(where, ("pyhccl.py", "pyhccl_wrapper.py")) as folder:
        for size in RANKS:
            with tempfile.TemporaryDirectory() as place:
                in_processes(partial(pyhccl_rank, str(folder), place), bytes, size)
                report("pyhccl", [int(Path(place, f"count {rank}").read_text()) for rank in range(size)])


# ---- CuPy


def cupy_rank(nccl: Any, made: Any, rank: int, size: int) -> int:
    """What CuPy's binding has, on memory of the host. Returns how many results were right."""
    comm, results = nccl.NcclCommunicator(size, made, rank), Results()
    inputs = torch.stack([values(r).float() for r in range(size)])
    mine, got, f32, total = inputs[rank].clone(), torch.zeros(N), nccl.NCCL_FLOAT32, nccl.NCCL_SUM
    comm.allReduce(mine.data_ptr(), got.data_ptr(), N, f32, total, 0)
    results.same(got, inputs.sum(0), "allReduce")
    whole = torch.zeros(size * N)
    comm.allGather(mine.data_ptr(), whole.data_ptr(), N, f32, 0)
    results.same(whole, inputs.flatten(), "allGather")
    part = torch.zeros(N // size)
    comm.reduceScatter(mine.data_ptr(), part.data_ptr(), N // size, f32, total, 0)
    results.same(part, inputs.sum(0).view(size, -1)[rank], "reduceScatter")
    for root in range(size):
        comm.broadcast(mine.data_ptr(), got.data_ptr(), N, f32, root, 0)
        results.same(got, inputs[root], "broadcast")
        t = mine.clone()
        comm.bcast(t.data_ptr(), N, f32, root, 0)
        results.same(t, inputs[root], "bcast")
        got = torch.zeros(N)
        comm.reduce(mine.data_ptr(), got.data_ptr(), N, f32, total, root, 0)
        results.same(got, inputs.sum(0) if rank == root else torch.zeros(N), "reduce")
    nccl.groupStart()
    comm.send(mine.data_ptr(), N, f32, (rank + 1) % size, 0)
    comm.recv(got.data_ptr(), N, f32, (rank - 1) % size, 0)
    nccl.groupEnd()
    results.same(got, inputs[(rank - 1) % size], "send and recv")
    comm.check_async_error()
    comm.destroy()
    return results.count


def cupy(where: Path) -> None:
    if str(FACADE) not in os.environ.get("LD_PRELOAD", "").split(":"):  # the library is found when the process starts
        command = [sys.executable, __file__, "cupy", str(where)]
        sys.exit(subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(FACADE)}, check=False).returncode)
    with tempfile.TemporaryDirectory() as unpacked:
        if where.suffix == ".whl":
            with zipfile.ZipFile(where) as wheel:
                wheel.extractall(unpacked)
            where = Path(unpacked)
        sys.path.insert(0, str(where))
        nccl = importlib.import_module("cupy.cuda.nccl")
        made = nccl.get_unique_id()
        with ThreadPoolExecutor(THREADS) as pool:
            counts = list(pool.map(lambda rank: cupy_rank(nccl, made, rank, THREADS), range(THREADS)))
        report("cupy", counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binding", choices=("pynccl", "pyhccl", "cupy"))
    parser.add_argument("where", type=Path, metavar="WHERE")
    given = parser.parse_args()
    {"pynccl": pynccl, "pyhccl": pyhccl, "cupy": cupy}[given.binding](given.where.resolve())


if __name__ == "__main__":
    main()
