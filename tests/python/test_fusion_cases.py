"""examples/fusion_cases.py: its forms agree, its metrics are what it defines, and it says so where a form is wrong."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch.distributed as dist

import programs

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "fusion_cases.py"
CASES = ["gradients", "convolution", "chunks", "pipeline"]


def load() -> tuple[ModuleType, ModuleType]:
    """Returns the modules with the forms and with the measuring."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module("fusion_forms"), importlib.import_module("fusion_cases")


def test_metrics_of_known_times():
    seconds = {"computation": 4e-3, "communication": 2e-3, "plain": 6e-3, "fused": 5e-3}
    result = load()[0].Result("chunks", "gloo", 4, 1_000_000, seconds, copy_seconds=1e-3, same=True)
    assert result.hidden() == pytest.approx(0.5)
    assert result.efficiency() == pytest.approx(0.5)
    assert result.bandwidth() == pytest.approx(1.5 * 0.5)
    seconds["computation"] = 1e-3
    seconds["fused"] = 2e-3
    assert (result.hidden(), result.efficiency()) == (pytest.approx(0.5), pytest.approx(1))


def forms_agree() -> dict[str, bool]:
    forms, cases = load()
    return {make.name: cases.agree(make(1), dist.group.WORLD) for make in forms.CASES}


def broken_forms_agree() -> dict[str, bool]:
    """The fused forms leave out one of their collectives."""
    forms, cases = load()
    right, calls = (forms.reduce_bucket, forms.pipelined), []

    def all_but_the_first(tensors, group):
        calls.append(len(tensors))
        return right[0](tensors, group) if len(calls) > 1 else lambda: None

    def all_but_the_last(count, compute, group):
        for wait in [forms.reduce_slice(compute(k), group) for k in range(count - 1)]:
            wait()
        compute(count - 1)

    forms.reduce_bucket, forms.pipelined = all_but_the_first, all_but_the_last
    try:
        return {make.name: cases.agree(make(1), dist.group.WORLD) for make in forms.CASES}
    finally:  # other tests have these processes next
        forms.reduce_bucket, forms.pipelined = right


@pytest.mark.parametrize("ranks", [2, 3])
def test_plain_and_fused_forms_have_the_same_result(world, ranks):
    assert world(ranks).run(forms_agree) == [dict.fromkeys(CASES, True)] * ranks


def test_a_form_that_leaves_a_collective_out_is_noticed(world):
    assert world(2).run(broken_forms_agree) == [dict.fromkeys(CASES, False)] * 2


def check_table(said: str) -> None:
    rows = [line.split() for line in said.splitlines()]
    assert rows[0][:2] == ["case", "backend"]
    assert [row[:2] for row in rows[1:]] == [[case, backend] for case in CASES for backend in ("sagecomm", "gloo")]
    for metric in ("TFLOPS, bandwidth", "computation / communication", "utilization", "items/s, efficiency of overlap"):
        assert said.count(metric) == 2


def test_ranks_of_torchrun_print_a_table_and_draw(tmp_path):
    picture = tmp_path / "fusion.png"
    script = f"""
        import runpy
        sys.path.append({str(EXAMPLES)!r})
        sys.argv = ["fusion_cases.py", "--quick", "--png", {str(picture)!r}]
        runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
    """
    with programs.Programs(script, 2) as ranks:
        ranks.end_well()
        check_table(ranks.rest(0))
        assert not ranks.rest(1)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_ranks_that_the_script_starts():
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    check_table(done.stdout)
