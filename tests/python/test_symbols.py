"""tools/check-symbols: what it finds in a wheel that differs from a list."""

from __future__ import annotations

import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = "[a 1.0, pynccl]\nncclAllReduce\nncclSend\n\n[a 1.0, pynccl, more]\nncclRecv\n\n[b]\nncclScatter\n"


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "check-symbols"))


@pytest.mark.parametrize(
    ("names", "differences"),
    [
        (["ncclAllReduce", "ncclSend", "ncclRecv"], []),
        (["ncclAllReduce", "ncclSend", "ncclRecv", "ncclGather"], ["lacks ncclGather"]),
        (["ncclAllReduce", "ncclRecv"], ["has ncclSend in vain"]),
    ],
    ids=["same", "more", "fewer"],
)
def test_a_list_that_differs_from_a_wheel(
    tool: dict[str, Any], tmp_path: Path, names: list[str], differences: list[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a/pynccl_wrapper.py", "\n".join(f'Function("{name}", None, [])' for name in names))
        wheel.writestr("a/other.py", 'Function("ncclBroadcast", None, [])')
    assert tool["differences"](tool["listed"](LIST, "[a 1.0, pynccl"), [tmp_path / "a.whl"]) == differences


def test_the_sections_exist(tool: dict[str, Any]) -> None:
    for section in tool["SECTIONS"]:
        assert tool["listed"]((ROOT / section.file).read_text(), section.heading)


@pytest.mark.long
def test_a_wheel_that_cannot_be_had(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert tool["main"](tmp_path) == 0
    assert capfd.readouterr().out.count("not checked: ") == len(tool["SECTIONS"])
