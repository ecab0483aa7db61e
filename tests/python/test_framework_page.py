"""docs/frameworks.md without the frameworks: its scripts are Python, all pinned frameworks are in it, and the check
that its scripts end with refuses what it must. `make test-frameworks` runs the scripts."""

from __future__ import annotations

import ast
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

import framework_page
from framework_page import PAGE, pins, scripts
from worlds import RankError

SHARED = "digits.py"
FALLING = [2.0] * 10 + [0.5] * 10


def imported(text: str) -> set[str]:
    """Top-level packages that a script imports."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.file)
def test_every_script_compiles(script):
    compile(script.text, script.file, "exec")


def test_every_script_but_the_shared_one_has_a_command_and_makes_the_check():
    assert [script.file for script in scripts() if not script.command] == [SHARED]
    for script in scripts():
        assert script.file == SHARED or "digits.check(" in script.text


def test_every_pinned_framework_has_one_script_and_its_version_on_the_page():
    """Each pinned framework is on the page with the same version: only what the page names is run."""
    assert pins()
    page = PAGE.read_text()
    for name, version in pins().items():
        assert len([script for script in scripts() if name in imported(script.text)]) == 1, name
        assert set(re.findall(rf"\b{name}(?:==| )(\d[\d.]*\d)", page)) == {version}


def test_a_loose_requirement_is_refused(tmp_path, monkeypatch):
    for line in ["ray", "ray>=2", "ray==2.*"]:
        loose = tmp_path / "requirements.txt"
        loose.write_text(f"accelerate==1.0.0\n{line}\n")
        monkeypatch.setattr(framework_page, "REQUIREMENTS", loose)
        with pytest.raises(ValueError, match=re.escape(f"not a pinned version: {line}")):
            pins()


# ---- the check ----


def check(model: nn.Module, losses: list[float]) -> str:
    names: dict[str, object] = {}
    exec(next(script.text for script in scripts() if script.file == SHARED), names)
    return names["check"](model, losses)


def trained(step: float, losses: list[float], moved: int = 100) -> str:
    """A network that each rank has moved by `step` times its rank, after as many bytes as `moved` gradients have."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step * dist.get_rank())
    dist.all_reduce(torch.ones(8 * moved))
    return check(model, losses)


@pytest.mark.long
def test_the_check_accepts_what_is_right(world):
    said = "2 ranks on sagecomm, equal parameters, loss 2.000 to 0.500"
    assert world(2).run(trained, 0.0, FALLING) == [said, said]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "backend", "reason"),
    [
        ((0.0, FALLING), "gloo", "this is a group of gloo"),
        ((0.0, FALLING, 1), "sagecomm", "only 32 bytes went over sagecomm in 20 steps"),
        ((1.0, FALLING), "sagecomm", "ranks ended with different parameters"),
        ((float("nan"), FALLING), "sagecomm", "ranks ended with different parameters"),
        ((0.0, FALLING[::-1]), "sagecomm", "the loss went from 0.500 to 2.000"),
        ((0.0, [float("nan")] * 20), "sagecomm", "the loss went from nan to nan"),
    ],
)
def test_the_check_refuses_on_every_rank(world, arguments, backend, reason):
    with pytest.raises(RankError, match=f"(?s)2 of 2 ranks failed.*{re.escape(reason)}"):
        world(2).run(trained, *arguments, backend=backend)
