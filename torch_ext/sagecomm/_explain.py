"""How a collective is carried out, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from sagecomm import _native, _observe
from sagecomm._format import columns, duration, in_bytes, many, power


def explain(
    op: str,
    nbytes: int,
    group: dist.ProcessGroup | None = None,
    *,
    device: bool = False,
    dtype: torch.dtype | None = None,
    reduction: str | None = None,
) -> dict[str, Any]:
    """Which algorithm carries a collective of this length out in a group, what else there is, and why not that.

    Args:
        op: all_reduce, broadcast, all_gather, reduce, reduce_scatter, all_to_all, gather, scatter or barrier; with
            `device` also send or recv, of which the answer has the engine only.
        nbytes: Of the tensor, or of each rank's block (the longest one) where there are blocks.
        group: The process group; the default one if None.
        device: The tensors are on devices, of any type: the answer has the engine too.
        dtype: The type of the tensors, on which the engine depends; float32 if None.
        reduction: torch's name of the reduction, as AVG, on which the engine depends; SUM if None.

    Returns:
        `candidates`: one for each algorithm, in the order of what they are predicted to take, with `algorithm`,
        `transport` (slots or channels), `chunk` in bytes and the `longest` possible one, `seconds` as predicted,
        `steps` and `bytes` of the rank that has most, `even` (it needs blocks of equal length), `chosen`, `forced` (by
        a rule), and `why` in words; `table`: what is chosen for which lengths, in the grammar of SAGECOMM_TUNE; `op`,
        `bytes`, `ranks`, `hosts`; `parameters` of the prediction, in seconds, by their names in SAGECOMM_TUNE. Where
        the group is on several hosts, `probed_links`: of how many `pairs` of hosts how many were `measured`, and if any
        were, the highest of what was measured, before it was rounded, as `latency`, `step` and `byte` in seconds; the
        other pairs count with the defaults, but for a latency that the kernel knows of `latency_known` of them.
        Where SAGECOMM_FUSION applies to an all_reduce, `fusion`: which ones share collectives, in words. With `device`,
        `engine`, and `engines`: one for each engine, the most preferred one first, with `engine`, `chosen`, `forced`
        (by SAGECOMM_ENGINE), and `why` in words; `carrier`: the engine that carries out this operation, with
        `carrier_why` where that is not `engine`, because it goes through host memory; and `device_links`, where there
        are several ranks: what the ranks told each other of the links between their devices when the group was made,
        one for each class of links, the closest first, with `class`, `pairs` of ranks, `nvlinks` of a pair, and as
        expectations `latency` in seconds and `gb_per_s`. Where the engine is `cuda`, `device_candidates` and
        `device_table` are what `candidates` and `table` are, for slots in the memory of the devices; for a rooted
        collective those of root 0. All ranks of a group get the same answer.

    Raises:
        ValueError: The group is no group of sagecomm, or this rank is not in it.
        RuntimeError: There is no such operation, type or reduction, the reduction is not defined for the type, no
            process has that many bytes, or the group was destroyed.
    """
    number = _observe._backend(group, "explain").group_number()
    named = {"dtype": str(dtype).removeprefix("torch.") if dtype else "", "reduce": reduction or ""}
    return ask(_native.load().explain, op=op, bytes=nbytes, group=number, device=device, **named)


def ask(explain: Callable[[str], str], **question: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(explain(json.dumps(question)))
    if "error" in answer:
        raise RuntimeError(f"sagecomm: {answer['error']}")
    return answer


_OVER = {
    "slots": "each rank publishes chunks in shared memory, where the others read them",
    "channels": "messages between pairs of ranks",
}


def text(answer: dict[str, Any]) -> str:
    """A table for people, and what its words mean."""
    of = f" of {in_bytes(answer['bytes'])}" if answer["op"] != "barrier" else ""
    hosts = f" on {answer['hosts']} hosts" if answer["hosts"] > 1 else ""
    title = f"{answer['op']}{of}, {many(answer['ranks'], 'rank')}{hosts}"
    return "\n".join([title, *_choice(answer), *_between_hosts(answer), *_fusion(answer), *_engines(answer)])


def _choice(answer: dict[str, Any]) -> list[str]:
    """The algorithms, and which is chosen for which lengths. p2p operations have none."""
    if not answer["candidates"]:
        return []
    rows = [("", "algorithm", "time", "steps", "bytes", "chunk", "over", "why")]
    for c in answer["candidates"]:
        mark = "*" if c["chosen"] else ""
        costs = (duration(c["seconds"]), str(c["steps"]), in_bytes(c["bytes"], answer["bytes"]), in_bytes(c["chunk"]))
        rows.append((mark, c["algorithm"], *costs, c["transport"], c["why"]))
    used = {c["transport"] for c in answer["candidates"]}
    legend = columns([(name, means) for name, means in _OVER.items() if name in used])
    legend = [
        "",
        "* is chosen, over",
        *legend,
        "What is chosen for which lengths, in bytes (K and M are powers of 1024):",
    ]
    return [*columns(rows, range(2, 6)), *legend, _in_powers(answer["table"])]


def _between_hosts(answer: dict[str, Any]) -> list[str]:
    """What a message between hosts is taken to cost, and what was measured, if there are several hosts."""
    if answer["hosts"] == 1:
        return []
    used = {name: answer["parameters"][f"network.{name}"] for name in ("latency", "step", "byte")}
    lines = [f"Between hosts a message is taken to cost: {_message(used)}"]
    probed = answer.get("probed_links")
    if probed is None:
        return [f"{lines[0]}; not measured"]
    known = probed.get("latency_known", 0)
    others = f"; of {many(known, 'pair')} of hosts only the latency is known" if known else ""
    if not probed["measured"]:
        return [f"{lines[0]}; not measured{others}"]
    of = f"{probed['measured']} of {many(probed['pairs'], 'pair')} of hosts"
    if probed["measured"] + known < probed["pairs"]:
        others += "; the others count with the defaults"
    return [*lines, f"Measured, the highest of {of}: {_message(probed)}{others}"]


def _message(costs: dict[str, float]) -> str:
    return f"latency {duration(costs['latency'])}, step {duration(costs['step'])}, {costs['byte'] * 1e12:.4g} ps a byte"


def _fusion(answer: dict[str, Any]) -> list[str]:
    """Which operations share collectives, if any do."""
    return [f"SAGECOMM_FUSION: {answer['fusion']}"] if "fusion" in answer else []


def _engines(answer: dict[str, Any]) -> list[str]:
    """The engine of tensors on devices, if the question was about them."""
    rows = [("*" if e["chosen"] else "", e["engine"], e["why"]) for e in answer.get("engines", [])]
    if not rows:
        return []
    why = answer.get("carrier_why")
    return [
        "Which engine carries out operations on tensors of devices:",
        *columns(rows),
        *([f"This operation is carried out by {answer['carrier']}: {why}"] if why else []),
        *_on_devices(answer),
        *_links(answer),
    ]


def _on_devices(answer: dict[str, Any]) -> list[str]:
    """The choices of an engine that moves the bytes itself, by the links between the devices."""
    rows = [("", "algorithm", "time", "chunk", "why")]
    for c in answer.get("device_candidates", []):
        mark = "*" if c["chosen"] else ""
        rows.append((mark, c["algorithm"], duration(c["seconds"]), in_bytes(c["chunk"]), c["why"]))
    if len(rows) == 1:
        return []
    title = f"What the engine {answer['engine']} chooses, through slots in the memory of the devices:"
    return [title, *columns(rows, range(2, 4)), _in_powers(answer["device_table"])]


def _links(answer: dict[str, Any]) -> list[str]:
    """What the ranks know of the links between their devices, if there are several ranks."""
    rows = [("class", "pairs", "latency", "GB/s")]
    for link in answer.get("device_links", []):
        name = f"{link['class']} x {link['nvlinks']}" if "nvlinks" in link else link["class"]
        rows.append((name, str(link["pairs"]), duration(link["latency"]), f"{link['gb_per_s']:.4g}"))
    title = (
        "Links between the devices, where each rank uses the GPU of its LOCAL_RANK; times and rates are expectations:"
    )
    return [title, *columns(rows, range(1, 4))] if len(rows) > 1 else []


def _in_powers(table: str) -> str:
    """Lengths as SAGECOMM_TUNE takes them: 128K for 131072."""
    return re.sub(r"(?<=[ =-])\d+\b", lambda number: power(int(number[0])), table)
