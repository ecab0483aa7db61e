"""vLLM's CPU build on sagecomm, for tools/test-vllm, which makes the environment that runs this.

    python vllm_trials.py [contract] [tokens] [kill] [measure]

contract the classes for vLLM, those for CUDA included, fit the installed vLLM (vllm_contract.py)
tokens   greedy tokens of a small Llama with random weights, over sagecomm and over gloo: equal, on 2 and 4 ranks
kill     one worker is killed: the engine raises an error that has a name, and the log names the rank
measure  tokens per second over sagecomm, gloo and vLLM's kernel over shared memory, in turns; for an idle machine. The
         median over sagecomm is above that over gloo, and not below that of the kernel. Without the kernel the outcome
         is neither passed nor failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm_engine

HERE = Path(__file__).resolve().parent
BOUND_S = 600  # of one engine; starting takes 30 s of processor time
RANKS = (2, 4)
OURS = "sagecomm.serving._vllm_cpu_communicator.SagecommCpuCommunicator"
TURNS = 3


@dataclass(frozen=True)
class Ended:
    answer: dict[str, Any]
    log: str


class TrialError(Exception):
    pass


class NotMeasuredError(Exception):
    """A trial that has found nothing wrong, and could not try all."""


def run(what: str, model: Path, over: str, ranks: int, *more: str) -> Ended:
    """Runs one engine to its end."""
    command = [sys.executable, str(HERE / "vllm_engine.py"), what, "--model", str(model)]
    command += ["--ranks", str(ranks), "--over", over, *more]
    return ended(f"{what}-{over}-{ranks}", command, model.parent, over == "sagecomm", ranks)


def ended(name: str, command: list[str], place: Path, ours: bool, ranks: int) -> Ended:
    """Runs a program to its end; what it prints behind `ANSWER` is its answer."""
    processors = len(os.sched_getaffinity(0))
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SAGECOMM_", "VLLM_"))},
        "PYTHONPATH": str(HERE),  # of the workers, which import vllm_engine and vllm_workers
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # collective_rpc of a function
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(1, processors // ranks)),
        "SAGECOMM_SERVING": "on" if ours else "off",
    }
    log = place / f"{name}.log"
    with log.open("w") as out:
        program = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            status = program.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            raise TrialError(f"{name} hung for {BOUND_S} s:\n{tail(log)}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # an engine that hangs leaves its workers
            program.wait()
    text = log.read_text(errors="replace")
    answers = [line for line in text.splitlines() if line.startswith("ANSWER ")]
    if len(answers) != 1:
        raise TrialError(f"{name} ended with {status}:\n{tail(log)}")
    return Ended(json.loads(answers[0].removeprefix("ANSWER ")), text)


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-80:])


def check(right: bool, text: str) -> None:
    if not right:
        raise TrialError(text)


def on_sagecomm(ended: Ended) -> None:
    """Raises unless each worker's groups are sagecomm's and have moved bytes."""
    for worker in ended.answer["workers"]:
        check(worker["world"] == worker["device_group"] == "sagecomm", f"not on sagecomm: {worker}")
        check(worker["communicator"] == OURS, f"another communicator: {worker}")
        check(worker["bytes"] > 0, f"nothing moved: {worker}")


def contract(model: Path) -> None:
    command = [sys.executable, str(HERE / "vllm_contract.py")]
    problems = ended("contract", command, model.parent, True, 1).answer["problems"]
    check(not problems, "\n".join(["the classes do not fit the installed vLLM:", *problems]))
    print("contract: the platforms and communicators for CPU and CUDA fit the installed vLLM")


def tokens(model: Path) -> None:
    for ranks in RANKS:
        for more in ([], ["--eager"]):
            begin = time.monotonic()
            theirs, ours = (run("tokens", model, over, ranks, *more) for over in ("gloo", "sagecomm"))
            on_sagecomm(ours)
            for worker in theirs.answer["workers"]:
                check(worker["device_group"] == "gloo" and not worker["shm"], f"not on gloo: {worker}")
            expected, got = theirs.answer["tokens"], ours.answer["tokens"]
            count = sum(len(each) for each in got)
            different = [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b]
            check(not different, f"on {ranks} ranks the answers to prompts {different} differ from gloo's")
            check(count == vllm_engine.PROMPTS * vllm_engine.TOKENS, f"{count} tokens")
            distinct = len({token for each in got for token in each})
            check(distinct > 500, f"only {distinct} different tokens: the model repeats itself")
            how = "eager" if more else "compiled"
            seconds = time.monotonic() - begin
            print(f"tokens: {ranks} ranks, {how}: {count} equal to gloo's, {distinct} different ones ({seconds:.0f} s)")


def kill(model: Path) -> None:
    for ranks in RANKS:
        ended = run("kill", model, "sagecomm", ranks, "--eager")
        answer = ended.answer
        on_sagecomm(ended)
        check(answer["error"].endswith("EngineDeadError"), f"{answer['error']}: {answer['text']}")
        check(f"VllmWorker-{ranks - 1} died unexpectedly" in ended.log, f"no worker is named:\n{ended.log[-6000:]}")
        ours = (
            "the peer's PeerFailure too" if "sagecomm.PeerFailure" in ended.log else "no PeerFailure: vLLM was faster"
        )
        print(
            f"kill: {ranks} ranks: {answer['error']} after {answer['seconds']:.1f} s; the log names the worker ({ours})"
        )


def measure(model: Path) -> None:
    """Engines take turns, so that what else the machine does meets all of them."""
    rates: dict[str, list[float]] = {"sagecomm": [], "gloo": [], "shm": []}
    for _ in range(TURNS):
        for over, found in rates.items():
            ended = run("rate", model, over, RANKS[0])
            if over == "sagecomm":
                on_sagecomm(ended)
            if over == "shm" and not all(worker["shm"] for worker in ended.answer["workers"]):
                continue  # vLLM's build for this processor has no such kernel, and has taken gloo
            found += ended.answer["rates"]
    compare(rates)


def compare(rates: dict[str, list[float]]) -> None:
    """Raises if the rates over sagecomm are not what is promised. A rate that was not measured has an empty list."""
    medians = {over: statistics.median(found) for over, found in rates.items() if found}
    for over, median in medians.items():
        found = rates[over]
        print(
            f"measure: {over}: median {median:.0f} tokens/s, "
            f"from {min(found):.0f} to {max(found):.0f} ({len(found)} rounds)"
        )
    ours, theirs = medians["sagecomm"], medians["gloo"]
    check(ours > theirs, f"{ours:.0f} tokens/s over sagecomm, {theirs:.0f} over gloo")
    if "shm" not in medians:
        raise NotMeasuredError("vLLM's build for this processor has no kernel over shared memory to compare with")
    check(ours >= medians["shm"], f"{ours:.0f} tokens/s over sagecomm, {medians['shm']:.0f} over shared memory")


TRIALS = {"contract": contract, "tokens": tokens, "kill": kill, "measure": measure}


def main(chosen: list[str]) -> int:
    unknown = set(chosen) - set(TRIALS)
    if unknown or not chosen:
        print(
            f"sagecomm: test-vllm: WHAT is a list out of {', '.join(TRIALS)}, not {' '.join(chosen)}", file=sys.stderr
        )
        return 2
    failed = unmeasured = 0
    with tempfile.TemporaryDirectory(prefix="sagecomm-vllm-") as place:
        model = Path(place) / "model"
        vllm_engine.make_model(model)
        for name in chosen:
            try:
                TRIALS[name](model)
            except TrialError as err:
                failed += 1
                print(f"FAILED: {name}: {err}", file=sys.stderr)
            except NotMeasuredError as err:
                unmeasured += 1
                print(f"not measured: {name}: {err}")
    passed = len(chosen) - failed - unmeasured
    print(f"sagecomm: test-vllm: {passed} passed, {failed} failed, {unmeasured} not measured")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
