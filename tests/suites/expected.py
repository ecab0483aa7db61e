"""Tests of torch that do not pass on sagecomm.

The list may only shrink: run.py fails on an entry that passes or is not run, and on more than MOST entries.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 5


@dataclass(frozen=True)
class Difference:
    configurations: frozenset[str]  # of run.py, in which the test fails
    reason: str


OWN_NAME = frozenset({"own", "eight"})
EVERY_NAME = OWN_NAME | {"masquerade", "eight_masquerade"}
BRANCHES = "the test makes its model in branches for the names gloo, nccl and mpi, and uses it after them"

DIFFERENCES = {
    "test_ddp_logging_data_cpu": Difference(
        EVERY_NAME, "the test expects DDP to log the backend's name; torch logs every plugin's as 'custom'"
    ),
    "test_accumulate_gradients_no_sync": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_allreduce_hook": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_grad_is_view": Difference(OWN_NAME, BRANCHES),
}
