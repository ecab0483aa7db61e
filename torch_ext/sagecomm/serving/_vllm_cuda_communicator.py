"""The communicator of vLLM's groups on CUDA, over sagecomm.

It was written against vLLM's source and has not run on a GPU (docs/vllm.md).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator

from sagecomm.serving._vllm_collectives import Collectives, all2all_manager


class SagecommCudaCommunicator(Collectives, CudaCommunicator):
    """A CudaCommunicator, which vLLM's graph capture asks for, without any of its engines.

    CudaCommunicator's own __init__ makes a communicator of NCCL and, for tensor parallelism, shared buffers of several
    kernels. This one leaves it out and sets the attributes that it would set.
    """

    def __init__(
        self,
        cpu_group: Any,
        device: torch.device | None = None,
        device_group: Any = None,
        unique_name: str = "",
        global_ranks: list[int] | None = None,
        global_world_size: int | None = None,
        tcp_store_group: Any = None,
        use_all2all: bool = False,
    ) -> None:
        DeviceCommunicatorBase.__init__(
            self, cpu_group, device, device_group, unique_name, global_ranks, global_world_size, use_all2all=use_all2all
        )
        self.use_custom_allreduce = False
        self.use_torch_symm_mem = False
        self.use_flashinfer_allreduce = False
        self.use_flashinfer_pcie_ipc_allreduce = False
        self.use_aiter_allreduce = False
        self.use_aiter_ag_rs = False
        self.pynccl_comm = None
        self.ca_comm = None
        self.qr_comm = None
        self.symm_mem_comm = None
        self.fi_ar_comm = None
        self.fi_pcie_ipc_ar_comm = None
        self.aiter_ar_comm = None
        self.all2all_manager = all2all_manager(self)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums into a new tensor: vLLM calls it from an operator whose result must not be its argument."""
        output = input_.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(output, group=self.device_group)
        return output

    def custom_all_gather(self, input_: torch.Tensor) -> torch.Tensor | None:
        """None: there is no kernel of vLLM's, and the caller takes all_gather."""
        return None

    def custom_reduce_scatter(self, input_: torch.Tensor) -> torch.Tensor | None:
        """None: there is no kernel of vLLM's, and the caller takes reduce_scatter."""
        return None

    def suspend(self) -> None:
        """Nothing to give back: the groups keep their memory."""

    def resume(self) -> None:
        """Nothing was given back."""

    def checkpoint_prepare(self) -> None:
        """Nothing to give back: the groups keep their memory."""

    def checkpoint_restore(self) -> None:
        """Nothing was given back."""
