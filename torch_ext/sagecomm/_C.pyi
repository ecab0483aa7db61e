"""The C++ extension: translates between torch and the core, decides nothing."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

cplusplus: int  # the C++ standard that it was compiled as: 202002

class Options(Backend.Options):
    """What sagecomm.Options becomes; `options` of a group."""

    def __init__(self, settings: Mapping[str, str] = ..., timeout: timedelta = ...) -> None: ...
    settings: dict[str, str]

class ProcessGroupSagecomm(Backend):
    @property
    def options(self) -> Options: ...
    def get_error(self) -> Any: ...
    def stats_json(self) -> str: ...

def load_core(path: str) -> None: ...
def set_exception_types(
    peer_failure: type[BaseException],
    timeout: type[BaseException],
    mismatch: type[BaseException],
    aborted: type[BaseException],
) -> None: ...
def create_backend(dist_options: Any, settings: dict[str, str]) -> Any: ...
def describe_environment() -> str: ...
def flight_records() -> str: ...
def write_dump(rank: int, dump: bytes) -> None: ...
def shutdown() -> None: ...
def go_entries() -> int:
    """How often a call has entered Go so far."""

def built_for() -> str:
    """The torch minor whose headers it was compiled against: "2.15"."""
