"""The operators of torch that the extension registers, eager and in compiled programs."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # ranks need it, and modules imported here are preloaded for them
import torch.distributed as dist

SIZE = 3


def of_rank(rank: int, *shape: int) -> torch.Tensor:
    """Whole numbers, whose sums are exact in any order."""
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(rank)).float()


def summed(tensor: torch.Tensor) -> None:
    torch.ops.sagecomm.all_reduce_(tensor, dist.group.WORLD.group_name)


def gathered(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.sagecomm.all_gather(tensor, dim, dist.group.WORLD.group_name)


def eager() -> None:
    rank = dist.get_rank()
    for layout in (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[:, ::2]):
        inputs = [layout(of_rank(i, 2, 4, 3)) for i in range(SIZE)]
        for dim in range(-3, 3):
            assert torch.equal(gathered(inputs[rank], dim), torch.cat(inputs, dim)), dim
        own = inputs[rank]
        summed(own)
        assert torch.equal(own, sum(layout(of_rank(i, 2, 4, 3)) for i in range(SIZE)))
    empty = gathered(torch.empty(0, 2), 1)
    assert empty.shape == (0, 2 * SIZE)


def test_results(world):
    world(SIZE).run(eager)


def refused() -> None:
    with pytest.raises(RuntimeError, match="all_gather: a tensor without dimensions cannot be concatenated"):
        gathered(torch.ones(()), 0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        gathered(torch.ones(2), 1)
    with pytest.raises(RuntimeError, match="nowhere"):
        torch.ops.sagecomm.all_reduce_(torch.ones(2), "nowhere")
    dist.group.WORLD._start_coalescing(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="sagecomm::all_gather is complete when it returns"):
        gathered(torch.ones(2), 0)
    with pytest.raises(RuntimeError, match="sagecomm::all_reduce_ is complete when it returns"):
        summed(torch.ones(2))
    dist.group.WORLD._end_coalescing(torch.device("cpu"))
    weight, own = torch.ones(2, requires_grad=True), torch.ones(2)
    product = weight * own
    summed(own)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="sagecomm::all_reduce_ has no derivative"):
        summed(leaf * 1)
    with pytest.raises(RuntimeError, match="derivative for sagecomm::all_gather is not implemented"):
        gathered(leaf, 0).sum().backward()


def test_what_is_refused(world):
    world(SIZE).run(refused)


def layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x * 2
        summed(x)
        x = gathered(x + 1, 1)[:, : x.shape[1]]
    return x


def compiled() -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    function = torch.compile(layers, backend=backend, fullgraph=True, dynamic=True)
    for rows in (4, 6, 9):
        x = of_rank(dist.get_rank(), rows, 5)
        assert torch.equal(function(x.clone()), layers(x.clone())), rows
    assert sum("sagecomm.all_reduce_" in target for target in seen) == 3, seen
    assert sum("sagecomm.all_gather" in target for target in seen) == 3, seen


def test_compiled_programs(world):
    world(SIZE).run(compiled)


def used(x: torch.Tensor, matrix: torch.Tensor, gathers: bool, uses: bool) -> torch.Tensor:
    """With no code for which inductor would have to compile C++."""
    result = x @ matrix
    if gathers:
        result = gathered(result, 0)
    else:
        summed(result)
    return result if uses else x


def used_on_one_rank(backend: str, cache: str) -> None:
    """A rank that left the operator out would come to the barrier instead, which is a mismatch."""
    rank, matrix = dist.get_rank(), torch.eye(8).roll(1, 0)
    products = [of_rank(i, 4, 8) @ matrix for i in range(SIZE)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
        for gathers, want in ((False, sum(products)), (True, torch.cat(products))):
            torch._dynamo.reset()
            function = torch.compile(used, backend=backend, fullgraph=True)
            got = function(of_rank(rank, 4, 8), matrix, gathers, rank == 0)
            dist.barrier()
            assert torch.equal(got, want if rank == 0 else of_rank(rank, 4, 8))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_result_that_one_rank_uses(world, tmp_path, backend):
    world(SIZE).run(used_on_one_rank, backend, str(tmp_path))
