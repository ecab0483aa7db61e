"""The communicator of vLLM's groups on CPU, over sagecomm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from sagecomm.serving._vllm_collectives import Collectives, Experts, all2all_manager


class SagecommCpuCommunicator(Collectives, Experts, DeviceCommunicatorBase):
    """Takes the place of vLLM's CpuCommunicator. Dictionaries of tensors between pipeline stages go the way that vLLM
    has for all groups, so `supports_tensor_dict` is false."""

    supports_tensor_dict = False

    def __init__(
        self,
        cpu_group: Any,
        device: torch.device | None = None,
        device_group: Any = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        DeviceCommunicatorBase.__init__(self, cpu_group, device, device_group, unique_name, use_all2all=use_all2all)
        self.all2all_manager = all2all_manager(self)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums in place, as vLLM's communicator for CPU does."""
        dist.all_reduce(input_, group=self.device_group)
        return input_
