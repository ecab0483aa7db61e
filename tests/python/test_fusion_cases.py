"""examples/fusion_cases.py: its forms agree, its metrics are what it defines, and it says so where a form is wrong."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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


def result(**seconds: float) -> Any:
    """Of four ranks, on which a copy takes 1 ms."""
    return load()[0].Result("chunks", "gloo", 4, 1_000_000, seconds, (12, 3), copy_seconds=1e-3, same=True)


TIMES = {"computation": 4e-3, "communication": 6e-3, "in fused calls": 2e-3, "plain": 10e-3, "fused": 5e-3}


def test_metrics_of_known_times():
    """Of the 5 ms between plain and fused, 4 are gained by fusing, which is no overlap."""
    found = result(**TIMES)
    assert found.hidden() == pytest.approx((0.5, 1, 0.5))
    assert found.fusing() == pytest.approx(3)
    assert found.bandwidth("communication") == pytest.approx(1.5 / 6)
    assert found.bandwidth("in fused calls") == pytest.approx(1.5 / 2)
    fewer = result(**{**TIMES, "computation": 1e-3, "fused": 2e-3})
    assert fewer.hidden() == pytest.approx((0.5, 0.5, 1))


def test_more_hidden_than_there_is_is_pointed_out(capsys):
    cases = load()[1]
    assert cases.report([result(**TIMES)], None) == 0
    said = capsys.readouterr()
    assert "50 %" in said.out
    assert "(!)" not in said.out + said.err
    cases.report([result(**{**TIMES, "fused": 3.5e-3})], None)
    said = capsys.readouterr()
    assert "125 % (!)" in said.out
    assert "(!) chunks over gloo: more than all of the communication seems hidden" in said.err


def test_a_wrong_result_ends_the_script_with_an_error(capsys):
    wrong = result(**TIMES)
    wrong.same = False
    assert load()[1].report([result(**TIMES), wrong], None) == 1
    assert capsys.readouterr().err.count("FAILED: chunks over gloo") == 1


def forms_agree(slices: int | None) -> dict[str, tuple[bool, bool]]:
    """Over sagecomm and over gloo."""
    forms, cases = load()
    groups = dist.group.WORLD, dist.new_group(backend="gloo")
    made = [make(1, slices) for make in forms.CASES]
    return {case.name: tuple(cases.agree(case, group) for group in groups) for case in made}


@pytest.mark.parametrize(("ranks", "slices"), [(2, None), (2, 4), (3, 3)])
def test_forms_have_the_sum_over_the_ranks_as_their_result(world, ranks, slices):
    assert world(ranks).run(forms_agree, slices) == [dict.fromkeys(CASES, (True, True))] * ranks


def leaves_the_old_output(case: Any, group: Any) -> None:
    pass


def leaves_its_own_summand(case: Any, group: Any) -> None:
    case.computation()


def skips_the_last_slice(case: Any, group: Any) -> None:
    case.computation()
    *others, last = case.outputs()
    for output in (*others, last.view(-1)[: last.numel() * 3 // 4]):
        dist.all_reduce(output, group=group)


def is_wrong_on_one_rank(case: Any, group: Any) -> None:
    case.computation()
    for output in case.outputs():
        dist.all_reduce(output, group=group)
    if dist.get_rank() == 1:
        case.outputs()[0].view(-1)[0] *= 2


def is_right(case: Any, group: Any) -> None:
    case.computation()
    for output in case.outputs():
        dist.all_reduce(output, group=group)


def another_form_agrees(which: str, form: Callable[[Any, Any], None]) -> dict[str, bool]:
    forms, cases = load()
    found = {}
    for make in forms.CASES:
        case = make(1, None)
        setattr(case, which, functools.partial(form, case))
        found[case.name] = cases.agree(case, dist.group.WORLD)
    return found


@pytest.mark.parametrize("which", ["plain", "fused"])
@pytest.mark.parametrize(
    "form", [leaves_the_old_output, leaves_its_own_summand, skips_the_last_slice, is_wrong_on_one_rank]
)
def test_a_broken_form_is_noticed(world, form, which):
    assert world(2).run(another_form_agrees, which, form) == [dict.fromkeys(CASES, False)] * 2


def test_another_form_that_is_right_agrees(world):
    """What the broken ones are made of."""
    assert world(2).run(another_form_agrees, "fused", is_right) == [dict.fromkeys(CASES, True)] * 2


def collectives_of_forms() -> dict[str, list[list[int]]]:
    """How many tensors each collective of each fused form has."""
    forms, _ = load()
    made = [make(1, 4) for make in forms.CASES]
    found = {case.name: forms.collectives(case.fused, dist.group.WORLD) for case in made}
    return {name: [len(tensors) for tensors in calls] for name, calls in found.items()}


def test_the_collectives_of_a_fused_form_are_found(world):
    """They are what communication in fused calls is measured by."""
    buckets = [4, 4, 4]  # two layers each: their weights and biases
    expected = {"gradients": buckets, "convolution": [1] * 4, "chunks": [1] * 4, "pipeline": [1] * 8}
    assert world(2).run(collectives_of_forms) == [expected] * 2


def check_table(said: str) -> None:
    rows = [line.split() for line in said.splitlines()]
    assert rows[0][:2] == ["case", "backend"]
    assert [row[:2] for row in rows[1:]] == [[case, backend] for case in CASES for backend in ("sagecomm", "gloo")]
    for metric in ("TFLOPS, bandwidth", "computation / communication", "utilization", "items/s, efficiency of overlap"):
        assert said.count(metric) == 2


@pytest.mark.long
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
