"""vLLM's CUDA platform on sagecomm.

vLLM imports this module by the name that vllm.platform() returns, while vllm.platforms has no current platform yet.
Nothing of vllm.distributed may be imported here, so the communicator has a module of its own. This was written
against vLLM's source and has not run on a GPU (docs/vllm.md).
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from vllm.platforms.cuda import CudaPlatform

from sagecomm.serving._vllm_platform import OnSagecomm


class SagecommCudaPlatform(OnSagecomm, CudaPlatform):
    """vLLM's own platform with groups of sagecomm in place of NCCL's and of vLLM's all-reduce kernels."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Does what vLLM's own platform does, and says which setting CUDA graphs need."""
        super().check_and_update_config(vllm_config)
        mode = getattr(vllm_config.compilation_config, "cudagraph_mode", None)
        graphs = mode is not None and mode.name != "NONE"
        engine = os.environ.get("SAGECOMM_ENGINE", "auto")
        if graphs and vllm_config.parallel_config.world_size > 1 and engine not in ("auto", "cuda", "nccl"):
            warnings.warn(
                f"sagecomm: vLLM is about to capture CUDA graphs, which the engine {engine} cannot be a part of: set "
                "SAGECOMM_ENGINE=nccl or cuda, or run vLLM with --enforce-eager",
                RuntimeWarning,
                stacklevel=2,
            )

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The name of the communicator's class, by which vLLM imports it."""
        return "sagecomm.serving._vllm_cuda_communicator.SagecommCudaCommunicator"

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """No: sagecomm's groups do it."""
        return False
