"""torch's pipeline schedules give on four ranks the results of one process; p2p in any order does not deadlock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

import transformer
from selection import quickly
from transformer import History, Transformer

RANKS = 4
PARTS = 8  # the parts of a batch


def pieces(count: int) -> list[nn.Sequential]:
    """The transformer in `count` stages: layers or halves of them."""
    whole = Transformer()
    halves = [half for layer in whole.layers for half in layer]
    size = len(halves) // count
    stages = [nn.Sequential(*halves[i * size : (i + 1) * size]) for i in range(count)]
    stages[0].insert(0, whole.embed)
    return [*stages[:-1], stages[-1].append(whole.norm).append(whole.head)]


def in_a_loop(rank: int) -> list[int]:
    return [rank, RANKS + rank]


def in_a_v(rank: int) -> list[int]:
    return [rank, 2 * RANKS - 1 - rank]


# The stages of each rank.
SCHEDULES: dict[str, tuple[Any, Callable[[int], list[int]]]] = {
    "GPipe": (ScheduleGPipe, lambda rank: [rank]),
    "1F1B": (Schedule1F1B, lambda rank: [rank]),
    "interleaved 1F1B": (ScheduleInterleaved1F1B, in_a_loop),
    "zero bubble in a V": (ScheduleZBVZeroBubble, in_a_v),
}


def train(kind: str) -> History:
    make, stages_of = SCHEDULES[kind]
    mine = stages_of(dist.get_rank())
    modules = pieces(RANKS * len(mine))
    stages = [PipelineStage(modules[i], i, len(modules), torch.device("cpu")) for i in mine]
    schedule = make(stages if len(stages) > 1 else stages[0], PARTS, transformer.loss_of)
    model = nn.ModuleList(modules[i] for i in mine)
    last = next(rank for rank in range(RANKS) if len(modules) - 1 in stages_of(rank))

    def learn(step: int) -> float:
        tokens, targets = transformer.batch(step)
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if 0 in mine else ()
        wanted = {"target": targets, "losses": losses} if len(modules) - 1 in mine else {}
        schedule.step(*inputs, **wanted)
        assert len(losses) == (PARTS if wanted else 0)
        return torch.stack(losses).mean().item() if losses else 0.0

    def clip() -> torch.Tensor:
        total = nn.utils.get_total_norm(p.grad for p in model.parameters()).square()
        dist.all_reduce(total)
        nn.utils.clip_grads_with_norm_(model.parameters(), transformer.LARGEST_NORM, total.sqrt())
        return total.sqrt()

    history = transformer.fit(model, learn, clip)
    losses = torch.tensor(history.losses)
    dist.broadcast(losses, last)
    history.losses = losses.tolist()
    return history


@pytest.mark.parametrize("kind", quickly(["1F1B"], SCHEDULES))
def test_four_ranks_train_as_one_process(world, reference, kind):
    for rank, history in enumerate(world(RANKS).run(train, kind)):
        history.check(reference, f"{kind}, rank {rank}")


# ---- p2p operations in any order ----


@dataclass(frozen=True)
class Task:
    """A stage's work on one part of a batch. It needs the output of the stage before it for the same part."""

    stage: int
    part: int
    backward: bool

    def before(self) -> Task | None:
        """The last stage begins the way back."""
        if not self.backward:
            return Task(self.stage - 1, self.part, False) if self.stage > 0 else None
        return Task(self.stage + 1, self.part, True) if self.stage < RANKS - 1 else Task(self.stage, self.part, False)

    @property
    def tag(self) -> int:
        return 2 * self.part + self.backward


def shuffled_order(rng: random.Random, parts: int) -> list[Task]:
    """One of the orders of all ranks' tasks in which each comes after the one that it needs."""
    ready = [Task(0, part, False) for part in range(parts)]
    order = []
    while ready:
        task = ready.pop(rng.randrange(len(ready)))
        order.append(task)
        if not task.backward:
            turns = task.stage == RANKS - 1
            ready.append(Task(task.stage if turns else task.stage + 1, task.part, turns))
        elif task.stage > 0:
            ready.append(Task(task.stage - 1, task.part, True))
    return order


class Shuffled:
    """One rank's part in a shuffled schedule. Beside it, a batch of p2p operations between any ranks is under way. All
    ranks draw alike who has which stage; each rank draws for itself when it receives, what it sends together and what
    it awaits."""

    def __init__(self, seed: int) -> None:
        common = random.Random(seed)
        self.ranks = common.sample(range(RANKS), RANKS)
        self.parts = common.randint(1, 6)
        self.count = common.choice((1, 100, 5_000, 60_000))
        self.me = self.ranks.index(dist.get_rank())
        self.order = [task for task in shuffled_order(common, self.parts) if task.stage == self.me]
        self.beside = [tuple(common.sample(range(RANKS), 2)) for _ in range(common.randint(0, 8))]
        self.rng = random.Random(1000 * seed + dist.get_rank())
        self.got: dict[Task, torch.Tensor] = {}
        self.works: dict[Task, Any] = {}
        self.sent: list[Any] = []
        self.outbox: list[dist.P2POp] = []

    def run(self) -> None:
        works, check = self.issue_beside()
        self.run_tasks()
        self.sent += works
        self.rng.shuffle(self.sent)
        for work in self.sent:
            work.wait()
        check()

    def issue_beside(self) -> tuple[list[Any], Callable[[], None]]:
        """P2p operations of one tag between the same two ranks match in the order in which they are posted, so each has
        a tag of its own."""
        rank, got, ops = dist.get_rank(), {}, []
        for number, (source, to) in enumerate(self.beside):
            tag = 1000 + number
            if source == rank:
                ops.append(dist.P2POp(dist.isend, torch.full((self.count,), float(number)), to, tag=tag))
            elif to == rank:
                got[number] = torch.empty(self.count)
                ops.append(dist.P2POp(dist.irecv, got[number], source, tag=tag))
        self.rng.shuffle(ops)

        def check() -> None:
            for number, tensor in got.items():
                assert tensor.eq(number).all(), f"send {number} beside: {tensor[0]} of {self.count}"

        return (dist.batch_isend_irecv(ops) if ops else []), check

    def run_tasks(self) -> None:
        awaited = [task for task in self.order if (before := task.before()) and before.stage != self.me]
        if self.rng.random() < 0.5:  # otherwise each task when its turn has come
            for task in self.rng.sample(awaited, len(awaited)):
                self.post(task)
        turned: dict[int, torch.Tensor] = {}
        for task in self.order:
            if task in awaited:
                self.flush()  # others may need it before they send what this rank waits for
                self.post(task)
                self.works[task].wait()
                value = self.got[task]
            elif task.backward:
                value = turned.pop(task.part)
            else:
                value = torch.full((self.count,), float(task.part))
            value = value + 1
            if task.stage == RANKS - 1 and not task.backward:
                turned[task.part] = value
            elif task.stage == 0 and task.backward:
                assert value.eq(task.part + 2 * RANKS).all(), f"{task}: {value[0]} of {self.count}"
            else:
                self.send(value, task)
        self.flush()

    def post(self, task: Task) -> None:
        if task not in self.works:
            before = task.before()
            assert before is not None
            self.got[task] = torch.empty(self.count)
            self.works[task] = dist.irecv(self.got[task], self.ranks[before.stage], tag=task.tag)

    def send(self, value: torch.Tensor, task: Task) -> None:
        to = self.ranks[task.stage - 1 if task.backward else task.stage + 1]
        if self.rng.random() < 0.5:
            self.outbox.append(dist.P2POp(dist.isend, value, to, tag=task.tag))
        else:
            work = dist.isend(value, to, tag=task.tag)
            if self.rng.random() < 0.8:  # otherwise nobody ever waits for it
                self.sent.append(work)

    def flush(self) -> None:
        if self.outbox:
            self.rng.shuffle(self.outbox)
            self.sent += dist.batch_isend_irecv(self.outbox)
            self.outbox = []


def run_shuffled(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            Shuffled(seed).run()
        except Exception as error:
            error.add_note(f"schedule of seed {seed}")
            raise
    dist.barrier()


def test_shuffled_schedules_do_not_deadlock(world):
    first = random.randrange(1 << 30)
    print(f"seeds {first} to {first + 49}")
    world(RANKS).run(run_shuffled, first, 50)
