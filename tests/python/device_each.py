"""What ranks do with each operation in turn: cases of the catalogue in docs/devices.md whose other programs call
all_reduce, or one more operation. device_programs.py says how programs run.

All operations here are linear, so inputs that are `scale` times as large give outputs that are. So one set of tensors
serves several calls in turn, and a value that is left over from an earlier one is a wrong one."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from device_calls import run_under_fake_cuda
from device_programs import ELSEWHERE, FEW, N, accelerator, expect, full, held, main_stream, mine

Valued = tuple[torch.Tensor, float]
Block = Callable[[int], torch.Tensor]  # makes a block of that many elements, all zero

LONG = 700_001  # elements: several chunks


@dataclass
class Call:
    """One call on this rank: what it reads and what it writes, each with its value, and the call."""

    inputs: list[Valued]
    outputs: list[Valued]
    issue: Callable[[], Sequence[Any]]  # returns what is to be waited for

    def fill(self, scale: float = 1) -> None:
        for tensor, value in self.inputs:
            tensor.fill_(scale * value)


def contiguous(n: int) -> torch.Tensor:
    return full(0, n)


def strided(n: int) -> torch.Tensor:
    return torch.zeros(n, 2, device=accelerator())[:, 0]


# ---- the operations: `block` makes their blocks, where they take blocks of any layout ----


def _sum() -> float:
    ranks = dist.get_world_size()
    return ranks * (ranks + 1) / 2  # of mine() over the ranks


def _of(rank: int, block: int = 0) -> float:
    """The value of a block of a rank."""
    return 10 * (rank + 1) + block


def _sum_of(block: int) -> float:
    return sum(_of(rank, block) for rank in range(dist.get_world_size()))


def all_reduce(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    x = block(n)
    return Call([(x, mine())], [(x, _sum())], lambda: [dist.all_reduce(x, op, async_op=True)])


def broadcast(block: Block, n: int) -> Call:
    x, root = block(n), dist.get_world_size() - 1
    return Call([(x, mine())], [(x, root + 1)], lambda: [dist.broadcast(x, root, async_op=True)])


def reduce(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    x, root = block(n), dist.get_world_size() - 1
    outputs = [(x, _sum())] if dist.get_rank() == root else []
    return Call([(x, mine())], outputs, lambda: [dist.reduce(x, root, op, async_op=True)])


def all_gather(block: Block, n: int) -> Call:
    x, outs = block(n), [block(n) for _ in range(dist.get_world_size())]
    outputs = [(out, _of(rank)) for rank, out in enumerate(outs)]
    return Call([(x, _of(dist.get_rank()))], outputs, lambda: [dist.all_gather(outs, x, async_op=True)])


def all_gather_into_tensor(block: Block, n: int) -> Call:
    x, out = block(n), full(0, n * dist.get_world_size())
    outputs = [(part, _of(rank)) for rank, part in enumerate(out.split(n))]
    return Call([(x, _of(dist.get_rank()))], outputs, lambda: [dist.all_gather_into_tensor(out, x, async_op=True)])


def reduce_scatter(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    xs, out, rank = [block(n) for _ in range(dist.get_world_size())], block(n), dist.get_rank()
    inputs = [(x, _of(rank, i)) for i, x in enumerate(xs)]
    return Call(inputs, [(out, _sum_of(rank))], lambda: [dist.reduce_scatter(out, xs, op, async_op=True)])


def reduce_scatter_tensor(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    x, out, rank = full(0, n * dist.get_world_size()), block(n), dist.get_rank()
    inputs = [(part, _of(rank, i)) for i, part in enumerate(x.split(n))]
    return Call(inputs, [(out, _sum_of(rank))], lambda: [dist.reduce_scatter_tensor(out, x, op, async_op=True)])


def all_to_all(block: Block, n: int, *, uneven: bool = False) -> Call:
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    ins, outs = ([block(n + uneven * (rank + other)) for other in ranks] for _ in range(2))
    inputs = [(x, _of(rank, other)) for other, x in enumerate(ins)]
    outputs = [(out, _of(other, rank)) for other, out in enumerate(outs)]
    return Call(inputs, outputs, lambda: [dist.all_to_all(outs, ins, async_op=True)])


def all_to_all_single(block: Block, n: int, *, uneven: bool = False) -> Call:
    del block  # both sides are contiguous
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    splits = [n + uneven * (rank + other) for other in ranks]
    x, out = full(0, sum(splits)), full(0, sum(splits))
    inputs = [(part, _of(rank, other)) for other, part in enumerate(x.split(splits))]
    outputs = [(part, _of(other, rank)) for other, part in enumerate(out.split(splits))]
    given = splits if uneven else None
    return Call(inputs, outputs, lambda: [dist.all_to_all_single(out, x, given, given, async_op=True)])


def gather(block: Block, n: int) -> Call:
    x, outs = block(n), None
    if dist.get_rank() == 0:
        outs = [block(n) for _ in range(dist.get_world_size())]
    outputs = [(out, _of(rank)) for rank, out in enumerate(outs or [])]
    return Call([(x, _of(dist.get_rank()))], outputs, lambda: [dist.gather(x, outs, 0, async_op=True)])


def scatter(block: Block, n: int) -> Call:
    rank, out, ins = dist.get_rank(), block(n), None
    if rank == 0:
        ins = [block(n) for _ in range(dist.get_world_size())]
    inputs = [(x, _of(0, other)) for other, x in enumerate(ins or [])]
    return Call(inputs, [(out, _of(0, rank))], lambda: [dist.scatter(out, ins, 0, async_op=True)])


def _around() -> tuple[int, int]:
    """The rank before this one and the one after it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % ranks, (rank + 1) % ranks


def isend_and_irecv(block: Block, n: int, *, tag: int = 0) -> Call:
    (before, after), x, out = _around(), block(n), block(n)

    def issue() -> list[Any]:
        return [dist.isend(x, after, tag=tag), dist.irecv(out, before, tag=tag)]

    return Call([(x, mine())], [(out, before + 1)], issue)


def batch_isend_irecv(block: Block, n: int) -> Call:
    (before, after), xs, outs = _around(), [block(n), block(n // 2)], [block(n), block(n // 2)]

    def issue() -> list[Any]:
        sends = [dist.P2POp(dist.isend, x, after) for x in xs]
        recvs = [dist.P2POp(dist.irecv, out, before) for out in outs]
        return dist.batch_isend_irecv([*sends, *recvs])

    inputs = [(x, mine() + 10 * i) for i, x in enumerate(xs)]
    return Call(inputs, [(out, before + 1 + 10 * i) for i, out in enumerate(outs)], issue)


def _window(calls: Callable[[], None]) -> list[Any]:
    with dist._coalescing_manager(device=accelerator(), async_ops=True) as window:
        calls()
    return list(window.works)


def coalesced_all_reduces(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    xs = [block(n), block(n // 2), block(1)]

    def calls() -> None:
        for x in xs:
            dist.all_reduce(x, op)

    return Call([(x, mine()) for x in xs], [(x, _sum()) for x in xs], lambda: _window(calls))


def coalesced_all_gathers(block: Block, n: int) -> Call:
    parts = [all_gather_into_tensor(block, n), all_gather_into_tensor(block, n // 2)]
    ins = [part.inputs[0][0] for part in parts]
    outs = [full(0, x.numel() * dist.get_world_size()) for x in ins]

    def calls() -> None:
        for out, x in zip(outs, ins, strict=True):
            dist.all_gather_into_tensor(out, x)

    outputs = [(part, _of(rank)) for out in outs for rank, part in enumerate(out.chunk(dist.get_world_size()))]
    return Call([part.inputs[0] for part in parts], outputs, lambda: _window(calls))


def coalesced_reduce_scatters(block: Block, n: int, op: Any = dist.ReduceOp.SUM) -> Call:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outs = [block(n), block(n // 2)]
    ins = [full(0, out.numel() * ranks) for out in outs]

    def calls() -> None:
        for out, x in zip(outs, ins, strict=True):
            dist.reduce_scatter_tensor(out, x, op)

    inputs = [(part, _of(rank, i)) for x in ins for i, part in enumerate(x.chunk(ranks))]
    return Call(inputs, [(out, _sum_of(rank)) for out in outs], lambda: _window(calls))


OPERATIONS: dict[str, Callable[[Block, int], Call]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "all_gather_into_tensor": all_gather_into_tensor,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "all_to_all": all_to_all,
    "all_to_all, uneven": partial(all_to_all, uneven=True),
    "all_to_all_single": all_to_all_single,
    "all_to_all_single, uneven": partial(all_to_all_single, uneven=True),
    "gather": gather,
    "scatter": scatter,
    "isend and irecv": isend_and_irecv,
    "isend and irecv, with a tag": partial(isend_and_irecv, tag=5),
    "batch_isend_irecv": batch_isend_irecv,
    "coalesced all_reduces": coalesced_all_reduces,
    "coalesced all_gathers": coalesced_all_gathers,
    "coalesced reduce_scatters": coalesced_reduce_scatters,
}


def _scaled(operation: Callable[..., Call], op: Any, by: float, block: Block, n: int) -> Call:
    call = operation(block, n, op=op)
    call.outputs = [(out, by * value) for out, value in call.outputs]
    return call


def _scaled_operations(op: Any, by: float) -> dict[str, Callable[[Block, int], Call]]:
    operations = {"all_reduce": all_reduce, "reduce": reduce, "reduce_scatter": reduce_scatter}
    operations |= {"reduce_scatter_tensor": reduce_scatter_tensor, "coalesced all_reduces": coalesced_all_reduces}
    operations |= {"coalesced reduce_scatters": coalesced_reduce_scatters}
    return {f"scaled {name}": partial(_scaled, operation, op, by) for name, operation in operations.items()}


P2P = {"isend and irecv", "isend and irecv, with a tag", "batch_isend_irecv"}
# The host queues the copies of these outputs when the operation is complete, also where streams can wait.
ENDED_BY_THE_HOST = {"isend and irecv, with a tag"}
UNEVEN = {"all_to_all, uneven", "all_to_all_single, uneven"}


# ---- programs ----


def _of_each(
    program: Callable[[Callable[[], Call]], None],
    n: int = N,
    without: Collection[str] = (),
    layouts: Sequence[Block] = (contiguous, strided),
    operations: dict[str, Callable[[Block, int], Call]] = OPERATIONS,
) -> None:
    """Runs a program with each operation, with blocks of each layout."""
    for name, operation in operations.items():
        if name in without:
            continue
        for block in layouts:
            try:
                program(partial(operation, block, n))
            except Exception as error:
                raise AssertionError(f"{name} of {n}, {block.__name__}: {type(error).__name__}: {error}") from error


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _copies(call: Call) -> list[torch.Tensor]:
    return [out + 0 for out, _ in call.outputs]


def _expect(call: Call, copies: Sequence[torch.Tensor], scale: float = 1) -> None:
    for copy, (_, value) in zip(copies, call.outputs, strict=True):
        expect(copy, scale * value)


def _three_streams() -> list[torch.Stream]:
    return [torch.Stream(accelerator()) for _ in range(3)]


def _late_producer(make: Callable[[], Call], waits: bool) -> None:
    call, (producer, issuer, consumer) = make(), _three_streams()
    torch.accelerator.synchronize(accelerator())
    copies: list[torch.Tensor] = []

    def consume() -> None:
        with consumer:
            _wait(works)
            copies.extend(_copies(call))

    with held(producer):
        with producer:
            call.fill()
        issuer.wait_stream(producer)
        with issuer:
            works = call.issue()
        if waits:
            consume()
        assert not any(work.is_completed() for work in works)
    if not waits:
        consume()
    main_stream().wait_stream(consumer)
    _expect(call, copies)


def producers_are_late(n: int = N) -> None:
    """A held side stream writes the inputs, another one issues, and a third one waits and reads the outputs."""
    _of_each(partial(_late_producer, waits=False), n)


def consumers_do_not_wait(n: int = N) -> None:
    """The same where streams can wait: `wait()` and what reads the outputs come while the producer is held."""
    _of_each(partial(_late_producer, waits=True), n, ENDED_BY_THE_HOST)


def _same_blocks(tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """Returns what fills memory of the sizes that the tensors have, which may be theirs if they are dropped."""
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 4 for t in tensors}
    return lambda: [full(99, n) for n in (*sizes.values(), *sizes.values())]


def _dropped_inputs(make: Callable[[], Call]) -> None:
    call = make()
    main = main_stream()
    main.synchronize()
    written = {out.untyped_storage().data_ptr() for out, _ in call.outputs}
    others = _same_blocks([x for x, _ in call.inputs if x.untyped_storage().data_ptr() not in written])
    with held(main):
        call.fill()
        works, outputs = call.issue(), call.outputs
        del call
        taken = others()
    _wait(works)
    del works
    for out, value in outputs:
        expect(out, value)
    for each in taken:
        expect(each, 99)


def inputs_are_dropped(n: int = N) -> None:
    """Memory of inputs that nobody has any more is not used again while the operation reads it."""
    _of_each(_dropped_inputs, n)


def _dropped_tensors(make: Callable[[], Call]) -> None:
    for _ in range(FEW):
        call = make()
        call.fill()
        others = _same_blocks([t for t, _ in (*call.inputs, *call.outputs)])
        works = call.issue()
        del call
        taken = others()
        _wait(works)
        del works
        for each in (*taken, *others()):
            expect(each, 99)


def tensors_and_works_are_dropped(n: int = N) -> None:
    """Memory of tensors that nobody has any more is not used again while the operation writes it."""
    _of_each(_dropped_tensors, n)


def _memory_of_another_stream(make: Callable[[], Call]) -> None:
    main, side = main_stream(), torch.Stream(accelerator())
    for _ in range(FEW):
        call = make()
        call.fill()
        others = _same_blocks([t for t, _ in (*call.inputs, *call.outputs)])
        side.wait_stream(main)
        with side:
            _wait(call.issue())
        del call
        for each in (*others(), *others()):
            expect(each, 99)


def memory_of_another_stream(n: int = N) -> None:
    """Memory comes from one stream, and is given back there when another one has issued the operation and waits."""
    _of_each(_memory_of_another_stream, n, layouts=[contiguous])


def _several_streams(make: Callable[[], Call]) -> None:
    side, main = torch.Stream(accelerator()), main_stream()
    first, second = make(), make()
    side.wait_stream(main)
    got: list[tuple[Call, list[torch.Tensor], int]] = []
    for step in range(1, FEW + 1):
        first.fill(step)
        works = first.issue()
        with side:
            second.fill(10 * step)
            _wait(second.issue())
            got.append((second, _copies(second), 10 * step))
        _wait(works)
        got.append((first, _copies(first), step))
    main.wait_stream(side)
    for each in got:
        _expect(*each)


def streams_change(n: int = N) -> None:
    """Two streams take turns with calls of one group, and neither waits for the other one."""
    _of_each(_several_streams, n)


def _rewritten_inputs(make: Callable[[], Call]) -> None:
    call, got = make(), list[list[torch.Tensor]]()
    for step in range(1, FEW + 1):
        call.fill(step)
        _wait(call.issue())
        got.append(_copies(call))
        for x, _ in call.inputs:
            x.fill_(-99)
    for step, copies in enumerate(got, 1):
        _expect(call, copies, step)


def inputs_are_rewritten_after_the_wait(n: int = N) -> None:
    """What the stream writes behind `wait()` reaches no peer. The host waits for nothing."""
    _of_each(_rewritten_inputs, n)


def _passed_on(make: Callable[[], Call]) -> None:
    call = make()
    for step in range(1, FEW + 1):
        call.fill(step)
        works = call.issue()
        out, value = call.outputs[-1] if call.outputs else (full(0, call.inputs[0][0].numel()), 0.0)
        passed = [full(-1, out.numel()) for _ in range(dist.get_world_size())]
        dist.all_gather(passed, out)
        expect(passed[dist.get_rank()], step * value)
        _wait(works)


def outputs_are_passed_on() -> None:
    """An all_gather reads the last output of a collective for which nobody has waited, where streams can wait."""
    _of_each(_passed_on, without=P2P | UNEVEN, layouts=[contiguous])


def _scaling(op: Any, by: float) -> None:
    _of_each(partial(_late_producer, waits=True), operations=_scaled_operations(op, by))
    for program in (_dropped_inputs, _dropped_tensors, _several_streams, _rewritten_inputs, _passed_on):
        _of_each(program, layouts=[contiguous], operations=_scaled_operations(op, by))


def averages() -> None:
    """AVG of a library that has none: kernels of torch's behind a SUM, where streams can wait."""
    _scaling(dist.ReduceOp.AVG, 1 / dist.get_world_size())


def factors() -> None:
    """PREMUL_SUM of a library that has none: kernels of torch's in front of a SUM, where streams can wait."""
    _scaling(_make_nccl_premul_sum(0.25), 0.25)


PROGRAMS: list[Callable[[], Any]] = [
    producers_are_late,
    inputs_are_dropped,
    tensors_and_works_are_dropped,
    memory_of_another_stream,
    streams_change,
    inputs_are_rewritten_after_the_wait,
]
# Where the streams of a device can wait for a word.
WAITING: list[Callable[[], Any]] = [*PROGRAMS, consumers_do_not_wait, outputs_are_passed_on]


def long_tensors() -> None:
    for program in PROGRAMS:
        program(LONG)


def _two_devices() -> list[torch.device]:
    """The current one, and the one behind it."""
    first = torch.cuda.current_device()
    return [torch.device("cuda", index) for index in (first, first + 1)]


def _on_two_devices(make: Callable[[], Call]) -> None:
    calls = []
    for device in _two_devices():
        ELSEWHERE[:] = [device]
        calls.append(make())
    for step in range(1, FEW + 1):
        works = []
        for call in calls:
            call.fill(step)
            works.append(call.issue())
        for call, each in zip(calls, works, strict=True):
            _wait(each)
            _expect(call, _copies(call), step)


def calls_on_two_devices() -> None:
    _of_each(_on_two_devices)


def a_group_on_each_device() -> None:
    groups = [dist.group.WORLD, dist.new_group()]
    devices = _two_devices()
    (before, after), ranks = _around(), dist.get_world_size()
    xs, ys = ([torch.zeros(N, 2, device=device)[:, 0] for device in devices] for _ in range(2))
    outs = [torch.zeros(ranks * N, device=device) for device in devices]
    for step in range(1, FEW + 1):
        works = []
        for device, (group, x, y, out) in enumerate(zip(groups, xs, ys, outs, strict=True)):
            x.fill_(step * (mine() + 10 * device))
            works += [dist.isend(x, after, group), dist.irecv(y, before, group)]
            works += [dist.all_gather_into_tensor(out, x, group, async_op=True)]
            works += [dist.all_reduce(x, group=group, async_op=True)]
        _wait(works)
        for device, (x, y, out) in enumerate(zip(xs, ys, outs, strict=True)):
            expect(x, step * (_sum() + 10 * device * ranks))
            expect(y, step * (before + 1 + 10 * device))
            for rank, part in enumerate(out.split(N)):
                expect(part, step * (rank + 1 + 10 * device))


def on_devices(rank: int, size: int, store: str, first: int, programs: list[Callable[[], Any]]) -> None:
    """The programs on a device while the one before it is current, all operations on both devices in turns, and in a
    group for each."""
    torch.cuda.set_device(first)
    try:
        ELSEWHERE[:] = _two_devices()[1:]
        run_under_fake_cuda(rank, size, store, programs)
        run_under_fake_cuda(rank, size, f"{store}-both", [calls_on_two_devices, a_group_on_each_device])
    finally:
        ELSEWHERE.clear()
    assert torch.cuda.current_device() == first


def on_another_device(rank: int, size: int, store: str, waits: bool) -> None:
    on_devices(rank, size, store, 0, WAITING if waits else PROGRAMS)


def under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, PROGRAMS)


def where_streams_wait(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, WAITING)


def strided_and_late(rank: int, size: int, store: str) -> None:
    """One case of each operation: the producer of its strided blocks is late, and so is the consumer."""

    def late() -> None:
        _of_each(partial(_late_producer, waits=True), without=ENDED_BY_THE_HOST, layouts=[strided])

    run_under_fake_cuda(rank, size, store, [late])


def long_under_fake_cuda(rank: int, size: int, store: str) -> None:
    run_under_fake_cuda(rank, size, store, [long_tensors])


def events_are_refused() -> None:
    """The device refuses each of the first events of an operation, on a device that is not the current one, which stays
    the current one."""
    import build

    emulator = ctypes.CDLL(str(build.OUTPUT / "libemulator.so"))  # prepare() has loaded it
    current, raised, left = torch.accelerator.current_device_index(), {"record": 0, "block": 0}, []
    ELSEWHERE[:] = [torch.device(accelerator().type, current + 1)]
    for call, number in itertools.product(raised, range(1, 6)):
        group = dist.new_group(timeout=timedelta(seconds=20))
        x = full(mine())
        dist.all_reduce(x, group=group)
        expect(x, _sum())
        assert emulator.emulator_plan(f"{call}@{number}=out_of_memory".encode()) == 0
        try:
            dist.all_reduce(x, group=group)
        except RuntimeError as error:
            assert "out_of_memory" in str(error), error
            raised[call] += 1
        finally:
            assert emulator.emulator_plan(b"") == 0
        if torch.accelerator.current_device_index() != current:
            left.append((call, number))
            torch.accelerator.set_device_index(current)
    ELSEWHERE.clear()
    assert all(raised.values()), raised
    assert not left, f"another device is the current one behind {left}"
