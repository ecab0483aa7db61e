"""torch.compile of modules that communicate: forward and backward give the results of eager mode and of plain torch."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # ranks need it, and modules imported here are preloaded for them
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d

SIZE = 3
ROWS, COLUMNS = 2 * SIZE, SIZE
# The number of rows that a rank sends to each other rank.
SPLITS = [[1, 2, 3], [0, 6, 0], [4, 0, 2]]


class Exchange(nn.Module):
    """Applies every functional collective to the product of the input and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.arange(float(COLUMNS**2)).reshape(COLUMNS, COLUMNS) / 8)
        self.group = c10d._get_default_group()
        self.sends = SPLITS[dist.get_rank()]
        self.receives = [row[dist.get_rank()] for row in SPLITS]

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y, group = x @ self.matrix, self.group
        several = funcol.all_reduce_coalesced([y, y * y], "sum", group)
        gathered = funcol.all_gather_into_tensor_coalesced([y, y * y], group)
        shares = funcol.reduce_scatter_tensor_coalesced([y, y * y], "sum", [0, 1], group)
        return {
            "all_reduce": funcol.all_reduce(y, "sum", group),
            "all_reduce of averages": funcol.all_reduce(y * y, "avg", group),
            "all_gather of rows": funcol.all_gather_tensor(y, 0, group),
            "all_gather of columns": funcol.all_gather_tensor(y, 1, group),
            "all_reduce of maxima": funcol.all_reduce(y, "max", group),
            "reduce_scatter of rows": funcol.reduce_scatter_tensor(y, "sum", 0, group),
            # torch knows no gradient of it.
            "reduce_scatter of averages": funcol.reduce_scatter_tensor(y.detach(), "avg", 0, group),
            "reduce_scatter of columns": funcol.reduce_scatter_tensor(y, "sum", 1, group),
            "all_to_all": funcol.all_to_all_single(y, None, None, group),
            "uneven all_to_all": funcol.all_to_all_single(y, self.receives, self.sends, group),
            "all_reduce coalesced": torch.cat(several),
            "all_gather coalesced": torch.cat(gathered),
            "reduce_scatter coalesced": torch.cat([each.flatten() for each in shares]),
        }


def worked_out(inputs: list[torch.Tensor], matrix: torch.Tensor, rank: int) -> dict[str, torch.Tensor]:
    """Returns a rank's expected outputs, computed from the inputs of all ranks."""
    ys = [x @ matrix for x in inputs]
    squares = [y * y for y in ys]
    total, of_squares = sum(ys), sum(squares)
    assert isinstance(total, torch.Tensor)
    assert isinstance(of_squares, torch.Tensor)
    uneven = [y.split(SPLITS[source])[rank] for source, y in enumerate(ys)]
    return {
        "all_reduce": total,
        "all_reduce of averages": of_squares / SIZE,
        "all_gather of rows": torch.cat(ys),
        "all_gather of columns": torch.cat(ys, 1),
        "all_reduce of maxima": torch.stack(ys).amax(0),
        "reduce_scatter of rows": total.chunk(SIZE)[rank],
        "reduce_scatter of averages": total.chunk(SIZE)[rank].detach() / SIZE,
        "reduce_scatter of columns": total.chunk(SIZE, 1)[rank],
        "all_to_all": torch.cat([y.chunk(SIZE)[rank] for y in ys]),
        "uneven all_to_all": torch.cat(uneven),
        "all_reduce coalesced": torch.cat([total, of_squares]),
        "all_gather coalesced": torch.cat([*ys, *squares]),
        "reduce_scatter coalesced": torch.cat(
            [total.chunk(SIZE)[rank].flatten(), of_squares.chunk(SIZE, 1)[rank].flatten()]
        ),
    }


def input_of(rank: int) -> torch.Tensor:
    """Returns whole numbers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-8, 8, (ROWS, COLUMNS), generator=generator).float()


def weighed(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss in which every element of every output has a different weight."""
    return torch.stack(
        [(out * torch.arange(1.0, out.numel() + 1).view_as(out)).sum() for out in outputs.values()]
    ).sum()


def outputs_and_gradients(module: Exchange, compiled: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    function = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    x = input_of(dist.get_rank()).requires_grad_()
    outputs = function(x)
    names = {"input": x, "matrix": module.matrix}
    gradients = torch.autograd.grad(weighed(outputs), list(names.values()))
    return {name: out.detach() + 0 for name, out in outputs.items()}, dict(zip(names, gradients, strict=True))


def check_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], what: str) -> None:
    assert got.keys() == want.keys()
    for name, t in want.items():
        assert torch.allclose(got[name], t, rtol=1e-5, atol=1e-2), f"{what}, {name}: {got[name]} instead of {t}"


def compiled_and_not() -> None:
    torch._dynamo.reset()
    module, rank = Exchange(), dist.get_rank()
    inputs = [input_of(r).requires_grad_() for r in range(SIZE)]
    want = [worked_out(inputs, module.matrix, r) for r in range(SIZE)]
    # The loss is that of all ranks together. A rank's matrix is its own: only its gradients are left to compare.
    (input_gradient,) = torch.autograd.grad(torch.stack([weighed(each) for each in want]).sum(), [inputs[rank]])
    eager, eager_gradients = outputs_and_gradients(module, compiled=False)
    outputs, gradients = outputs_and_gradients(module, compiled=True)
    check_close(eager, {name: t.detach() for name, t in want[rank].items()}, "eager")
    check_close(outputs, eager, "compiled")
    check_close(gradients, eager_gradients, "gradients, compiled")
    check_close(gradients, {**gradients, "input": input_gradient}, "gradients")


def test_module_with_functional_collectives(world):
    world(SIZE).run(compiled_and_not)


def in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch.distributed's own functions, which torch.compile replaces by functional ones."""
    total = x * 2
    dist.all_reduce(total)
    rows = x.new_empty(SIZE * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(rows, x)
    share = x.new_empty(x.shape[0] // SIZE, x.shape[1])
    dist.reduce_scatter_tensor(share, total)
    moved = torch.empty_like(x)
    dist.all_to_all_single(moved, share.repeat(SIZE, 1))
    return total, rows + 1, share, moved


def compiled_in_place() -> None:
    torch._dynamo.reset()
    x = input_of(dist.get_rank())
    got = torch.compile(in_place, backend="aot_eager", fullgraph=True)(x)
    for number, (mine, eager) in enumerate(zip(got, in_place(x), strict=True)):
        assert torch.equal(mine, eager), f"output {number}"


def test_collectives_in_place(world):
    world(SIZE).run(compiled_in_place)


def multiplied(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Calls whose buffers inductor reuses, with no code for which inductor would have to compile C++."""
    group = c10d._get_default_group()
    for _ in range(4):
        total = funcol.all_reduce(x @ matrix, "sum", group)
        x = funcol.all_gather_tensor(funcol.reduce_scatter_tensor(total @ matrix, "avg", 0, group), 0, group)
    return x @ matrix


def compiled_by_inductor(cache: str) -> None:
    torch._dynamo.reset()
    matrix = torch.eye(64).roll(1, 0) / 2
    x = torch.randint(-8, 8, (128, 64), generator=torch.Generator().manual_seed(dist.get_rank())).float()
    function = torch.compile(multiplied, fullgraph=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)  # the default directory is shared by all runs of this user
        for _ in range(3):
            assert torch.equal(function(x, matrix), multiplied(x, matrix))


@pytest.mark.long
def test_memory_that_inductor_uses_again(world, tmp_path):
    world(2).run(compiled_by_inductor, str(tmp_path))
