"""The guides' blocks of code, run as they stand on the page, on all ranks of a job.

A block of a guide in GUIDES is complete in itself and runs on several numbers of ranks. Those of a guide in PAGES run
in order, in one namespace, on as many ranks as the guide says.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo  # torch.optim imports it at its first use, for seconds; here, ranks preload it

from selection import quickly
from worlds import World

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ["comm-backends.md"]
PAGES = [("overlap.md", 2), ("parallelism.md", 4)]
SIZES = [1, 2, 4]


def blocks(guide: str) -> list[tuple[str, str]]:
    """The blocks of Python code on a page: where each one stands (page and line), and its text."""
    page = (DOCS / guide).read_text()
    return [
        (f"{guide}:{page.count(chr(10), 0, match.start()) + 2}", match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]


BLOCKS = [block for guide in GUIDES for block in blocks(guide)]


def run(where: str, text: str, namespace: dict[str, object] | None = None) -> None:
    page, line = where.split(":")
    # Errors name the line of the page.
    code = compile("\n" * (int(line) - 1) + text, str(DOCS / page), "exec")
    exec(code, {"__name__": "__main__"} if namespace is None else namespace)


def run_seeded(where: str, text: str) -> None:
    torch.manual_seed(1)
    run(where, text)


def run_page(of_page: list[tuple[str, str]]) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for where, text in of_page:
        run(where, text, namespace)


@pytest.mark.parametrize("size", quickly([2], SIZES))
@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block(world: Callable[[int], World], where: str, text: str, size: int) -> None:
    world(size).run(run_seeded, where, text)


@pytest.mark.long
@pytest.mark.parametrize(("where", "text"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_a_block_on_gloo(world: Callable[[int], World], where: str, text: str) -> None:
    world(2).run(run_seeded, where, text, backend="gloo")


@pytest.mark.parametrize(("page", "ranks"), PAGES)
def test_a_page(world: Callable[[int], World], page: str, ranks: int) -> None:
    world(ranks).run(run_page, blocks(page))


def test_every_guide_has_blocks() -> None:
    for guide in [*GUIDES, *(page for page, _ in PAGES)]:
        assert len(blocks(guide)) > 3


@pytest.mark.long
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
