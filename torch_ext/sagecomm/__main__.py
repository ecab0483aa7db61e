"""Command line: python -m sagecomm env | status | topo | explain | simulate | tune"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sagecomm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="print every configuration variable with its default and value")
    status = commands.add_parser("status", help="ask the processes of this host who is where in which group")
    topo = commands.add_parser("topo", help="print what this host is made of and what of it a process may use")
    explain = commands.add_parser("explain", help="say which algorithm carries a collective out, and why")
    add_explanation(explain)
    simulate = commands.add_parser("simulate", help="predict what collectives take on a cluster that is described")
    add_simulation(simulate)
    tune = commands.add_parser("tune", help="measure every algorithm here, and write the best ones into a tuning file")
    add_tuning(tune)
    for command in (env, status, topo, explain, simulate, tune):
        command.add_argument("--json", action="store_true", help="as JSON")
    parsed = parser.parse_args(arguments)
    try:
        with_arguments = {"simulate": print_simulation, "explain": print_explanation, "tune": print_tuning}
        if parsed.command in with_arguments:
            return with_arguments[parsed.command](parsed)
        run = {"env": print_environment, "status": print_status, "topo": print_topology}[parsed.command]
        return run(parsed.json)
    except RuntimeError as err:
        print(err, file=sys.stderr)
        return 1


def print_environment(as_json: bool) -> int:
    from sagecomm import _native

    described = _native.load().describe_environment()
    variables = json.loads(described)
    print(described if as_json else environment_table(variables))
    return 1 if any("error" in variable for variable in variables) else 0


def print_status(as_json: bool) -> int:
    """0 also where nothing runs; 1 if a process does not answer."""
    from sagecomm import _status

    answers = _status.collect()
    print(json.dumps([answer.__dict__ for answer in answers]) if as_json else _status.text(answers))
    return 1 if any(answer.status is None for answer in answers) else 0


def print_topology(as_json: bool) -> int:
    from sagecomm import _native, _topo

    topology = _native.load().topology()
    print(topology if as_json else _topo.text(json.loads(topology)))
    return 0


def add_explanation(command: argparse.ArgumentParser) -> None:
    from sagecomm import _simulate

    command.add_argument("--op", default="all_reduce", help="the collective, all_reduce by default")
    command.add_argument("--bytes", type=_simulate.size, default=1 << 20, help="of the buffer, or of each rank's block")
    command.add_argument("--ranks", type=int, default=2, help="of the group, 2 by default")
    command.add_argument("--hosts", type=int, default=1, help="that the ranks are on, as many on each")
    command.add_argument("--tune", default="", metavar="RULES", help="as SAGECOMM_TUNE, where that is not set")


def print_explanation(parsed: argparse.Namespace) -> int:
    from sagecomm import _explain, _native

    if parsed.tune and os.environ.get("SAGECOMM_TUNE"):
        print("sagecomm: SAGECOMM_TUNE is set: --tune is not looked at", file=sys.stderr)
    question = {name: getattr(parsed, name) for name in ("op", "bytes", "ranks", "hosts", "tune")}
    answer = _explain.ask(_native.load().explain, **question)
    print(json.dumps(answer) if parsed.json else _explain.text(answer))
    return 0


def add_simulation(command: argparse.ArgumentParser) -> None:
    from sagecomm import _simulate

    command.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="its description, docs/scaling.md")
    command.add_argument("--op", default="all_reduce", help="the collective, all_reduce by default")
    command.add_argument(
        "--bytes",
        type=_simulate.sizes,
        default=[100_000_000],
        help="of the buffer, or of each rank's block: 100MB by default; 8,64KiB is a list, 8-100MB a range",
    )
    command.add_argument(
        "--hosts", type=_simulate.counts, default=[0], help="in the place of those described: 512, 64,512 or 1-8192"
    )
    command.add_argument("--method", choices=["simulated", "closed form"], default="", help="by default what fits")
    command.add_argument("--png", type=Path, metavar="FILE", help="draws time against ranks or bytes; needs matplotlib")


def print_simulation(parsed: argparse.Namespace) -> int:
    from sagecomm import _native, _simulate

    ask = _native.load().simulate
    answers = _simulate.ask(ask, parsed.cluster, parsed.op, parsed.bytes, parsed.hosts, parsed.method)
    print(json.dumps(answers) if parsed.json else _simulate.text(answers))
    if parsed.png is not None:
        _simulate.draw(answers, parsed.png)
    return 0


def add_tuning(command: argparse.ArgumentParser) -> None:
    from sagecomm import _tune

    def collectives(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(_tune.COLLECTIVES):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(_tune.COLLECTIVES)}")
        return text.split(",")

    command.add_argument(
        "--ranks",
        type=_tune.sizes_of_groups,
        default=_tune.powers(),
        help="of the groups; 2,4,8 by default, as far as each has a processor; under torchrun: its ranks",
    )
    command.add_argument("--ops", type=collectives, default=_tune.COLLECTIVES, help="all collectives by default")
    command.add_argument(
        "--bytes",
        type=_tune.lengths,
        default=_tune.LENGTHS,
        help="of a buffer, or of each rank's block, in fours: 20 lengths from 8 to 64MiB by default; a list or a range",
    )
    command.add_argument(
        "--launches", type=_tune.positive, default=3, help="of new processes for a group, 3 by default"
    )
    command.add_argument("--blocks", type=_tune.positive, default=5, help="rounds of each launch, 5 by default")
    command.add_argument("--pin", action="store_true", help="each rank to a processor, if those that you run are, too")
    command.add_argument("--out", type=Path, default=Path("sagecomm-tune.json"), metavar="FILE", help="that is written")


def print_tuning(parsed: argparse.Namespace) -> int:
    from sagecomm import _tune

    job = _tune.Job(parsed.ops, parsed.bytes, parsed.launches, parsed.blocks, seconds=0.01, pin=parsed.pin)
    try:
        summaries = _tune.tune(job, parsed.ranks, parsed.out)
    except KeyboardInterrupt:
        print(f"sagecomm: tune: interrupted; {parsed.out} has the launches that ended, if any", file=sys.stderr)
        return 130
    if parsed.json:
        print(json.dumps(summaries))
    elif summaries:
        print("\n".join([*map(_tune.text, summaries), f"written to {parsed.out}"]))
    return 0


def environment_table(variables: Sequence[dict[str, object]]) -> str:
    """A variable, its sentence, and why its value is refused; one that is not the default is marked with *."""
    lines = []
    for variable in variables:
        default, value = variable["default"], variable["value"]
        mark = " " if value == default else "*"
        lines.append(f"{mark} {variable['name']}={value}  ({variable['type']}, default {default!r})")
        lines.append(f"      {variable['sentence']}")
        if "error" in variable:
            lines.append(f"      refused: {variable['error']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
