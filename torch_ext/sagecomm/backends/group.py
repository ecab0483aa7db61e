"""The backend over a process group of torch.distributed, whatever carries its operations out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _observe
from sagecomm._futures import CommFuture
from sagecomm._groups import backend_names
from sagecomm._reductions import Reduction, reduce_op
from sagecomm.backends import placing
from sagecomm.backends.counter import Counter, summary
from sagecomm.backends.placing import GLOO, SAGECOMM
from sagecomm.backends.protocol import CommBackendProtocol, CommOp
from sagecomm.backends.receiving import Receiving


class GroupBackend(CommBackendProtocol):
    """A `CommBackendProtocol` over a process group.

    Operations on tensors that sagecomm serves are counted by the core. With `counter` the others are counted there.
    `started(works, value, devices)` makes what asynchronous operations return.
    """

    def __init__(
        self, group: dist.ProcessGroup, counter: Counter | None = None, started: Callable[..., Any] = CommFuture
    ) -> None:
        self._group = group
        self._counter = counter
        self._started = started

    @cached_property
    def _names(self) -> dict[str, str]:
        return backend_names(self._group)

    @property
    def name(self) -> str:
        """The name of the group's backend, as in `init_process_group`."""
        names = set(self._names.values())
        return names.pop() if len(names) == 1 else ",".join(f"{d}:{n}" for d, n in sorted(self._names.items()))

    @property
    def group(self) -> dist.ProcessGroup:
        return self._group

    @property
    def rank(self) -> int:
        return self._group.rank()

    @property
    def world_size(self) -> int:
        return self._group.size()

    def __repr__(self) -> str:
        return f"<sagecomm {self.name} backend of rank {self.rank} of {self.world_size}>"

    def __deepcopy__(self, _: dict[int, Any]) -> GroupBackend:
        return self  # a group cannot be copied, and a module that has a backend can be

    def all_reduce(self, tensor: torch.Tensor, op: Reduction = "sum", async_op: bool = False) -> Any:
        reduction, average = self._reduction(op, "all_reduce", tensor)
        done = self._begin(CommOp.ALL_REDUCE, tensor)
        placed = self._place(tensor, "all_reduce")
        work = dist.all_reduce(placed, reduction, self._group, async_op)

        def result() -> torch.Tensor:
            average(placed)
            return placing.take_back(placed, tensor)

        return self._finish(work, async_op, result, done, tensor.device)

    def all_gather(self, tensor: torch.Tensor, output: torch.Tensor | None = None, async_op: bool = False) -> Any:
        size = self.world_size
        shape = (size * tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else (size,)
        output = _output(output, tensor, [shape, (size, *tensor.shape)], "all_gather")
        return self._gather(tensor, output, async_op, lambda: output)

    def gather_list(self, tensor: torch.Tensor, async_op: bool = False) -> Any:
        """Like all_gather(), but returns a tensor for each rank, of the shape of `tensor`."""
        output = tensor.new_empty((self.world_size, *tensor.shape))
        return self._gather(tensor, output, async_op, lambda: list(output.unbind(0)))

    def _gather(self, tensor: torch.Tensor, output: torch.Tensor, async_op: bool, value: Callable[[], object]) -> Any:
        done = self._begin(CommOp.ALL_GATHER, tensor)
        source = self._place(tensor.detach(), "all_gather", contiguous=True)
        target = self._room(output, "all_gather")
        work = dist.all_gather_into_tensor(target.view(-1), source.view(-1), self._group, async_op)

        def result() -> object:
            placing.take_back(target, output)
            return value()

        return self._finish(work, async_op, result, done, tensor.device)

    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        op: Reduction = "sum",
        async_op: bool = False,
        *,
        output: torch.Tensor | None = None,
    ) -> Any:
        size = self.world_size
        if tensor.dim() == 0 or tensor.shape[0] % size:
            raise ValueError(
                f"sagecomm: reduce_scatter: the first dimension of shape {list(tensor.shape)} is no multiple of "
                f"{size}, the number of ranks"
            )
        output = _output(output, tensor, [(tensor.shape[0] // size, *tensor.shape[1:])], "reduce_scatter")
        return self._scatter([tensor], output, op, async_op)

    def reduce_scatter_list(
        self, output: torch.Tensor, input_list: Sequence[torch.Tensor], op: Reduction = "sum", async_op: bool = False
    ) -> Any:
        """Like reduce_scatter(), with a tensor for each rank, of the shape of `output`."""
        _check_length("reduce_scatter: input_list", input_list, self.world_size)
        for i, tensor in enumerate(input_list):
            if (tensor.shape, tensor.dtype, tensor.device) != (output.shape, output.dtype, output.device):
                raise ValueError(
                    f"sagecomm: reduce_scatter: tensor {i} of input_list has shape {list(tensor.shape)}, "
                    f"{tensor.dtype} on {tensor.device}; output has {list(output.shape)}, {output.dtype} on "
                    f"{output.device}"
                )
        return self._scatter(input_list, output, op, async_op)

    def _scatter(self, blocks: Sequence[torch.Tensor], output: torch.Tensor, op: Reduction, async_op: bool) -> Any:
        """Takes a tensor for each rank, or one that has them all."""
        reduction, average = self._reduction(op, "reduce_scatter", output)
        done = self._begin(CommOp.REDUCE_SCATTER, output)
        sources = [self._place(block.detach(), "reduce_scatter", contiguous=True) for block in blocks]
        target = self._room(output, "reduce_scatter")
        whole = None
        if placing.engine(output, self._names, "reduce_scatter") == GLOO:  # it has no algorithm for this, nor a future
            whole = torch.cat([source.view(-1) for source in sources])
            work = dist.all_reduce(whole, reduction, self._group, async_op)
        elif len(sources) > 1:
            work = dist.reduce_scatter(target, sources, reduction, self._group, async_op)
        else:
            work = dist.reduce_scatter_tensor(target.view(-1), sources[0].view(-1), reduction, self._group, async_op)
        first = self.rank * output.numel()

        def result() -> torch.Tensor:
            if whole is not None:
                target.view(-1).copy_(whole[first : first + target.numel()])
            average(target)
            return placing.take_back(target, output)

        return self._finish(work, async_op, result, done, output.device)

    def broadcast(self, tensor: torch.Tensor, src: int = 0, async_op: bool = False) -> Any:
        self._check(src, "broadcast: src")
        done = self._begin(CommOp.BROADCAST, tensor)
        placed = self._place(tensor, "broadcast")
        work = dist.broadcast(placed, group=self._group, group_src=src, async_op=async_op)
        return self._finish(work, async_op, lambda: placing.take_back(placed, tensor), done, tensor.device)

    def reduce(self, tensor: torch.Tensor, dst: int = 0, op: Reduction = "sum", async_op: bool = False) -> Any:
        self._check(dst, "reduce: dst")
        reduction, average = self._reduction(op, "reduce", tensor)
        done = self._begin(CommOp.REDUCE, tensor)
        placed = self._place(tensor, "reduce")
        work = dist.reduce(placed, op=reduction, group=self._group, group_dst=dst, async_op=async_op)
        mine = self.rank == dst

        def result() -> torch.Tensor:
            if mine:
                average(placed)
            return placing.take_back(placed, tensor)

        return self._finish(work, async_op, result, done, tensor.device)

    def all_to_all(
        self,
        send_list: Sequence[torch.Tensor],
        recv_list: Sequence[torch.Tensor] | None = None,
        async_op: bool = False,
    ) -> Any:
        if recv_list is None:
            recv_list = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in send_list]
        received = list(recv_list)
        _check_length("all_to_all: send_list", send_list, self.world_size)
        _check_length("all_to_all: recv_list", received, self.world_size)
        done = self._begin(CommOp.ALL_TO_ALL, *send_list)
        sources = [self._place(t.detach(), "all_to_all", contiguous=True) for t in send_list]
        targets = [self._room(t, "all_to_all") for t in received]
        whole = None
        lengths = [target.numel() for target in targets]
        if placing.engine(sources[0], self._names, "all_to_all") == GLOO:  # not every torch's gloo takes lists
            one = torch.cat([source.view(-1) for source in sources])
            whole = one.new_empty(sum(lengths))
            sent = [source.numel() for source in sources]
            work = dist.all_to_all_single(whole, one, lengths, sent, self._group, async_op)
        else:
            work = dist.all_to_all(targets, sources, self._group, async_op)

        def result() -> list[torch.Tensor]:
            if whole is not None:
                for target, block in zip(targets, torch.split(whole, lengths), strict=True):
                    target.copy_(block.view_as(target))
            return [placing.take_back(*pair) for pair in zip(targets, received, strict=True)]

        return self._finish(work, async_op, result, done, received[0].device)

    def fused_all_reduce(self, tensors: Sequence[torch.Tensor], op: Reduction = "sum", async_op: bool = False) -> Any:
        tensors = list(tensors)
        for i, tensor in enumerate(tensors):
            if tensor.layout is not torch.strided:
                raise ValueError(f"sagecomm: fused_all_reduce: tensor {i} has the layout {tensor.layout}")
        batches = placing.batches(tensors, self._names, "fused_all_reduce")
        reductions = [self._reduction(op, "fused_all_reduce", batch[0]) for batch in batches]
        works, results = [], []
        for batch, (reduction, average) in zip(batches, reductions, strict=True):
            done = self._begin(CommOp.ALL_REDUCE, *batch)
            placed = [self._place(tensor, "fused_all_reduce") for tensor in batch]
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp, options.asyncOp = reduction, async_op
            native = placing.engine(batch[0], self._names, "fused_all_reduce") == SAGECOMM
            sent = [t if native or not t.is_complex() else torch.view_as_real(t) for t in placed]
            works.append(self._group.allreduce_coalesced(sent, options))
            results.append(partial(_batch_done, batch, placed, average, done))

        def result() -> list[torch.Tensor]:
            for each in results:
                each()
            return tensors

        if async_op:
            return self._started(works, result, [tensor.device for tensor in tensors])
        for work in works:
            work.wait()
        return result()

    def send(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> None:
        self._check(dst, "send: dst")
        done = self._begin(CommOp.SEND, tensor)
        dist.send(self._place(tensor, "send", contiguous=True), group=self._group, tag=tag, group_dst=dst)
        done()

    def recv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> torch.Tensor:
        self._check(src, "recv: src")
        done = self._begin(CommOp.RECV, tensor)
        target = self._room(tensor, "recv")
        dist.recv(target, group=self._group, tag=tag, group_src=src)
        placing.take_back(target, tensor)
        done()
        return tensor

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> dist.Work:
        """Like send(), but does not wait."""
        self._check(dst, "isend: dst")
        work = dist.isend(self._place(tensor, "isend", contiguous=True), group=self._group, tag=tag, group_dst=dst)
        assert work is not None
        return work

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> dist.Work:
        """Like recv(), but does not wait."""
        self._check(src, "irecv: src")
        target = self._room(tensor, "irecv")
        work = dist.irecv(target, group=self._group, tag=tag, group_src=src)
        assert work is not None
        return work if target is tensor else Receiving(work, target, tensor)

    def barrier(self) -> None:
        served = self._names.get("cpu") or next(iter(self._names.values()))
        done = self._counter.begin(CommOp.BARRIER, served, []) if self._counter and served != SAGECOMM else _nothing
        dist.barrier(self._group)
        done()

    def get_stats(self) -> dict[str, Any]:
        core = _observe.get_stats(self._group) if SAGECOMM in self._names.values() else None
        return summary(core, self._counter.rows() if self._counter else [])

    def _reduction(self, op: Reduction, call: str, tensor: torch.Tensor) -> tuple[Any, Callable[[torch.Tensor], None]]:
        """Returns the reduction to ask for, and what makes its result the one that was meant."""
        reduction = reduce_op(op, call)
        # Not every torch's gloo has averages.
        if reduction != dist.ReduceOp.AVG or placing.engine(tensor, self._names, call) != GLOO:
            return reduction, _nothing
        if tensor.dtype == torch.bool:
            raise ValueError(f"sagecomm: {call}: avg is not defined for bool")
        return dist.ReduceOp.SUM, partial(_divide, self.world_size)

    def _place(self, tensor: torch.Tensor, call: str, contiguous: bool = False) -> torch.Tensor:
        # Every backend takes such a tensor if the group has one for the CPU, and torch refuses it otherwise.
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_contiguous():
            return tensor
        return placing.place(tensor, self._names, call, contiguous)

    def _room(self, output: torch.Tensor, call: str) -> torch.Tensor:
        if output.device.type == "cpu" and output.is_contiguous():
            return output
        return placing.room(output, self._names, call)

    def _begin(self, op: CommOp, *tensors: torch.Tensor) -> Callable[[], None]:
        """Returns the function that counts the operation when it is complete."""
        if self._counter is None:
            return _nothing
        name = placing.engine(tensors[0], self._names, op.value)
        return _nothing if name == SAGECOMM else self._counter.begin(op, name, tensors)

    def _finish(
        self,
        work: dist.Work | None,
        async_op: bool,
        result: Callable[[], object],
        done: Callable[[], None],
        device: torch.device,
    ) -> Any:
        def counted() -> object:
            value = result()
            done()
            return value

        if not async_op:
            return counted()
        return self._started([work], counted, [device])

    def _check(self, rank: int, what: str) -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"sagecomm: {what}: rank {rank} is not in the group of {self.world_size}")


# Closures of futures end in these functions: none of them holds the group, whose end must not come on the thread of a
# callback.


def _batch_done(
    batch: list[torch.Tensor],
    placed: list[torch.Tensor],
    average: Callable[[torch.Tensor], None],
    done: Callable[[], None],
) -> None:
    for tensor, each in zip(batch, placed, strict=True):
        average(each)
        placing.take_back(each, tensor)
    done()


def _nothing(*_: object) -> None:
    pass


def _divide(ranks: int, total: torch.Tensor) -> None:
    """Makes a mean of a sum, as the core does: that of integers is truncated."""
    exact = total.dtype.is_floating_point or total.dtype.is_complex
    total.detach().div_(ranks, rounding_mode=None if exact else "trunc")


def _check_length(what: str, tensors: Sequence[torch.Tensor], ranks: int) -> None:
    if len(tensors) != ranks:
        raise ValueError(f"sagecomm: {what} has {len(tensors)} tensors for {ranks} ranks")


def _output(
    output: torch.Tensor | None, like: torch.Tensor, shapes: Sequence[tuple[int, ...]], call: str
) -> torch.Tensor:
    """Returns the output that was given, or a new one of the first shape."""
    if output is None:
        return like.new_empty(shapes[0])
    if tuple(output.shape) not in shapes or output.dtype != like.dtype or output.device != like.device:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"sagecomm: {call}: output has shape {list(output.shape)}, {output.dtype} on {output.device}; expected "
            f"{expected}, {like.dtype} on {like.device}"
        )
    return output
