"""The collectives of a vLLM communicator over its device group, which is sagecomm's.

vLLM's DeviceCommunicatorBase has the even collectives and raises for the uneven ones. Its communicator for CUDA calls
pynccl; without pynccl its reduce_scatter returns memory that nothing has written, reduce_scatterv and all_gatherv fail
an assertion, broadcast and batch_isend_irecv raise. So a communicator of ours takes all of them from here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Collectives:
    """A mixin in front of one of vLLM's communicators, whose attributes it uses."""

    device_group: Any
    device: torch.device
    world_size: int
    rank_in_group: int
    ranks: list[int]

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenates the ranks' tensors along `dim`."""
        if dim < 0:
            dim += input_.dim()
        size = input_.size()
        output = input_.new_empty((self.world_size * size[0], *size[1:]))
        dist.all_gather_into_tensor(output, input_.contiguous(), group=self.device_group)
        if dim == 0:
            return output
        output = output.reshape((self.world_size, *size)).movedim(0, dim)
        return output.reshape((*size[:dim], self.world_size * size[dim], *size[dim + 1 :]))

    def all_gatherv(
        self, input_: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: list[int] | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Concatenates the ranks' tensors, of sizes[rank] rows each, along dimension 0; a list, one by one."""
        if dim != 0:
            raise NotImplementedError(f"sagecomm: all_gatherv: dim must be 0, got {dim}")
        if not isinstance(input_, torch.Tensor):
            return [self._all_gatherv(each, sizes) for each in input_]
        return self._all_gatherv(input_, sizes)

    def _all_gatherv(self, input_: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
        if sizes is not None:
            self._check_sizes("all_gatherv", sizes, input_.shape[0], sizes[self.rank_in_group])
        if sizes is None or _even(sizes):
            return self.all_gather(input_, 0)
        output = input_.new_empty((sum(sizes), *input_.shape[1:]))
        dist.all_gather(list(torch.split(output, sizes)), input_.contiguous(), group=self.device_group)
        return output

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Sums the ranks' tensors and returns this rank's part of equal size along `dim`."""
        return self.reduce_scatterv(input_, dim, None)

    def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None) -> torch.Tensor:
        """Sums the ranks' tensors and returns this rank's part of sizes[rank] along `dim`."""
        rows = input_.movedim(dim, 0).contiguous()
        mine = rows.shape[0] // self.world_size if sizes is None else sizes[self.rank_in_group]
        output = rows.new_empty((mine, *rows.shape[1:]))
        self._reduce_scatter(output, rows, sizes)
        return output.movedim(0, dim).contiguous()

    def reduce_scatterv_into_output(
        self, input_: torch.Tensor, output: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """reduce_scatterv into a tensor of the caller's."""
        output.copy_(self.reduce_scatterv(input_, dim, sizes))
        return output

    def _reduce_scatter(self, output: torch.Tensor, rows: torch.Tensor, sizes: list[int] | None) -> None:
        if sizes is not None:
            self._check_sizes("reduce_scatterv", sizes, rows.shape[0], sum(sizes))
        if sizes is None and rows.shape[0] % self.world_size:
            raise ValueError(
                f"sagecomm: reduce_scatter: {rows.shape[0]} rows do not divide evenly among {self.world_size} ranks"
            )
        if sizes is None or _even(sizes):
            dist.reduce_scatter_tensor(output, rows, group=self.device_group)
        else:
            dist.reduce_scatter(output, list(torch.split(rows, sizes)), group=self.device_group)

    def _check_sizes(self, op: str, sizes: list[int], got: int, expected: int) -> None:
        if len(sizes) != self.world_size or got != expected:
            raise ValueError(
                f"sagecomm: {op}: sizes {sizes} in a group of {self.world_size} ask for {expected} rows of rank "
                f"{self.rank_in_group}, which has {got}"
            )

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """Concatenates the ranks' tensors along `dim` on the rank `dst` of the group."""
        parts = None
        if self.rank_in_group == dst:
            parts = [torch.empty_like(input_, memory_format=torch.contiguous_format) for _ in range(self.world_size)]
        dist.gather(input_.contiguous(), parts, dst=self.ranks[dst], group=self.device_group)
        return None if parts is None else torch.cat(parts, dim=dim)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Broadcasts in place from the rank `src` of the group."""
        if self.world_size > 1:
            dist.broadcast(tensor, self.ranks[src], group=self.device_group)
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Sends to a rank of the group, the next one by default."""
        peer = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        dist.send(tensor, self.ranks[peer], self.device_group)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Receives from a rank of the group, the one before by default."""
        peer = (self.rank_in_group - 1) % self.world_size if src is None else src
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        dist.recv(tensor, self.ranks[peer], self.device_group)
        return tensor

    def batch_isend_irecv(self, p2p_ops: list[Any]) -> None:
        """Carries out sends and receives that may wait for each other. Their peers are ranks of the group."""
        ops = [dist.P2POp(op.op, op.tensor, group=self.device_group, group_peer=op.group_peer) for op in p2p_ops]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()

    def get_symmetric_memory_buffer(
        self, role: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor | None:
        """None: there is no symmetric memory, and the caller takes an ordinary tensor."""
        return None


def _even(sizes: list[int]) -> bool:
    return all(size == sizes[0] for size in sizes)


class Stages:
    """A mixin for the dictionaries that pipeline stages send each other."""

    device_group: Any
    device: torch.device
    ranks: list[int]

    def send_tensor_dict(self, tensor_dict: dict[str, torch.Tensor | Any], dst: int) -> None:
        """Sends a dictionary to a rank of the group: what its tensors are like and all other values first."""
        tensors = {key: value for key, value in tensor_dict.items() if isinstance(value, torch.Tensor)}
        like = {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
        others = {key: value for key, value in tensor_dict.items() if key not in tensors}
        told = [(list(tensor_dict), like, others)]
        dist.send_object_list(told, self.ranks[dst], self.device_group, self.device)
        for tensor in tensors.values():
            dist.send(tensor.contiguous(), self.ranks[dst], self.device_group)

    def recv_tensor_dict(self, src: int) -> dict[str, torch.Tensor | Any]:
        """Receives what send_tensor_dict() of a rank of the group has sent."""
        told: list[Any] = [None]
        dist.recv_object_list(told, self.ranks[src], self.device_group, self.device)
        keys, like, others = told[0]
        received = {}
        for key, (dtype, shape) in like.items():
            received[key] = torch.empty(shape, dtype=dtype, device=self.device)
            dist.recv(received[key], self.ranks[src], self.device_group)
        return {key: received[key] if key in like else others[key] for key in keys}


class Experts:
    """A mixin that hands the calls of expert parallelism to the manager, as vLLM's communicators do."""

    all2all_manager: Any

    def dispatch_router_logits(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """Gathers the tokens of all ranks."""
        return self.all2all_manager.dispatch_router_logits(
            hidden_states, router_logits, is_sequence_parallel, extra_tensors
        )

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """Gathers the tokens of all ranks with the experts chosen for them."""
        return self.all2all_manager.dispatch(
            hidden_states, topk_weights, topk_ids, is_sequence_parallel, extra_tensors=extra_tensors
        )

    def combine(self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False) -> Any:
        """Sums what the ranks' experts made of the tokens and returns this rank's tokens."""
        return self.all2all_manager.combine(hidden_states, is_sequence_parallel)


def all2all_manager(communicator: Any) -> Any:
    """Returns the manager of expert parallelism for a communicator, None if its group needs none.

    Only the manager over all_gatherv and reduce_scatterv goes through the communicator; the others bring their own
    kernels.
    """
    if not communicator.use_all2all:
        return None
    backend = communicator.all2all_backend
    if backend not in ("naive", "allgather_reducescatter"):
        raise ValueError(
            f"sagecomm: the all2all backend {backend} of vLLM brings collectives of its own: choose "
            "allgather_reducescatter"
        )
    from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager

    return AgRsAll2AllManager(communicator.cpu_group)
