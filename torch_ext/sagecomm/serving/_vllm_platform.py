"""What the platforms for vLLM share: the backend's name, and what is done about configurations that would quietly use
other collectives."""

from __future__ import annotations

import os
from typing import Any

from sagecomm.serving import NAME, VARIABLE


class OnSagecomm:
    """A mixin in front of one of vLLM's platforms."""

    dist_backend: str = NAME

    def __init_subclass__(cls) -> None:
        """Has vLLM's executor for Ray hand the variable to its workers, with what the platform hands to them."""
        super().__init_subclass__()
        cls.additional_env_vars = [*getattr(cls, "additional_env_vars", []), VARIABLE]

    additional_env_vars: list[str]

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Refuses what cannot be done, then does what vLLM's own platform does."""
        refuse(vllm_config.parallel_config)
        switch_off(vllm_config)
        super().check_and_update_config(vllm_config)  # type: ignore[misc]


def refuse(parallel_config: Any) -> None:
    """Refuses configurations of vLLM that name other backends than the platform's."""
    if os.environ.get("VLLM_DISTRIBUTED_USE_SPLIT_GROUP", "0").strip() not in ("", "0"):
        raise ValueError(
            "sagecomm: VLLM_DISTRIBUTED_USE_SPLIT_GROUP makes vLLM create its groups with gloo and nccl by name: "
            "unset it"
        )
    if getattr(parallel_config, "enable_elastic_ep", False):
        raise ValueError(
            "sagecomm: elastic expert parallelism (enable_elastic_ep) takes no communicator but vLLM's own: "
            "leave it out"
        )


def switch_off(vllm_config: Any) -> None:
    """Switches off what vLLM switches on by itself and what goes around the groups."""
    passes: Any = getattr(vllm_config.compilation_config, "pass_config", None)
    if getattr(passes, "fuse_allreduce_rms", False):
        passes.fuse_allreduce_rms = False  # FlashInfer's all_reduce with RMSNorm, on GPUs from Hopper on
    for gather in ("A2A", "Q_GATHER", "KV_GATHER"):  # decode context parallelism by kernels over NVLink
        os.environ.setdefault(f"VLLM_USE_DIRECT_DCP_{gather}", "0")
