"""Devices of the emulated driver that fail behind the issue of an operation (device_faults.py has the programs)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_bed import CudaBed
from device_faults import BREAKS
from selection import quickly

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


@pytest.mark.parametrize(("streams", "call"), CASES)
def test_a_device_that_fails(cuda_bed: CudaBed, streams: str, call: str) -> None:
    cuda_bed.ranks("device_faults:a_device_fails", 2, call, 1, **SETTINGS, **WAITS[streams])


def test_an_error_of_torch_has_one_line(cuda_bed: CudaBed) -> None:
    """torch's text of an error has a second one, which tells where to search for it."""
    for text in cuda_bed.ranks("device_faults:an_event_fails", 2):
        assert "CUDA error: invalid argument" in text
        assert "\n" not in text


@pytest.mark.parametrize("case", quickly([("waits", "wait")], CASES), ids=" ".join)
def test_devices_of_all_ranks_fail(cuda_bed: CudaBed, case: tuple[str, str]) -> None:
    streams, call = case
    cuda_bed.ranks("device_faults:a_device_fails", 2, call, 2, **SETTINGS, **WAITS[streams])


MEMORY: dict[str, Any] = {"EMULATOR_KICK_MS": "5", "EMULATOR_FAULTS": BREAKS}
FAILURES = [(how, layout) for how in ("death", "timeout") for layout in ("block", "rows")]


@pytest.mark.parametrize("case", quickly([("death", "block"), ("timeout", "rows")], FAILURES), ids=" ".join)
def test_a_failure_behind_a_fault(cuda_bed: CudaBed, case: tuple[str, str]) -> None:
    how, layout = case
    dies = 1 if how == "death" else None
    cuda_bed.ranks("device_faults:fails_behind_a_fault", 2, how, layout == "rows", dies=dies, **MEMORY)


@pytest.mark.parametrize("layout", quickly(["block"], ["block", "rows"]))
def test_another_group_behind_a_fault(cuda_bed: CudaBed, layout: str) -> None:
    cuda_bed.ranks("device_faults:other_group_goes_on", 2, layout == "rows", **MEMORY)
