"""Devices of the emulated driver that fail behind the issue of an operation (device_faults.py has the programs)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_faults import BREAKS

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")

# The kernel runs when a wait asks for its stream, and not before: by then the operation is issued.
SETTINGS: dict[str, Any] = {"EMULATOR_KICK_MS": "1000", "EMULATOR_POLLS": "1"}
WAITS = {
    "waits": {"EMULATOR_FAULTS": BREAKS},
    "blocks": {"EMULATOR_FAULTS": BREAKS, "SAGECOMM_BLOCKING_WAIT": "on"},
    "no waits": {"EMULATOR_FAULTS": f"cuStreamWaitValue32@1+=not_supported;{BREAKS}"},
}
# In which of them the call waits on the host.
CASES = [
    ("waits", "barrier"),
    ("waits", "wait"),
    ("waits", "recv with a tag"),
    ("waits", "recv from any source"),
    ("waits", "end"),
    ("blocks", "all_reduce"),
    ("no waits", "all_reduce"),
    ("no waits", "barrier"),
    ("no waits", "recv with a tag"),
]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("streams", "call"), CASES)
def test_a_device_that_fails(cuda_bed: CudaBed, streams: str, call: str, ranks: int) -> None:
    cuda_bed.ranks("device_faults:a_device_fails", 2, call, ranks, **SETTINGS, **WAITS[streams])


MEMORY: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "EMULATOR_FAULTS": BREAKS}
layouts = pytest.mark.parametrize("strided", [False, True], ids=["block", "rows"])


@pytest.mark.parametrize("how", ["death", "timeout"])
@layouts
def test_a_failure_behind_a_fault(cuda_bed: CudaBed, how: str, strided: bool) -> None:
    dies = 1 if how == "death" else None
    cuda_bed.ranks("device_faults:fails_behind_a_fault", 2, how, strided, dies=dies, **MEMORY)


@layouts
def test_another_group_behind_a_fault(cuda_bed: CudaBed, strided: bool) -> None:
    settings = {**MEMORY, "EMULATOR_KICK_MS": "3000"}  # the device breaks when the operation is issued
    cuda_bed.ranks("device_faults:other_group_goes_on", 2, strided, **settings)
