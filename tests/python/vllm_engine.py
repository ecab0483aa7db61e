"""One engine of vLLM on CPU, for vllm_trials.py: a small Llama with random weights answers prompts of random tokens.

    python vllm_engine.py tokens|kill|rate --model DIRECTORY --ranks N --over sagecomm|gloo|shm [--eager]

It prints one line, `ANSWER` and JSON. The workers import this module, by the names of the workers' classes below.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARY = 2048
PROMPTS = 8
PROMPT_TOKENS = 16
TOKENS = 125  # of each prompt; 1,000 of all
WORKERS = {"sagecomm": "auto", "gloo": "vllm_workers.GlooWorker", "shm": "auto"}


def make_model(directory: Path) -> None:
    """Weights large enough that no two tokens are about equally likely, in the order of the seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def described(worker: Any) -> dict[str, Any]:
    """What carries a worker's collectives; runs inside the worker."""
    import torch.distributed as dist
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    communicator = type(group.device_communicator)
    moved = 0
    if dist.get_backend() == "sagecomm":
        import sagecomm

        counters = [line for line in sagecomm.metrics().splitlines() if line.startswith("sagecomm_bytes_total{")]
        moved = sum(int(line.split()[-1]) for line in counters)
    return {
        "pid": os.getpid(),
        "world": dist.get_backend(),
        "device_group": dist.get_backend(group.device_group),
        "cpu_group": dist.get_backend(group.cpu_group),
        "communicator": f"{communicator.__module__}.{communicator.__qualname__}",
        "shm": type(getattr(group.device_communicator, "dist_module", None)).__name__ == "_CPUSHMDistributed",
        "bytes": moved,
    }


def engine(arguments: argparse.Namespace) -> Any:
    from vllm import LLM

    return LLM(
        model=str(arguments.model),
        skip_tokenizer_init=True,
        tensor_parallel_size=arguments.ranks,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=PROMPTS,
        kv_cache_memory_bytes=128 << 20,
        enable_prefix_caching=False,
        enforce_eager=arguments.eager,
        worker_cls=WORKERS[arguments.over],
        seed=0,
    )


def prompts() -> list[dict[str, list[int]]]:
    numbers = random.Random(0)
    return [{"prompt_token_ids": [numbers.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]} for _ in range(PROMPTS)]


def greedy(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def tokens(arguments: argparse.Namespace) -> dict[str, Any]:
    served = engine(arguments)
    answers = served.generate(prompts(), greedy(arguments.tokens), use_tqdm=False)
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "workers": served.collective_rpc(described),
    }


def rate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of each of several rounds, after one that does not count."""
    served = engine(arguments)
    rates = []
    for lap in range(arguments.rounds + 1):
        begin = time.perf_counter()
        answers = served.generate(prompts(), greedy(arguments.tokens), use_tqdm=False)
        count = sum(len(answer.outputs[0].token_ids) for answer in answers)
        if lap:
            rates.append(count / (time.perf_counter() - begin))
    return {"rates": rates, "workers": served.collective_rpc(described)}


def kill(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kills the last worker once each prompt has some tokens, and waits for what the engine says."""
    served = engine(arguments)
    for number, prompt in enumerate(prompts()):
        served.llm_engine.add_request(str(number), prompt, greedy(TOKENS))
    begun: dict[str, int] = {}
    while len(begun) < PROMPTS or min(begun.values()) < 8:
        begun.update({each.request_id: len(each.outputs[0].token_ids) for each in served.llm_engine.step()})
    workers = served.collective_rpc(described)
    os.kill(workers[-1]["pid"], signal.SIGKILL)
    killed = time.monotonic()
    try:
        while served.llm_engine.has_unfinished_requests():
            served.llm_engine.step()
    except Exception as err:
        return {
            "error": f"{type(err).__module__}.{type(err).__qualname__}",
            "text": str(err),
            "seconds": time.monotonic() - killed,
            "pid": workers[-1]["pid"],
            "workers": workers,
        }
    return {"error": "", "text": "all requests ended", "seconds": time.monotonic() - killed, "workers": workers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tokens", "kill", "rate"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--over", choices=sorted(WORKERS), required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true")
    arguments = parser.parse_args()
    run = {"tokens": tokens, "kill": kill, "rate": rate}[arguments.what]
    print("ANSWER", json.dumps(run(arguments)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
