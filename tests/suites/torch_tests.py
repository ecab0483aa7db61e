"""torch's own tests of a backend, `DistributedTest._DistTestBase` of the installed torch, as a class that can be run.

Torch's decorators look at names while its module is imported. So what is tested follows from variables that run.py sets
before it imports this module:

    BACKEND, WORLD_SIZE  torch's: the name that the tests are told, and how many ranks they have
    SUITE_SERVED_BY      who answers to that name: sagecomm, or torch's own backend
    SUITE_FOR_EVERY_NAME yes: tests run that torch skips because of the name alone
    SUITE_DEVICES        of fake CUDA (emulated.py); not set: the ranks have no accelerators
    SUITE_ENVIRONMENTS   of each rank, as JSON, which say on which host it is; not set: all are on one
    SUITE_PRELOAD        a library that the ranks load first: that which stands where NCCL stands
"""

from __future__ import annotations

import os
import re
import unittest
from collections.abc import Callable

import torch
import torch.distributed as dist

import rank_server  # before torch's tests

from torch.testing._internal import common_distributed, common_utils  # isort: skip

TOLD = os.environ["BACKEND"]
SERVED_BY = os.environ["SUITE_SERVED_BY"]
RANKS = int(os.environ["WORLD_SIZE"])
SMALLEST_LARGE_WORLD = 8  # where torch's tests for "small world size" begin

Test = Callable[..., None]
Decorator = Callable[[Test], Test]

# Reasons that torch gives for a skip and that say no more than that a plugin's name is not on one of its lists.
FOR_THE_NAME_ALONE = re.compile(
    r"to be one of \{.*'gloo'"
    r"|Only gloo backend supports timeouts"
    r"|Only Gloo backend supports sparse"
    r"|Only MPI supports (CPU all_to_all_single|all_to_all)$"
    r"|GLOO Batch Send Recv CPU"
    r"|get_future is only supported"
)


def _run_what_is_skipped_for_the_name() -> None:
    skip_if = common_utils.skip_but_pass_in_sandcastle_if

    def unless_for_the_name(reason: str) -> Decorator:
        return skip_if(not FOR_THE_NAME_ALONE.search(reason), reason)

    def if_not_for_the_name(condition: object, reason: str) -> Decorator:
        return skip_if(bool(condition) and not FOR_THE_NAME_ALONE.search(reason), reason)

    common_utils.skip_but_pass_in_sandcastle = unless_for_the_name
    common_utils.skip_but_pass_in_sandcastle_if = if_not_for_the_name
    for users in common_distributed.DistTestCases.backend_feature.values():
        users.add(TOLD)


def _skip_before_ranks_start() -> None:
    """Torch finds out in the ranks that there are no accelerators or too few ranks, which is half of the time."""
    if not torch.accelerator.is_available():
        no_device = unittest.skip("needs accelerators")
        common_distributed.skip_if_no_gpu = no_device
        common_distributed.skip_if_lt_x_gpu = lambda _, *, allow_cpu=False: (lambda f: f) if allow_cpu else no_device
    if RANKS < SMALLEST_LARGE_WORLD:
        common_distributed.skip_if_small_worldsize = unittest.skip(f"needs {SMALLEST_LARGE_WORLD} ranks")


if SERVED_BY == "sagecomm":
    import sagecomm._registration

if os.environ["SUITE_FOR_EVERY_NAME"] == "yes":
    _run_what_is_skipped_for_the_name()
if SERVED_BY != TOLD:
    dist.Backend._plugins[TOLD.upper()] = dist.Backend._plugins[SERVED_BY.upper()]
    sagecomm._registration.NAME = TOLD  # by which it finds the devices that a group serves
    # Torch's DDP logger casts the backend of a group of type GLOO to ProcessGroupGloo and reads its options.
    dist.Backend.backend_type_map[TOLD] = dist.ProcessGroup.BackendType.CUSTOM
_skip_before_ranks_start()

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TorchTests(rank_server.RankServer, TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


CASES = [TorchTests]
rank_server.RankServer.preload(__name__)
del TestDistBackend  # a loader would take it for a class of tests
