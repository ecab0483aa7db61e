"""sagecomm.explain and python -m sagecomm explain: which algorithm carries a collective out, and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import programs
import sagecomm
from sagecomm import _explain
from sagecomm.__main__ import main

ANSWER = {
    "op": "all_reduce",
    "bytes": 1048576,
    "ranks": 4,
    "hosts": 2,
    "parameters": {"network.latency": 2.5e-05, "network.step": 3e-06, "network.byte": 3.2e-10},
    "table": "all_reduce: 0-8192:one_shot@chunk=8192 (predicted), 8192-46528:ring (predicted), "
    "46528-inf:ring@chunk=1048576 (predicted)",
    "candidates": [
        {
            "algorithm": "ring",
            "transport": "channels",
            "chunk": 131072,
            "seconds": 147.9e-6,
            "steps": 24,
            "bytes": 1572864,
            "chosen": True,
            "forced": False,
            "why": "predicted",
        },
        {
            "algorithm": "one_shot",
            "transport": "slots",
            "chunk": 131072,
            "seconds": 333.6e-6,
            "steps": 16,
            "bytes": 3145728,
            "chosen": False,
            "forced": False,
            "why": "2.26 times as long as ring",
        },
    ],
}
TABLE = """\
all_reduce of 1 MiB, 4 ranks on 2 hosts
     algorithm      time  steps    bytes    chunk  over      why
  *  ring       147.9 us     24  1.5 MiB  128 KiB  channels  predicted
     one_shot   333.6 us     16    3 MiB  128 KiB  slots     2.26 times as long as ring

* is chosen, over
  slots     each rank publishes chunks in shared memory, where the others read them
  channels  messages between pairs of ranks
What is chosen for which lengths, in bytes (K and M are powers of 1024):
all_reduce: 0-8K:one_shot@chunk=8K (predicted), 8K-46528:ring (predicted), 46528-inf:ring@chunk=1M (predicted)
Between hosts a message is taken to cost: latency 25 us, step 3 us, 320 ps a byte; not measured"""


ENGINES = {
    "engine": "staged",
    "engines": [
        {"engine": "nccl", "chosen": False, "forced": False, "why": "rank 1 does not offer it: no libnccl.so.2"},
        {
            "engine": "staged",
            "chosen": True,
            "forced": False,
            "why": "the most preferred of those that all ranks offer",
        },
    ],
}
ENGINE_TABLE = """
Which engine carries out operations on tensors of devices:
     nccl    rank 1 does not offer it: no libnccl.so.2
  *  staged  the most preferred of those that all ranks offer"""


LINKS = [
    {"class": "NVLink", "nvlinks": 18, "pairs": 28, "latency": 1.9e-6, "gb_per_s": 370.8},
    {"class": "network", "pairs": 64, "latency": 25e-6, "gb_per_s": 3.125},
]
LINK_TABLE = """
Links between the devices, where each rank uses the GPU of its LOCAL_RANK; times and rates are expectations:
  class        pairs  latency   GB/s
  NVLink x 18     28   1.9 us  370.8
  network         64    25 us  3.125"""


CHOICES = {
    "engine": "cuda",
    "device_candidates": [
        {"algorithm": "two_shot", "seconds": 31e-6, "chunk": 2 << 20, "chosen": True, "why": "predicted"},
        {"algorithm": "one_shot", "seconds": 62e-6, "chunk": 1 << 20, "chosen": False, "why": "2.00 times as long as"},
    ],
    "device_table": "all_reduce: 0-524288:one_shot@chunk=2097152, 524288-inf:two_shot@chunk=2097152",
}
CHOICE_TABLE = """
What the engine cuda chooses, through slots in the memory of the devices:
     algorithm   time  chunk  why
  *  two_shot   31 us  2 MiB  predicted
     one_shot   62 us  1 MiB  2.00 times as long as
all_reduce: 0-512K:one_shot@chunk=2M, 512K-inf:two_shot@chunk=2M"""


def test_the_table_for_people():
    assert _explain.text({**ANSWER, **ENGINES, **CHOICES, "device_links": LINKS}) == (
        TABLE + ENGINE_TABLE + CHOICE_TABLE + LINK_TABLE
    )
    assert _explain.text(ANSWER) == TABLE
    assert _explain.text({**ANSWER, **ENGINES, "device_links": LINKS}) == TABLE + ENGINE_TABLE + LINK_TABLE
    assert _explain.text({**ANSWER, **ENGINES}) == TABLE + ENGINE_TABLE
    why = {"carrier": "staged", "carrier_why": "hccl does not carry out p2p operations: they go through host memory"}
    assert _explain.text({**ANSWER, **ENGINES, **why, "op": "send", "candidates": []}) == (
        "send of 1 MiB, 4 ranks on 2 hosts\n"
        + TABLE.splitlines()[-1]
        + ENGINE_TABLE
        + f"\nThis operation is carried out by staged: {why['carrier_why']}"
    )


@pytest.mark.long
def test_the_command_explains_the_engine():
    answer = json.loads(programs.command("explain", "all_reduce", "8", "--device", "--json").said)
    assert answer["engine"] == "staged"
    assert [e["engine"] for e in answer["engines"] if e["chosen"]] == ["staged"]
    assert "  *  staged" in programs.command("explain", "--device").said
    assert "staged" not in programs.command("explain").said
    p2p = json.loads(programs.command("explain", "send", "8", "--device", "--dtype", "int16", "--json").said)
    assert (p2p["carrier"], p2p["candidates"]) == ("staged", [])
    assert "is chosen, over" not in programs.command("explain", "send", "--device").said


ENGINE = """
    try:
        dist.init_process_group("sagecomm", timeout=timedelta(seconds=60))
        say("made")
        dist.destroy_process_group()
    except RuntimeError as error:
        say(error)
"""


def test_an_engine_that_is_set_and_not_offered_is_refused_by_every_rank():
    with programs.Programs(ENGINE, 2, {"SAGECOMM_ENGINE": "cncl"}) as ranks:
        for rank in range(2):
            said = ranks.line(rank)
            assert "SAGECOMM_ENGINE=cncl, but no rank offers it: " in said
            assert "; without it: rank 0 (host " in said
            assert ranks.ends(rank) == 0


def test_the_choice_of_the_engine_is_logged_once(tmp_path):
    log = tmp_path / "log"
    settings = {"SAGECOMM_DEBUG": "INFO", "SAGECOMM_DEBUG_FILE": str(log), "SAGECOMM_ENGINE": "staged"}
    with programs.Programs(ENGINE, 2, settings) as ranks:
        assert [ranks.line(rank) for rank in range(2)] == ["made", "made"]
        assert [ranks.ends(rank) for rank in range(2)] == [0, 0]
    assert log.read_text().count("engine of operations on devices: staged (set by SAGECOMM_ENGINE; not nccl: ") == 1


def explanations() -> tuple[dict, dict, str]:
    ring = dist.new_group(pg_options=sagecomm.Options(settings={"tune": "all_reduce:ring"}))
    dist.all_reduce(torch.ones(4), group=ring)
    with pytest.raises(RuntimeError, match='"send" is no collective'):
        sagecomm.explain("send", 8)
    with pytest.raises(RuntimeError, match="AVG is not defined for bool"):
        sagecomm.explain("all_reduce", 8, device=True, dtype=torch.bool, reduction="AVG")
    with pytest.raises(RuntimeError, match='"MEAN" is no reduction: there are SUM, AVG, '):
        sagecomm.explain("all_reduce", 8, device=True, reduction="MEAN")
    with pytest.raises(RuntimeError, match='"complex32" is no type: there are int8, '):
        sagecomm.explain("all_reduce", 8, device=True, dtype=torch.complex32)
    with pytest.raises(RuntimeError, match="broadcast has no reduction"):
        sagecomm.explain("broadcast", 8, device=True, reduction="SUM")
    with pytest.raises(ValueError, match="gloo"):
        sagecomm.explain("all_reduce", 8, dist.new_group(backend="gloo"))
    used = sagecomm.get_stats(ring)["rows"][0]["algorithm"]
    return sagecomm.explain("all_reduce", 8), sagecomm.explain("all_reduce", 8, ring), used


def test_explanations_of_groups(world):
    for default, forced, used in world(2).run(explanations):
        (chosen,) = (c for c in default["candidates"] if c["chosen"])
        assert not chosen["forced"]
        assert len(default["candidates"]) > 4
        (chosen,) = (c for c in forced["candidates"] if c["chosen"])
        assert chosen["forced"]
        assert chosen["algorithm"] == used == "ring"
        assert chosen["transport"] == "channels"
        assert "all_reduce:ring" in chosen["why"]
        assert forced["ranks"] == 2


@pytest.mark.long
def test_it_says_what_is_fused():
    limits = "all_reduces of up to 16384 bytes share collectives of up to 131072 bytes or 64 operations"
    on = programs.command("explain", "all_reduce", "8", "--ranks", "4", SAGECOMM_FUSION="static", SAGECOMM_PROBE="off")
    assert on.said.splitlines()[-1] == f"SAGECOMM_FUSION: {limits}"
    assert "FUSION" not in programs.command("explain", "all_reduce", "8", "--ranks", "4").said
    assert "FUSION" not in programs.command("explain", "barrier", "--ranks", "4", SAGECOMM_FUSION="static").said


def test_the_command_explains():
    asked = ("explain", "--op", "broadcast", "--bytes", "64KiB", "--ranks", "8", "--hosts", "2", "--tune")
    answer = json.loads(programs.command(*asked, "broadcast:hierarchical", "--json").said)
    (chosen,) = (c for c in answer["candidates"] if c["chosen"])
    assert chosen["algorithm"] == "hierarchical"
    assert answer["bytes"] == 65536
    assert programs.command(*asked, "broadcast:hierarchical").said == _explain.text(answer) + "\n"
    positional = programs.command("explain", "broadcast", "64K", *asked[5:], "broadcast:hierarchical", "--json")
    assert json.loads(positional.said) == answer
    between = programs.command("explain", "broadcast", *asked[5:], "broadcast:hierarchical", "64K", "--json")
    assert json.loads(between.said) == answer
    wrong = programs.command(*asked, "broadcast:fastest")
    assert wrong.status == 1
    assert "fastest" in wrong.errors
    assert wrong.errors.count("sagecomm: ") == 1


def test_a_title_counts_one_rank():
    title = programs.command("explain", "all_reduce", "8", "--ranks", "1").said.splitlines()[0]
    assert title == "all_reduce of 8 B, 1 rank"


def test_an_unknown_collective_is_answered_with_those_that_there_are(capsys):
    for asked in (("--op", "allreduce"), ("allreduce",)):
        with pytest.raises(SystemExit):
            main(["explain", *asked])
        said = capsys.readouterr().err
        assert "did you mean all_reduce?" in said
        assert "reduce_scatter" in said


def test_arguments_that_mean_nothing_are_refused(capsys):
    assert main(["explain", "barrier", "1M"]) == 1
    assert "a barrier has no length" in capsys.readouterr().err
    for number in ("0", "-1", "99999999999999999999", "two"):
        with pytest.raises(SystemExit):
            main(["explain", f"--ranks={number}"])
        assert f"{number!r}: expected a whole number from 1 to 2147483647" in capsys.readouterr().err


@pytest.mark.long
def test_a_reader_that_ends_early_ends_the_command():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sagecomm", "env"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=programs.DEADLINE_S)
    os.close(write)
    assert ended.returncode == 128 + signal.SIGPIPE
    assert ended.stderr == ""
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=programs.DEADLINE_S)
    assert ended.returncode == 1
    assert ended.stderr == "sagecomm: [Errno 28] No space left on device\n"


@pytest.mark.long
def test_it_shows_what_messages_between_hosts_cost():
    asked = ("explain", "all_reduce", "64K", "--ranks", "4", "--hosts", "2", "--tune", "network.latency=7us")
    answer = json.loads(programs.command(*asked, "--json").said)
    assert answer["parameters"]["network.latency"] == pytest.approx(7e-6)
    assert "probed_links" not in answer  # the group is only described
    used = "Between hosts a message is taken to cost: latency 7 us, step 3 us, 320 ps a byte"
    assert f"{used}; not measured" in programs.command(*asked).said.splitlines()
    probed = {"latency": 6.5e-6, "step": 2e-6, "byte": 1.5e-10, "pairs": 3, "measured": 2}
    costs = "latency 6.5 us, step 2 us, 150 ps a byte"
    for measured, said in {
        2: f"Measured, the highest of 2 of 3 pairs of hosts: {costs}; the others count with the defaults",
        3: f"Measured, the highest of 3 of 3 pairs of hosts: {costs}",
    }.items():
        lines = _explain.text(answer | {"probed_links": probed | {"measured": measured}}).splitlines()
        assert lines[lines.index(used) + 1] == said
    nothing = {"probed_links": {"pairs": 3, "measured": 0}}
    assert f"{used}; not measured" in _explain.text(answer | nothing).splitlines()
    known = "; of 1 pair of hosts only the latency is known"
    nothing["probed_links"]["latency_known"] = 1
    assert f"{used}; not measured{known}" in _explain.text(answer | nothing).splitlines()
    for measured, rest in {1: "; the others count with the defaults", 2: ""}.items():
        of = {"probed_links": probed | {"measured": measured, "latency_known": 1}}
        said = f"Measured, the highest of {measured} of 3 pairs of hosts: {costs}{known}{rest}"
        assert said in _explain.text(answer | of).splitlines()
    assert "Between hosts" not in programs.command("explain", "all_reduce", "--ranks", "4").said
