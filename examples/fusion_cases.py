"""Four ways to hide communication behind computation, each beside the plain form, over sagecomm and over gloo.

    python examples/fusion_cases.py                        two ranks that this script starts; a table
    python examples/fusion_cases.py --png fusion.png       and a picture; needs matplotlib
    torchrun --nproc-per-node 4 examples/fusion_cases.py   torchrun's ranks

    gradients    plain: backward, then an all_reduce for each gradient
                 fused: buckets of gradients are summed during backward (sagecomm.CommFusionBuffer)
                 reported: training throughput, use of the bandwidth
    convolution  plain: a convolution over a part of the channels, then an all_reduce of its output
                 fused: slice k is summed while slice k+1 is computed (sagecomm.conv2d_all_reduce)
                 reported: computation / communication
    chunks       plain: the gradient of a large matrix, then its all_reduce
                 fused: some rows are summed while the next ones are computed (sagecomm.linear_all_reduce)
                 reported: utilization, times
    pipeline     plain: compute an item, all_reduce it, then the next one
                 fused: item k is summed while item k+1 is computed (sagecomm.pipeline)
                 reported: items a second, efficiency of the overlap

Each case is measured as computation alone, communication alone in the collectives of the plain form and in those of the
fused form, plain and fused, in turns and for both backends in the same ranks. Before that, each form must have the
result that follows from the computations of all ranks.

Definitions, with times of the slowest rank:
    calls        collectives of the plain form -> of the fused form
    fusing       communication / in fused calls: what other collectives gain, with no overlap
    hidden       (computation + in fused calls - fused) / in fused calls: the part of communication that costs no time
    efficiency   hidden, against the part that could be hidden: min(computation, in fused calls) / in fused calls
    utilization  computation / time of the form: the part of the time in which the processor computes for the user
    bandwidth    bus bandwidth of communication alone, 2(n-1)/n times bytes / time, against that of a copy of the same
                 bytes by all ranks at once

Hiding needs a processor that is free to communicate. Where every core computes, as with two ranks on two cores, expect
this: the cost model of sagecomm chooses one slice for convolution and chunks, so the fused form does what the plain one
does, and hidden is about 0. Groups of gloo have no cost model, and one slice as well. gradients can gain by fusing
only. pipeline makes the collectives that the program asks for, each of them asynchronous, which costs more than it
hides where items are short. --slices shows what slices cost there, and what they gain on a machine with free cores.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fusion_forms import CASES, FORMS, Case, Group, Result, collectives, in_flight, one_by_one

# ---- measuring ----


def block(call: Callable[[], object], count: int) -> float:
    """Seconds of a call, on the slowest rank. The default group is gloo's: its ranks sleep until all are there."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    taken = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()


def expected(case: Case) -> list[torch.Tensor]:
    """The sums over the ranks of what each one's computation leaves behind. No form has this collective."""
    case.computation()
    sums = []
    for mine in case.outputs():
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        sums.append(torch.stack(everyone).sum(0, dtype=torch.float64))
    return sums


def right(case: Case, form: Callable[[Group], None], group: Group, sums: Sequence[torch.Tensor]) -> bool:
    """Whether a form leaves the sums behind, and nothing of what was there before."""
    for output in case.outputs():
        output.fill_(math.nan)
    form(group)
    errors = [
        (output - total).abs().max() / total.abs().max() for output, total in zip(case.outputs(), sums, strict=True)
    ]
    return all(error.item() < 1e-4 for error in errors)  # also not if it is NaN


def agree(case: Case, group: Group) -> bool:
    """Whether the plain and the fused form have the result that they must have, on all ranks."""
    sums = expected(case)
    same = torch.tensor([int(right(case, form, group, sums)) for form in (case.plain, case.fused)])
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return bool(same.all().item())


def measure(case: Case, groups: dict[str, Group], rounds: int, block_ms: float) -> list[Result]:
    """Measures all forms on all backends in turns: what else the machine does affects all of them alike."""
    calls: dict[tuple[str, str], Callable[[], object]] = {("", "computation"): case.computation}
    same, made = {}, {}
    for backend, group in groups.items():
        same[backend] = agree(case, group)
        plain, fused = (collectives(form, group) for form in (case.plain, case.fused))
        made[backend] = len(plain), len(fused)
        calls[backend, "communication"] = functools.partial(one_by_one, plain, group)
        calls[backend, "in fused calls"] = functools.partial(in_flight, fused, group)
        calls[backend, "plain"] = functools.partial(case.plain, group)
        calls[backend, "fused"] = functools.partial(case.fused, group)
    nbytes = sum(output.nbytes for output in case.outputs())
    source = torch.zeros(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    calls["", "copy"] = lambda: target.copy_(source)
    counts = {key: max(1, int(block_ms / 1e3 / block(call, 2))) for key, call in calls.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    keys = list(calls)
    for number in range(rounds):
        first = number % len(keys)  # each one follows another one in each round
        for key in keys[first:] + keys[:first]:
            times[key].append(block(calls[key], counts[key]))
    median = {key: statistics.median(of) for key, of in times.items()}
    results = []
    for backend in groups:
        seconds = {form: median[backend if form != "computation" else "", form] for form in FORMS}
        size, copy = dist.get_world_size(), median["", "copy"]
        result = Result(case.name, backend, size, nbytes, seconds, made[backend], copy, same[backend])
        result.reported = case.reported(result)
        results.append(result)
    return results


def run_cases(arguments: argparse.Namespace) -> list[Result]:
    """Runs on each rank, in a group of gloo."""
    torch.set_num_threads(1)
    groups = {backend: dist.new_group(backend=backend) for backend in arguments.backends}
    results = []
    for make in CASES:
        case = make(1 if arguments.quick else 4, arguments.slices)
        if dist.get_rank() == 0:
            print(f"measuring {case.name}", file=sys.stderr, flush=True)
        results += measure(case, groups, 2 if arguments.quick else arguments.rounds, 1 if arguments.quick else 30)
    return results


# ---- output ----


def print_table(results: Sequence[Result]) -> None:
    """Prints times in ms, and what each case is measured by: of the plain form -> of the fused form."""
    heads = (*FORMS, "calls", "speed-up", "fusing", "hidden")
    print(f"{'case':13}{'backend':10}" + "".join(f"{head:>15}" for head in heads) + "   reported")
    for r in results:
        times = "".join(f"{1e3 * r.seconds[form]:12.3f} ms" for form in FORMS)
        calls = "{} -> {}".format(*r.calls)
        gains = "".join(f"{gain:14.2f}x" for gain in (r.seconds["plain"] / r.seconds["fused"], r.fusing()))
        hidden = f"{100 * r.hidden().fraction:.0f} %" + (" (!)" if impossible(r) else "")
        print(f"{r.case:13}{r.backend:10}{times}{calls:>15}{gains}{hidden:>15}   {r.reported}")


def impossible(result: Result) -> bool:
    """Whether more is hidden than there is: what was measured alone was slower than within the fused form."""
    return result.hidden().fraction > 1


def draw(results: Sequence[Result], path: str) -> None:
    """Draws the times of all forms, one panel for each case."""
    from matplotlib.figure import Figure

    backends = list(dict.fromkeys(result.backend for result in results))
    names = list(dict.fromkeys(result.case for result in results))
    figure = Figure(figsize=(4 * len(names), 4.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, backend in enumerate(backends):
            (result,) = (r for r in results if (r.case, r.backend) == (name, backend))
            at = [place + (number - (len(backends) - 1) / 2) * 0.8 / len(backends) for place in range(len(FORMS))]
            heights = [1e3 * result.seconds[form] for form in FORMS]
            axes.bar(at, heights, 0.8 / len(backends), label=backend)
        axes.set_xticks(range(len(FORMS)), labels=FORMS, rotation=30, ha="right")
        axes.set_title(name)
        axes.set_ylabel("ms")
        axes.legend(fontsize="small")
    figure.suptitle(f"{results[0].ranks} ranks")
    figure.savefig(path, dpi=120)


def report(results: Sequence[Result], png: str | None) -> int:
    print_table(results)
    if png is not None:
        draw(results, png)
    wrong = [f"{result.case} over {result.backend}" for result in results if not result.same]
    for which in wrong:
        print(f"FAILED: {which}: a form does not have the sum over the ranks as its result", file=sys.stderr)
    for result in filter(impossible, results):
        print(
            f"(!) {result.case} over {result.backend}: more than all of the communication seems hidden. A part that "
            "was measured alone was slower than within the fused form: measure again, with more --rounds",
            file=sys.stderr,
        )
    return 1 if wrong else 0


# ---- ranks ----


def rank_main(rank: int, arguments: argparse.Namespace, directory: str) -> None:
    """Is one rank that main() has started."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=arguments.ranks)
    results = run_cases(arguments)
    if rank == 0:
        torch.save([vars(result) for result in results], f"{directory}/results")
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["sagecomm", "gloo"], metavar="NAMES")
    parser.add_argument("--ranks", type=int, default=2, help="not under torchrun")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each form, in turns; 9 by default")
    parser.add_argument("--slices", type=int, help="of convolution and chunks; by default what the library chooses")
    parser.add_argument("--quick", action="store_true", help="small tensors and two rounds: times say little")
    parser.add_argument("--png", metavar="FILE", help="draw the times; needs matplotlib")
    arguments = parser.parse_args()
    if arguments.ranks < 2 or arguments.rounds < 1 or (arguments.slices or 1) < 1:
        parser.error("--ranks is at least 2, --rounds and --slices at least 1")
    if arguments.png is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("--png needs matplotlib: pip install matplotlib")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        results, rank = run_cases(arguments), dist.get_rank()
        dist.destroy_process_group()
        return report(results, arguments.png) if rank == 0 else 0
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(rank_main, (arguments, directory), nprocs=arguments.ranks)
        results = [Result(**fields) for fields in torch.load(f"{directory}/results")]
    return report(results, arguments.png)


if __name__ == "__main__":
    sys.exit(main())
