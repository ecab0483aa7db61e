"""Compares the classes for vLLM with the vLLM that is installed, without a GPU, for vllm_trials.py: what they override
exists there with the same arguments, and nothing of a CudaCommunicator without pynccl is left to vLLM."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from types import ModuleType
from typing import Any


def parameters(member: Any) -> list[tuple[str, Any]]:
    function = getattr(member, "__func__", member)
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


def overridden(ours: type, theirs: type, mixins: tuple[type, ...]) -> dict[str, str]:
    """What is wrong with each member that stands in front of one of vLLM's, or that vLLM does not have at all."""
    wrong = {}
    for source in (ours, *mixins):
        for name, member in vars(source).items():
            if name.startswith("_") and name != "__init__":
                continue
            if not callable(getattr(member, "__func__", member)):
                continue
            if not hasattr(theirs, name):
                wrong[name] = f"{theirs.__name__} has none"
            elif name != "__init__" and parameters(member) != parameters(getattr(theirs, name)):
                wrong[name] = f"{parameters(member)} stands in for {parameters(getattr(theirs, name))}"
    return wrong


def attributes(function: Any) -> set[str]:
    """Attributes of self that a function's source sets."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.add(target.attr)
    return found


def problems() -> list[str]:
    # vLLM's build for CPU has the sources for CUDA and not what is compiled for it.
    for compiled in ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch"):
        sys.modules.setdefault(compiled, ModuleType(compiled))
    # The order of vLLM itself: the platform first, then what needs it.
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform
    from vllm.platforms.cuda import CudaPlatform

    assert current_platform is not None
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator

    from sagecomm.serving._vllm_collectives import Collectives, Experts, Stages
    from sagecomm.serving._vllm_cpu import SagecommCpuPlatform
    from sagecomm.serving._vllm_cpu_communicator import SagecommCpuCommunicator
    from sagecomm.serving._vllm_cuda import SagecommCudaPlatform
    from sagecomm.serving._vllm_cuda_communicator import SagecommCudaCommunicator
    from sagecomm.serving._vllm_platform import OnSagecomm

    found = []
    for ours, theirs, mixins in (
        (SagecommCpuPlatform, CpuPlatform, (OnSagecomm,)),
        (SagecommCudaPlatform, CudaPlatform, (OnSagecomm,)),
        (SagecommCpuCommunicator, CpuCommunicator, (Collectives, Experts, Stages)),
        (SagecommCudaCommunicator, CudaCommunicator, (Collectives,)),
    ):
        found += [f"{ours.__name__}.{name}: {text}" for name, text in overridden(ours, theirs, mixins).items()]
    for ours, theirs in ((SagecommCpuCommunicator, CpuCommunicator), (SagecommCudaCommunicator, CudaCommunicator)):
        if parameters(ours.__init__) != parameters(theirs.__init__):
            found.append(f"{ours.__name__}.__init__: {parameters(ours.__init__)}, not {parameters(theirs.__init__)}")
    for name in ("all_gatherv", "reduce_scatterv", "batch_isend_irecv"):
        if getattr(SagecommCpuCommunicator, name) is getattr(DeviceCommunicatorBase, name):
            found.append(f"SagecommCpuCommunicator.{name} is vLLM's and raises NotImplementedError")
    missing = attributes(CudaCommunicator.__init__) - attributes(SagecommCudaCommunicator.__init__)
    found += [f"SagecommCudaCommunicator does not set {name}" for name in sorted(missing)]
    for name, member in vars(CudaCommunicator).items():
        # Helpers of overridden methods are not called; destroy() asks whether there is a pynccl.
        if name.startswith("_") or name == "destroy" or not inspect.isfunction(member):
            continue
        if "pynccl_comm" in inspect.getsource(member) and getattr(SagecommCudaCommunicator, name) is member:
            found.append(f"SagecommCudaCommunicator.{name} is vLLM's and uses pynccl")
    return found


if __name__ == "__main__":
    import json

    print("ANSWER", json.dumps({"problems": problems()}), flush=True)
