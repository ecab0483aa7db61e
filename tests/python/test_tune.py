"""python -m sagecomm tune: measures every algorithm, and writes what is best into a tuning file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import programs
import sagecomm
from sagecomm import _tune
from sagecomm.__main__ import main


def row(algorithm: str, blocks: list[float], again: list[float] | None = None, chunk: int = 0, **more: bool) -> dict:
    """Of what was chosen, if it has been measured again."""
    at = {"op": "all_reduce", "bytes": 8, "algorithm": algorithm, "chunk": chunk, "even": False}
    return at | {"chosen": again is not None, "blocks": blocks, "again": again or []} | more


def test_candidates_count_by_their_ratio_in_the_same_rounds():
    # The machine is twice as slow in the second launch, and in one round of the first.
    first = [
        row("one_shot", [1e-6, 1e-6, 2e-6, 1e-6], [1.1e-6, 1e-6, 2e-6]),
        row("ring", [2e-6, 0.8e-6, 1.6e-6, 0.8e-6]),
    ]
    second = [row("one_shot", [2e-6, 2e-6, 2e-6], [1.6e-6, 1.6e-6, 1.6e-6]), row("ring", [9e-6])]
    third = [row("one_shot", [1e-6, 1e-6], [1e-6, 1e-6]), row("ring", [0.9e-6, 0.9e-6])]
    one_shot, ring = _tune.combine([first, second, third])
    assert (one_shot["algorithm"], one_shot["chosen"], one_shot["ratio"]) == ("one_shot", True, 1)
    assert one_shot["seconds"] == pytest.approx(1e-6)
    assert ring["ratio"] == pytest.approx(0.9)
    assert not ring["chosen"]
    assert one_shot["spread"] == pytest.approx(0.25)


def test_chunks_are_tried_where_there_is_something_to_cut():
    slots = {"algorithm": "two_shot", "chunk": 131072, "longest": 262144, "chosen": True}
    channels = {"algorithm": "ring", "chunk": 65536, "longest": 65536, "chosen": False}
    assert list(_tune.ways([slots, channels], 1 << 10)) == [("two_shot", 0), ("ring", 0)]
    assert list(_tune.ways([slots, channels], 1 << 20)) == [
        ("two_shot", 0),
        ("two_shot", 65536),
        ("two_shot", 262144),
        ("ring", 0),
        ("ring", 32768),
    ]


@pytest.mark.parametrize("op", _tune.COLLECTIVES)
def test_room_is_what_buffers_take(op):
    buffers = _tune.make_buffers(op, 4096, 4)
    assert sum(b.numel() * b.element_size() for b in buffers) == _tune.room_of(op, 4096, 4)


def test_the_table_for_people():
    rows = _tune.combine(
        [
            [
                row("one_shot", [2e-6, 2e-6], [2.1e-6, 2.1e-6]),
                row("ring", [1e-6, 1e-6], chunk=32768),
                row("bruck", [0.5e-6, 0.5e-6], even=True),
            ]
        ]
    )
    entry = {"rules": ["all_reduce:ring@chunk=32K"], "params": {"channel.byte": "9ps"}}
    assert (
        _tune.text({"ranks": 2, "entry": entry, "rows": rows})
        == """\
2 ranks
  collective  bytes  chosen    time  spread  best      time  chosen/best
  all_reduce      8  one_shot  2 us  5 %     ring@32K  1 us  2.00
rules:
  all_reduce:ring@chunk=32K
parameters:
  channel.byte=9ps"""
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

    # Another collective of the same groups is added, others are kept.
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
    for path, says in ((unreadable, "cannot be read"), (tmp_path / "nowhere" / "tuned.json", "cannot be written")):
        assert main(["tune", "--ranks", "2", "--out", str(path)]) == 1
        errors = capsys.readouterr().err
        assert says in errors
        assert "launch" not in errors


INTERRUPTING = """\
import sagecomm._tune
block = sagecomm._tune.Measuring.block
def interrupt_and_measure(self, call, count):
    sagecomm._tune.Measuring.block = block
    if self.rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    return block(self, call, count)
sagecomm._tune.Measuring.block = interrupt_and_measure
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
        ("--ops", "all_reduce,fastest"),
        ("--bytes", "much"),
        ("--bytes", "8,6"),
        ("--bytes", "0"),
        ("--ranks", "x"),
        ("--ranks", "2,1"),
        ("--launches", "0"),
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit):
        main(["tune", *wrong])


def calls() -> None:
    for op in _tune.COLLECTIVES:
        _tune.make_call(op, _tune.make_buffers(op, 64, dist.get_world_size()), None)()
    dist.all_reduce(torch.zeros(1))


def test_every_collective_can_be_called(world):
    world(3).run(calls)
