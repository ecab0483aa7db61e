"""Where the tensors of a call must lie so that a backend can take them, and the way back.

sagecomm takes strided tensors of every device that its group serves. Others want contiguous ones. torch's gloo carries
tensors of accelerators through the host or not at all, so they are copied to the host here, for every type of device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

SAGECOMM, GLOO = "sagecomm", "gloo"


def engine(tensor: torch.Tensor, names: Mapping[str, str], call: str) -> str:
    """Returns the name of the backend that takes a tensor. `names` has one for each type of device of the group.

    Raises:
        ValueError: The group has none for it.
    """
    device = tensor.device.type
    name = GLOO if names.get("cpu") == GLOO and names.get(device, GLOO) == GLOO else names.get(device)
    if name is None:
        served = ", ".join(f"{name} for {device}" for device, name in sorted(names.items()))
        raise ValueError(f"sagecomm: {call}: the group has no backend for tensors on {device}: it has {served}")
    return name


def place(tensor: torch.Tensor, names: Mapping[str, str], call: str, contiguous: bool = False) -> torch.Tensor:
    """Returns the tensor itself, or a copy that its backend can take."""
    name = engine(tensor, names, call)
    if name == GLOO and tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if (contiguous or name != SAGECOMM) and tensor.layout is torch.strided:
        return tensor.contiguous()
    return tensor


def room(output: torch.Tensor, names: Mapping[str, str], call: str) -> torch.Tensor:
    """Returns the output itself, or a contiguous tensor for its backend to write. take_back() brings it home."""
    device = torch.device("cpu") if engine(output, names, call) == GLOO else output.device
    if output.device.type == device.type and output.is_contiguous():
        return output
    return torch.empty(output.shape, dtype=output.dtype, device=device)


def take_back(placed: torch.Tensor, home: torch.Tensor) -> torch.Tensor:
    """Copies a result to where it belongs, unless it is there, and returns that."""
    if placed is not home:
        home.detach().copy_(placed.detach())
    return home


def batches(tensors: Sequence[torch.Tensor], names: Mapping[str, str], call: str) -> list[list[torch.Tensor]]:
    """Parts tensors into those that one coalesced call takes, in order of their first tensors.

    sagecomm takes tensors of all types at once and makes one collective of each type, others take one type.
    """
    found: dict[tuple[torch.device, torch.dtype | None], list[torch.Tensor]] = {}
    for tensor in tensors:
        mixed = engine(tensor, names, call) == SAGECOMM
        found.setdefault((tensor.device, None if mixed else tensor.dtype), []).append(tensor)
    return list(found.values())
