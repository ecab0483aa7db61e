"""What the stages of a pipeline send each other: activations forwards, gradients backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sagecomm.parallel._manager import ProcessGroupManager


@dataclass(frozen=True)
class PipelineStage:
    """The place of this rank in a pipeline whose stages exchange tensors of one shape and type.

        stage = PipelineStage(manager, shape=(micro_batch, length, width), dtype=torch.float32)
        x = stage.recv_forward()          # None on the first stage
        y = layers(x if x is not None else embed(tokens))
        stage.send_forward(y)             # nothing happens on the last stage

    Receiving returns a tensor that requires grad if it is an activation, so `x.grad` is what send_backward() takes.
    Each stage must call the counterpart of what its neighbours call, in the same order. The combined calls send and
    receive at once; a schedule in which two neighbours both send first (one forward, one backward, as in 1F1B) needs
    them, because a send may wait for its receive.

    Attributes:
        manager: Its `pp_group` is the pipeline.
        shape: Of the activations.
        dtype: Of activations and gradients.
        device: On which tensors are received; torch's default if None.
    """

    manager: ProcessGroupManager
    shape: Sequence[int]
    dtype: torch.dtype = torch.float32
    device: torch.device | str | None = None

    @property
    def is_first(self) -> bool:
        """Report whether this is the first stage."""
        return self.manager.pp_is_first_stage

    @property
    def is_last(self) -> bool:
        """Report whether this is the last stage."""
        return self.manager.pp_is_last_stage

    def recv_forward(self) -> torch.Tensor | None:
        """Returns the activation of the previous stage; None on the first stage."""
        return self._exchange(None, None, self.manager.pp_prev_rank, activation=True)

    def send_forward(self, activation: torch.Tensor) -> None:
        """Sends an activation to the next stage, and returns when it may be changed."""
        self._exchange(activation, self.manager.pp_next_rank, None)

    def recv_backward(self) -> torch.Tensor | None:
        """Returns the gradient of the activation that was sent; None on the last stage."""
        return self._exchange(None, None, self.manager.pp_next_rank)

    def send_backward(self, gradient: torch.Tensor | None) -> None:
        """Sends the gradient of the activation that was received to the previous stage. On the first stage, which
        received none, it is ignored."""
        self._exchange(gradient, self.manager.pp_prev_rank, None)

    def send_forward_recv_backward(self, activation: torch.Tensor) -> torch.Tensor | None:
        """Sends an activation to the next stage and receives a gradient from it; None on the last stage."""
        return self._exchange(activation, self.manager.pp_next_rank, self.manager.pp_next_rank)

    def send_backward_recv_forward(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Sends a gradient to the previous stage and receives the next activation from it; None on the first stage."""
        return self._exchange(gradient, self.manager.pp_prev_rank, self.manager.pp_prev_rank, activation=True)

    def _exchange(
        self, tensor: torch.Tensor | None, to: int | None, source: int | None, activation: bool = False
    ) -> torch.Tensor | None:
        batch, arriving = [], None
        if to is not None:
            batch.append(dist.P2POp(dist.isend, self._checked(tensor), to, self.manager.pp_group))
        if source is not None:
            arriving = torch.empty(tuple(self.shape), dtype=self.dtype, device=self.device)
            batch.append(dist.P2POp(dist.irecv, arriving, source, self.manager.pp_group))
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()
        if arriving is not None and activation and (self.dtype.is_floating_point or self.dtype.is_complex):
            arriving.requires_grad_()
        return arriving

    def _checked(self, tensor: torch.Tensor | None) -> torch.Tensor:
        """A neighbour receives what was agreed, so a tensor of another shape or type is refused here, by name."""
        if tensor is None:
            raise ValueError("sagecomm: PipelineStage: there is no gradient to send: was backward() called?")
        if tuple(tensor.shape) != tuple(self.shape) or tensor.dtype != self.dtype:
            raise ValueError(
                f"sagecomm: PipelineStage: stages exchange {tuple(self.shape)} of {self.dtype}, but this tensor has "
                f"{tuple(tensor.shape)} of {tensor.dtype}"
            )
        return tensor.detach().contiguous()
