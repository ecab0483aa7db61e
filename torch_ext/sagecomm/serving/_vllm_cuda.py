"""vLLM's CUDA platform on sagecomm.

vLLM imports this module by the name that vllm.platform() returns, while vllm.platforms has no current platform yet.
Nothing of vllm.distributed may be imported here, so the communicator has a module of its own. This was written
against vLLM's source and has not run on a GPU (docs/vllm.md).
"""

from __future__ import annotations

from vllm.platforms.cuda import CudaPlatform

from sagecomm.serving._vllm_platform import OnSagecomm


class SagecommCudaPlatform(OnSagecomm, CudaPlatform):
    """vLLM's own platform with groups of sagecomm in place of NCCL's and of vLLM's all-reduce kernels."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The name of the communicator's class, by which vLLM imports it."""
        return "sagecomm.serving._vllm_cuda_communicator.SagecommCudaCommunicator"

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """No: sagecomm's groups do it."""
        return False
