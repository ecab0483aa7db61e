"""Memory of operations on CUDA tensors of the emulated driver, and what a process keeps of a peer that has died
(device_memory.py has the programs). docs/devices.md has the bounds."""

from __future__ import annotations

import pytest
import torch

from cuda_bed import CudaBed
from device_bed import Schedule, lazily
from device_cuda import ARENA
from device_memory import MB
from selection import quickly

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

KICK_MS = "5"
PAGE = 4096

# Operations in flight, the bytes of each, and what they take in pinned memory at most.
FLIGHTS = {"one": (1, 64 * MB, 8 * MB), "short": (8, 12 * MB, 8 * 4 * MB), "long": (2, 64 * MB, 2 * 8 * MB)}


@pytest.mark.parametrize("case", quickly(["one"], FLIGHTS))
def test_pinned_memory_of_operations_in_flight(cuda_bed: CudaBed, case: str) -> None:
    flights, length, most = FLIGHTS[case]
    program = "device_memory:pinned_in_flight"
    taken = cuda_bed.ranks(program, 2, flights, length, EMULATOR_KICK_MS=KICK_MS)
    for first, second in taken:
        assert 0 < first <= second <= most, (first, second)
    first, second = taken[0]  # operations of the other rank may end while it issues the next ones
    assert second == first, "the second round has the blocks of the first one"


# Operations that were under way when the peer died were so together, which those before were perhaps not. Their pinned
# memory is used again. The engine cuda keeps the arena of the peer's inboxes, which stays registered, and the slots of
# both, which the peer may still use.
AT_ONCE = {"more pinned memory": 4 * MB}
KEPT: dict[str, dict[str, int]] = {
    "staged": AT_ONCE,
    "cuda": AT_ONCE
    | {
        "host memory of the dead": MB + 2 * PAGE,
        "memory of the device that others share": ARENA + PAGE,
        "memory of the device": ARENA + PAGE,
    },
}


@pytest.mark.parametrize("engine", quickly(["staged"], KEPT))
@lazily
def test_what_is_left_of_a_peer(cuda_bed: CudaBed, schedule: Schedule, engine: str) -> None:
    """No file and no memory is left beyond what is kept on purpose, and a further group works."""
    settings = {"EMULATOR_KICK_MS": KICK_MS, "SAGECOMM_ENGINE": engine, "schedule": schedule.name}
    kept = KEPT[engine]
    survivors = cuda_bed.ranks("device_memory:left_behind", 3, kept, dies=2, seed=schedule.seed, **settings)
    assert len(survivors) == 2
    for left in survivors:
        assert {what: bytes_left for what, bytes_left in left.items() if bytes_left > kept.get(what, 0)} == {}, left
