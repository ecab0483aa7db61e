"""What torch builds on a backend beyond dist.*: functional collectives, device meshes, timeouts, states of groups."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import sagecomm


def backend(group: Any = None) -> Any:
    return (group or c10d._get_default_group())._get_backend(torch.device("cpu"))


def functional() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    t = torch.full((1000,), float(rank))
    total = funcol.all_reduce(t, "sum", group)
    assert torch.equal(total, torch.full((1000,), size * (size - 1) / 2))
    assert torch.equal(t, torch.full((1000,), float(rank))), "the input stays"
    assert torch.equal(funcol.broadcast(t, size - 1, group), torch.full((1000,), size - 1.0))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_functional_collectives(world, size):
    world(size).run(functional)


def mesh() -> tuple[float, float]:
    rank = dist.get_rank()
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    results = []
    for name in ("outer", "inner"):
        t = torch.tensor([float(rank)])
        dist.all_reduce(t, group=both.get_group(name))
        results.append(t.item())
    return results[0], results[1]


def test_device_mesh(world):
    assert world(4).run(mesh) == [(2.0, 1.0), (4.0, 1.0), (2.0, 5.0), (4.0, 5.0)]


def new_timeout() -> None:
    t = torch.ones(1)
    dist.all_reduce(t)
    backend()._set_default_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        began = time.monotonic()
        try:
            dist.recv(t, 1)
        except sagecomm.CollectiveTimeout:
            assert 1 <= time.monotonic() - began < 60, "the timeout that the group was made with counted"
            return
        raise AssertionError("a receive of nothing succeeded")
    while "SUCCESS" in str(backend().get_error()):
        time.sleep(0.01)


def test_a_later_timeout_counts(world):
    world(2).run(new_timeout)


def group_facts() -> None:
    group = c10d._get_default_group()
    assert backend().name() == "sagecomm"
    assert dist.get_backend() == "sagecomm"
    # The accelerator that this torch was built for belongs to the group as well, whether it is there or not.
    accelerator = torch.accelerator.current_accelerator()
    served = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    assert dist.get_backend_config() == ",".join(f"{device}:sagecomm" for device in served)
    assert (backend().rank(), backend().size()) == (dist.get_rank(), dist.get_world_size())
    assert "SUCCESS" in str(backend().get_error())
    assert backend().options._timeout == timedelta(seconds=60)
    ends = dist.new_group([0, 2], timeout=timedelta(seconds=70), group_desc="ends")
    if dist.get_rank() == 1:
        assert ends == dist.GroupMember.NON_GROUP_MEMBER
        dist.all_reduce(torch.ones(1), group=ends)  # torch warns and does nothing
    else:
        assert backend(ends).options._timeout == timedelta(seconds=70)
        assert ends.rank() == dist.get_rank() // 2
        t = torch.ones(1)
        dist.all_reduce(t, group=ends)
        assert t.item() == 2.0
    assert group.size() == 3


def test_what_a_group_says_about_itself(world):
    world(3).run(group_facts)


def outlives_the_profiler() -> None:
    rank = dist.get_rank()
    for _ in range(3):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            for _ in range(4):
                dist.all_reduce(torch.ones(10))
                dist.barrier()
            early = dist.all_reduce(torch.ones(100_000), async_op=True) if rank == 0 else None
        assert "sagecomm:all_reduce" in {event.name for event in profile.events()}
        del profile
        # The operation of rank 0 cannot end before this call, when the profiler is closed. The end of its range must
        # not write to the memory of the profiler, which is freed.
        (early or dist.all_reduce(torch.ones(100_000), async_op=True)).wait()


def test_an_operation_outlives_the_profiler(fresh_world):
    fresh_world(2).run(outlives_the_profiler)


def with_options_of_another_group() -> dict[str, str]:
    again = dist.new_group(pg_options=backend().options)
    dist.barrier(group=again)
    settings: dict[str, str] = backend(again).options.settings
    return settings


def test_options_of_a_group_make_another(world):
    options = sagecomm.Options(settings={"debug": "WARN"})
    assert world(2).run(with_options_of_another_group, options=options) == [{"debug": "WARN"}] * 2


def cause_after_shutdown() -> list[str]:
    native = backend()
    if dist.get_rank() == 0:
        native.abort()
    texts = []
    for end in (False, True):
        if end:
            native.shutdown()
        with pytest.raises(sagecomm.Aborted) as raised:
            dist.all_reduce(torch.ones(1))
        texts.append(f"{raised.value} {raised.value.rank}")
        assert "COMM_ERROR" in str(native.get_error())
    return texts


def test_the_cause_stays_after_shutdown(world):
    for before, after in world(2).run(cause_after_shutdown):
        assert before == after
        assert "was aborted by rank 0" in before
        assert before.endswith(" 0")


def beside_a_subinterpreter() -> str:
    try:
        import _interpreters as interpreters  # 3.13
    except ImportError:
        import _xxsubinterpreters as interpreters
    interpreters.destroy(interpreters.create())
    t = torch.ones(2)
    dist.all_reduce(t)
    dist.all_reduce(t, async_op=True).wait()
    return str(t.tolist())


def test_a_subinterpreter_in_the_process(fresh_world):
    assert fresh_world(2).run(beside_a_subinterpreter) == ["[4.0, 4.0]"] * 2
