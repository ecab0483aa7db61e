"""Layers that are split among ranks: outputs and gradients are those of the unsplit layer, on 1, 2 and 4 ranks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import sagecomm
from sagecomm.nn import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from selection import quickly

SIZES = [1, 2, 4]
ROWS, BATCH, WIDTH, HIDDEN, VOCABULARY = 8, 3, 12, 16, 20
SEED = 4


def whole() -> tuple[nn.Embedding, nn.Linear, nn.Linear]:
    """The unsplit layers. Split ones take their parameters from the same generator in the same order."""
    torch.manual_seed(SEED)
    return nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, an input and the weights of the loss."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(VOCABULARY, (ROWS, BATCH), generator=generator)
    x, weights = (torch.randn(ROWS, BATCH, WIDTH, generator=generator) for _ in range(2))
    return tokens, x, weights


def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def near(got: torch.Tensor | None, want: torch.Tensor | None, what: str) -> None:
    assert got is not None, what
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=lambda text: f"{what}: {text}")


def perceptron(sequence: bool, slices: int | None) -> None:
    _, up, down = whole()
    _, x, weights = data()
    x = x.requires_grad_()
    want = down(F.gelu(up(x)))
    (want * weights).sum().backward()

    torch.manual_seed(SEED)
    nn.Embedding(VOCABULARY, WIDTH)
    my_up = ColumnParallelLinear(WIDTH, HIDDEN, sequence_parallel=sequence, slices=slices)
    my_down = RowParallelLinear(HIDDEN, WIDTH, sequence_parallel=sequence, slices=slices)
    mine = (part(x, 0) if sequence else x).detach().clone().requires_grad_()
    got = my_down(F.gelu(my_up(mine)))
    (got * (part(weights, 0) if sequence else weights)).sum().backward()

    near(got, part(want, 0) if sequence else want, "output")
    assert x.grad is not None
    near(mine.grad, part(x.grad, 0) if sequence else x.grad, "gradient of the input")
    for layer, dense, dim in ((my_up, up, 0), (my_down, down, 1)):
        assert dense.weight.grad is not None
        near(layer.weight, part(dense.weight, dim), "weight")
        near(layer.weight.grad, part(dense.weight.grad, dim), "gradient of the weight")
    assert my_up.bias is not None
    assert up.bias.grad is not None
    assert my_down.bias is not None
    near(my_up.bias.grad, part(up.bias.grad, 0), "gradient of the split bias")
    near(my_down.bias.grad, down.bias.grad, "gradient of the whole bias")


CASES = list(itertools.product(SIZES, (False, True), (None, 1, 2, 3)))
QUICK = [(1, False, None), (1, True, None), (2, False, 2), (2, True, 3), (4, False, None), (4, True, 2)]


@pytest.mark.parametrize("case", quickly(QUICK, CASES), ids=str)
def test_a_split_perceptron_equals_the_dense_one(world, case):
    size, sequence, slices = case
    world(size).run(perceptron, sequence, slices)


def whole_at_both_ends() -> None:
    """gather_output, an input that is not split, no bias, and start() beside forward()."""
    _, up, down = whole()
    _, x, weights = data()
    x = x.requires_grad_()
    want = F.linear(F.linear(x, up.weight).tanh(), down.weight)
    (want * weights).sum().backward()

    torch.manual_seed(SEED)
    nn.Embedding(VOCABULARY, WIDTH)
    my_up = ColumnParallelLinear(WIDTH, HIDDEN, gather_output=True)
    my_down = RowParallelLinear(HIDDEN, WIDTH, input_is_parallel=False)
    my_up.bias = my_down.bias = None
    mine = x.detach().clone().requires_grad_()
    hidden = my_up(mine).tanh()
    assert hidden.shape == (ROWS, BATCH, HIDDEN)
    started = my_down.start(hidden)
    got = started.wait()
    assert started.wait() is got
    (got * weights).sum().backward()
    near(got, want, "output")
    near(mine.grad, x.grad, "gradient of the input")
    assert up.weight.grad is not None
    assert down.weight.grad is not None
    near(my_up.weight.grad, part(up.weight.grad, 0), "gradient of the first weight")
    near(my_down.weight.grad, part(down.weight.grad, 1), "gradient of the second weight")


@pytest.mark.parametrize("size", SIZES)
def test_layers_take_and_return_whole_tensors(world, size):
    world(size).run(whole_at_both_ends)


def embedding(sequence: bool) -> None:
    dense, _, _ = whole()
    tokens, _, weights = data()
    want = dense(tokens)
    (want * weights).sum().backward()

    torch.manual_seed(SEED)
    mine = VocabParallelEmbedding(VOCABULARY, WIDTH, sequence_parallel=sequence)
    got = mine(tokens)
    (got * (part(weights, 0) if sequence else weights)).sum().backward()
    assert torch.equal(got, part(want, 0) if sequence else want)  # zeros add nothing
    assert dense.weight.grad is not None
    near(mine.weight.grad, part(dense.weight.grad, 0), "gradient of the weight")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_split_embedding_equals_the_dense_one(world, size, sequence):
    world(size).run(embedding, sequence)


def refusals() -> None:
    makers: list[tuple[Callable[[], nn.Module], str]] = [
        (lambda: ColumnParallelLinear(4, 5), "5 outputs among 2 ranks: the number of ranks must divide it"),
        (lambda: RowParallelLinear(5, 4), "5 inputs among 2 ranks"),
        (lambda: VocabParallelEmbedding(5, 4), "5 tokens of the vocabulary among 2 ranks"),
    ]
    for make, message in makers:
        with pytest.raises(ValueError, match=message):
            make()
    embedding = VocabParallelEmbedding(6, 4)
    for token in (-1, 6):
        with pytest.raises(
            IndexError, match=f"tokens are {min(token, 0)} to {max(token, 0)}, but the vocabulary has 6"
        ):
            embedding(torch.tensor([0, token]))
    with pytest.raises(ValueError, match="3 rows among 2 ranks"):
        RowParallelLinear(4, 4, sequence_parallel=True)(torch.ones(3, 2))
    with pytest.raises(ValueError, match="without sequence_parallel"):
        RowParallelLinear(4, 4, sequence_parallel=True).start(torch.ones(2, 2))
    with pytest.raises(ValueError, match="slices=0: expected None or a whole number from 1"):
        RowParallelLinear(4, 4, slices=0)(torch.ones(3, 2))


def test_sizes_that_ranks_do_not_divide_are_refused(world):
    world(2).run(refusals)


def autocast(dtype: torch.dtype) -> None:
    """The types of the dense layers, and their results within the rounding of the short type."""
    _, up, down = (layer.to(dtype) for layer in whole())
    torch.manual_seed(SEED)
    nn.Embedding(VOCABULARY, WIDTH)
    my_up, my_down = ColumnParallelLinear(WIDTH, HIDDEN).to(dtype), RowParallelLinear(HIDDEN, WIDTH).to(dtype)
    x = data()[1].to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        want, got = down(up(x)), my_down(my_up(x))
    assert want.dtype == got.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
    assert got.norm() > 1
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    want.double().sum().backward()
    got.double().sum().backward()
    assert my_up.weight.grad is not None
    assert up.weight.grad is not None
    assert my_up.weight.grad.dtype == dtype
    torch.testing.assert_close(my_up.weight.grad, part(up.weight.grad, 0), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_layers_follow_autocast(world, dtype):
    world(2).run(autocast, dtype)


def without_elements() -> None:
    """No tokens, no rows, no features, forwards and backwards."""
    embedding = VocabParallelEmbedding(VOCABULARY, WIDTH)
    y = embedding(torch.empty(0, BATCH, dtype=torch.long))
    assert y.shape == (0, BATCH, WIDTH)
    y.sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.eq(0).all()
    assert VocabParallelEmbedding(VOCABULARY, 0)(torch.zeros(2, dtype=torch.long)).shape == (2, 0)
    with pytest.raises(ValueError, match="num_embeddings=0: there are no tokens"):
        VocabParallelEmbedding(0, WIDTH)
    layers = [
        (ColumnParallelLinear(WIDTH, HIDDEN, gather_output=True), torch.ones(0, WIDTH), (0, HIDDEN)),
        (ColumnParallelLinear(WIDTH, 0), torch.ones(3, WIDTH), (3, 0)),
        (RowParallelLinear(HIDDEN, WIDTH, input_is_parallel=False), torch.ones(0, HIDDEN), (0, WIDTH)),
        (RowParallelLinear(HIDDEN, 0), torch.ones(3, HIDDEN // 2), (3, 0)),
    ]
    for layer, x, shape in layers:
        x.requires_grad_()
        y = layer(x)
        assert y.shape == shape
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.eq(0).all()


def test_layers_take_tensors_without_elements(world):
    world(2).run(without_elements)


def document_sample() -> torch.Tensor:
    """The tensor-parallel linear layer of the specification, which shards outputs and so must gather them."""
    torch.manual_seed(SEED)
    layer = sagecomm.nn.ColumnParallelLinear(WIDTH, HIDDEN, gather_output=True)
    return layer(torch.ones(2, WIDTH)).detach()


def test_the_documented_layer_gathers_the_outputs_that_it_shards(world):
    torch.manual_seed(SEED)
    want = nn.Linear(WIDTH, HIDDEN)(torch.ones(2, WIDTH))
    for got in world(4).run(document_sample):
        near(got, want.detach(), "output")


def copied_layers() -> None:
    group = dist.new_group([0, 1])
    tokens = torch.tensor([1, VOCABULARY - 1])
    layers: list[tuple[nn.Module, torch.Tensor]] = [
        (ColumnParallelLinear(WIDTH, HIDDEN, group=group), torch.ones(2, WIDTH)),
        (RowParallelLinear(HIDDEN, WIDTH, group=group), torch.ones(2, HIDDEN // 2)),
        (VocabParallelEmbedding(VOCABULARY, WIDTH, group=group), tokens),
    ]
    for layer, x in layers:
        model = nn.Sequential(layer)
        other = copy.deepcopy(model)
        assert other[0].group is group
        assert repr(other) == repr(model)
        assert other(x).equal(model(x))
        with torch.no_grad():
            other[0].weight.zero_()
        assert not layer.weight.eq(0).all()


def test_copies_of_a_layer_have_its_group_and_parameters_of_their_own(world):
    world(2).run(copied_layers)


def biases_of_a_started_layer() -> None:
    layer = RowParallelLinear(HIDDEN, WIDTH)
    x = torch.ones(3, HIDDEN // 2)
    started = layer.start(x)
    with torch.no_grad():
        y = started.wait()
    y.sum().backward()
    assert layer.bias.grad.eq(3).all()
    with torch.no_grad():
        started = layer.start(x)
    assert not started.wait().requires_grad


def test_a_started_layer_records_gradients_as_it_does_at_its_start(world):
    world(2).run(biases_of_a_started_layer)
