"""SAGECOMM_* variables: forced ways to attach, forced algorithms, bad values, unknown names, differing settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import programs
import reference as ref
import sagecomm
from selection import quickly
from worlds import Pool, World


def some_of_everything() -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for count in (1, 2047, 2049, 100_003, 700_001):
        inputs = [ref.values(r, count, torch.float32) for r in range(size)]
        t = inputs[rank].clone()
        dist.all_reduce(t)
        ref.check_same(t, ref.in_rank_order("SUM", inputs), f"all_reduce of {count}")
        results.append(t.clone())
        dist.reduce(t.copy_(inputs[rank]), size - 1)
        if rank == size - 1:
            ref.check_reduced(t, "SUM", inputs, f"reduce of {count}")
        dist.broadcast(t.copy_(inputs[rank]), 0)
        ref.check_same(t, inputs[0], f"broadcast of {count}")
        out = torch.empty(size * count)
        dist.all_gather_into_tensor(out, inputs[rank])
        ref.check_same(out, torch.cat(inputs), f"all_gather of {count}")
        works = [dist.isend(inputs[rank], (rank + 1) % size), dist.irecv(t, (rank - 1) % size)]
        for work in works:
            work.wait()
        ref.check_same(t, inputs[rank - 1], f"send of {count}")
    dist.barrier()
    return ref.digest(results)


def maps_of(text: str) -> list[str]:
    return sorted(
        {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if text in line}
    )


def everything_and_maps(text: str) -> list[str]:
    some_of_everything()
    return maps_of(text)


# ---- ways to attach ----


@pytest.mark.parametrize("way", quickly(["tmpfs"], ["proc", "scm", "tmpfs", "tmpfs,proc", "scm,proc"]))
def test_every_way_to_attach_carries_everything(fresh_world, tmp_path, way):
    directory = tmp_path / "shm"
    directory.mkdir()
    ranks = fresh_world(3, {"SAGECOMM_SHM_ATTACH": way, "SAGECOMM_SHM_DIR": str(directory)})
    mapped = ranks.run(everything_and_maps, str(directory))
    assert list(directory.iterdir()) == [], "the file keeps its name after everybody has it"
    if way == "tmpfs":
        assert all(len(files) == 3 for files in mapped), f"not through the files: {mapped}"
    else:
        assert mapped == [[]] * 3, mapped
    assert ranks.run(some_of_everything)[0], "a second group"


def join(path: str, rank: int, size: int) -> str:
    store = dist.FileStore(path, size)
    dist.init_process_group("sagecomm", store=store, rank=rank, world_size=size)
    some_of_everything()
    return ""


def join_with(path: str, environments: list[dict[str, str]]) -> str:
    """init_process_group with variables of this rank's own; returns the error's type and text."""
    rank = claim(path, len(environments))
    os.environ.update(environments[rank])
    try:
        join(path, rank, len(environments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name in environments[rank]:
            del os.environ[name]
        if dist.is_initialized():
            dist.destroy_process_group()
    return ""


def claim(path: str, size: int) -> int:
    """Ranks without a process group find out which they are."""
    for rank in range(size):
        try:
            os.close(os.open(f"{path}.{rank}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return rank
    raise AssertionError("more processes than ranks")


def joined(ranks: World, tmp_path: Path, *environments: dict[str, str]) -> list[str]:
    return sorted(ranks.run(join_with, str(tmp_path / "store"), list(environments), backend=None))


def test_a_directory_that_does_not_exist_is_an_error_on_all_ranks(world, tmp_path):
    environment = {"SAGECOMM_SHM_ATTACH": "tmpfs", "SAGECOMM_SHM_DIR": str(tmp_path / "absent")}
    for text in joined(world(2), tmp_path, environment, environment):
        assert str(tmp_path / "absent") in text, text


def test_no_way_left_for_one_rank_is_one_clear_error_on_all(world, tmp_path):
    environment = {"SAGECOMM_SHM_ATTACH": "tmpfs", "SAGECOMM_SHM_DIR": str(tmp_path)}
    absent = {**environment, "SAGECOMM_SHM_DIR": str(tmp_path / "absent")}
    texts = joined(world(2), tmp_path, environment, absent)
    for text in texts:
        assert "rank 1" in text or "absent" in text, text
    assert not [f for f in tmp_path.iterdir() if f.name.startswith("sagecomm")]


def groups_until_one_fails(most: int) -> tuple[int, str]:
    """Returns how many groups fit at once, and the error of the next one.

    The groups that fit work; destroying them makes room for others.
    """
    groups: list[Any] = []
    why = ""
    while not why and len(groups) < most:
        try:
            group = dist.new_group()
            groups.append(group)
            t = torch.ones(300_000)
            dist.all_reduce(t, group=group)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t[0].item() == dist.get_world_size()
    fitted = len(groups) - 1
    for group in groups:
        dist.destroy_process_group(group)
    many_groups(3)
    return fitted, why


def many_groups(number: int) -> float:
    total = 0.0
    for _ in range(number):
        group = dist.new_group()
        t = torch.ones(300_000)
        dist.all_reduce(t, group=group)
        total += t[-1].item()
        dist.destroy_process_group(group)
    return total


def test_an_arena_that_is_too_small_is_an_error_and_no_crash(fresh_world):
    for fitted, why in fresh_world(2, {"SAGECOMM_ARENA_SIZE": "16M"}).run(groups_until_one_fails, 200):
        assert 3 < fitted < 100, (fitted, why)
        assert "SAGECOMM_ARENA_SIZE" in why, why


def test_memory_of_destroyed_groups_is_used_again(fresh_world):
    # Room for a few groups at once, not for forty.
    assert fresh_world(2, {"SAGECOMM_ARENA_SIZE": "16M"}).run(many_groups, 40) == [80.0, 80.0]


# ---- values ----


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SAGECOMM_DEBUG", "LOUD"),
        ("SAGECOMM_SHM_ATTACH", "proc,carrier-pigeon"),
        ("SAGECOMM_TIMEOUT", "soon"),
        ("SAGECOMM_ARENA_SIZE", "12"),
        ("SAGECOMM_TUNE", "all_reduce:fastest"),
        ("SAGECOMM_TUNE", "all_reduce:0-8K:one_shot;all_reduce:4K-inf:two_shot"),
        ("SAGECOMM_KERNELS", "mmx"),
        ("SAGECOMM_SHM_DIR", "relative"),
    ],
)
def test_a_bad_value_is_an_error_at_init_that_names_the_variable(world, tmp_path, name, value):
    (text,) = joined(world(1), tmp_path, {name: value})
    assert name in text, text
    assert value.split(",")[-1].split(";")[-1] in text, text


def test_a_bad_setting_is_named_as_it_was_given(world):
    ranks = world(1)
    outcome = ranks.outcomes(some_of_everything, options=sagecomm.Options(settings={"debug": "LOUD"}))[0]
    assert 'debug="LOUD"' in str(outcome.error), outcome.error
    outcome = ranks.outcomes(some_of_everything, options=sagecomm.Options(settings={"tuen": "x"}))[0]
    assert "did you mean tune" in str(outcome.error), outcome.error


def test_an_unknown_name_warns_once_with_the_nearest():
    script = (
        "import torch.distributed as dist\n"
        "for _ in range(3):\n"
        "    dist.init_process_group('sagecomm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    dist.destroy_process_group()\n"
    )
    done = programs.run(script, {"SAGECOMM_DEBGU": "INFO"})
    assert done.status == 0, done.errors
    assert done.errors.count("SAGECOMM_DEBGU") == 1, done.errors
    assert "did you mean SAGECOMM_DEBUG?" in done.errors


def test_the_command_prints_every_variable_that_the_documentation_has():
    done = programs.command("env", SAGECOMM_DEBUG="INFO")
    assert done.status == 0, done.errors
    documented = [
        line.split("`")[1]
        for line in (Path(__file__).parents[2] / "docs" / "environment.md").read_text().splitlines()
        if line.startswith("| `SAGECOMM_")
    ]
    assert len(documented) > 5
    for name in documented:
        assert f"{name}=" in done.said, done.said
    assert "* SAGECOMM_DEBUG=INFO" in done.said


@pytest.mark.long
def test_the_command_tells_a_value_that_is_refused():
    done = programs.command("env", SAGECOMM_SPIN="abc")
    assert done.status == 1, done.said
    assert "      refused: sagecomm: SAGECOMM_SPIN" in done.said, done.said


@pytest.mark.parametrize(
    ("level", "expected", "absent"),
    [
        ("WARN", [], ["sagecomm INFO", "sagecomm TRACE"]),
        (
            "INFO",
            [
                "made with 1 rank, ",
                "shared memory (own): ranks [0]",
                "all_reduce: 0-inf:local@chunk=262144 (the only one)",
                "rank 0: destroyed",
            ],
            ["sagecomm TRACE", "failed:"],
        ),
        ("TRACE", ["made with 1 rank, ", "all_reduce (float32, SUM, 3 elements)", "barrier"], []),
    ],
)
def test_what_debug_prints(level, expected, absent):
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('sagecomm', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "dist.all_reduce(torch.ones(3))\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    done = programs.run(script, {"SAGECOMM_DEBUG": level})
    assert done.status == 0, done.errors
    for text in expected:
        assert text in done.errors, done.errors
    for text in absent:
        assert text not in done.errors, done.errors
    if level == "TRACE":
        assert done.errors.count("all_reduce (float32") == 2, done.errors


def test_the_timeout_variable_wins(world, tmp_path):
    """Rank 1 never comes: the rendezvous ends by the variable's time, not by torch's 30 minutes."""
    (text,) = world(1).run(alone_of_two, str(tmp_path / "store"), backend=None)
    assert "rank 1" in text, text
    assert "CollectiveTimeout" in text, text


def alone_of_two(path: str) -> str:
    os.environ["SAGECOMM_TIMEOUT"] = "1"
    try:
        join(path, 0, 2)
    except dist.DistBackendError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        del os.environ["SAGECOMM_TIMEOUT"]
    raise AssertionError("a rendezvous without rank 1 succeeded")


# ---- algorithms and kernels ----


@pytest.fixture(scope="module", params=[2, 3, 4])
def plain(request: pytest.FixtureRequest, pool: Pool) -> tuple[int, list[str]]:
    """Returns the results that ranks of a group of this size get where nothing is forced."""
    size: int = request.param
    return size, pool.world(size).run(some_of_everything)


@pytest.mark.parametrize(
    "tune",
    quickly(
        ["all_reduce:0-1K:two_shot;all_reduce:1K-inf:one_shot"],
        [
            "all_reduce:one_shot",
            "all_reduce:two_shot",
            "all_reduce:two_shot@chunk=4K",
            "all_reduce:0-1K:two_shot;all_reduce:1K-inf:one_shot",
        ],
    ),
)
def test_forced_algorithms_give_the_same_bits(world, plain, tune):
    size, digests = plain
    assert world(size).run(some_of_everything, options=sagecomm.Options(settings={"tune": tune})) == digests


def test_different_tuning_is_an_error_on_all_ranks(world, tmp_path):
    one, other = {"SAGECOMM_TUNE": "all_reduce:one_shot"}, {"SAGECOMM_TUNE": "all_reduce:two_shot"}
    for text in joined(world(3), tmp_path, one, one, other):
        assert "ranks 0 and 2 are set up differently" in text, text
        assert "SAGECOMM_TUNE" in text, text


@pytest.mark.parametrize("kernels", ["portable", "avx2"])
def test_ranks_with_other_kernels_agree_to_the_bit(fresh_world, tmp_path, kernels):
    if kernels == "avx2" and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    # Checked against the reduction in rank order on each rank: the mixed world must give that too.
    assert joined(fresh_world(2), tmp_path, {"SAGECOMM_KERNELS": kernels}, {}) == ["", ""]
