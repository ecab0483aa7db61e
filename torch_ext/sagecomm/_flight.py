"""Puts our operations into the dumps of torch's flight recorder.

The core records operations (see sagecomm.h, flight_records), so torch attaches no recorder to our groups and its dumps
lack them. install() wraps torch's dump functions. They then return our groups and operations, which the core gives in
torch's format, beside those of other backends, and torch's analyser reads the result. Shapes are not recorded: a tensor
of n elements has the size [n].
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

Entry = dict[str, Any]
Dump = dict[str, Any]

NAME = "sagecomm"
# torch keeps one recorder for each backend. This is the one that a dump without a name takes.
TORCH_DEFAULT = "gloo"

_lock = threading.Lock()
_forgotten_ns = 0  # the time of the last reset: dumps leave out operations that were created before it


def install(native: Any) -> None:
    """Wraps the dump functions that this torch has. Safe to call again."""
    import torch

    module = torch._C._distributed_c10d
    with _lock:
        for name, wrap in (
            ("_dump_fr_trace", _wrap_pickle),
            ("_dump_fr_trace_json", _wrap_json),
            ("_dump_fr_trace_file", _wrap_file),
            ("_reset_fr_trace", _wrap_reset),
        ):
            original = getattr(module, name, None)
            if original is not None and not hasattr(original, "sagecomm_wraps"):
                wrapper: Any = functools.wraps(original)(wrap(original, native))
                wrapper.sagecomm_wraps = original
                setattr(module, name, wrapper)


# ---- the wrapped functions ----


def _wrap_pickle(original: Callable[..., bytes], native: Any) -> Any:
    def dump(*args: Any, **kwargs: Any) -> bytes:
        theirs = original(*args, **kwargs)
        given = _given(("includeCollectives", "includeStackTraces", "onlyActive", "backend"), args, kwargs)
        return _with_ours(theirs, given, native, _load_pickle, functools.partial(pickle.dumps, protocol=2))

    return dump


def _wrap_json(original: Callable[..., bytes], native: Any) -> Any:
    def dump(*args: Any, **kwargs: Any) -> bytes:
        theirs = original(*args, **kwargs)
        given = _given(("includeCollectives", "onlyActive", "backend"), args, kwargs)
        given["includeStackTraces"] = False
        return _with_ours(theirs, given, native, json.loads, _to_json)

    return dump


def _wrap_file(original: Callable[..., None], native: Any) -> Any:
    def dump(*args: Any, **kwargs: Any) -> None:
        import torch

        given = _given(("rank", "includeCollectives", "includeStackTraces", "onlyActive", "backend"), args, kwargs)
        rank = given.pop("rank", None)
        given.setdefault("includeStackTraces", False)
        if rank is None or not _served(given) or not _recording(native):
            original(*args, **kwargs)
        else:
            native.write_dump(int(rank), torch._C._distributed_c10d._dump_fr_trace(**given))

    return dump


def _wrap_reset(original: Callable[..., None], native: Any) -> Any:
    def reset(*args: Any, **kwargs: Any) -> None:
        global _forgotten_ns
        original(*args, **kwargs)
        if _served(_given(("backend",), args, kwargs)):
            _forgotten_ns = time.time_ns()

    return reset


def _given(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that were passed, by name."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: value for name, value in given.items() if value is not None}


def _served(given: dict[str, Any]) -> bool:
    return given.get("backend", TORCH_DEFAULT) in (TORCH_DEFAULT, NAME)


def _with_ours(
    theirs: bytes, given: dict[str, Any], native: Any, load: Callable[[bytes], Dump], store: Callable[[Dump], bytes]
) -> bytes:
    """Returns torch's dump with our groups added. If adding fails, it returns torch's dump unchanged."""
    if not _served(given):
        return theirs
    try:
        groups = _groups(native)
        if not groups:
            return theirs
        return store(merge(load(theirs), groups, given))
    except Exception as err:
        warnings.warn(f"sagecomm: its operations are missing in a flight recorder dump: {err!r}", stacklevel=3)
        return theirs


def _groups(native: Any) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = json.loads(native.flight_records())["groups"]
    return groups


def _recording(native: Any) -> bool:
    try:
        return bool(_groups(native))
    except Exception:
        return False


class _PlainUnpickler(pickle.Unpickler):
    """Loads only numbers, strings, lists and dictionaries: a dump holds nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump holds no {module}.{name}")


def _load_pickle(data: bytes) -> Dump:
    dump: Dump = _PlainUnpickler(io.BytesIO(data)).load()
    return dump


def _to_json(dump: Dump) -> bytes:
    """Writes JSON as torch does: no null, no empty list of entries, numbers of the status as text."""
    entries = [
        {key: 0 if value is None and key.startswith("time_") else value for key, value in entry.items()}
        for entry in dump.pop("entries", [])
    ]
    if entries:
        dump["entries"] = entries
    for status in dump["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})
    return json.dumps(dump, sort_keys=True, separators=(",", ":")).encode()


# ---- our groups among torch's ----


def merge(dump: Dump, groups: list[dict[str, Any]], given: dict[str, Any]) -> Dump:
    """Adds groups of the core to a dump of torch's. `given`: arguments of the dump function."""
    theirs: list[Entry] = dump.get("entries", [])
    # A group with a second backend that does not record itself keeps torch's recorder for all its operations.
    seen = {entry["process_group"][0] for entry in theirs if entry["profiling_name"].startswith(f"{NAME}:")}
    groups = [group for group in groups if group["group"] not in seen]
    pg_config, pg_status = dump.setdefault("pg_config", {}), dump.setdefault("pg_status", {})
    first_id = 1 + max((int(key) for key in pg_status), default=-1)
    described = _descriptions()
    threads = {str(thread.ident): thread.name for thread in threading.enumerate()}
    ours: list[Entry] = []
    for group in groups:
        # The device lane of a group has a name of its own in dumps, and torch's ranks and description of the group.
        name, pg_id = group["config"]["name"], first_id + group["pg_id"]
        ranks, desc = described.get(group["group"]) or (json.loads(group["config"]["ranks"]), "undefined")
        pg_config[name] = {"name": name, "desc": desc, "ranks": str(ranks)}
        pg_status[str(pg_id)] = group["status"]
        for entry in group["entries"]:
            if entry["time_created_ns"] > _forgotten_ns:
                entry.update(pg_id=pg_id, process_group=(name, desc), thread_name=threads.get(entry["thread_id"], ""))
                ours.append(entry)
    if given.get("includeCollectives", True):
        lost = sum(group["total"] - len(group["entries"]) for group in groups)
        first = lost + (theirs[0]["record_id"] if theirs else 0)
        entries = sorted(theirs + ours, key=lambda entry: int(entry["time_created_ns"]))
        for record_id, entry in enumerate(entries, first):
            entry["record_id"] = record_id
            if not given.get("includeStackTraces", True):
                entry.pop("frames", None)
        only_active = given.get("onlyActive", False)
        dump["entries"] = [entry for entry in entries if not (only_active and entry["state"] == "completed")]
    return dump


def _descriptions() -> dict[str, tuple[list[int], str]]:
    """Returns the global ranks and the description of each group of torch, by name."""
    from torch.distributed import distributed_c10d as c10d

    world: Any = c10d._world
    found: dict[str, tuple[list[int], str]] = {}
    for pg, group_ranks in list(world.pg_group_ranks.items()):
        ranks = sorted(group_ranks, key=group_ranks.__getitem__)
        found[world.pg_names.get(pg, "")] = (ranks, getattr(pg, "group_desc", "") or "undefined")
    return found
