"""vllm-ascend's platform on sagecomm. vLLM imports this module by the name that vllm.platform() returns.

vllm-ascend names "hccl" in its worker and not in its platform, and its groups' communicator has torch.distributed's
collectives only. So it is the worker that has to be another one. This was written against vllm-ascend's source and has
not run on an NPU (docs/vllm.md).
"""

from __future__ import annotations

from typing import Any

from vllm_ascend.platform import NPUPlatform

from sagecomm.serving import version_of, warn_unless_tried
from sagecomm.serving._vllm_platform import OnSagecomm

TRIED = ("0.23.0",)

_WORKERS = {"vllm_ascend.worker.worker.NPUWorker": "sagecomm.serving._vllm_ascend_worker.SagecommNPUWorker"}


class SagecommNPUPlatform(OnSagecomm, NPUPlatform):
    """vllm-ascend's own platform with workers whose groups are sagecomm's in place of HCCL's."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Does what vllm-ascend does, then takes the worker whose groups are sagecomm's."""
        warn_unless_tried("vllm-ascend", version_of("vllm-ascend"), TRIED)
        super().check_and_update_config(vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls in _WORKERS.values():
            return
        if parallel.worker_cls not in _WORKERS:
            raise ValueError(
                f"sagecomm: vllm-ascend's worker {parallel.worker_cls} names hccl by itself, and sagecomm has a "
                f"worker in place of {', '.join(_WORKERS)} only"
            )
        parallel.worker_cls = _WORKERS[parallel.worker_cls]
