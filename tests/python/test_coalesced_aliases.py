"""Tensors that occur several times in one coalesced call, or share memory there, behave as with gloo or are refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from worlds import World

Tensors = list[torch.Tensor]
REFUSED = "refused"


def group() -> dist.ProcessGroup:
    pg = dist.group.WORLD
    assert pg is not None
    return pg


def values(n: int, first: int = 0) -> torch.Tensor:
    return torch.arange(float(first), float(first + n)) + 100 * dist.get_rank()


def reduce_twice() -> Tensors:
    t = values(4)
    group().allreduce_coalesced([t, t]).wait()
    return [t]


def reduce_twice_among_others() -> Tensors:
    t, u, v = values(4), values(3, 10), values(5, 20)
    group().allreduce_coalesced([t, u, t, v, t]).wait()
    return [t, u, v]


def reduce_in_two_shapes() -> Tensors:
    t = values(4)
    group().allreduce_coalesced([t, t.view(2, 2)]).wait()
    return [t]


def reduce_a_column_twice() -> Tensors:
    whole = values(12).view(4, 3)
    group().allreduce_coalesced([whole[:, 1], whole[:, 1], whole[:, 2]]).wait()
    return [whole]


def reduce_twice_on_one_rank() -> Tensors:
    """One rank passes a tensor twice, the other rank passes two tensors. Each rank's call is valid."""
    t, u = values(4), values(4, 10)
    group().allreduce_coalesced([t, t] if dist.get_rank() == 0 else [t, u]).wait()
    return [t, u]


def reduce_twice_in_torchs_manager() -> Tensors:
    t = values(4)
    with c10d._coalescing_manager(group()):
        dist.all_reduce(t)
        dist.all_reduce(t)
    return [t]


def reduce_with_overlap() -> Tensors:
    t = values(6)
    group().allreduce_coalesced([t[:4], t[2:]]).wait()
    return [t]


def reduce_twice_with_overlap() -> Tensors:
    t = values(6)
    group().allreduce_coalesced([t[:4], t[:4], t[2:]]).wait()
    return [t]


def gather_one_input_twice() -> Tensors:
    t, outputs = values(3), [torch.zeros(6), torch.zeros(6)]
    group().allgather_into_tensor_coalesced(outputs, [t, t]).wait()
    return outputs


def gather_into_one_output_twice() -> Tensors:
    output = torch.zeros(6)
    group().allgather_into_tensor_coalesced([output, output], [values(3), values(3, 10)]).wait()
    return [output]


def gather_into_the_next_input() -> Tensors:
    second = values(6, 10)
    outputs = [second, torch.zeros(12)]
    group().allgather_into_tensor_coalesced(outputs, [values(3), second]).wait()
    return outputs


def gather_lists_of_one_input_twice() -> Tensors:
    t = values(3)
    lists = [[torch.zeros(3), torch.zeros(3)] for _ in range(2)]
    group().allgather_coalesced(lists, [t, t]).wait()
    return [t for row in lists for t in row]


def gather_lists_into_one_output() -> Tensors:
    output = torch.zeros(3)
    lists = [[output, output], [torch.zeros(3), torch.zeros(3)]]
    group().allgather_coalesced(lists, [values(3), values(3, 10)]).wait()
    return [output]


def scatter_one_input_twice() -> Tensors:
    t, outputs = values(6), [torch.zeros(3), torch.zeros(3)]
    group().reduce_scatter_tensor_coalesced(outputs, [t, t]).wait()
    return outputs


def scatter_into_one_output_twice() -> Tensors:
    output = torch.zeros(3)
    group().reduce_scatter_tensor_coalesced([output, output], [values(6), values(6, 10)]).wait()
    return [output]


def scatter_into_the_next_input() -> Tensors:
    second = values(6, 10)
    outputs = [second[:3], torch.zeros(3)]
    group().reduce_scatter_tensor_coalesced(outputs, [values(6), second]).wait()
    return [second, outputs[1]]


# Tensors that overlap without being the same are refused. Gloo reads all inputs before it writes an output; operations
# that pack straight into slots do not.
CALLS: dict[Callable[[], Tensors], str] = {
    reduce_twice: "",
    reduce_twice_among_others: "",
    reduce_in_two_shapes: "",
    reduce_a_column_twice: "",
    reduce_twice_on_one_rank: "",
    reduce_twice_in_torchs_manager: "",
    reduce_with_overlap: REFUSED,
    reduce_twice_with_overlap: REFUSED,
    gather_one_input_twice: "",
    gather_into_one_output_twice: "",
    gather_into_the_next_input: REFUSED,
    gather_lists_of_one_input_twice: "",
    gather_lists_into_one_output: REFUSED,
    scatter_one_input_twice: "",
    scatter_into_one_output_twice: "",
    scatter_into_the_next_input: REFUSED,
}


def results() -> dict[str, list[torch.Tensor] | str]:
    found: dict[str, list[torch.Tensor] | str] = {}
    for call in CALLS:
        try:
            found[call.__name__] = call()
        except (RuntimeError, NotImplementedError) as error:
            found[call.__name__] = str(error)
        dist.barrier()
    return found


def test_results_are_gloos_or_the_call_is_refused(world: Callable[[int], World]) -> None:
    gloo = world(2).run(results, backend="gloo")
    for ours, theirs in zip(world(2).run(results), gloo, strict=True):
        for call, expected in CALLS.items():
            mine, its = ours[call.__name__], theirs[call.__name__]
            if expected == REFUSED:
                assert isinstance(mine, str), call.__name__
                assert "share memory" in mine, f"{call.__name__}: {mine}"
            else:
                assert not isinstance(mine, str), f"{call.__name__}: {mine}"
                assert not isinstance(its, str), f"{call.__name__}: gloo: {its}"
                for a, b in zip(mine, its, strict=True):
                    assert torch.equal(a, b), f"{call.__name__}: {a} instead of {b}"
