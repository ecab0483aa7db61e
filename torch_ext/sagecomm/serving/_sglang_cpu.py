"""SGLang's CPU platform on sagecomm. SGLang imports this module by the name that sglang.platform() returns."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuSRTPlatform

from sagecomm.serving import NAME


class SagecommCpuSRTPlatform(CpuSRTPlatform):
    """SGLang's own platform with groups of sagecomm in place of gloo's."""

    def get_torch_distributed_backend_str(self) -> str:
        """The backend of the world's group, and so of all device groups."""
        return NAME
