"""python -m sagecomm bench without the command: figures from a clock that the test sets, checks of data, tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sagecomm import _interleave, _operations
from sagecomm._bench import calls, checking, measuring, output, rows
from sagecomm._bench.arguments import OPS, Job
from sagecomm._bench.cases import REDUCTIONS, TYPE_NAMES, Case, bus_factor, cases
from sagecomm._bench.launching import Report
from sagecomm._progress import Progress
from selection import quickly


class FakeClock:
    """Goes on by 10 microseconds whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter(self) -> float:
        self.now += 1
        return self.now * 1e-5


def measured(job: Job) -> list[dict[str, Any]]:
    """Returns the samples of rank 0, which the fake clock has timed."""
    genuine, _interleave.time = _interleave.time, FakeClock()  # type: ignore[attr-defined]
    samples: list[dict[str, Any]] = []
    try:
        measuring.Measuring(job, False, {}, Progress("bench", 100)).all(samples.append)
    finally:
        _interleave.time = genuine  # type: ignore[attr-defined]
    return samples


def figures(ops: tuple[str, ...], how: Mapping[str, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    job = Job(ops=ops, sizes=(1_000_000,), iterations=4, rounds=2, **how)
    return rows.rows(measured(job), job.backends, dist.get_world_size(), job.aggregate)


# Four ranks; each iteration takes 10 us by the clock, so that 10^6 bytes are 100 GB/s. The factors are those of
# nccl-tests' doc/PERFORMANCE.md, worked out by hand.
BUS = {
    "all_reduce": 150.0,
    "all_gather": 75.0,
    "reduce_scatter": 75.0,
    "all_to_all": 75.0,
    "broadcast": 100.0,
    "reduce": 100.0,
    "gather": 75.0,
    "scatter": 75.0,
    "shift": 100.0,
}
COUNTS = {"all_gather": 62500, "reduce_scatter": 62500, "all_to_all": 62500, "gather": 62500, "scatter": 62500}


def test_bandwidths_of_a_known_time(world):
    found, *_ = world(4).run(figures, tuple(BUS))
    assert [row["op"] for row in found] == list(BUS)
    for row in found:
        assert (row["bytes"], row["count"]) == (1_000_000, COUNTS.get(row["op"], 250_000)), row["op"]
        assert row["time_us"] == pytest.approx(10)
        assert row["algbw_gb_s"] == pytest.approx(100)
        assert row["busbw_gb_s"] == pytest.approx(BUS[row["op"]]), row["op"]
        assert row["copy_us"] == pytest.approx(10)
        assert row["wrong"] == 0
        for name in ("min_us", "p50_us", "p99_us", "max_us"):
            assert row[name] == pytest.approx(10)


def test_a_round_trip_counts_as_two_ways_and_a_barrier_has_no_bandwidth(world):
    (trip, barrier), *_ = world(4).run(figures, ("send_recv", "barrier"))
    assert trip["time_us"] == pytest.approx(5)
    assert trip["busbw_gb_s"] == pytest.approx(200)
    assert (barrier["bytes"], barrier["algbw_gb_s"], barrier["copy_us"], barrier["wrong"]) == (0, None, None, None)
    assert barrier["time_us"] == pytest.approx(10)


@pytest.mark.parametrize("how", quickly([{}], [{}, {"asynchronous": True}, {"coalesce": True}]))
def test_the_time_is_that_of_one_operation_of_an_iteration(world, how):
    (row,), *_ = world(4).run(figures, ("all_reduce",), {"aggregate": 5, **how})
    assert row["time_us"] == pytest.approx(2)
    assert row["algbw_gb_s"] == pytest.approx(500)
    assert row["wrong"] == 0


def test_overlap_of_known_times(world):
    """By the clock, communication takes 10 us, with computation and without. Computation takes 2.5 us: a loop of four
    iterations reads the clock twice."""
    (row,), *_ = world(2).run(figures, ("all_reduce",), {"asynchronous": True, "overlap": True})
    assert [row[name] for name in ("time_us", "compute_us", "both_us")] == pytest.approx([10, 2.5, 10])
    assert (row["hidden"], row["efficiency"]) == (pytest.approx(0.25), pytest.approx(1))


def test_cold_buffers_are_others_in_each_iteration(world):
    found, *_ = world(2).run(figures, ("all_reduce", "all_to_all"), {"cold": True})
    assert [row["time_us"] for row in found] == [pytest.approx(10)] * 2
    assert [row["wrong"] for row in found] == [0, 0]


@pytest.mark.parametrize("nbytes", [8, 1000, 1 << 20, 1 << 22])
def test_cold_sets_are_twice_as_large_as_the_caches(nbytes):
    made = []
    sets = calls.Sets(lambda: made.append(len(made)) or len(made), nbytes, cache=1 << 20)
    touch = sets.padding_touched()
    padding = touch().numel() if touch else 0
    assert 2 <= len(made) <= 4096
    assert 2 << 20 <= len(made) * (nbytes + padding + 1) <= max(calls.Sets.room(nbytes, 1 << 20), 2 * nbytes) + 4096
    called: list[int] = []
    turn = sets.in_turn(lambda number: lambda: called.append(number))
    for _ in range(len(made) + 1):
        turn()
    assert called == [*range(1, len(made) + 1), 1]


def test_hot_buffers_are_one_set():
    sets = calls.Sets(list, 8, cache=None)
    assert (len(sets.sets), sets.padding_touched()) == (1, None)


def test_percentiles_are_of_the_nearest_rank():
    hundred = [float(n) for n in range(1, 101)]
    assert [rows.percentile(hundred, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert [rows.percentile([1.0, 2.0, 3.0], p) for p in (1, 50, 67, 99)] == [1, 2, 3, 3]


def sample(pinned: bool, blocks: list[float], **more: Any) -> dict[str, Any]:
    case = {"op": "all_reduce", "bytes": 1000, "count": 250, "type": "float32", "redop": "sum", "root": -1}
    result = {"blocks": blocks, "laps": blocks, "iterations": 7, "wrong": 0} | more
    return {"case": case, "pinned": pinned, "backends": {"sagecomm": result}, "copy": [1e-6], "compute": []}


def test_of_pinned_and_not_pinned_launches_the_better_kind_counts():
    (row,) = rows.rows([sample(True, [3e-6, 5e-6]), sample(False, [9e-6]), sample(True, [1e-6])], ["sagecomm"], 2, 1)
    assert (row["pinned"], row["time_us"], row["blocks_us"]) == (True, pytest.approx(3), pytest.approx([3, 5, 1]))
    (row,) = rows.rows([sample(True, [9e-6]), sample(False, [4e-6])], ["sagecomm"], 2, 1)
    assert (row["pinned"], row["time_us"]) == (False, pytest.approx(4))


def test_wrong_elements_of_all_launches_count():
    (row,) = rows.rows([sample(True, [1e-6], wrong=2), sample(True, [1e-6], wrong=3)], ["sagecomm"], 2, 1)
    assert row["wrong"] == 5
    (row,) = rows.rows([sample(True, [1e-6], wrong=None)], ["sagecomm"], 2, 1)
    assert row["wrong"] is None


def report(**how: Any) -> Report:
    job = Job(sizes=(1000,), backends=("sagecomm", "gloo"), iterations=7, **how)
    one = sample(False, [2e-6, 4e-6, 3e-6])
    one["backends"]["gloo"] = {"refused": "AVG is not there"}
    other = sample(False, [3e-6], wrong=4)
    other["case"] = {**other["case"], "bytes": 4000, "count": 1000}
    other["backends"]["gloo"] = {"blocks": [30e-6], "laps": [30e-6], "iterations": 7, "wrong": None}
    return Report(job, 2, rows.rows([one, other], job.backends, 2, 1))


def test_the_table_for_people():
    lines = output.as_text(report(), False).splitlines()
    table = lines[lines.index("# all_reduce") + 1 : lines.index("# all_reduce") + 6]
    assert (
        table
        == """\
#                                         --------- sagecomm ---------  ------------- gloo ------------
# size       count     type  redop  root  time   algbw   busbw  #wrong     time   algbw   busbw  #wrong      x  copy
#  (B)  (elements)                        (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)           gloo  (us)
  1000         250  float32    sum    -1  3.00    0.33    0.33       0  refused       -       -     N/A      -  1.00
  4000        1000  float32    sum    -1  3.00    1.33    1.33       4    30.00    0.13    0.13     N/A  10.00  1.00\
""".splitlines()
    )
    assert "# Out of bounds values : sagecomm: 4 FAILED" in lines
    assert "# Avg bus bandwidth    : sagecomm: 0.8333 GB/s" in lines
    assert "# refused by gloo: all_reduce of float32 with sum: AVG is not there" in lines
    assert "# x: time of gloo / time of sagecomm" in lines
    assert "# in turns 5 blocks of 7 iterations of each backend, 1 launch; warmup iters: 1; checks: 1" in lines


def test_the_table_with_percentiles():
    text = output.as_text(report(), True)
    assert "  #wrong   min   p50   p90   p95   p99   max" in text


FIELDS = [
    *("op", "bytes", "count", "type", "redop", "root", "backend", "pinned"),
    *("time_us", "algbw_gb_s", "busbw_gb_s", "wrong"),
    *("min_us", "p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "max_us", "iterations", "blocks_us"),
    *("copy_us", "compute_us", "both_us", "hidden", "efficiency", "refused"),
]


def test_the_fields_of_json_and_csv():
    written = json.loads(output.as_json(report()))
    assert set(written) == {
        "version",
        "sagecomm",
        "torch",
        "machine",
        "ranks",
        "options",
        "environment",
        "peers",
        "interrupted",
        "rows",
        "summary",
    }
    assert (written["version"], written["ranks"]) == (1, 2)
    assert set(written["machine"]) == {"processor", "cpus", "kernel"}
    assert [list(row) for row in written["rows"]] == [FIELDS] * 4
    assert written["summary"]["sagecomm"] == {"wrong": 4, "average_busbw_gb_s": pytest.approx(0.8333, abs=1e-3)}
    read = list(csv.DictReader(io.StringIO(output.as_csv(report()))))
    assert [list(row) for row in read] == [[name for name in FIELDS if name != "blocks_us"]] * 4
    assert (read[0]["backend"], read[0]["time_us"], read[0]["refused"]) == (
        "sagecomm",
        str(written["rows"][0]["time_us"]),
        "",
    )
    assert (read[1]["backend"], read[1]["time_us"], read[1]["refused"]) == ("gloo", "", "AVG is not there")


def test_sizes_are_rounded_to_whole_elements_and_are_not_repeated():
    counts = [case.count for case in cases("all_gather", (4, 8, 16, 100), ("float32",), ("sum",), 0, 4)]
    assert counts == [1, 6]
    (first, *_) = cases("all_gather", (100,), ("float32",), ("sum",), 0, 4)
    assert first.size(4) == 96
    roots = [(case.root, case.redop) for case in cases("reduce", (8,), ("int8",), ("sum", "max"), None, 2)]
    assert roots == [(0, "sum"), (1, "sum"), (0, "max"), (1, "max")]
    assert [case.root for case in cases("all_reduce", (8,), ("int8",), ("sum",), None, 2)] == [-1]
    assert len(list(cases("barrier", (8, 16), ("int8", "float32"), ("sum", "max"), None, 2))) == 1


def test_one_rank_alone_has_no_bus():
    assert bus_factor("all_reduce", 1) == 0
    assert bus_factor("broadcast", 1) == 1


def outputs_found_wrong(case: Case) -> list[int]:
    """Returns #wrong after the operation, after it with one output element changed, and after another check's data."""
    rank, size = dist.get_rank(), dist.get_world_size()
    buffers = _operations.make_buffers(case.op, case.block_bytes(), size, getattr(torch, case.type))
    redop = getattr(dist.ReduceOp, REDUCTIONS.get(case.redop, "SUM"))
    call = _operations.make_call(case.op, buffers, None, redop, max(case.root, 0))
    checking.fill(case, buffers, rank, size, 1)
    call()
    right = checking.wrong(case, buffers, rank, size, 1)
    stale = checking.wrong(case, buffers, rank, size, 2)
    for output_, _ in checking._outputs(case, buffers, rank, size, 1):
        bits = output_.view(torch.uint8)
        bits[-1] = bits[-1] ^ (1 if case.type == "bool" else 0x40)
        break
    return [right, checking.wrong(case, buffers, rank, size, 1), stale]


@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
@pytest.mark.parametrize("kind", ["float32", "bool", "float8_e5m2", "uint64"])
def test_each_wrong_element_is_counted(world, op, kind):
    if op in ("all_reduce", "reduce", "reduce_scatter") and kind == "float8_e5m2":
        kind = "bfloat16"
    case = Case(op, kind, "sum" if op in ("all_reduce", "reduce", "reduce_scatter") else "none", 1, 1001)
    found = world(3).run(outputs_found_wrong, case)
    assert [right for right, _, _ in found] == [0, 0, 0]
    assert sum(changed for _, changed, _ in found) == {"reduce": 1, "gather": 1, "send_recv": 2}.get(op, 3)
    if kind != "bool":  # of bools half of the elements are alike, more of their sums
        assert all(stale > 100 for _, changed, stale in found if changed)


def reduced_wrong(pairs: list[tuple[str, str]]) -> list[tuple[str, str, int]]:
    found = []
    for kind, redop in pairs:
        case = Case("all_reduce", kind, redop, -1, 1001)
        try:
            right, changed, _ = outputs_found_wrong(case)
        except (RuntimeError, ValueError):  # the combination is refused
            continue
        if (right, changed) != (0, 1):
            found.append((kind, redop, right))
    return found


@pytest.mark.parametrize("ranks", quickly([2], [2, 5]))
def test_every_type_and_reduction_is_checked(world, ranks):
    pairs = [(kind, redop) for kind in TYPE_NAMES for redop in REDUCTIONS]
    assert world(ranks).run(reduced_wrong, pairs) == [[]] * ranks
