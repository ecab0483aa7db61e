"""LMDeploy's PyTorch engine on sagecomm.

LMDeploy asks the class of its device's operators for the name of the backend (`ccl_backend`) and for a communicator
(`build_communicator`), and no setting changes the answers. Its workers are processes of their own. So the hook waits in
every process for the import of the module that chooses the class, and changes the class once it is chosen: `import
torch` calls watch() where SAGECOMM_SERVING=on. TurboMind, LMDeploy's other engine, has its collectives in C++
(docs/lmdeploy.md).
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
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
    if SELECTOR in sys.modules:
        install(sys.modules[SELECTOR])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def install(selector: ModuleType) -> None:
    """Makes LMDeploy's selector return classes that name sagecomm."""
    if getattr(selector, _MARK, False):
        return
    choose: Callable[[], Any] | None = getattr(selector, "_get_backend", None)
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

    selector._get_backend = chosen  # type: ignore[attr-defined]
    setattr(selector, _MARK, True)


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
    return over_the_group(cpu_group=cpu_group, device_group=device_group, dist_config=dist_config)


class _Finder(MetaPathFinder):
    """Finds the selector as Python would, and calls install() once it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SELECTOR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        install(module)
