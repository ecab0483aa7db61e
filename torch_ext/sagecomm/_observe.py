"""Statistics, metrics and flight recorder dumps of running groups."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _native
from sagecomm._groups import member


def get_stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Returns statistics of this rank's successful operations since the group was made.

    Args:
        group: The process group; the default one if None.

    Returns:
        `all_reduce_count`, `total_bytes` (of this rank's inputs; of reduce_scatter, of its block) and `avg_latency_ms`
        of all operations; `ops`: count and bytes by operation; `rows`: one for each `op`, `dtype`, size class (`up_to`
        bytes, more than half of that), `algorithm`, `device` (its type; cpu for host tensors), `engine` that carried
        them out and `transport`, with `count`, `bytes`, how many did not enter Go (`fast`), how many operations were
        packed into others (`fused`), times from issue to completion in us (`avg_us`, `p50_us`, `p99_us`, `max_us`; of
        the average, `wait_us` waiting for peers and `transfer_us` the rest), and bandwidths in GB/s as nccl-tests
        define them (`algbw_gbps`, `busbw_gbps`); counters (`fast`, `fused`, `blocked`, `sleeps`, `programs`;
        `captured`: operations that CUDA graphs have got, which are counted nowhere else; `sequence`: collectives
        issued); `lanes`: the host lane and, once it was used, the device lane, each with `lane`, `device`, `engine` and
        its part of `sequence`, `blocked`, `sleeps`, `programs` and `captured`; `classes`: which algorithm serves which
        length; `failure`, if the group has failed. Quantiles have an error of up to a quarter.

    Raises:
        ValueError: The group is no group of sagecomm, or this rank is not in it.
    """
    stats: dict[str, Any] = json.loads(_backend(group, "get_stats").stats_json())
    return stats


def dump_flight_recorder(prefix: str | None = None) -> None:
    """Writes the last operations of all groups into the file of this rank that torch's analyser reads.

        python -m torch.distributed.flight_recorder.fr_trace DIRECTORY -p rank_

    Args:
        prefix: Of the file's path; the rank's number in the job is added. None: where failures are dumped, see
            SAGECOMM_FR_DUMP.

    Raises:
        RuntimeError: There is no such place, no group, or the file cannot be written.
    """
    _native.load().flight_dump(prefix)


def metrics() -> str:
    """The statistics of all groups of this process in Prometheus's text format. See SAGECOMM_METRICS_FILE as well."""
    return _native.load().metrics()


def _backend(group: dist.ProcessGroup | None, call: str) -> Any:
    pg = member(group, call)
    for device in pg._device_types:
        backend: Any = pg._get_backend(torch.device(device))
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if hasattr(backend, "stats_json"):
            return backend
    raise ValueError(f"sagecomm: {call}: the group's backend is {dist.get_backend(pg)}")
