"""python -m sagecomm tune: measures every algorithm, and writes what is best into a tuning file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import programs
import sagecomm
from sagecomm import _arguments, _launching, _measuring, _operations, _tune
from sagecomm.__main__ import main
from sagecomm._progress import Progress


def row(algorithm: str, blocks: list[float], again: list[float] | None = None, chunk: int = 0, **more: object) -> dict:
    """Returns one measured candidate; with `again` it is the chosen one, which is measured a second time."""
    at = {"op": "all_reduce", "bytes": 8, "algorithm": algorithm, "chunk": chunk, "even": False}
    measured = {"chosen": again is not None, "blocks": blocks, "again": again or [], "dropped": False, "confirmed": []}
    return at | measured | more


def test_candidates_count_by_their_ratio_in_the_same_rounds():
    # The machine is twice as slow in the second launch, and in one round of the first.
    first = [
        row("one_shot", [1e-6, 1e-6, 2e-6, 1e-6], [1.1e-6, 1e-6, 2e-6]),
        row("ring", [2e-6, 0.8e-6, 1.6e-6, 0.8e-6]),
    ]
    second = [row("one_shot", [2e-6, 2e-6, 2e-6], [1.6e-6, 1.6e-6, 1.6e-6]), row("ring", [9e-6], dropped=True)]
    third = [row("one_shot", [1e-6, 1e-6], [1e-6, 1e-6]), row("ring", [0.9e-6, 0.9e-6])]
    one_shot, ring = _tune.combine([first, second, third])
    assert (one_shot["algorithm"], one_shot["chosen"], one_shot["ratio"]) == ("one_shot", True, 1)
    assert one_shot["seconds"] == pytest.approx(1e-6)
    assert ring["ratio"] == pytest.approx(0.9)
    assert not ring["chosen"]
    assert ring["dropped"]
    assert one_shot["spread"] == pytest.approx(0.25)


def test_an_outlier_of_the_choice_makes_nobody_faster():
    """The first block of the choice took ten times as long as the others, which was all that a candidate was measured
    beside before it was dropped."""
    chosen, torus = _tune.combine(
        [[row("two_shot", [360e-6, 36e-6, 36e-6], [36e-6] * 3), row("torus", [87e-6], dropped=True)]]
    )
    assert chosen["ratio"] == 1
    assert torus["ratio"] == pytest.approx(87 / 36)
    assert torus["dropped"]


def test_three_quarters_of_the_rounds_of_every_launch_confirm():
    sure, unsure = [0.5, 0.6, 0.7, 0.8, 0.9], [0.5, 0.5, 0.5, 1.5, 1.5]
    launches = [[row("one_shot", [1e-6] * 2, [1e-6] * 2), row("ring", [1e-6] * 2, confirmed=c)] for c in (sure, unsure)]
    assert _tune.combine(launches[:1])[1]["confirmed"] == pytest.approx(0.85)
    assert _tune.combine(launches)[1]["confirmed"] == pytest.approx(1.5)
    assert _tune.combine(launches)[0]["confirmed"] == 0


def test_progress_says_what_is_left():
    progress = Progress("tune", 8, done=2, begun=100.0)
    assert progress.line("barrier", 130.0) == "[######..................] 25 %, about 90.0 s left: barrier"


def test_of_an_error_in_a_rank_the_sentence_is_left():
    for error in ("RuntimeError", "sagecomm.PeerFailure"):
        trace = f"\n-- Process 1 terminated\nTraceback (most recent call last):\n  x\n{error}: sagecomm: rank 1 died\n"
        assert _launching.last_of_ours(trace) == "sagecomm: rank 1 died"
    assert _launching.last_of_ours("ValueError: x") is None


def test_the_limit_of_ranks_is_the_cores():
    text = (Path(__file__).parents[2] / "algo" / "plan" / "slots.go").read_text()
    assert re.search(r"MaxSize += (\d+)", text)[1] == str(_arguments.MOST_RANKS)


def test_chunks_are_tried_where_there_is_something_to_cut():
    slots = {"algorithm": "two_shot", "chunk": 131072, "longest": 262144, "chosen": True}
    channels = {"algorithm": "ring", "chunk": 65536, "longest": 65536, "chosen": False}
    assert list(_measuring.variants([slots, channels], 1 << 10)) == [("two_shot", 0), ("ring", 0)]
    assert list(_measuring.variants([slots, channels], 1 << 20)) == [
        ("two_shot", 0),
        ("two_shot", 65536),
        ("two_shot", 262144),
        ("ring", 0),
        ("ring", 32768),
    ]


@pytest.mark.parametrize("op", _arguments.COLLECTIVES)
def test_room_is_what_buffers_take(op):
    buffers = _operations.make_buffers(op, 4096, 4)
    assert sum(b.numel() * b.element_size() for b in buffers) == _operations.room_of(op, 4096, 4)


def test_the_table_for_people():
    rows = _tune.combine(
        [
            [
                row("one_shot", [2e-6, 2e-6], [2.1e-6, 2.1e-6]),
                row("ring", [1e-6, 1e-6], chunk=32768, confirmed=[0.5] * 9),
                row("bruck", [0.5e-6, 0.5e-6], even=True),
                row("torus", [0.5e-6], dropped=True),
            ]
        ]
    )
    entry = {"rules": ["all_reduce:ring@chunk=32K"], "params": {"ring.byte": "9ps"}}
    assert (
        _tune.text({"ranks": 2, "entry": entry, "rows": rows})
        == """\
2 ranks
  collective  bytes  chosen    time  spread  best         time  chosen/best  confirmed
  all_reduce    8 B  one_shot  2 us  5 %     ring@32 KiB  1 us  2.00         2.00
rules:
  all_reduce:ring@chunk=32K
parameters:
  ring.byte=9ps"""
    )


def tables() -> dict[str, str]:
    return {op: sagecomm.explain(op, 8)["table"] for op in ("all_reduce", "barrier", "broadcast")}


def test_what_is_measured_is_written_and_used(tmp_path, fresh_world):
    out = tmp_path / "tuned.json"
    few = ("--ranks", "2", "--launches", "2", "--blocks", "1", "--out", str(out))
    said = programs.command("tune", *few, "--ops", "all_reduce,barrier", "--bytes", "8,64KiB", "--json")
    assert said.status == 0, said.errors
    (summary,) = json.loads(said.said)
    measured = {(row["op"], row["bytes"]) for row in summary["rows"]}
    assert measured == {("all_reduce", 8), ("all_reduce", 65536), ("barrier", 0)}
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in summary["rows"])
    (entry,) = json.loads(out.read_text())["entries"]
    assert entry == summary["entry"]
    assert {rule.split(":")[0] for rule in entry["rules"]} == {"all_reduce", "barrier"}

    # The new collective of the same groups is added, and the rules of other collectives are kept.
    again = programs.command("tune", *few, "--ops", "all_to_all", "--bytes", "8")
    assert again.status == 0, again.errors
    (both,) = json.loads(out.read_text())["entries"]
    assert both["rules"][:-1] == entry["rules"]
    assert both["rules"][-1].startswith("all_to_all:")
    assert again.said.endswith(f"written to {out}\n")

    for table in fresh_world(2, {"SAGECOMM_TUNE_FILE": str(out)}).run(tables):
        assert str(out) in table["all_reduce"]
        assert str(out) in table["barrier"]
        assert "predicted" in table["broadcast"]


@pytest.mark.long
def test_torchrun_starts_the_ranks_of_a_group_that_is_measured(tmp_path):
    out = tmp_path / "tuned.json"
    asked = ("tune", "--ops", "barrier", "--blocks", "1", "--out", str(out))
    with programs.Programs(programs.command_line(*asked), 3) as ranks:
        ranks.end_well()
        assert "barrier" in ranks.rest(0)
        assert not ranks.rest(1)
    (entry,) = json.loads(out.read_text())["entries"]
    assert entry["size"] == 3


@pytest.mark.parametrize(("content", "says"), [("{}", "version 0, expected 1"), ("no json", "invalid character")])
def test_a_file_that_is_none_is_refused_and_left(tmp_path, content, says):
    out = tmp_path / "tuned.json"
    out.write_text(content)
    refused = programs.command("tune", "--ranks", "2", "--out", str(out))
    assert refused.status == 1
    assert says in refused.errors.splitlines()[-1]
    assert str(out) in refused.errors.splitlines()[-1]
    assert "Traceback" not in refused.errors
    assert out.read_text() == content
    assert [p.name for p in Path(tmp_path).iterdir()] == ["tuned.json"]


def test_a_file_that_cannot_be_used_is_refused_first(tmp_path, capsys):
    unreadable = tmp_path / "tuned.json"
    unreadable.write_bytes(b"\xff")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused = (
        (unreadable, "cannot be read"),
        (tmp_path / "nowhere" / "tuned.json", "cannot be written"),
        (fifo, "no regular file"),
    )
    for path, says in refused:
        assert main(["tune", "--ranks", "2", "--out", str(path)]) == 1
        errors = capsys.readouterr().err
        assert says in errors
        assert "launch" not in errors


INTERRUPTING = """\
import sagecomm._measuring
block = sagecomm._measuring.Measuring.block
def interrupt_and_measure(self, call, count):
    sagecomm._measuring.Measuring.block = block
    if self.rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    return block(self, call, count)
sagecomm._measuring.Measuring.block = interrupt_and_measure
"""


def test_an_interrupted_measurement_leaves_no_rank_behind(tmp_path):
    out = tmp_path / "tuned.json"
    asked = ("tune", "--ranks", "2", "--ops", "barrier", "--blocks", "1000000", "--out", str(out))
    # Ranks write to the standard output of the command, which ends when the last of them has ended.
    with programs.Programs(INTERRUPTING + programs.command_line(*asked)) as process:
        assert process.ends(0) == 130
        process.rest(0)
        assert "interrupted" in process.errors(0)
    assert not out.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        ("--ops", "all_reduce,fastest", "'fastest' is no collective (there are all_reduce,"),
        ("--bytes", "much", "expected bytes"),
        ("--bytes", "8,6", "multiple of 4"),
        ("--bytes", "0", "multiple of 4"),
        ("--ranks", "x", "whole number"),
        ("--ranks", "2,1", "a group of 1 has nothing to choose between: expected 2 to 512 ranks"),
        ("--ranks", "1000", "a group has at most 512 ranks, not 1000"),
        ("--launches", "0", "expected a whole number from 1 to"),
    ],
)
def test_wrong_arguments_are_refused_before_a_process_starts(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["tune", *wrong[:2]])
    assert wrong[2] in capsys.readouterr().err


def calls() -> None:
    for op in _arguments.COLLECTIVES:
        _operations.make_call(op, _operations.make_buffers(op, 64, dist.get_world_size()), None)()
    dist.all_reduce(torch.zeros(1))


def test_every_collective_can_be_called(world):
    world(3).run(calls)
