"""The communicator of vLLM's groups on CPU, over sagecomm."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from sagecomm.serving._vllm_collectives import Collectives, Experts, Stages, all2all_manager


class SagecommCpuCommunicator(Collectives, Experts, Stages, DeviceCommunicatorBase):
    """Takes the place of vLLM's CpuCommunicator. Without `supports_tensor_dict`, tensors on CPU would go between
    pipeline stages over the control group."""

    supports_tensor_dict = True

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
        """Sums in place, as vLLM's communicator for CPU does. In a compiled model dist.all_reduce() would become two
        operators, of which the first is asynchronous."""
        torch.ops.sagecomm.all_reduce_(input_, self.device_group.group_name)
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenates the ranks' tensors along `dim`."""
        gathered: torch.Tensor = torch.ops.sagecomm.all_gather(input_, dim, self.device_group.group_name)
        return gathered
