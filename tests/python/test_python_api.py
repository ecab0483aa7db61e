"""docs/python-api.md is what tools/python-api makes of the docstrings; everything public is on it and has a docstring.
The names of the package can be imported by name, and are typed."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sagecomm

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "python-api"
PACKAGE = ROOT / "torch_ext" / "sagecomm"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("python_api", str(TOOL))
    spec = importlib.util.spec_from_loader("python_api", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["python_api"] = module  # its dataclass looks there
    loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    assert tool.PAGE.read_text() == tool.page(), "run tools/python-api"


@pytest.mark.long
def test_a_page_that_is_out_of_date_is_noticed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    monkeypatch.setattr(tool, "PAGE", docs / "python-api.md")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main(["--check"]) == 1
    assert "docs/python-api.md is out of date: run tools/python-api" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    (docs / "python-api.md").write_text(tool.PAGE.read_text().replace("Python API", "API"))
    assert tool.main(["--check"]) == 1
    assert tool.main(["--chekc"]) == 2


def test_every_public_module_is_listed(tool: ModuleType) -> None:
    """A module with `__all__` is public unless its name, or that of a package around it, says otherwise."""
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        private = any(part.startswith("_") for part in name.split("."))
        around = any(name.startswith(f"{listed}.") for listed in tool.MODULES if listed != "sagecomm")
        if not private and not around and tool.Module.read(name).exported() is not None:
            assert name in tool.MODULES, f"{name} is missing in MODULES of tools/python-api"


def test_everything_public_is_described(tool: ModuleType) -> None:
    for listed in tool.MODULES:
        module = importlib.import_module(listed)
        assert module.__doc__, listed
        for name in module.__all__:
            found: Any = getattr(module, name)
            if name == "__version__":
                continue
            assert found.__doc__, f"{listed}.{name}"
            if isinstance(found, type) and found.__module__.startswith("sagecomm"):
                for attribute, member in vars(found).items():
                    if not attribute.startswith("_") and (callable(member) or hasattr(member, "__get__")):
                        assert member.__doc__, f"{listed}.{name}.{attribute}"


def test_markdown_of_a_docstring(tool: ModuleType) -> None:
    lines = """Does it.

        work(x)

    Args:
        x: What is done,
            and more.
        y: The rest: all of it.

    Returns:
        What was
        done.

    Raises:
        ValueError: It was not.
    """
    assert tool.text(lines) == [
        "Does it.",
        "    work(x)",
        "**Arguments:**\n\n- `x`: What is done, and more.\n- `y`: The rest: all of it.",
        "**Returns:** What was done.",
        "**Raises:**\n\n- `ValueError`: It was not.",
    ]


def test_signatures(tool: ModuleType) -> None:
    function = ast.parse("def f(self, a: int, b=1, *, c: str = 'x', **rest: int) -> None: pass").body[0]
    assert tool.signature(function) == "f(a: int, b = 1, *, c: str = 'x', **rest: int) -> None"
    long = ast.parse(f"def f(a: int, *, {'b' * 60}: str, {'c' * 60}: str = '') -> None: pass").body[0]
    assert tool.signature(long).splitlines() == [
        "f(",
        "    a: int,",
        "    *,",
        f"    {'b' * 60}: str,",
        f"    {'c' * 60}: str = '',",
        ") -> None",
    ]


# ---- the names of the package ----


def test_every_package_is_installed() -> None:
    """setuptools installs those that are listed."""
    listed = re.search(
        r"^packages = \[(.*?)\]", (PACKAGE.parent / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    assert listed is not None
    there = [".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("__init__.py")]
    assert sorted(re.findall(r'"([\w.]+)"', listed[1])) == sorted(there)


def test_every_name_is_there() -> None:
    assert sorted(sagecomm.__all__) == sagecomm.__all__
    for name in sagecomm.__all__:
        assert getattr(sagecomm, name) is not None
        assert name in dir(sagecomm)
    with pytest.raises(AttributeError, match="module 'sagecomm' has no attribute 'all_redcue'"):
        sagecomm.all_redcue  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.long
def test_an_import_loads_what_registration_needs_only() -> None:
    """`import torch` imports the package by its entry point, so what most programs do not use must cost nothing."""
    code = """
        import sys, torch, sagecomm
        loaded = {name for name in sys.modules if name.startswith("sagecomm.")}
        later = {f"sagecomm.{name}" for name in ("backends", "primitives", "fusion", "topology", "autograd")}
        assert not loaded & later, loaded & later
        from sagecomm import all_reduce
        assert "sagecomm.primitives" in sys.modules
        assert sagecomm.all_reduce is all_reduce
        import sagecomm.autograd
        from sagecomm import *
        assert sagecomm.create_comm_backend is create_comm_backend
        print("well")
    """
    assert run_alone(code) == "well\n"


@pytest.mark.long
def test_modules_of_the_reference_are_attributes_of_the_package() -> None:
    """Also where nothing has imported them."""
    page = (ROOT / "docs" / "python-api.md").read_text()
    modules = re.findall(r"^## `sagecomm\.(\w+)`", page, re.MULTILINE)
    assert "primitives" in modules
    code = f"""
        import sagecomm
        assert not set({modules}) - set(dir(sagecomm)), dir(sagecomm)
        print(*(getattr(sagecomm, name).__name__ for name in {modules}))
    """
    assert run_alone(code).split() == [f"sagecomm.{name}" for name in modules]


def run_alone(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USER = """
import torch
import torch.distributed as dist
from torch.futures import Future

import sagecomm
from sagecomm.topology import TopologyManager

backend: sagecomm.CommBackendProtocol = sagecomm.create_comm_backend("auto", topology_manager=TopologyManager())
x: torch.Tensor = backend.all_reduce(torch.ones(3), op="sum")
later: Future[torch.Tensor] = backend.all_reduce(x, async_op=True)
y: torch.Tensor = later.wait()
gathered: torch.Tensor = backend.all_gather(x, output=torch.empty(6))
part: Future[torch.Tensor] = backend.reduce_scatter(x, "avg", async_op=True, output=torch.empty(1))
several: list[torch.Tensor] = backend.fused_all_reduce([x, y])
z: torch.Tensor = sagecomm.all_reduce(x, dist.ReduceOp.MAX)
parts: list[torch.Tensor] = sagecomm.all_gather(x)
work: dist.Work = sagecomm.isend(x, 1)
op: str = sagecomm.CommOp.ALL_REDUCE.value
buffer = sagecomm.CommFusionBuffer(max_size_mb=25)
full: bool = buffer.add_tensor(x) and buffer.full
reduced: list[torch.Tensor] = buffer.flush_and_all_reduce(backend)
grown: torch.Tensor = sagecomm.autograd.all_gather(x, dim=-1)
asked = bool(x.numel())
either: torch.Tensor | Future[torch.Tensor] = backend.all_reduce(x, "sum", asked)
"""
WRONG = {
    "backend.all_reduce(x, op=3)  # call-overload": "call-overload",
    "text: str = sagecomm.all_gather(x)": "assignment",
    "sagecomm.all_redcue(x)": "attr-defined",
    "backend.all_reduce(x, async_op=True).sum()": "attr-defined",
}


@pytest.mark.long
def test_a_users_program_passes_strict_mypy(tmp_path: Path) -> None:
    """And one that is wrong does not: each line of WRONG is an error, and they are the only ones."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(USER + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "c")]

    def mypy(file: str) -> str:
        return subprocess.run([*command, file], cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    assert mypy("user.py").startswith("Success"), mypy("user.py")
    errors = [line for line in mypy("wrong.py").splitlines() if ": error: " in line]
    assert [line.rsplit("[", 1)[1].rstrip("]") for line in errors] == list(WRONG.values()), errors
