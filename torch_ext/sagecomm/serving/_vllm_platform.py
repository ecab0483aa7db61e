"""What the platforms for vLLM share: the backend's name, groups outside torch's registry, and configurations that would
quietly use other collectives."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from sagecomm import _registration
from sagecomm.serving import NAME


class OnSagecomm:
    """A mixin in front of one of vLLM's platforms."""

    dist_backend: str = NAME

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Refuses what cannot be done, then does what vLLM's own platform does."""
        refuse(vllm_config.parallel_config)
        super().check_and_update_config(vllm_config)  # type: ignore[misc]

    @classmethod
    def stateless_init_device_torch_dist_pg(
        cls, backend: str, prefix_store: Any, group_rank: int, group_size: int, timeout: timedelta
    ) -> Any:
        """Makes a group of sagecomm; vLLM's own for CUDA makes one of NCCL whatever the backend's name."""
        device: str = cls.device_type  # type: ignore[attr-defined]
        return stateless_group(device, prefix_store, group_rank, group_size, timeout)


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


def stateless_group(device: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Makes a group that torch.distributed does not know, as vLLM uses them for groups across engines."""
    options: Any = torch._C._distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    options.group_id = ""
    options.global_ranks_in_group = list(range(size))
    # create() looks into its caller for `backend_config`, as it does in torch's own function, to learn the devices.
    backend_config = c10d.BackendConfig(c10d.Backend(f"{device}:{NAME}"))  # noqa: F841
    backend = _registration.create(options, None)
    group = c10d.ProcessGroup(store, rank, size)
    group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.CUSTOM, backend)
    return group
