"""Serving engines on sagecomm without an edit of the engine: vLLM, its Ascend plugin, LMDeploy, SGLang.

Nothing here is on unless it is asked for: by SAGECOMM_SERVING=on, and for vLLM also by naming the plugin in
VLLM_PLUGINS. docs/vllm.md and docs/lmdeploy.md say what is replaced, what is not, and what ran on which hardware.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "SAGECOMM_SERVING"
NAME = "sagecomm"


def requested() -> bool:
    """Returns whether the environment asks for serving engines on sagecomm.

    Raises:
        ValueError: The variable has another value than `on` or `off`. An engine would go on without sagecomm.
    """
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value not in ("", "off", "on"):
        raise ValueError(f"sagecomm: {VARIABLE}={value}: one of off, on is accepted")
    return value == "on"


def warn_unless_tried(engine: str, found: str | None, tried: Sequence[str], stacklevel: int = 3) -> None:
    """Warns if the engine's version is not one of those that this package was written against.

    The engines' interfaces change between releases. Another version may work; nothing here has seen it.
    """
    import warnings

    if found in tried:
        return
    known = " and ".join(tried)
    warnings.warn(
        f"sagecomm: this is {engine} {found or 'of an unknown version'}, and the plugin was written against {known}: "
        f"compare one answer with the engine's own collectives before you rely on it, or install {engine} {tried[-1]}",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


def version_of(*packages: str) -> str | None:
    """Returns the version of the first of these distributions that is installed, without its local part (+cpu)."""
    from importlib.metadata import PackageNotFoundError, version

    for package in packages:
        try:
            return version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None
