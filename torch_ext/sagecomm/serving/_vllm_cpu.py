"""vLLM's CPU platform on sagecomm.

vLLM imports this module by the name that vllm.platform() returns, while vllm.platforms has no current platform yet.
Nothing of vllm.distributed may be imported here, so the communicator has a module of its own.
"""

from __future__ import annotations

from typing import Any

import vllm.platforms
from vllm.utils.import_utils import resolve_obj_by_qualname

from sagecomm.serving._vllm_platform import OnSagecomm

# CpuPlatform, or the one for AMD's Zen where its package is installed.
_Platform: Any = resolve_obj_by_qualname(vllm.platforms.cpu_platform_plugin() or "vllm.platforms.cpu.CpuPlatform")


class SagecommCpuPlatform(OnSagecomm, _Platform):
    """vLLM's own platform with groups of sagecomm in place of gloo's and of its shared-memory kernel."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The name of the communicator's class, by which vLLM imports it."""
        return "sagecomm.serving._vllm_cpu_communicator.SagecommCpuCommunicator"
