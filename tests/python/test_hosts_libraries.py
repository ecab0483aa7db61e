"""Operations of tensors of `npu` and `mlu` that the emulated libraries of Huawei and Cambricon carry out between hosts,
and that fail: a rank dies or does not call. The others raise that, and their processes end by themselves, also where
the library cannot end what waits for the peer."""

from __future__ import annotations

import time

import pytest

from device_bed import EMULATOR, build_bound, built
from programs import Programs
from promises import kept
from test_device_tensors import KICK_MS
from test_vendor_devices import LIBRARIES, OF_COLLECTIVES
from worlds import on_hosts

pytestmark = build_bound

Shape = tuple[int, ...]
TWO, FOUR = (1, 1), (2, 2)  # ranks of each host
DEATH_S = 3.0  # until a death is an error on all ranks
END_S = 10.0  # until the processes have ended behind it: a communicator may be ended in the background for 7 s

# A rank says when it has called an operation, and what becomes of that. The last one does not call.
A_RANK = """
import ctypes
sys.path.insert(0, {emulator!r})
import build
ctypes.CDLL(str(build.OUTPUT / "libemulator.so"), mode=ctypes.RTLD_GLOBAL)
import simdev
for library in {libraries!r}:
    ctypes.CDLL(str(build.OUTPUT / library))
rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
torch.accelerator.set_device_index(rank)
dist.init_process_group("sagecomm", timeout=timedelta(minutes=1))
x = torch.ones(5, device={name!r})
dist.all_reduce(x)
torch.accelerator.synchronize()
import sagecomm
say(sagecomm.explain("all_reduce", 20, device=True)["engine"])
seconds = hear()
if rank != last:
    dist.distributed_c10d._get_default_group()._get_backend(x.device)._set_default_timeout(
        timedelta(seconds=int(seconds)))
    work = dist.all_reduce(x, async_op=True)
    say("called")
    try:
        work.wait(timedelta(minutes=1))
    except dist.DistBackendError as error:
        say(type(error).__name__, str(error))
    try:
        dist.all_reduce(x)
    except dist.DistBackendError as error:
        say(type(error).__name__, str(error))
"""


def vendor_programs(name: str, shape: Shape) -> Programs:
    built()
    settings = {
        "SIMDEV_NAME": name,
        "SIMDEV_LAUNCH_QUEUE": "1",
        "SAGECOMM_ENGINE": OF_COLLECTIVES[name],
        "EMULATOR_DEVICES": str(sum(shape)),
        "EMULATOR_HOST_CLOCKS": "shared",
        "EMULATOR_KICK_MS": KICK_MS,
    }
    script = A_RANK.format(emulator=str(EMULATOR), libraries=LIBRARIES[name], name=name)
    return Programs(script, sum(shape), on_hosts(*shape, **settings))


def called_by_all_but_one(ranks: Programs, name: str, timeout_s: int) -> range:
    """Returns the ranks that wait for the last one."""
    waiting = range(len(ranks.processes) - 1)
    assert set(ranks.lines()) == {OF_COLLECTIVES[name]}
    for rank in waiting:
        ranks.tell(rank, str(timeout_s))
    for rank in waiting:
        assert ranks.line(rank) == "called"
    return waiting


@pytest.mark.long
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("shape", [TWO, FOUR], ids=str)
def test_a_death_with_a_library(name: str, shape: Shape) -> None:
    with vendor_programs(name, shape) as ranks:
        waiting = called_by_all_but_one(ranks, name, 60)
        killed_at, dead = ranks.kill(len(waiting)), f"Connection closed by peer: rank {len(waiting)} ("
        for rank in waiting:
            texts = [ranks.line(rank) for _ in range(2)]
            kept(time.monotonic() - killed_at, DEATH_S, f"PeerFailure on rank {rank}")
            assert all(text.startswith("PeerFailure ") and dead in text for text in texts), texts
        for rank in waiting:
            assert ranks.ends(rank) == 0, ranks.errors(rank)
        kept(time.monotonic() - killed_at, END_S, "the end of the processes")


@pytest.mark.long
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("shape", [TWO, FOUR], ids=str)
def test_a_timeout_with_a_library(name: str, shape: Shape) -> None:
    with vendor_programs(name, shape) as ranks:
        waiting = called_by_all_but_one(ranks, name, 1)
        for rank in waiting:
            texts = [ranks.line(rank) for _ in range(2)]
            assert all(t.startswith("CollectiveTimeout ") and f"rank {len(waiting)} (" in t for t in texts), texts
        ended_at = time.monotonic()
        ranks.tell(len(waiting))
        ranks.end_well()
        kept(time.monotonic() - ended_at, END_S, "the end of the processes")
