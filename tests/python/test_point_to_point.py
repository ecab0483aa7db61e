"""send, recv and what stands on them: posted order decides, per peer and tag; nothing waits behind a collective."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import reference as ref
from selection import quickly

# Lengths in bytes: eager, around the limit between eager and rendezvous, and much longer than a fifo.
LENGTHS = (0, 1, 100, 4096, 8192, 8193, 65536, 65537, 262_147, 1 << 20, (5 << 20) + 13)
DEADLINE_S = 60.0
BIG = 400_000  # float32 elements: goes by rendezvous


def backend() -> Any:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


def ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    for number, length in enumerate(LENGTHS):
        for dtype in (torch.uint8, torch.float64):
            count = ref.elements(length, dtype)
            mine, want = ref.values(rank, count, dtype), ref.values(source, count, dtype)
            layout = ref.LAYOUTS[number % len(ref.LAYOUTS)]
            what = f"{count} {ref.name(dtype)}, {layout}"
            out, into = ref.place(mine, layout), ref.place(torch.zeros_like(mine), layout)
            works = [dist.isend(out.tensor, to), dist.irecv(into.tensor, source)]
            if number % 2:
                works.reverse()
            for work in works:
                work.wait()
            ref.check_same(into.tensor, want, what)
            into.check_surroundings(what)
            out.check_surroundings(what)
            # The same with blocking calls: even ranks send first.
            into = ref.place(torch.zeros_like(mine), layout)
            if rank % 2 == 0:
                dist.send(out.tensor, to)
            assert dist.recv(into.tensor, source) == source
            if rank % 2:
                dist.send(out.tensor, to)
            ref.check_same(into.tensor, want, f"blocking, {what}")


@pytest.mark.parametrize("size", quickly([3], [2, 3, 4, 8]))
def test_ring_of_every_length(world, size):
    world(size).run(ring)


def every_type() -> None:
    rank = dist.get_rank()
    for dtype in ref.EVERY_TYPE:
        for count in (1, 100_003):
            want = ref.values(0, count, dtype)
            if rank == 0:
                dist.send(want, 1)
            else:
                t = torch.empty_like(want)
                dist.recv(t, 0)
                ref.check_same(t, want, f"{count} {dtype}")


def test_every_type(world):
    world(2).run(every_type)


def crossed_tags(count: int) -> None:
    """Sends of different tags can be received in the opposite order of sending."""
    tags = (5, 0, 2_000_000_000, 7)
    if dist.get_rank() == 0:
        works = [dist.isend(torch.full((count,), float(tag)), 1, tag=tag) for tag in tags]
    else:
        inputs = {tag: torch.empty(count) for tag in tags}
        works = [dist.irecv(inputs[tag], 0, tag=tag) for tag in reversed(tags)]
    for work in works:
        work.wait()
    if dist.get_rank() == 1:
        for tag, t in inputs.items():
            assert torch.equal(t, torch.full((count,), float(tag))), tag


@pytest.mark.parametrize("count", [1, 1000, BIG])
def test_tags_crossed(world, count):
    world(2).run(crossed_tags, count)


def blocking_crossed_tags(count: int) -> None:
    """A blocking receive of the later send must not need a receive of the earlier one."""
    if dist.get_rank() == 0:
        first = dist.isend(torch.full((count,), 1.0), 1, tag=1)
        dist.isend(torch.full((count,), 2.0), 1, tag=2).wait()
        first.wait()
    else:
        for tag in (2, 1):
            t = torch.empty(count)
            dist.recv(t, 0, tag=tag)
            assert torch.equal(t, torch.full((count,), float(tag)))


@pytest.mark.parametrize("count", [1, 1000])
def test_tags_crossed_blocking(world, count):
    world(2).run(blocking_crossed_tags, count)


def posted_order(seed: int) -> None:
    """Many sends of one tag in flight, lengths mixed so that eager and rendezvous alternate."""
    rng = random.Random(seed)
    counts = [rng.choice([1, 10, 2000, 30_000]) for _ in range(120)]
    tensors = [torch.full((n,), float(i)) for i, n in enumerate(counts)]
    if dist.get_rank() == 0:
        works = [dist.isend(t, 1) for t in tensors]
        for work in works:
            work.wait()
        return
    early = 60 if rng.random() < 0.5 else 0  # posted before the sends, or after
    got = [torch.empty_like(t) for t in tensors]
    works = [dist.irecv(t, 0) for t in got[:early]]
    works += [dist.irecv(t, 0) for t in got[early:]]
    rng.shuffle(works)
    for work in works:
        work.wait()
    for number, (t, want) in enumerate(zip(got, tensors, strict=True)):
        assert torch.equal(t, want), f"seed {seed}: recv {number} holds {t[0].item()}"


def test_posted_order_decides(world):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    world(2).run(posted_order, seed)


def any_source(count: int) -> list[int]:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        for number in range(5):
            dist.send(torch.full((count,), rank * 100.0 + number), 0, tag=3)
        return []
    sources = []
    seen = dict.fromkeys(range(1, size), 0)
    for _ in range(5 * (size - 1)):
        t = torch.empty(count)
        source = dist.recv(t, tag=3)
        assert torch.equal(t, torch.full((count,), source * 100.0 + seen[source])), (source, t[0].item())
        seen[source] += 1
        sources.append(source)
    return sorted(sources)


@pytest.mark.parametrize("count", [1, 3000, 100_000])
@pytest.mark.parametrize("size", [2, 4])
def test_any_source(world, size, count):
    assert world(size).run(any_source, count)[0] == sorted(list(range(1, size)) * 5)


def any_source_beside_named() -> None:
    """A receive from anybody that was posted first takes the first send; one with a name waits for its own."""
    rank = dist.get_rank()
    if rank == 0:
        anybody, named = torch.zeros(1), torch.zeros(1)
        first = dist.irecv(anybody)
        second = dist.irecv(named, 1)
        dist.barrier()
        first.wait()
        second.wait()
        assert (anybody.item(), named.item()) == (10.0, 11.0)
        assert first._source_rank() == 1
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.tensor([10.0]), 0)
            dist.send(torch.tensor([11.0]), 0)


@pytest.mark.smoke
def test_any_source_competes_by_posted_order(world):
    world(3).run(any_source_beside_named)


def to_oneself() -> None:
    rank = dist.get_rank()
    for count in (0, 10, BIG):
        t, got = ref.values(rank, count, torch.float32), torch.zeros(count)
        sent, received = backend().send([t], rank, 4), backend().recv([got], rank, 4)
        received.wait()
        sent.wait()
        ref.check_same(got, t, f"{count} elements")
        received, sent = backend().recv([got.zero_()], rank, 4), backend().send([t], rank, 4)
        sent.wait()
        received.wait()
        ref.check_same(got, t, f"{count} elements, receive first")


@pytest.mark.parametrize("size", [1, 2])
def test_a_send_to_oneself(world, size):
    world(size).run(to_oneself)


def beside_a_collective(count: int) -> None:
    """Rank 1 joins the collective only after it has received what rank 0 sends behind its own call."""
    t = torch.ones(count)
    if dist.get_rank() == 0:
        work = dist.all_reduce(t, async_op=True)
        dist.send(torch.full((count,), 7.0), 1)
    else:
        got = torch.empty(count)
        dist.recv(got, 0)
        assert torch.equal(got, torch.full((count,), 7.0))
        work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert torch.equal(t, torch.full((count,), 2.0))


@pytest.mark.parametrize("count", [4, BIG])
def test_nothing_waits_behind_a_collective(world, count):
    world(2).run(beside_a_collective, count)


def batches() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    for count in (1, 5000, BIG):
        mine = [torch.full((count,), rank * 10.0 + i) for i in range(2)]
        got = [torch.empty(count) for _ in range(2)]
        # Receives first on every rank: the order between directions must not matter.
        ops = [dist.P2POp(dist.irecv, t, source) for t in got] + [dist.P2POp(dist.isend, t, to) for t in mine]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert [t[-1].item() for t in got] == [source * 10.0, source * 10.0 + 1]
        everyone = [r for r in range(size) if r != rank]
        all_got = {r: torch.empty(count) for r in everyone}
        ops = [dist.P2POp(dist.isend, mine[0], r) for r in everyone]
        ops += [dist.P2POp(dist.irecv, t, r) for r, t in all_got.items()]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert all(torch.equal(t, torch.full((count,), r * 10.0)) for r, t in all_got.items())


@pytest.mark.smoke
@pytest.mark.parametrize("size", [2, 3, 4])
def test_batch_isend_irecv(world, size):
    world(size).run(batches)


def batches_by_name() -> None:
    """Calls the backend as torch_npu's own dist.batch_isend_irecv() does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for count in (1, BIG):
        mine = [torch.full((count,), rank * 10.0 + i) for i in range(2)]
        got = [torch.empty(count) for _ in range(2)]
        kinds, peers = ["irecv", "isend", "irecv", "isend"], [source, to, source, to]
        backend.batch_isend_irecv(kinds, [got[0], mine[0], got[1], mine[1]], peers).wait()
        assert [t[-1].item() for t in got] == [source * 10.0, source * 10.0 + 1]
    t = torch.ones(1)
    for wrong, reason in (
        ((["send"], [t], [to]), 'knows isend and irecv, got "send"'),
        ((["isend"], [t, t], [to, to]), "batch_isend_irecv"),
        ((["isend"], [t], [size]), "batch_isend_irecv"),
        (([], [], []), "batch_isend_irecv"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=reason):
            backend.batch_isend_irecv(*wrong)
    batches()  # no window of the batches before is still open


@pytest.mark.smoke
@pytest.mark.parametrize("size", [2, 3])
def test_batch_isend_irecv_by_name(world, size):
    world(size).run(batches_by_name)


def received_beside_computation() -> None:
    """Small and large sends arrive although no thread waits on either side."""
    for count in (1, 5000, BIG):
        for number in range(5):
            if dist.get_rank() == 0:
                work = dist.isend(torch.full((count,), float(number)), 1)
            else:
                t = torch.empty(count)
                work = dist.irecv(t, 0)
            give_up = time.monotonic() + DEADLINE_S
            while not work.is_completed():
                torch.ones(1000).sum()
                assert time.monotonic() < give_up, f"{count} elements, recv {number}"
            if dist.get_rank() == 1:
                assert torch.equal(t, torch.full((count,), float(number)))
            # As dist.recv() does, after which a short receive is expected to be waited for at once.
            if dist.get_rank() == 0:
                dist.send(torch.ones(1), 1)
            else:
                dist.recv(torch.ones(1), 0)


def test_what_nobody_waits_for_arrives(world):
    world(2).run(received_beside_computation)


def all_pairs(count: int, seed: int) -> None:
    """Everything in flight at once, in both directions, waited for in any order or only by being dropped."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rng = random.Random(seed + rank)
    others = [r for r in range(size) if r != rank]
    got = {(r, k): torch.empty(count) for r in others for k in range(2)}
    posts = [("send", r, k) for r in others for k in range(2)] + [("recv", r, k) for r in others for k in range(2)]
    rng.shuffle(posts)
    works = []
    for what, r, k in posts:
        if what == "send":
            work = dist.isend(torch.full((count,), rank * 100.0 + r + k * 0.5), r, tag=k)
        else:
            work = dist.irecv(got[r, k], r, tag=k)
        if what == "recv" or rng.random() < 0.5:
            works.append(work)
    rng.shuffle(works)
    for work in works:
        work.wait()
    for (r, k), t in got.items():
        assert torch.equal(t, torch.full((count,), r * 100.0 + rank + k * 0.5)), (r, k)
    dist.barrier()


@pytest.mark.parametrize("count", [1, BIG])
def test_all_pairs_at_once(world, count):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    world(8).run(all_pairs, count, seed)


def in_a_subgroup() -> None:
    """send and recv of a subgroup take global ranks, not group ranks."""
    rank = dist.get_rank()
    group = dist.new_group([1, 3])
    if rank == 3:
        dist.send(torch.tensor([30.0]), 1, group=group)
        dist.send(torch.tensor([31.0]), group_dst=0, group=group)
    elif rank == 1:
        t = torch.zeros(1)
        assert dist.recv(t, group=group) == 3
        assert t.item() == 30.0
        assert dist.recv(t, 3, group=group) == 3
        assert t.item() == 31.0
    dist.barrier()


def test_ranks_in_a_subgroup(world):
    world(4).run(in_a_subgroup)


# ---- objects ----


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (10_000 * rank), "tensor": torch.arange(rank + 1)}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    for r, each in enumerate(gathered):
        assert (each["rank"], len(each["text"]), each["tensor"].tolist()) == (r, 10_000 * r, list(range(r + 1)))
    for root in range(size):
        sent = [mine, None, [1, {2}]] if rank == root else [None] * 3
        dist.broadcast_object_list(sent, root)
        assert sent[0]["rank"] == root
        assert sent[1:] == [None, [1, {2}]]
    if size > 1:
        if rank == 0:
            dist.send_object_list(["hello", 42], 1)
        elif rank == 1:
            received: list[Any] = [None, None]
            dist.recv_object_list(received, 0)
            assert received == ["hello", 42]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_objects(world, size):
    world(size).run(objects)
