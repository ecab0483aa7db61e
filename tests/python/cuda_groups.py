"""What test_fake_cuda_groups.py runs under fake CUDA: process groups of torch, unmodified."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import fake_cuda
from sagecomm import create_comm_backend

STEPS = 5


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def training(rank: int, size: int, store: str, device: str) -> str:
    """A digest of the weights after training with DDP and SGD, under torch's gloo."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(
        _model().to(device), device_ids=[rank] if cuda else None, bucket_cap_mb=0.001
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = _batch(rank, step)
        if cuda:
            x, y = (t.pin_memory().cuda(non_blocking=True) for t in (x, y))
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if cuda:
        fake_cuda.check()
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    dist.barrier()
    dist.destroy_process_group()
    return hashlib.sha256(weights).hexdigest()


def asynchronous(rank: int, size: int, store: str) -> list[float]:
    """An asynchronous all_reduce on a side stream, waited for there and used elsewhere behind it."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        value = torch.full((1000,), float(rank + 1), device="cuda")
        dist.all_reduce(value, async_op=True).wait()
        value.mul_(2)
    torch.cuda.current_stream().wait_stream(side)
    value.record_stream(torch.cuda.current_stream())
    result = (value + 1)[:2].tolist()
    fake_cuda.check()
    dist.barrier()
    dist.destroy_process_group()
    return result


def nccl(store: str) -> dict[str, Any]:
    """torch's ProcessGroupNCCL with one rank, on the emulated NCCL."""
    device = torch.device("cuda:0")
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1, device_id=device)
    x = torch.arange(4.0, device=device)
    gathered = torch.zeros(4, device=device)
    dist.all_reduce(x)
    work = dist.all_gather_into_tensor(gathered, x, async_op=True)
    assert work is not None
    work.wait()
    result = (gathered + 1).tolist()
    fake_cuda.check()
    dist.destroy_process_group()
    text = ctypes.create_string_buffer(1 << 14)
    ctypes.CDLL(str(fake_cuda.NCCL)).fake_nccl_calls(text, ctypes.c_size_t(len(text)))
    return {"result": result, "calls": text.value.decode().splitlines()}


def comm_backend() -> dict[str, Any]:
    """What "auto" makes of one rank with a device of its own, with torch's ProcessGroupNCCL on the emulated NCCL."""
    backend = create_comm_backend("auto", rank=0, world_size=1)
    attached = create_comm_backend("nccl")
    assert attached.group is backend.group
    x = torch.arange(4.0, device="cuda:0")
    assert backend.all_reduce(x) is x
    assert backend.all_reduce(x, async_op=True).wait() is x
    gathered = attached.all_gather(x, async_op=True).wait()
    mixed = backend.fused_all_reduce([torch.ones(2), x, torch.ones(3, dtype=torch.int64)])
    assert [t.device.type for t in mixed] == ["cpu", "cuda", "cpu"]
    result = (gathered + 1).tolist()
    fake_cuda.check()
    stats = backend.get_stats()
    rows = sorted((row["op"], row["engine"], row["device"], row["count"]) for row in stats["rows"])
    dist.destroy_process_group()
    return {"name": str(backend), "result": result, "count": stats["all_reduce_count"], "rows": rows}


def share_memory(rank: int, size: int, store: str) -> list[float] | None:
    """One process maps memory of the other through torch's own IPC, with its event, and adds to it."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.cuda.init()
    given: list[Any] = [None]
    x = torch.ones(1000, device="cuda")
    if rank == 0:
        x.mul_(3)
        given = [x.untyped_storage()._share_cuda_()]
    dist.broadcast_object_list(given, src=0)
    if rank == 1:
        theirs = torch.empty(0, device="cuda").set_(torch.UntypedStorage._new_shared_cuda(*given[0]), 0, (1000,))
        theirs.add_(1)
        fake_cuda.check()
    dist.barrier()
    result = x[:3].tolist() if rank == 0 else None
    dist.barrier()
    dist.destroy_process_group()
    return result


def share_tensors(rank: int, size: int, store: str) -> list[float]:
    """torch.multiprocessing's way to give a tensor to another process, and events of torch's that order the streams of
    both: the peer adds to what this process has not written yet."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.cuda.init()

    def broadcast(thing: Any, source: int) -> Any:
        given = [thing]
        dist.broadcast_object_list(given, src=source)
        return given[0]

    stream, zero = torch.cuda.current_stream(), torch.device("cuda:0")
    x = torch.ones(1000, device="cuda") if rank == 0 else None
    packed = broadcast(bytes(ForkingPickler.dumps(x)), 0)
    event = torch.cuda.Event(interprocess=True)
    if rank == 0:
        with fake_cuda.held(stream):
            x.mul_(3)
            event.record()
            broadcast(event.ipc_handle(), 0)
            theirs = torch.cuda.Event.from_ipc_handle(zero, broadcast(None, 1))
        theirs.wait()
    else:
        x = pickle.loads(packed)
        torch.cuda.Event.from_ipc_handle(zero, broadcast(None, 0)).wait()
        x.add_(1)
        event.record()
        assert not event.query()
        broadcast(event.ipc_handle(), 1)
    result = x[:3].tolist()
    fake_cuda.check()
    dist.barrier()
    del x
    dist.barrier()
    dist.destroy_process_group()
    return result
