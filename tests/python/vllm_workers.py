"""A worker of vLLM for vllm_engine.py. Only an environment with vLLM imports this."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker


class GlooWorker(CPUWorker):
    """Takes the way that vLLM has where its shared memory cannot be used: torch.distributed, which is gloo on CPU."""

    def init_device(self) -> None:
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda communicator: False
        super().init_device()
