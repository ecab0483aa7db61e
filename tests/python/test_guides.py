"""The guides' blocks of Python run, in order, in one namespace, on as many ranks as the guide says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  torch.optim imports it at its first use, for seconds; here, ranks preload it

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(page: str) -> int:
    text = (DOCS / page).read_text()
    blocks = list(BLOCK.finditer(text))
    namespace: dict[str, object] = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))  # so that a traceback names the line of the page
        exec(compile("\n" * line + block[1], str(DOCS / page), "exec"), namespace)
    return len(blocks)


@pytest.mark.parametrize(("page", "ranks"), [("overlap.md", 2), ("parallelism.md", 4)])
def test_a_guide_runs(world, page, ranks):
    assert set(world(ranks).run(run, page)) == {len(BLOCK.findall((DOCS / page).read_text()))}
    assert len(BLOCK.findall((DOCS / page).read_text())) > 5
