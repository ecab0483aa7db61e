"""The entry points of SGLang's CPU engine: a platform whose backend is sagecomm, and a hook that keeps all_reduce from
SGLang's own kernel over shared memory.

On other devices SGLang's groups bring kernels of their own, so the way in is the library with NCCL's interface
(docs/vllm.md, SGLang).
"""

from __future__ import annotations

import os
from typing import Any

from sagecomm.serving import VARIABLE, requested, version_of, warn_unless_tried

# The version whose platforms and hooks this was written against. docs/vllm.md says what ran.
TRIED = ("0.5.23",)

_KERNEL = "sglang.srt.distributed.parallel_state.is_shm_available"


def platform() -> str | None:
    """Returns the name of the platform class, None if SGLang is to go on as it is."""
    if not requested():
        return None
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") != "1":
        raise RuntimeError(
            f"sagecomm: {VARIABLE}=on, and sagecomm has a platform for SGLang's CPU engine only "
            "(SGLANG_USE_CPU_ENGINE=1): SGLang goes on with its own collectives; for a GPU, "
            "`python -m sagecomm nccl-path` names a library to take NCCL's place"
        )
    warn_unless_tried("SGLang", version_of("sglang"), TRIED)
    return "sagecomm.serving._sglang_cpu.SagecommCpuSRTPlatform"


def hooks() -> None:
    """A general plugin, which SGLang calls early in every process."""
    if not requested() or os.environ.get("SGLANG_USE_CPU_ENGINE", "0") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_KERNEL, no_kernel, HookType.REPLACE)


def no_kernel(*types_and_sizes: Any, **more: Any) -> bool:
    """Whether SGLang's kernel over shared memory shall be used: no, the group does it."""
    return False
