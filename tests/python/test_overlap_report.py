"""measure_overlap(): the formula, the table, the picture, and what it measures where the order of events is known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sagecomm
from sagecomm._overlap import _clock, _timeline
from sagecomm._overlap._formula import hidden
from sagecomm._overlap._in_flight import Waitable
from sagecomm._overlap._linear import start_linear_all_reduce
from sagecomm._overlap._report import OverlapReport, Times

BLANK: dict[str, Any] = {
    "compute_inside": 0.008,
    "communicate_inside": 0.015,
    "intervals": {"compute": (0.0, 0.072), "overlappable": (0.072, 0.080), "communicate": (0.072, 0.087)},
    "device": "cpu",
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


@pytest.mark.parametrize(
    ("before", "overlappable", "communicate", "measured", "expected"),
    [
        (0, 10, 10, 20, (0, 1, 0)),
        (0, 10, 10, 10, (1, 1, 1)),
        (0, 4, 10, 10, (0.4, 0.4, 1)),
        (0, 10, 4, 12, (0.5, 1, 0.5)),
        (0, 10, 10, 22, (-0.2, 1, -0.2)),
        (72, 8, 15, 87, (8 / 15, 8 / 15, 1)),
        (5, 0, 10, 15, (0, 0, 0)),
        (5, 10, 0, 14, (0, 0, 0)),
    ],
)
def test_the_formula(before, overlappable, communicate, measured, expected):
    found = hidden(measured, communicate=communicate, overlappable=overlappable, before=before)
    assert found == pytest.approx(expected)


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


def test_times_of_zero_have_defined_shares():
    silent = report(0.010, 0.020, 0.0, 0.029)
    assert (silent.hidden_fraction, silent.bound, silent.efficiency, silent.communicate_interference) == (0, 0, 0, 0)
    assert silent.speedup == pytest.approx(30 / 29)
    assert report(0.0, 0.0, 0.0, 0.0).speedup == 1
    assert "NaN" not in silent.json()
    assert "Infinity" not in silent.json()


def test_an_end_that_is_unknown_is_reported_as_unknown(tmp_path: Path):
    intervals = {**BLANK["intervals"], "communicate": None}
    silent = report(0.072, 0.008, 0.015, 0.087, communicate_inside=None, intervals=intervals)
    assert silent.communicate_interference is None
    assert json.loads(silent.json())["communicate_interference"] is None
    assert silent.table().split()[-3:] == ["interference,", "communicating", "unknown"]
    silent.save_timeline(tmp_path / "overlap.svg")
    texts = [
        each.text for each in ET.parse(tmp_path / "overlap.svg").getroot().iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts.count("unknown") == 1
    assert texts[texts.index("unknown") - 1] == "communicate"


TABLE = """\
sagecomm, cpu, 2 ranks x 1 computing threads on 8 processors, 30 repetitions
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
    advice = "computing threads occupy all processors: only waiting can be hidden"
    assert crowded.table().endswith(advice)
    assert advice not in report(0.072, 0.008, 0.015, 0.087, processors=2, device="cuda:0").table()
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


def order_of_events() -> tuple[int, tuple[int, int, int, str, str]]:
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
    assert measured.communicate_inside is None  # this handle tells nothing
    assert measured.intervals["communicate"] is None
    overlapped = ["compute", "issue", "overlappable", "wait"]
    found = [order[at : at + 4] for at in range(len(order))].count(overlapped)
    return found, (measured.repetitions, measured.ranks, measured.threads, measured.backend, measured.device)


def test_the_overlapped_way_computes_between_issue_and_wait(world):
    """In the way that is timed, and in the way that has marks."""
    assert world(2).run(order_of_events) == [(2, (1, 2, 1, "sagecomm", "cpu"))] * 2


class ByHand:
    """A clock that a test sets forward, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Message(torch.futures.Future):  # type: ignore[type-arg]
    """Takes 2 s, if nobody completes it before it is waited for. To ask for a callback takes 5 s."""

    def __init__(self, clock: ByHand) -> None:
        super().__init__()
        self.clock = clock

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.clock.now += 5
        super().add_done_callback(callback)

    def wait(self) -> None:
        if not self.done():
            self.clock.now += 2
            self.set_result(None)


class Silent(dist.Work):
    """A work that has no future."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message

    def wait(self, *_: Any) -> bool:
        self.message.wait()
        return True


HANDLES: dict[str, Callable[[Message], Waitable]] = {
    "future": lambda message: message,
    "in flight": lambda message: sagecomm.InFlight(torch.zeros(1), [message], lambda t: t.add_(1)),
    "nested": lambda message: sagecomm.InFlight(torch.zeros(1), [sagecomm.InFlight(torch.zeros(1), [message])]),
    "without a future": Silent,
    "one without": lambda message: sagecomm.InFlight(torch.zeros(1), [message, Silent(message)]),
}


def by_hand(kind: str) -> tuple[dict[str, Any], dict[str, tuple[float, float] | None]]:
    """Computing takes 1 s, the other computation 3 s, after 2 of which the communication is complete."""
    clock, real = ByHand(), _clock.time
    messages: list[Message] = []

    def compute(seconds: float) -> None:
        clock.now += seconds

    def communicate(_: Any) -> Waitable:
        messages.append(Message(clock))
        return HANDLES[kind](messages[-1])

    def overlappable() -> None:
        compute(2)
        if messages and not messages[-1].done():
            messages[-1].set_result(None)
        compute(1)

    _clock.time = clock  # type: ignore[assignment]
    try:
        told = sagecomm.measure_overlap(lambda: compute(1), communicate, overlappable, repetitions=2, warm_up=0)
    finally:
        _clock.time = real
    return told.as_dict(), told.intervals


@pytest.mark.parametrize("kind", HANDLES)
def test_the_end_of_a_communication_is_asked_for_beside_what_is_timed(world, kind):
    ((told, intervals),) = world(1).run(by_hand, kind)
    medians = [told[way]["median"] for way in ("compute", "overlappable", "communicate", "overlapped")]
    assert medians == [1, 3, 2, 4]
    assert (told["hidden_fraction"], told["efficiency"], told["compute_inside"]) == (1, 1, 3)
    if kind in ("without a future", "one without"):
        assert (told["communicate_inside"], intervals["communicate"]) == (None, None)
    else:  # begun at 1, asked until 6
        assert (told["communicate_inside"], intervals["communicate"]) == (7, (1, 8))


def a_wait_that_tells_more_than_its_future() -> None:
    class Lost(torch.futures.Future):  # type: ignore[type-arg]
        def wait(self) -> None:
            pass

    _clock._CALLBACKS, real = 0.01, _clock._CALLBACKS
    try:
        told = sagecomm.measure_overlap(lambda: None, lambda _: Lost(), lambda: None, repetitions=1, warm_up=0)
    finally:
        _clock._CALLBACKS = real
    assert told.communicate_inside is None


def test_a_future_that_never_completes_has_no_end(world):
    world(1).run(a_wait_that_tells_more_than_its_future)


def of_each_handle() -> list[bool]:
    """Whether each kind of handle tells when its communication ends, while the other computation lasts."""
    gloo, x = dist.new_group(backend="gloo"), torch.ones(64, 64)
    issue: list[Callable[[torch.Tensor], Waitable | None]] = [
        lambda t: dist.all_reduce(t, async_op=True),
        lambda t: dist.all_reduce(t, group=gloo, async_op=True),
        lambda t: sagecomm.fused_all_reduce([t], async_op=True),
        lambda t: sagecomm.fused_all_reduce([t], group=gloo, async_op=True),
        lambda t: sagecomm.chunked_all_reduce(t, chunk_bytes=4096, async_op=True),
        lambda t: sagecomm.chunked_all_reduce(t, chunk_bytes=4096, group=gloo, async_op=True),
        lambda t: start_linear_all_reduce(t, x, torch.ones(64), slices=2),
    ]
    found = []
    for each in issue:
        told = sagecomm.measure_overlap(lambda: x * 1, each, lambda: x @ x, repetitions=2, warm_up=0)
        found.append(told.communicate_inside is not None)
    return found


def test_every_handle_of_the_library_tells_when_it_ends(world):
    assert world(2).run(of_each_handle) == [[True] * 7] * 2


def outside() -> None:
    group = dist.new_group([0])
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="measure_overlap: this rank is not in the group"):
            sagecomm.measure_overlap(lambda: None, lambda _: torch.futures.Future(), lambda: None, group)


def test_a_rank_outside_the_group_is_refused(world):
    world(2).run(outside)


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
    assert None not in intervals.values()
    assert intervals["compute"][1] == intervals["communicate"][0] <= intervals["overlappable"][0]
    assert all(begin <= end for begin, end in intervals.values())


def refused() -> None:
    for wrong in ({"repetitions": 0}, {"warm_up": -1}):
        with pytest.raises(ValueError, match="measure_overlap: "):
            sagecomm.measure_overlap(lambda: None, lambda _: torch.futures.Future(), lambda: None, **wrong)
    with pytest.raises(ValueError, match="communicate returned None: expected what to wait for"):
        sagecomm.measure_overlap(lambda: torch.ones(3), dist.all_reduce, lambda: None)


def test_no_repetitions_and_nothing_to_wait_for_are_refused(world):
    world(1).run(refused)
