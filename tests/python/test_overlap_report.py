"""measure_overlap(): the formula, the table, the picture, and what it measures where the order of events is known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from sagecomm._overlap import _timeline
from sagecomm._overlap._report import OverlapReport, Times

BLANK: dict[str, Any] = {
    "compute_inside": 0.008,
    "communicate_inside": 0.015,
    "intervals": {"compute": (0.0, 0.072), "overlappable": (0.072, 0.080), "communicate": (0.072, 0.087)},
    "ranks": 2,
    "threads": 1,
    "processors": 8,
    "repetitions": 30,
    "backend": "sagecomm",
}


def report(compute: float, overlappable: float, communicate: float, overlapped: float, **more: Any) -> OverlapReport:
    times = {"compute": compute, "overlappable": overlappable, "communicate": communicate, "overlapped": overlapped}
    ways = {name: Times(value, 1.1 * value) for name, value in times.items()}
    return OverlapReport(**{**BLANK, **ways, **more})


def test_the_documented_example():
    """80 ms of computing, 8 of them independent of 15 ms of communication: 87 ms instead of 95, 53 % hidden."""
    example = report(0.072, 0.008, 0.015, 0.087)
    assert example.serial == pytest.approx(0.095)
    assert example.hidden_fraction == pytest.approx(8 / 15)
    assert example.bound == pytest.approx(8 / 15)
    assert example.efficiency == pytest.approx(1)
    assert example.speedup == pytest.approx(95 / 87)


def test_the_independent_computation_is_part_of_the_baseline():
    """Left out, as in the documented code, a perfect overlap would be reported as less than none."""
    perfect = report(0.010, 0.020, 0.020, 0.030)
    assert perfect.hidden_fraction == pytest.approx(1)
    nothing = report(0.010, 0.020, 0.020, 0.050)
    assert nothing.hidden_fraction == pytest.approx(0)
    loss = report(0.010, 0.020, 0.020, 0.055, compute_inside=0.030, communicate_inside=0.025)
    assert loss.hidden_fraction == pytest.approx(-0.25)
    assert loss.compute_interference == pytest.approx(0.5)
    assert loss.communicate_interference == pytest.approx(0.25)


def test_nothing_to_compute_meanwhile():
    alone = report(0.010, 0.0, 0.020, 0.030)
    assert (alone.bound, alone.efficiency, alone.compute_interference) == (0, 0, 0)


TABLE = """\
sagecomm, 2 ranks x 1 computing threads on 8 processors, 30 repetitions
                                   median      p90
  T_comp    compute                 72 ms  79.2 ms
  T_ov      overlappable             8 ms   8.8 ms
  T_comm    communicate             15 ms  16.5 ms
  T         overlapped              87 ms  95.7 ms
  serial = T_comp + T_ov + T_comm   95 ms
  hidden fraction = (serial - T) / T_comm   53%
  bound = min(T_comm, T_ov) / T_comm        53%
  efficiency = hidden fraction / bound     100%
  speedup = serial / T                     1.09
  interference, computing                   +0%
  interference, communicating               +0%"""


def test_the_table_for_people():
    example = report(0.072, 0.008, 0.015, 0.087)
    assert example.table() == TABLE
    crowded = report(0.072, 0.008, 0.015, 0.087, processors=2)
    assert crowded.table().endswith("computing threads occupy all processors: only waiting can be hidden")
    told = json.loads(example.json())
    assert told["hidden_fraction"] == pytest.approx(8 / 15)
    assert told["communicate"] == {"median": 0.015, "p90": 0.0165}


def test_the_picture_shows_both_ways_on_one_scale(tmp_path: Path):
    path = tmp_path / "overlap.svg"
    report(0.072, 0.008, 0.015, 0.087).save_timeline(path)
    root = ET.parse(path).getroot()
    rectangles = root.iter("{http://www.w3.org/2000/svg}rect")
    bars = [each for each in rectangles if each.get("fill") in _timeline.COLOURS.values()]
    assert len(bars) == 6
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[:3] == pytest.approx(widths[3:], abs=0.2)  # compute, overlappable, communicate
    assert sum(widths[:3]) == pytest.approx(_timeline.WIDTH - _timeline.LEFT - _timeline.RIGHT, abs=0.5)
    starts = [float(bar.get("x", "0")) for bar in bars]
    assert starts[2] > starts[5] == pytest.approx(starts[4])  # overlapped, it begins with the other computation
    assert "53% of the communication hidden" in path.read_text()
    assert _timeline.svg("<none>", {"empty": {}}).count("&lt;none&gt;") == 1


def order_of_events() -> tuple[bool, tuple[int, int, int, str]]:
    order: list[str] = []

    class Handle:
        def wait(self) -> None:
            order.append("wait")

    def communicate(_: Any) -> Handle:
        order.append("issue")
        return Handle()

    measured = sagecomm.measure_overlap(
        lambda: order.append("compute"), communicate, lambda: order.append("overlappable"), repetitions=1, warm_up=0
    )
    overlapped = ["compute", "issue", "overlappable", "wait"]
    found = any(order[at : at + 4] == overlapped for at in range(len(order)))
    return found, (measured.repetitions, measured.ranks, measured.threads, measured.backend)


def test_the_overlapped_way_computes_between_issue_and_wait(world):
    assert world(2).run(order_of_events) == [(True, (1, 2, 1, "sagecomm"))] * 2


def of_collectives() -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    x = torch.ones(64, 64)
    measured = sagecomm.measure_overlap(
        lambda: x @ x, lambda y: dist.all_reduce(y, async_op=True), lambda: x @ x, repetitions=4, warm_up=1
    )
    told = measured.as_dict()
    return {name: told[name] for name in told if name != "intervals"}, measured.intervals


def test_all_ranks_report_the_slowest_rank(world):
    (first, intervals), (second, _) = world(2).run(of_collectives)
    assert first == second
    assert first["serial"] == pytest.approx(
        sum(first[way]["median"] for way in ("compute", "overlappable", "communicate"))
    )
    assert intervals["compute"][1] == intervals["communicate"][0] <= intervals["overlappable"][0]
    assert all(begin <= end for begin, end in intervals.values())


def refused() -> None:
    for wrong in ({"repetitions": 0}, {"warm_up": -1}):
        with pytest.raises(ValueError, match="measure_overlap: "):
            sagecomm.measure_overlap(lambda: None, lambda _: torch.futures.Future(), lambda: None, **wrong)


def test_no_repetitions_are_refused(world):
    world(1).run(refused)
