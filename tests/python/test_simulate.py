"""python -m sagecomm simulate: its arguments, table and picture, and the command on the examples' clusters."""

from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import programs
from sagecomm import _arguments, _format, _simulate
from sagecomm.__main__ import main

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"

ANSWER: dict[str, Any] = {
    "cluster": {"name": "two", "hosts": 2, "ranks_per_host": 4, "inside": "ring", "between": "tcp_25g"},
    "op": "broadcast",
    "bytes": 1_000_000,
    "ranks": 8,
    "predictions": [
        {
            "algorithm": "chain",
            "method": "simulated",
            "seconds": 0.000812345,
            "messages": 16,
            "bytes": 1_000_000,
            "bus_gb_per_s": 1.231,
            "chunk": 65536,
        },
        {
            "algorithm": "binomial",
            "method": "closed form",
            "seconds": 1.5,
            "messages": 3,
            "bytes": 3_000_000,
            "bus_gb_per_s": 0.0006,
        },
        {
            "algorithm": "double_tree",
            "seconds": 0,
            "messages": 0,
            "bytes": 0,
            "bus_gb_per_s": 0,
            "why": "no closed form: x",
        },
    ],
}

TABLE = """\
broadcast of 1 MB, 8 ranks: 2 x 4, ring and tcp_25g
  algorithm      time  steps  bytes per rank  bus GB/s   chunk  method
  chain      812.3 us     16            1 MB      1.23  64 KiB  simulated
  binomial      1.5 s      3            3 MB      0.00   whole  closed form
  double_tree: no closed form: x"""


TIMES = """\
broadcast: times (* by closed form)
  ranks  bytes      chain  binomial  double_tree
      8   1 MB  812.3 us     1.5 s*           -
      8    8 B  812.3 us     1.5 s*           -"""


def test_the_table():
    assert _simulate.text([ANSWER]) == TABLE


def test_a_title_counts_one_rank():
    cluster = {**ANSWER["cluster"], "hosts": 1, "ranks_per_host": 1}
    title = _simulate.text([{**ANSWER, "cluster": cluster, "ranks": 1}]).splitlines()[0]
    assert title == "broadcast of 1 MB, 1 rank: 1 x 1, ring"


def test_several_answers_are_a_row_each():
    assert _simulate.text([ANSWER, {**ANSWER, "bytes": 8}]) == TIMES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", [8]),
        ("100MB", [100_000_000]),
        ("8,64KiB", [8, 65536]),
        ("1.5K", [1536]),
        ("1M,1MiB,1MB", [1 << 20, 1 << 20, 1_000_000]),
        ("2g", [2 << 30]),
        ("8-200", [8, 32, 128, 200]),
    ],
)
def test_lists_of_bytes(text, expected):
    assert _arguments.sizes(text) == expected


@pytest.mark.parametrize("text", ["", "8TB", "-8", "0-8", "8-", "8 MBs", "1-2-3", "9-8"])
def test_what_is_no_list_of_bytes(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        _arguments.sizes(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1000, "1 KB"),
        (1023, "1023 B"),
        (1 << 16, "64 KiB"),
        (131071, "128 KiB"),
        (3 << 19, "1.5 MiB"),
        (100_000_000, "100 MB"),
        (262_144_000, "250 MiB"),
        (1 << 40, "1024 GiB"),
    ],
)
def test_sizes_are_written_in_powers_of_two_unless_they_are_round_in_thousands(number, text):
    assert _format.in_bytes(number) == text


def test_lists_of_hosts():
    assert _arguments.counts("64,512") == [64, 512]
    assert _arguments.counts("1-12") == [1, 2, 4, 8, 12]
    with pytest.raises(argparse.ArgumentTypeError, match="0-8"):
        _arguments.counts("0-8")


def test_questions_are_asked_for_all_bytes_and_hosts(tmp_path):
    description = tmp_path / "cluster.json"
    description.write_text("{}")
    asked = []

    def core(question: str) -> str:
        asked.append(json.loads(question))
        return json.dumps(ANSWER if asked[-1]["bytes"] < 9 else {"error": "cluster: hosts: 0"})

    answers = _simulate.ask(core, description, "broadcast", [1, 8], [0, 4], "")
    assert answers == [ANSWER] * 4
    assert [(question["hosts"], question["bytes"]) for question in asked] == [(0, 1), (0, 8), (4, 1), (4, 8)]
    assert asked[0]["cluster"] == "{}"
    with pytest.raises(RuntimeError, match=r"cluster\.json: cluster: hosts: 0"):
        _simulate.ask(core, description, "broadcast", [9], [0], "")
    with pytest.raises(RuntimeError, match="cannot be read"):
        _simulate.ask(core, tmp_path / "none.json", "broadcast", [8], [0], "")


@pytest.mark.parametrize("key", ["bytes", "ranks"])
def test_the_picture(tmp_path, key):
    answers = [ANSWER, {**ANSWER, key: 4 * ANSWER[key]}]
    points = _simulate.curves(answers, key)
    assert {name for name, _ in points} == {"chain", "binomial"}
    assert all([x for x, _ in line] == [ANSWER[key], 4 * ANSWER[key]] for line in points.values())
    picture = tmp_path / "picture.png"
    _simulate.draw(answers, picture)
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (1080, 720)  # 9 x 6 inches of 120 dots
    with pytest.raises(RuntimeError, match="cannot be written"):
        _simulate.draw(answers, tmp_path / "none" / "picture.png")


def test_the_picture_says_what_it_shows(tmp_path, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    figures = []
    savefig = figure_module.Figure.savefig
    monkeypatch.setattr(
        figure_module.Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))[1]
    )
    _simulate.draw([{**ANSWER, "bytes": 8}, {**ANSWER, "bytes": 1 << 20}], tmp_path / "picture.svg")
    (axes,) = figures[0].axes
    assert figures[0].get_suptitle() == "broadcast, 8 ranks: predicted, not measured\ntwo"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8 B", "1 MiB"]
    times = [label.get_text() for label in axes.get_yticklabels()]
    assert "1 ms" in times
    assert "1 s" in times
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["binomial", "chain"]


def test_a_picture_has_a_suffix_that_is_known(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--cluster", "x.json", "--png", "c.xyz"])
    assert "c.xyz: expected a file name that ends in .png, .svg, .pdf" in capsys.readouterr().err


def test_a_picture_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RuntimeError, match="--png needs matplotlib: pip install matplotlib"):
        _simulate.draw([ANSWER], tmp_path / "picture.png")


@pytest.mark.parametrize("cluster", sorted(CLUSTERS.glob("*.json")), ids=lambda path: path.stem)
def test_the_command_predicts_for_the_examples(cluster):
    asked = ("simulate", "--cluster", str(cluster), "--bytes", "1MB", "--hosts", "4")
    said = programs.command(*asked).said
    answer = json.loads(programs.command(*asked, "--json").said)
    assert said == _simulate.table(answer[0]) + "\n"
    times = [p["seconds"] for p in answer[0]["predictions"]]
    assert times == sorted(times)
    assert all(p["method"] == "simulated" and p["seconds"] > 0 for p in answer[0]["predictions"])


def test_the_command_says_what_is_wrong(tmp_path):
    description = tmp_path / "cluster.json"
    description.write_text('{"hosts": 2, "ranks_per_host": 4, "inside": "rong"}')
    ended = programs.command("simulate", "--cluster", str(description))
    assert ended.status == 1
    assert 'no link is called "rong"' in ended.errors
