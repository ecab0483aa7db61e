"""LMDeploy's PyTorch engine on sagecomm.

LMDeploy asks the class of its device's operators for the name of the backend (`ccl_backend`) and for a communicator
(`build_communicator`), and no setting changes the answers. Its workers are processes of their own. So the hook waits in
every process for the import of the module that chooses the class, and changes the class once it is chosen: `import
torch` calls watch() where SAGECOMM_SERVING=on. TurboMind, LMDeploy's other engine, has its collectives in C++
(docs/lmdeploy.md).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sagecomm.serving import NAME, VARIABLE, version_of, warn_unless_tried

# The version whose source this was written against. docs/lmdeploy.md says what ran.
TRIED = ("0.18.0",)

SELECTOR = "lmdeploy.pytorch.backends.selector"
_MARK = "_on_sagecomm"


def watch() -> None:
    """Installs the hook, when LMDeploy chooses its operators for the first time. Safe to call again."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if SELECTOR in sys.modules:
        install(sys.modules[SELECTOR])


def install(selector: ModuleType) -> None:
    """Makes LMDeploy's selector return classes that name sagecomm."""
    choose: Callable[[], Any] | None = getattr(selector, "_get_backend", None)
    if getattr(choose, _MARK, False):
        return
    found = version_of("lmdeploy")
    if choose is None:
        raise RuntimeError(
            f"sagecomm: {VARIABLE}=on, but LMDeploy {found} has no _get_backend in {SELECTOR}: install lmdeploy "
            f"{TRIED[-1]}, or unset {VARIABLE}"
        )
    warn_unless_tried("LMDeploy", found, TRIED, stacklevel=2)

    def chosen() -> Any:
        backend = choose()
        put_on_sagecomm(backend)
        return backend

    setattr(chosen, _MARK, True)
    selector._get_backend = chosen  # type: ignore[attr-defined]


def put_on_sagecomm(backend: Any) -> None:
    """Changes one class of operators: its groups are sagecomm's, and so is its communicator."""
    if _MARK in vars(backend):
        return
    setattr(backend, _MARK, True)
    backend.ccl_backend = staticmethod(lambda: NAME)
    if hasattr(backend, "build_communicator"):
        backend.build_communicator = staticmethod(build_communicator)


def build_communicator(cpu_group: Any, device_group: Any, dist_config: Any) -> Any:
    """Builds LMDeploy's communicator over the group alone: those for CUDA bring all-reduce kernels of their own."""
    from lmdeploy.pytorch import envs
    from lmdeploy.pytorch.backends.communicator import build_communicator as over_the_group

    for kernel in ("flashinfer", "symm_mem"):
        if getattr(envs, f"enable_{kernel}_allreduce", False):
            warnings.warn(
                f"sagecomm: LMDeploy's all_reduce of {kernel} is switched on and is not used, because {VARIABLE}=on: "
                "unset one of them",
                RuntimeWarning,
                stacklevel=2,
            )
    if getattr(envs, "enable_symm_mem_lmhead", False):
        warnings.warn(
            "sagecomm: LMDEPLOY_ENABLE_SYMM_MEM_LMHEAD is switched on, and gathers logits by symmetric memory and not "
            "by sagecomm: unset it",
            RuntimeWarning,
            stacklevel=2,
        )
    return over_the_group(cpu_group=cpu_group, device_group=device_group, dist_config=dist_config)


class _Finder(MetaPathFinder):
    """Finds the selector as Python would, and has install() called whenever it was executed, by a reload too."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SELECTOR:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                _install_behind(spec)
                return spec
        return None


def _install_behind(spec: ModuleSpec) -> None:
    loader = spec.loader
    if loader is None:
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        install(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
