"""create_comm_backend() in a job that runs, in one that it begins, and where it must refuse."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from programs import Programs
from sagecomm import CommBackendProtocol, TopologyManager, create_comm_backend
from sagecomm.backends import choice
from sagecomm.backends.choice import Facts, choose
from worlds import World


def groups() -> int:
    return len(c10d._world.pg_map)


def sums(backend: CommBackendProtocol) -> None:
    total = backend.all_reduce(torch.full((4,), float(backend.rank + 1)))
    assert total.eq(sum(range(1, backend.world_size + 1))).all()


def attaches() -> None:
    """A second call attaches to the same group; a backend that the job does not have gets one group, once."""
    first = create_comm_backend("sagecomm")
    second = create_comm_backend("auto", rank=dist.get_rank(), world_size=dist.get_world_size())
    assert groups() == 1
    before = dist.get_rank(), dist.get_world_size()
    gloo = create_comm_backend("gloo")
    again = create_comm_backend("gloo")
    assert groups() == 2
    assert (dist.get_rank(), dist.get_world_size()) == before
    assert [backend.name for backend in (first, second, gloo, again)] == ["sagecomm", "sagecomm", "gloo", "gloo"]
    for backend in (first, gloo, again, second):
        assert isinstance(backend, CommBackendProtocol)
        sums(backend)


def test_a_second_call_attaches(world: Callable[[int], World]) -> None:
    world(2).run(attaches)


def copied() -> None:
    """A module that has a backend, as the layers of the specification do, can be copied."""
    module = torch.nn.Linear(2, 2)
    module.comm_backend = create_comm_backend("auto")
    sums(copy.deepcopy(module).comm_backend)


def test_copies_of_a_module_have_its_backend(world: Callable[[int], World]) -> None:
    world(2).run(copied)


def with_wrappers() -> None:
    """torch's wrapper around every backend changes neither the names of backends nor what a group was asked for."""
    attaches()
    manager = TopologyManager(policy="thresholds")
    ruled = create_comm_backend("sagecomm", topology_manager=manager)
    assert create_comm_backend("auto", group=ruled.group, topology_manager=manager).group is ruled.group
    sums(ruled)


@pytest.mark.long
def test_under_torchs_debug_level_detail(fresh_world: Callable[..., World]) -> None:
    fresh_world(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(with_wrappers)


def of_a_part() -> None:
    """The backend of a group of some ranks, and of a group in another order of ranks."""
    part = dist.new_group([0, 2])
    backwards = dist.new_group([2, 1, 0], sort_ranks=False)
    assert backwards.rank() == 2 - dist.get_rank()
    gloo = dist.new_group([0, 2], backend="gloo")
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="create_comm_backend: this rank is not in the group"):
            create_comm_backend("sagecomm", group=part)
    else:
        for name, pg in ("sagecomm", part), ("gloo", gloo):
            for wanted in name, "auto":
                backend = create_comm_backend(wanted, group=pg)
                assert (backend.name, backend.rank, backend.world_size) == (name, dist.get_rank() // 2, 2)
                sums(backend)
        advice = r"call torch.distributed.new_group\(\[0, 2\], backend='gloo'\) on all ranks and pass that group"
        with pytest.raises(ValueError, match=f"of 2 ranks is no group of gloo, and another one .* {advice}"):
            create_comm_backend("gloo", group=part)
        with pytest.raises(ValueError, match=r"no group of sagecomm with 'policy=thresholds'.*pg_options=sagecomm.Opt"):
            create_comm_backend("sagecomm", group=part, topology_manager=TopologyManager(policy="thresholds"))
    for name in "sagecomm", "gloo":
        backend = create_comm_backend(name, group=backwards)
        assert backend.rank == 2 - dist.get_rank()
        sums(backend)


def test_the_group_may_be_a_part_of_the_job(world: Callable[[int], World]) -> None:
    world(3).run(of_a_part)


def two_backends() -> None:
    """A job whose devices have a backend each: the one that is asked for is there."""
    assert create_comm_backend("gloo").name == "gloo"
    assert groups() == 1
    assert create_comm_backend("sagecomm").name == "sagecomm"
    assert groups() == 2


def test_a_job_of_gloo_gets_a_group_of_sagecomm(world: Callable[[int], World]) -> None:
    world(2).run(two_backends, backend="gloo")


def after_the_end() -> None:
    """A job that has ended leaves nothing that a later call would take for its group."""
    backend = create_comm_backend("sagecomm", rank=0, world_size=1)
    gloo = create_comm_backend("gloo")
    sums(gloo)
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="a group was given, and the job is not initialised"):
        create_comm_backend("sagecomm", group=backend.group)
    backend = create_comm_backend("sagecomm", rank=0, world_size=1)
    assert create_comm_backend("gloo").group is not gloo.group
    sums(create_comm_backend("gloo"))
    sums(backend)


def test_a_job_after_the_end_of_another(world: Callable[[int], World]) -> None:
    world(1).run(after_the_end, backend=None)


def refused() -> None:
    with pytest.raises(ValueError, match="this process is part of no job: start it with torchrun, or pass rank and"):
        create_comm_backend()
    with pytest.raises(ValueError, match="rank and world_size are given together"):
        create_comm_backend("gloo", rank=0)
    with pytest.raises(ValueError, match="rank 2 of 2: expected 0 to world_size - 1"):
        create_comm_backend("gloo", rank=2, world_size=2)
    with pytest.raises(ValueError, match="this process is part of no job"):
        create_comm_backend("gloo", rank=0, world_size=2)
    assert not dist.is_initialized()
    create_comm_backend("gloo", rank=0, world_size=1)
    with pytest.raises(ValueError, match="rank 1 was given, and the job's is 0"):
        create_comm_backend("gloo", rank=1, world_size=1)
    with pytest.raises(ValueError, match="world_size 2 was given, and the job's is 1"):
        create_comm_backend("gloo", rank=0, world_size=2)


def test_refusals(world: Callable[[int], World]) -> None:
    world(1).run(refused, backend=None)


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(ValueError, match=r"unknown backend 'ncll', there are: auto, sagecomm, gloo, nccl, hccl, cncl"):
        create_comm_backend("ncll")
    with pytest.raises(ValueError, match=r"\(usable here: sagecomm, gloo"):
        create_comm_backend("mpi")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hccl", "torch_npu, which brings hccl, is not imported or not installed"),
        ("cncl", "torch_mlu, which brings cncl, is not imported or not installed"),
    ],
)
def test_a_plugin_that_is_missing_is_named(name: str, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"create_comm_backend: {name} cannot be used: {reason}"):
        create_comm_backend(name)
    assert not dist.is_initialized()


def test_nccl_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name != "nccl")
    with pytest.raises(RuntimeError, match=re.escape(f"this torch ({torch.__version__}) was built without nccl")):
        create_comm_backend("nccl")
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    with pytest.raises(RuntimeError, match="nccl needs a device of type cuda, and torch sees none"):
        create_comm_backend("nccl")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    with pytest.raises(RuntimeError, match="nccl needs a device of type cuda, and torch sees xpu"):
        create_comm_backend("nccl")


# ---- what "auto" chooses ----

GPU = Facts("a", None, "cuda", 2, "nccl")


@pytest.mark.parametrize(
    ("ranks", "chosen", "why"),
    [
        ([Facts("a", None, None, 0, None)] * 2, "sagecomm", "no rank has an accelerator"),
        ([GPU, GPU], "cpu:sagecomm,cuda:nccl", "every rank has an accelerator of type cuda, whose tensors nccl"),
        ([GPU, GPU, GPU], "sagecomm", "nccl needs an accelerator for each rank, and some ranks share one"),
        ([GPU, GPU, Facts("b", None, "cuda", 1, "nccl")], "cpu:sagecomm,cuda:nccl", "every rank has an accelerator"),
        ([GPU, Facts("b", None, None, 0, None)], "sagecomm", "the ranks do not all have accelerators of one type"),
        ([Facts("a", None, "xpu", 2, None)] * 2, "sagecomm", "do not all have accelerators of one type with a library"),
        ([Facts("a", None, "npu", 2, "hccl")] * 2, "cpu:sagecomm,npu:hccl", "whose tensors hccl carries"),
        (
            [Facts("a", None, None, 0, None), Facts("a", "not built", None, 0, None)],
            "gloo",
            "rank 1 has no sagecomm: not built",
        ),
        ([Facts("a", "not built", "cuda", 2, "nccl")] * 2, "cpu:gloo,cuda:nccl", "rank 0 has no sagecomm: not built"),
    ],
)
def test_what_auto_chooses(ranks: list[Facts], chosen: str, why: str) -> None:
    name, reason = choose(ranks)
    assert name == chosen
    assert why in reason


def test_facts_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    found = choice.facts()
    assert (found.device, found.devices, found.vendor) == ("cuda", 3, "nccl")
    monkeypatch.setattr(dist, "is_backend_available", lambda name: False)
    assert choice.facts().vendor is None


AUTO = """
    import logging
    import sagecomm
    backend = sagecomm.create_comm_backend("auto")
    again = sagecomm.create_comm_backend()
    say(backend.name, again.name, backend.rank, backend.world_size, int(again.all_reduce(torch.ones(1)).item()))
    dist.destroy_process_group()
"""


def test_the_environment_of_torchrun_is_enough() -> None:
    with Programs(AUTO, 2, {"SAGECOMM_DEBUG": "INFO"}) as ranks:
        assert ranks.lines() == ["sagecomm sagecomm 0 2 2", "sagecomm sagecomm 1 2 2"]
        ranks.end_well()
        errors = ranks.errors(0)
    assert "sagecomm: create_comm_backend: initialising sagecomm as rank 0 of 2: no rank has an accelerator" in errors
    assert re.search(r"sagecomm: create_comm_backend: attached to group \w+, which has .*sagecomm for cpu", errors)


EXPLICIT = """
    import sagecomm
    rank, size = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
    backend = sagecomm.create_comm_backend("sagecomm", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    say(backend.name, backend.rank, int(backend.all_reduce(torch.ones(1)).item()))
    dist.destroy_process_group()
"""


def test_rank_and_size_may_be_given() -> None:
    with Programs(EXPLICIT, 2) as ranks:
        assert ranks.lines() == ["sagecomm 0 2", "sagecomm 1 2"]
        ranks.end_well()
        assert "create_comm_backend" not in ranks.errors(0)


AGAIN = """
    import sagecomm
    for name in ("gloo", "sagecomm", "gloo", "auto"):
        backend = sagecomm.create_comm_backend(name)
        say(backend.name, int(backend.all_reduce(torch.ones(1)).item()))
        dist.destroy_process_group()
"""


@pytest.mark.long
def test_one_job_after_another_in_one_store() -> None:
    with Programs(AGAIN, 2) as ranks:
        for name in "gloo", "sagecomm", "gloo", "sagecomm":
            assert ranks.lines() == [f"{name} 2"] * 2
        ranks.end_well()


LONGER = """
    import sagecomm
    if os.environ["RANK"] == "0":
        sagecomm.create_comm_backend("sagecomm", rank=0, world_size=1, init_method=f"file://{os.environ['ALONE']}")
        dist.destroy_process_group()
    backend = sagecomm.create_comm_backend("auto", timeout=timedelta(seconds=30))
    say(int(backend.all_reduce(torch.ones(1)).item()))
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_process_may_have_begun_more_jobs_than_its_peer(tmp_path: Path) -> None:
    with Programs(LONGER, 2, {"ALONE": str(tmp_path / "store")}) as ranks:
        assert ranks.lines() == ["2"] * 2
        ranks.end_well()


def logged(caplog_level: int) -> list[str]:
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    log = logging.getLogger("sagecomm")
    handler = Keep()
    log.addHandler(handler)
    log.setLevel(caplog_level)
    try:
        create_comm_backend("gloo")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    return seen


def test_the_choice_is_logged_at_level_info(world: Callable[[int], World]) -> None:
    for messages in world(2).run(logged, logging.INFO):
        assert len(messages) == 1
        assert re.fullmatch(r"create_comm_backend: made group \w+ of gloo for the ranks of group \w+", messages[0])
    assert world(2).run(logged, logging.WARNING) == [[], []]
