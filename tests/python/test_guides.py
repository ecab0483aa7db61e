"""The guides' blocks of code: each is run as it stands on the page, on all ranks of a job, on several numbers of ranks.

A block is complete in itself. A guide of which every block can run like that is a line in GUIDES.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selection import quickly
from worlds import World

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ["comm-backends.md"]
SIZES = [1, 2, 4]


def blocks(guide: str) -> list[tuple[str, str]]:
    """The blocks of Python code on a page: where each one stands (page and line), and its text."""
    page = (DOCS / guide).read_text()
    return [
        (f"{guide}:{page.count(chr(10), 0, match.start()) + 2}", match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]


BLOCKS = [block for guide in GUIDES for block in blocks(guide)]


def run(where: str, text: str) -> None:
    torch.manual_seed(1)
    page, line = where.split(":")
    # Errors name the line of the page.
    code = compile("\n" * (int(line) - 1) + text, str(DOCS / page), "exec")
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("size", quickly([2], SIZES))
@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block(world: Callable[[int], World], where: str, text: str, size: int) -> None:
    world(size).run(run, where, text)


@pytest.mark.long
@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block_on_gloo(world: Callable[[int], World], where: str, text: str) -> None:
    world(2).run(run, where, text, backend="gloo")


def test_every_guide_has_blocks() -> None:
    for guide in GUIDES:
        assert len(blocks(guide)) > 3


def test_torchrun_runs_the_first_block(tmp_path: Path) -> None:
    """The command that the page names, in a job that the block itself initialises."""
    script = tmp_path / "script.py"
    script.write_text(BLOCKS[0][1] + "print(backend, flush=True)\ntorch.distributed.destroy_process_group()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"<sagecomm sagecomm backend of rank \d of 2>", done.stdout)) == [
        f"<sagecomm sagecomm backend of rank {rank} of 2>" for rank in range(2)
    ]
