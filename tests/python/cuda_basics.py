"""What test_fake_cuda.py runs under fake CUDA: torch's own CUDA code, and operators."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any

import torch

import fake_cuda


def devices() -> dict[str, Any]:
    assert torch.cuda.is_available()
    with torch.cuda.device(1):
        x = torch.zeros(4, device="cuda")
        stream = torch.cuda.current_stream()
    assert x.device.index == stream.device.index == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_properties(0).uuid != torch.cuda.get_device_properties(1).uuid
    free, total = torch.cuda.mem_get_info(1)
    assert 0 < free < total
    return {"count": torch.cuda.device_count(), "name": torch.cuda.get_device_name(1)}


def runtime() -> None:
    """Copies, streams, events, pinned memory and a second device, in the forms that torch itself implements."""
    x = torch.empty(8, device="cuda")
    x.copy_(torch.arange(8.0))
    assert x.tolist() == list(range(8))
    assert x[3].item() == 3
    side = torch.cuda.Stream(priority=-1)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    host = torch.zeros(8).pin_memory()
    assert host.is_pinned()
    start.record()
    y = torch.empty_like(x)
    with torch.cuda.stream(side):
        side.wait_event(start)
        y.copy_(x, non_blocking=True)
        x.record_stream(side)
        host.copy_(y, non_blocking=True)
        end.record()
    end.synchronize()
    assert end.query()
    assert side.query()
    fake_cuda.host_read(host, "the test")
    assert host.tolist() == list(range(8))
    assert start.elapsed_time(end) >= 0
    y.record_stream(side)
    assert x.to("cuda:1").cpu().tolist() == list(range(8))
    fake_cuda.check()


def held_copy() -> None:
    """Nothing of a held stream runs, and work of other streams does."""
    source = torch.ones(8, device="cuda")
    host = torch.zeros(8).pin_memory()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with fake_cuda.held(side):
        with torch.cuda.stream(side):
            host.copy_(source, non_blocking=True)
        with torch.cuda.stream(other):
            assert (source * 2).sum().item() == 16
        fake_cuda.run_all()
        assert not side.query()
        assert host.sum() == 0
    side.synchronize()
    assert host.sum() == 8
    fake_cuda.check()


def device_memory_is_unreachable() -> None:
    x = torch.ones(4, device="cuda")
    pid = os.fork()
    if pid == 0:
        ctypes.string_at(x.data_ptr(), 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0, "the CPU has read device memory"


def fork_is_refused() -> None:
    torch.ones(4, device="cuda")
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(4, device="cuda")
        except RuntimeError as error:
            os._exit(0 if "re-initialize CUDA in forked" in str(error) else 2)
        os._exit(3)
    assert os.waitpid(pid, 0)[1] == 0


def operators() -> None:
    """Results of operators, each compared with the CPU's."""
    torch.manual_seed(3)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    w, mask = torch.randn(6, 5), torch.rand(4, 6) > 0.5

    def out(a: torch.Tensor) -> torch.Tensor:
        result = torch.empty(0, device=a.device)
        torch.add(a, 1, out=result)
        return result

    def scatter(a: torch.Tensor) -> torch.Tensor:
        index = torch.arange(4, device=a.device) % 2
        return torch.zeros(2, 6, device=a.device).index_add_(0, index, a)

    forms = {
        "add": lambda a, b, m, w: a + b,
        "wrapped number": lambda a, b, m, w: (a > 0).int() + 1.5,
        "in place": lambda a, b, m, w: a.clone().mul_(b),
        "out": lambda a, b, m, w: out(a),
        "cast": lambda a, b, m, w: a.to(torch.bfloat16).double(),
        "transposed": lambda a, b, m, w: a.t().contiguous(),
        "strided write": lambda a, b, m, w: torch.zeros(4, 12, device=a.device)[:, ::2].copy_(b),
        "matrix": lambda a, b, m, w: torch.addmm(b[:, :5], a, w),
        "cat": lambda a, b, m, w: torch.cat([a, b], 1),
        "foreach": lambda a, b, m, w: torch._foreach_add([a, b], 2.0)[1],
        "softmax": lambda a, b, m, w: torch.log_softmax(a, 1),
        "masked": lambda a, b, m, w: a[m],
        "nonzero": lambda a, b, m, w: torch.nonzero(m),
        "sort": lambda a, b, m, w: a.sort(1)[1],
        "where": lambda a, b, m, w: torch.where(m, a, 0.0),
        "index": lambda a, b, m, w: a[torch.tensor([2, 0])],
        "scatter": lambda a, b, m, w: scatter(a),
        "factory": lambda a, b, m, w: torch.arange(7, device=a.device),
        "complex": lambda a, b, m, w: torch.view_as_real(torch.complex(a, b).conj() * 2),
    }
    for name, form in forms.items():
        expected = form(x, y, mask, w)
        got = form(x.cuda(), y.cuda(), mask.cuda(), w.cuda())
        assert got.is_cuda, name
        assert torch.equal(got.cpu(), expected), name
    assert torch.equal(x.cuda(), x.cuda())
    fake_cuda.check()


def errors_of_operators() -> None:
    """Wrong arguments raise at the call; an error that only the kernel finds is raised by check()."""
    x = torch.ones(3, device="cuda")
    for call in (
        lambda: x + torch.ones(4, device="cuda"),
        lambda: x @ x[:2],
        lambda: x + torch.ones(3, device="cuda:1"),
    ):
        try:
            call()
        except RuntimeError:
            continue
        raise AssertionError("a wrong call was accepted")
    torch.gather(x, 0, torch.tensor([7], device="cuda"))  # an index that is outside of the tensor
    try:
        fake_cuda.check()
    except RuntimeError as error:
        assert "gather" in str(error), error
        return
    raise AssertionError("an index outside of the tensor was accepted")


def random_numbers() -> list[list[float]]:
    """Random numbers follow from the seed and not from the schedule, and the generator's state can be restored."""
    torch.manual_seed(5)
    first = torch.randn(3, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.nn.functional.dropout(torch.ones(8, device="cuda"), 0.5)
    torch.cuda.set_rng_state(state)
    again = torch.nn.functional.dropout(torch.ones(8, device="cuda"), 0.5)
    assert torch.equal(second, again)
    third = torch.randn(3, device="cuda")
    assert not torch.equal(first, third)
    own = torch.rand(2, device="cuda", generator=torch.Generator("cuda").manual_seed(9))
    fake_cuda.check()
    return [t.tolist() for t in (first, second, third, own)]


def network(device: str) -> list[torch.Tensor]:
    """Weights after a few steps of training with convolution, norms and attention."""
    torch.manual_seed(1)
    front = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(2))
    back = torch.nn.TransformerEncoderLayer(36, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(front, back, torch.nn.Flatten(), torch.nn.Linear(144, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(torch.randn(2, 3, 8, 8), torch.tensor([step % 5, 2])) for step in range(3)]
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [value.cpu() for value in model.state_dict().values()]


def training() -> None:
    expected, got = network("cpu"), network("cuda")
    fake_cuda.check()
    worst = max((a.double() - b.double()).abs().max().item() for a, b in zip(expected, got, strict=True))
    assert worst < 1e-5, worst  # convolution and attention have other kernels on the CPU


def futures() -> None:
    """A future with a CUDA device orders the streams of its waiters behind the value, also in callbacks."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=["cuda:0"])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        value = torch.zeros(1000, device="cuda")
        value.fill_(3)
        future.set_result(value)
    doubled = future.then(lambda done: done.value() * 2)
    assert doubled.wait().sum().item() == 6000
    assert future.wait().sum().item() == 3000
    fake_cuda.check()


def capture() -> None:
    """Capture status, a graph that runs twice, and a forbidden call inside a capture."""
    assert not torch.cuda.is_current_stream_capturing()
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        x.add_(1)
    assert x.tolist() == [1] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [3] * 4
    fake_cuda.check()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()
    except RuntimeError as error:
        assert "captur" in str(error), error
        return
    raise AssertionError("a synchronising call inside a capture was accepted")


def query_in_a_capture() -> None:
    """A query of an event by any thread breaks a global capture, and a thread-local one only by its own thread."""
    x, event, refused = torch.ones(4, device="cuda"), torch.cuda.Event(), []
    event.record()
    torch.cuda.synchronize()

    def query() -> None:
        try:
            event.query()
        except RuntimeError as error:
            refused.append(str(error))

    for mode, broken in (("global", True), ("thread_local", False)):
        refused.clear()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                x.add_(1)
                thread = threading.Thread(target=query)
                thread.start()
                thread.join()
        except RuntimeError as error:
            refused.append(str(error))
        assert len(refused) == (2 if broken else 0), refused
        assert all("captur" in text for text in refused), refused
    graph.replay()
    assert x.tolist() == [2] * 4
    fake_cuda.check()


def faults() -> None:
    """EMULATOR_FAULTS is cudaMalloc@2+=out_of_memory."""
    x = torch.ones(4, device="cuda")
    try:
        torch.empty(64 << 20, device="cuda")
    except torch.OutOfMemoryError:
        assert (x + 1).tolist() == [2] * 4
        return
    raise AssertionError("no cudaMalloc failed")


def flags() -> None:
    """A stream waits for a flag in pinned memory that another stream writes behind its kernel."""
    driver = ctypes.CDLL(str(fake_cuda.DRIVER))
    flag = torch.zeros(1, dtype=torch.int32).pin_memory()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    value = torch.zeros(100, device="cuda")
    result = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    where = ctypes.c_uint64(flag.data_ptr())
    assert driver.cuStreamWaitValue32_v2(ctypes.c_void_p(consumer.cuda_stream), where, 1, 0) == 0
    with torch.cuda.stream(consumer):
        result.copy_(value)
    fake_cuda.run_all()
    assert not consumer.query()
    with torch.cuda.stream(producer):
        value.fill_(5)
    assert driver.cuStreamWriteValue32_v2(ctypes.c_void_p(producer.cuda_stream), where, 1, 0) == 0
    consumer.synchronize()
    assert result.cpu().eq(5).all()
    fake_cuda.check()


def is_available() -> bool:
    return torch.cuda.is_available()


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    signal.pause()
