"""vllm-ascend's worker with groups of sagecomm. A module of its own, because importing the worker loads torch_npu,
which the process that only plans must not do."""

from __future__ import annotations

import functools
from typing import Any

from vllm_ascend.worker import worker
from vllm_ascend.worker.worker import NPUWorker

from sagecomm.serving import NAME


class SagecommNPUWorker(NPUWorker):
    """Makes the world's group with sagecomm; vllm-ascend makes all other groups with the backend of that one."""

    def _init_worker_distributed_environment(self) -> None:
        initialize = worker.init_distributed_environment

        @functools.wraps(initialize)
        def on_sagecomm(world_size: int, rank: int, method: str, local_rank: int, backend: str) -> Any:
            return initialize(world_size, rank, method, local_rank, NAME)

        worker.init_distributed_environment = on_sagecomm
        try:
            super()._init_worker_distributed_environment()
        finally:
            worker.init_distributed_environment = initialize
