"""Loads the extension module and, through it, the core library, once per process."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import torch
import torch.fx.node

from sagecomm import errors

PACKAGE = Path(__file__).resolve().parent
CORE = PACKAGE / "lib" / "libsagecomm.so"


class Native(Protocol):
    """The part of sagecomm._C that the package uses."""

    Options: type[Any]

    def create_backend(
        self, dist_options: Any, settings: dict[str, str], group_desc: str, devices: list[str]
    ) -> Any: ...
    def describe_devices(self) -> str: ...
    def describe_environment(self) -> str: ...
    def device_of(self, dist_options: Any) -> str: ...
    def flight_dump(self, prefix: str | None) -> None: ...
    def flight_records(self) -> str: ...
    def metrics(self) -> str: ...
    def simulate(self, question: str) -> str: ...
    def explain(self, question: str) -> str: ...
    def tune(self, measurements: str) -> str: ...
    def topology(self) -> str: ...
    def write_dump(self, rank: int, dump: bytes) -> None: ...


@functools.cache
def load() -> Native:
    """Returns sagecomm._C with the core opened. Raises RuntimeError where they cannot run with this torch."""
    check_build(torch.__version__)
    from sagecomm import _C

    _C.set_exception_types(errors.PeerFailure, errors.CollectiveTimeout, errors.CollectiveMismatch, errors.Aborted)
    _C.load_core(str(CORE))
    # Which loading has registered. A compiler leaves out what has no use on a rank, for which other ranks then wait.
    # torch's newer way to mark operators, effects, is for those that write to no argument.
    for operator in (torch.ops.sagecomm.all_reduce_.default, torch.ops.sagecomm.all_gather.default):
        torch.fx.node.has_side_effect(operator)
    return _C


def check_build(torch_version: str) -> None:
    """Refuses a torch whose minor is not the one the extension was compiled for.

    torch keeps no C++ ABI between minors: loading another one fails with missing symbols, or crashes later.
    """
    if importlib.util.find_spec("sagecomm._build_info") is None or not CORE.exists():
        raise RuntimeError(f"sagecomm: the native libraries are not built. Build them with: {rebuild_command()}")
    from sagecomm import _build_info

    if minor(torch_version) != _build_info.TORCH_MINOR:
        raise RuntimeError(
            f"sagecomm: built for torch {_build_info.TORCH_MINOR} (with {_build_info.TORCH_VERSION}), but this is "
            f"torch {torch_version}. Rebuild it with: {rebuild_command()}"
        )


def minor(version: str) -> str:
    """ "2.15.0+cu132" -> "2.15"."""
    return ".".join(version.split(".")[:2])


def rebuild_command() -> str:
    """The command that compiles this installation again for the torch of this interpreter."""
    source, editable = _source()
    flags = ["--no-build-isolation", "--no-deps", "--force-reinstall", *(["--editable"] if editable else [])]
    where = shlex.quote(str(source)) if source is not None else "SAGECOMM_CHECKOUT/torch_ext"
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(flags)} {where}"


def _source() -> tuple[Path | None, bool]:
    """Returns the directory from which pip builds, if it still exists, and whether it holds this package."""
    if (PACKAGE.parent / "setup.py").exists():
        return PACKAGE.parent, True
    try:
        # Written by pip: where it installed from.
        record = importlib.metadata.distribution("sagecomm").read_text("direct_url.json")
        location = Path(unquote(urlparse(json.loads(record or "{}").get("url", "")).path))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None, False
    return (location, False) if (location / "setup.py").exists() else (None, False)
