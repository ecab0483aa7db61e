"""vLLM's CPU platform on sagecomm. vLLM imports this module by the name that vllm.platform() returns."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import vllm.platforms
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.utils.import_utils import resolve_obj_by_qualname

from sagecomm.serving._vllm_collectives import Collectives, Experts, all2all_manager
from sagecomm.serving._vllm_platform import OnSagecomm

# CpuPlatform, or the one for AMD's Zen where its package is installed.
_Platform = resolve_obj_by_qualname(vllm.platforms.cpu_platform_plugin() or "vllm.platforms.cpu.CpuPlatform")


class SagecommCpuPlatform(OnSagecomm, _Platform):
    """vLLM's own platform with groups of sagecomm in place of gloo's and of its shared-memory kernel."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The name of the communicator's class, by which vLLM imports it."""
        return f"{__name__}.SagecommCpuCommunicator"


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
        DeviceCommunicatorBase.__init__(
            self, cpu_group, device, device_group, unique_name, use_all2all=use_all2all
        )
        self.all2all_manager = all2all_manager(self)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums in place, as vLLM's communicator for CPU does."""
        dist.all_reduce(input_, group=self.device_group)
        return input_
