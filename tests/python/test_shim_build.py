"""The build of the shim: which sources are joined, what is compiled again, what it prints. Sources have one line."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TORCH_EXT = Path(__file__).resolve().parents[2] / "torch_ext"


@pytest.fixture(scope="module")
def shim_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shim_build", TORCH_EXT / "shim_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shim_build"] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


class Tree:
    """Sources f0.cpp, f1.cpp ..., of which the first includes a header, and their units."""

    def __init__(self, build: ModuleType, place: Path, n: int) -> None:
        self.build, self.place, self.work = build, place, place / "work"
        self.work.mkdir()
        self.header = place / "first.hpp"
        self.header.write_text("inline int first() { return 0; }\n")
        self.sources = [self.add(i) for i in range(n)]
        self.sources[0].write_text('#include "first.hpp"\nint f0() { return first(); }\n')

    def add(self, i: int) -> Path:
        source = self.place / f"f{i}.cpp"
        source.write_text(f"int f{i}() {{ return {i}; }}\n")
        return source

    def join(self) -> dict[Path, list[Path]]:
        return self.build._join(sorted(self.sources), self.work)

    def compile(self, *flags: str) -> list[str]:
        """Compiles what is stale; returns the refusals."""
        command = [*self.build._compiler(), "-Wall", "-Werror", *flags]
        refusals = []
        for unit in self.join():
            if self.build._is_stale(unit, self.work, "test", command):
                refusals.append(self.build._compile(unit, self.work, "test", command))
        return [text for text in refusals if text is not None]

    def stale(self, *flags: str) -> set[str]:
        command = [*self.build._compiler(), "-Wall", "-Werror", *flags]
        return {u.name for u in self.join() if self.build._is_stale(u, self.work, "test", command)}

    def unit_of(self, source: Path) -> str:
        return next(unit.name for unit, members in self.join().items() if source in members)


@pytest.fixture
def tree(shim_build: ModuleType, tmp_path: Path) -> Tree:
    return Tree(shim_build, tmp_path, 8)


def touch(path: Path) -> None:
    later = path.stat().st_mtime_ns + 10**12
    os.utime(path, ns=(later, later))


def test_every_source_is_in_one_unit(tree: Tree) -> None:
    units = tree.join()
    assert len(units) == tree.build.UNITS
    assert sorted(source for members in units.values() for source in members) == sorted(tree.sources)


def test_one_more_source_changes_one_unit(tree: Tree) -> None:
    before = {unit: unit.read_text() for unit in tree.join()}
    added = tree.add(8)
    tree.sources.append(added)
    changed = [unit.name for unit in tree.join() if unit.read_text() != before[unit]]
    assert changed == [tree.unit_of(added)]


def test_what_changes_is_compiled_again_and_nothing_else(tree: Tree) -> None:
    assert tree.compile() == []
    assert tree.stale() == set()
    touch(tree.sources[3])
    assert tree.stale() == {tree.unit_of(tree.sources[3])}
    assert tree.stale("-O1") == {unit.name for unit in tree.join()}


def test_a_header_makes_the_units_stale_that_include_it(tree: Tree) -> None:
    assert tree.compile() == []
    touch(tree.header)
    assert tree.stale() == {tree.unit_of(tree.sources[0])}


def test_a_source_that_is_gone_makes_its_unit_stale(tree: Tree) -> None:
    assert tree.compile() == []
    unit = tree.unit_of(tree.sources[-1])
    tree.sources.pop().unlink()
    assert tree.stale() == {unit}


def test_an_error_names_the_source_and_its_line(tree: Tree) -> None:
    tree.sources[5].write_text("\n\nint f5() { int unused = 1; return 5; }\n")
    (refusal,) = tree.compile()
    assert f"{tree.sources[5]}:3:" in refusal
    assert "unused" in refusal
    assert tree.stale() == {tree.unit_of(tree.sources[5])}


def test_progress_counts_sources(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*tree.build._compiler(), "-Wall"]
    units = tree.join()
    tree.build._compile_all(units, tree.work, "test", command)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "shim: compiling 8 sources in 2 units"
    assert len(lines) == 1 + len(units)
    assert lines[-1] == "shim: 8 of 8 compiled"
    tree.build._compile_all({}, tree.work, "test", command)
    assert capsys.readouterr().out == ""
    assert not any(tree.build._is_stale(unit, tree.work, "test", command) for unit in units)


def test_build_stops_at_what_the_compiler_refuses(tree: Tree) -> None:
    tree.sources[5].write_text("int f5() { return nothing; }\n")
    with pytest.raises(tree.build.BuildError, match="nothing"):
        tree.build._compile_all(tree.join(), tree.work, "test", tree.build._compiler())


def test_the_extension_has_nothing_of_a_vendor() -> None:
    """One binary serves all devices: torch's libraries for CUDA, a driver or a runtime need not be there."""
    (extension,) = (TORCH_EXT / "sagecomm").glob("_C.*.so")
    tables = [["nm", "-D", "--undefined-only"], ["readelf", "-d"]]
    symbols, needed = (subprocess.check_output([*table, extension], text=True) for table in tables)
    names = [line.split()[-1] for line in symbols.splitlines()]
    assert any("c10" in name for name in names)
    vendors = re.compile(r"cu(da)?[A-Z]|hip[A-Z]|acl[a-z]*[A-Z]|cn(rt|cl)|nccl|Hccl|_ZN.*(c10|at)4cuda")
    assert [name for name in names if vendors.match(name)] == []
    assert not re.search(r"NEEDED.*(cuda|hip|ascend|cnrt|nccl)", needed)
