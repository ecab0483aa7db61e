"""AVG and PREMUL_SUM on an accelerator, against the same on the CPU: what ranks of test_vendor_devices.py do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

import reference as ref
from device_each import averages, factors
from device_failures import hurry, meet
from device_programs import accelerator, mine
from device_waits import until

N = 777
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)


def _reductions(on: torch.device) -> list[Any]:
    """Those that a library may lack. Ranks have factors of their own, as numbers and as tensors on the device."""
    factor = torch.tensor(0.3 * mine(), device=on)
    return [dist.ReduceOp.AVG, _make_nccl_premul_sum(0.3 * mine()), _make_nccl_premul_sum(factor)]


def _row(n: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    return ref.values(dist.get_rank(), n, dtype, salt)


def _all_reduce(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    x = _row(N, dtype, 0).to(on)
    dist.all_reduce(x, op)
    return [x]


def _reduce(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    """Of a rank without a result the tensor counts for nothing."""
    x = _row(N, dtype, 1).to(on)
    dist.reduce(x, 1, op)
    return [x] if dist.get_rank() == 1 else []


def _reduce_scatter(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    xs, out = [_row(N, dtype, i).to(on) for i in (2, 3)], torch.zeros(N, dtype=dtype, device=on)
    dist.reduce_scatter(out, xs, op)
    return [*xs, out]


def _uneven_reduce_scatter(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    """The library has one reduction for each block."""
    xs = [_row(n, dtype, n).to(on) for n in (5, N)]
    out = torch.zeros(xs[dist.get_rank()].numel(), dtype=dtype, device=on)
    dist.reduce_scatter(out, xs, op)
    return [out]


def _reduce_scatter_tensor(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    x, out = _row(2 * N, dtype, 4).to(on), torch.zeros(N, dtype=dtype, device=on)
    dist.reduce_scatter_tensor(out, x, op)
    return [x, out]


def _in_place(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    x = _row(2 * N, dtype, 5).to(on)
    own = x[dist.get_rank() * N :][:N]
    dist.reduce_scatter_tensor(own, x, op)
    return [own]


def _rows(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    """Not contiguous, so copies stand for them."""
    x = _row(2 * N, dtype, 6).reshape(N, 2).to(on)
    dist.all_reduce(x[:, 1], op)
    return [x]


def _odd_place(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    """It begins inside its storage, and what is around it stays."""
    x = _row(N, dtype, 7).to(on)
    dist.all_reduce(x[3:-5], op)
    return [x]


def _window(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    """Sums and the reduction under test, of the same kind and of another one."""
    xs, out = [_row(n, dtype, n).to(on) for n in (1, 33, N, 2 * N)], torch.zeros(N, dtype=dtype, device=on)
    with dist._coalescing_manager(device=on, async_ops=True) as window:
        for x, how in zip(xs[:3], (op, dist.ReduceOp.SUM, op), strict=True):
            dist.all_reduce(x, how)
    window.wait()
    with dist._coalescing_manager(device=on, async_ops=True) as window:
        dist.reduce_scatter_tensor(out, xs[3], op)
    window.wait()
    return [*xs, out]


def _coalesced(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    xs = [_row(n, dtype, n).to(on) for n in (N, 1, 50)]
    dist.all_reduce_coalesced(xs, op)
    return xs


def _empty(on: torch.device, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    x = torch.empty(0, dtype=dtype, device=on)
    dist.all_reduce(x, op)
    return [x]


CALLS = [_all_reduce, _reduce, _reduce_scatter, _uneven_reduce_scatter, _reduce_scatter_tensor, _in_place, _rows]
CALLS += [_odd_place, _window, _coalesced, _empty]


def same_as_on_the_cpu() -> None:
    """With two ranks a division rounds nothing, so a SUM that is divided has the bits of an average."""
    on, cpu = accelerator(), torch.device("cpu")
    for dtype in TYPES:
        for n, op in enumerate(_reductions(on)):
            for call in CALLS:
                want = call(cpu, dtype, _reductions(cpu)[n])
                for got, other in zip(call(on, dtype, op), want, strict=True):
                    ref.check_same(got.cpu(), other, f"{call.__name__} of {dtype}, reduction {n}")


def close_to_the_cpu() -> None:
    """With three ranks sums, products and quotients are rounded, so the last place may differ."""
    on = accelerator()
    for dtype, place in ((torch.float32, 2.0**-22), (torch.bfloat16, 2.0**-6)):
        for op in (dist.ReduceOp.AVG, _make_nccl_premul_sum(0.3)):
            x = _row(3 * N, dtype, 8).abs() + 1  # no sum is much smaller than what is added
            y, want, got = x.to(on), torch.zeros(N, dtype=dtype), torch.zeros(N, dtype=dtype, device=on)
            dist.reduce_scatter_tensor(want, x, op)
            dist.reduce_scatter_tensor(got, y, op)
            torch.testing.assert_close(got.cpu(), want, rtol=place, atol=0)
            dist.all_reduce(x, op)
            dist.all_reduce(y, op)
            torch.testing.assert_close(y.cpu(), x, rtol=place, atol=0)


def integers_are_truncated() -> None:
    on = accelerator()
    for dtype in (torch.int8, torch.int32, torch.int64):
        x = ref.values(dist.get_rank(), N, dtype)
        y = x.to(on)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.all_reduce(y, dist.ReduceOp.AVG)
        ref.check_same(y.cpu(), x, f"AVG of {dtype}")


def places() -> dict[str, tuple[int, int]]:
    """Makes the calls whose arguments are compared, and returns where their inputs and outputs are."""
    x, y, z, part, whole = (torch.ones(n, device=accelerator()) for n in (6, 7, 8, 3, 6))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    dist.all_reduce(y, _make_nccl_premul_sum(0.5))
    dist.reduce(z, 1, dist.ReduceOp.AVG)
    dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG)
    assert x.tolist() == [1.0] * 6
    assert y.tolist() == [1.0] * 7
    assert part.tolist() == [1.0] * 3
    tensors = {"x": (x, x), "y": (y, y), "z": (z, z), "part": (whole, part)}
    return {name: (read.data_ptr(), written.data_ptr()) for name, (read, written) in tensors.items()}


def without_a_kernel() -> None:
    """A device whose torch cannot divide. Peers have called the library by then, so the group fails."""

    def lacks(*_: Any) -> Any:
        raise NotImplementedError("no aten::div_ here")

    x = torch.ones(6, device=accelerator())
    dist.all_reduce(x)
    library = torch.library.Library("aten", "IMPL")
    library.impl("div_.Tensor", lacks, "PrivateUse1")
    with pytest.raises(dist.DistBackendError, match=r"cannot divide float32: NotImplementedError: no aten::div_ here$"):
        dist.all_reduce(x, dist.ReduceOp.AVG)
    x.fill_(1)  # Python's error is not left behind
    assert x.tolist() == [1.0] * 6


def a_product_is_kept(late: str, calls: str) -> None:
    """The call of rank 0 is still on its way when the operation fails, and queues its kernel when the device's memory
    that nobody holds is given back."""
    import build
    import simdev

    x = torch.ones(1000, device=accelerator())
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        with suppress(RuntimeError):  # the failure of rank 0 may come before the end of this call
            dist.reduce(x, 0, _make_nccl_premul_sum(0.5))
        meet("the kernel has come")
        return
    assert ctypes.CDLL(str(build.OUTPUT / "libemulator.so")).emulator_plan(b"HcclReduce@1=late#4@1") == 0
    until(lambda: "HcclReduce " in Path(calls).read_text())  # of rank 1, which waits in it for this rank
    hurry(None)
    with pytest.raises(RuntimeError):
        dist.reduce(x, 0, _make_nccl_premul_sum(0.5))
    torch.get_device_module().empty_cache()
    Path(late).touch()
    until(lambda: "late " in Path(calls).read_text())
    torch.accelerator.synchronize()
    meet("the kernel has come")
    simdev.check()


PROGRAMS: list[Callable[[], Any]] = [same_as_on_the_cpu, integers_are_truncated]
WITH_A_LIBRARY: list[Callable[[], Any]] = [*PROGRAMS, averages, factors]
