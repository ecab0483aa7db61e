"""Starts the ranks of torch's tests: forks of a server that has imported the tests and made no group. No thread of the
core is lost in a fork, and torch's tests are imported once instead of once for each rank of each test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from torch import multiprocessing

import emulated  # before torch's tests, which count devices
import worker

from torch.testing._internal import common_distributed  # isort: skip

SERVER = multiprocessing.get_context("forkserver")

# What the names of variables begin with that torch sets for each test, after the server has started.
OF_ONE_TEST = ("INIT_METHOD", "MASTER_ADDR", "TEMP_DIR", "TORCH_NCCL_")
SIGTERM_BOUND_S = 60.0


def rank_process(target: Callable[..., None], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    environment = {each: value for each, value in os.environ.items() if each.startswith(OF_ONE_TEST)}
    return SERVER.Process(target=_rank, name=name, args=(environment, target, args, kwargs))


def _rank(
    environment: dict[str, str], target: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    os.environ.update(environment)
    if "SUITE_ENVIRONMENTS" in os.environ:
        rank = args[0]  # of MultiProcessTestCase._run
        os.environ.update(json.loads(os.environ["SUITE_ENVIRONMENTS"])[rank])
    if namespace := os.environ.get("TEST_NETWORK_NAMESPACE"):
        worker.enter(namespace)
    emulated.begin()
    target(*args, **kwargs)


class RankServer(common_distributed.MultiProcessTestCase):
    """The part of a class of torch's tests that starts and ends ranks. The server imports what preload() names."""

    @staticmethod
    def preload(module: str) -> None:
        SERVER.set_forkserver_preload([module])

    def _spawn_processes(self) -> None:
        self._start_processes(rank_process)

    def tearDown(self) -> None:
        processes = list(self.processes)
        super().tearDown()  # sends SIGTERM to those that are left
        for each in processes:
            each.join(SIGTERM_BOUND_S)
            if each.exitcode is None:
                each.kill()
                each.join()
                raise AssertionError(f"{each.name} did not end within {SIGTERM_BOUND_S:g} s of SIGTERM")
