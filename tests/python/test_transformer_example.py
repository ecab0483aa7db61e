"""examples/transformer.py: every way to split the model and the batch comes to the losses of one process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch._dynamo  # noqa: F401  torch.optim imports it at its first use, for seconds; here, ranks preload it

from selection import quickly

STEPS = 12


def example() -> ModuleType:
    """The module of the example, whose name another module of this folder has."""
    if "example_transformer" not in sys.modules:
        path = Path(__file__).resolve().parents[2] / "examples" / "transformer.py"
        spec = importlib.util.spec_from_file_location("example_transformer", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["example_transformer"] = module
        spec.loader.exec_module(module)
    return sys.modules["example_transformer"]


def train(tp: int, overlapped: bool) -> list[float]:
    losses: list[float] = example().train(tp, STEPS, overlapped).losses
    return losses


CASES = [(tp, dp, overlapped) for tp, dp in ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4)) for overlapped in (False, True)]


@pytest.mark.parametrize("case", quickly([(2, 1, True), (1, 2, True), (2, 2, True)], CASES))
def test_all_ways_to_split_come_to_the_losses_of_one_process(world, case):
    tp, dp, overlapped = case
    (want,) = world(1).run(train, 1, False)
    assert want[-1] < 0.9 * want[0], want
    for got in world(tp * dp).run(train, tp, overlapped):
        assert example().difference(got, want) < example().TOLERANCE, (got, want)
