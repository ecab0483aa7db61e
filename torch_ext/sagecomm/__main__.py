"""Command line: sagecomm, or python -m sagecomm, with one of the verbs env, status, topo, explain, simulate, tune,
bench, nccl-path and hccl-path.

A verb imports what it needs: torch takes seconds, and who asks for the status of a job should not wait for it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sagecomm import _arguments, launchers
from sagecomm._version import __version__

_SIZES = "K and KiB are 1024 bytes, KB is 1000"


class _Parser(argparse.ArgumentParser):
    """A parser of one verb. Options may stand between its positional arguments: explain all_reduce --ranks 4 1M."""

    _inside = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if self._inside:  # parse_known_intermixed_args() calls this function
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="sagecomm", description="Shows and tunes what the torch.distributed backend sagecomm does."
    )
    parser.add_argument("--version", action="version", version=f"sagecomm {__version__}")
    parser.set_defaults(run=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)

    def verb(name: str, run: Callable[[argparse.Namespace], int], does: str) -> argparse.ArgumentParser:
        command = verbs.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    verb("env", print_environment, "print every setting with its default and its value, and the devices of each vendor")
    add_status(verb("status", print_status, "show what each rank on this host does, group by group"))
    topo = verb("topo", print_topology, "print the hardware of this host and the part of it that a process may use")
    topo.add_argument("--svg", metavar="FILE", type=Path, help="draw it, too")
    add_explanation(verb("explain", print_explanation, "show which algorithm carries out a collective, and why"))
    add_simulation(verb("simulate", print_simulation, "predict the time of collectives on a described cluster"))
    add_tuning(verb("tune", print_tuning, "measure every algorithm here and write the best ones into a tuning file"))
    add_benchmark(verb("bench", print_benchmark, "time operations, beside other backends in the same run"))
    verb("nccl-path", print_nccl_path, "print the path of the library that stands where NCCL stands")
    verb("hccl-path", print_hccl_path, "print the path of the library that stands where HCCL stands")
    parsed = parser.parse_args(arguments)
    if parsed.run is None:
        parser.print_help()
        return 0
    try:
        run: Callable[[argparse.Namespace], int] = parsed.run
        code = run(parsed)
        sys.stdout.flush()
        return code
    except RuntimeError as err:
        print(err, file=sys.stderr)
        return 1
    except OSError as err:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's flush at exit would raise again
        if isinstance(err, BrokenPipeError):  # the reader has ended, as `head` does
            return 128 + signal.SIGPIPE
        print(f"sagecomm: {err}", file=sys.stderr)
        return 1


def print_environment(parsed: argparse.Namespace) -> int:
    """1 if a value is refused."""
    from sagecomm import _native

    native = _native.load()
    variables, devices = json.loads(native.describe_environment()), json.loads(native.describe_devices())
    if parsed.json:
        print(json.dumps({"variables": variables, "devices": devices}, indent=2))
    else:
        print(environment_table(variables))
        print(devices_table(devices))
    return 1 if any("error" in variable for variable in variables) else 0


def print_nccl_path(parsed: argparse.Namespace) -> int:
    return print_library(parsed, "libsagecomm_nccl.so")


def print_hccl_path(parsed: argparse.Namespace) -> int:
    return print_library(parsed, "libsagecomm_hccl.so")


def print_library(parsed: argparse.Namespace, name: str) -> int:
    path = Path(__file__).resolve().parent / "lib" / name
    if not path.exists():
        raise RuntimeError(f"sagecomm: {path} is missing: run `make facades` in a checkout, or install the wheel again")
    print(json.dumps({"path": str(path)}) if parsed.json else path)
    return 0


def environment_table(variables: Sequence[dict[str, object]]) -> str:
    """A variable, its sentence, and why its value is refused; * marks what is not the default, ? an unknown name."""
    lines = []
    for variable in variables:
        default, value = variable["default"], variable["value"]
        if "warning" in variable:
            lines += [f"? {variable['name']}={value}", f"      {variable['warning']}"]
            continue
        mark = " " if value == default else "*"
        lines.append(f"{mark} {variable['name']}={value}  ({variable['type']}, default {default!r})")
        lines.append(f"      {variable['sentence']}")
        if "error" in variable:
            lines.append(f"      refused: {variable['error']}")
    return "\n".join(lines)


def devices_table(devices: Sequence[dict[str, object]]) -> str:
    """A vendor's devices and its library of collectives, or why this process has none of them."""
    lines = ["", "devices, by their names in torch:"]
    for vendor in devices:
        count = vendor["devices"]
        if "why" in vendor:
            lines.append(f"  {vendor['name']}: {vendor['why']}")
            continue
        engine = f"engine {vendor['engine']}"
        if "engine_why" in vendor:
            engine = f"not {vendor['engine']}: {vendor['engine_why']}"
        if "own" in vendor:
            engine += f"; engine {vendor['own']} for ranks that share a device"
        lines.append(f"  {vendor['name']}: {count} device{'' if count == 1 else 's'} ({vendor['library']}); {engine}")
    return "\n".join(lines)


def add_status(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--watch",
        type=_arguments.seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="ask again every SECONDS (2 by default) until Ctrl-C",
    )


def print_status(parsed: argparse.Namespace) -> int:
    """0 also where nothing runs; 1 if a process does not answer."""
    from sagecomm import _status

    if parsed.watch is not None:
        _status.watch(parsed.watch, parsed.json)
        return 0
    answers = _status.collect()
    print(_status.as_json(answers) if parsed.json else _status.text(answers))
    return 1 if any(answer.status is None for answer in answers) else 0


def print_topology(parsed: argparse.Namespace) -> int:
    from sagecomm import _native, _topo

    topology = _native.load().topology()
    host = json.loads(topology)
    if parsed.svg is not None:
        from sagecomm import _topo_picture

        parsed.svg.write_text(_topo_picture.svg(host))
    print(topology if parsed.json else _topo.text(host))
    return 0


def add_explanation(command: argparse.ArgumentParser) -> None:
    command.usage = "%(prog)s [COLLECTIVE] [BYTES] [--ranks N] [--hosts N] [--tune RULES] "
    command.usage += "[--device [--dtype TYPE] [--reduction NAME]] [--json]"
    command.add_argument(
        "op",
        type=_arguments.operation,
        nargs="?",
        metavar="COLLECTIVE",
        help=f"one of {', '.join(_arguments.COLLECTIVES)}; all_reduce by default; with --device also send or recv",
    )
    command.add_argument(
        "bytes",
        type=_arguments.size,
        nargs="?",
        metavar="BYTES",
        help=f"length of the buffer, or of each rank's block, such as 8, 64K or 100MB; {_SIZES}; 1M by default",
    )
    command.add_argument("--op", type=_arguments.operation, dest="named_op", help=argparse.SUPPRESS)
    command.add_argument("--bytes", type=_arguments.size, dest="named_bytes", help=argparse.SUPPRESS)
    command.add_argument(
        "--ranks", type=_arguments.positive, default=2, metavar="N", help="ranks of the group; 2 by default"
    )
    command.add_argument(
        "--hosts",
        type=_arguments.positive,
        default=1,
        metavar="N",
        help="hosts that the ranks are spread over evenly; 1 by default",
    )
    command.add_argument(
        "--tune", default="", metavar="RULES", help="rules in the grammar of SAGECOMM_TUNE, which wins where it is set"
    )
    command.add_argument(
        "--device", action="store_true", help="the tensors are on devices: show the engine that carries it out too"
    )
    command.add_argument(
        "--dtype",
        default="",
        metavar="TYPE",
        help="type of the tensors on devices, such as bfloat16; float32 by default",
    )
    command.add_argument(
        "--reduction", default="", metavar="NAME", help="reduction of tensors on devices, such as AVG; SUM by default"
    )


def print_explanation(parsed: argparse.Namespace) -> int:
    from sagecomm import _explain, _native

    if parsed.tune and os.environ.get("SAGECOMM_TUNE"):
        print("sagecomm: SAGECOMM_TUNE is set: --tune is not looked at", file=sys.stderr)
    question = {name: getattr(parsed, name) for name in ("ranks", "hosts", "tune", "device")}
    question |= {"dtype": parsed.dtype, "reduce": parsed.reduction}
    question["op"] = parsed.op or parsed.named_op or "all_reduce"
    if question["op"] == "barrier" and (parsed.bytes or parsed.named_bytes):
        raise RuntimeError("sagecomm: explain: a barrier has no length; leave BYTES out")
    question["bytes"] = next((n for n in (parsed.bytes, parsed.named_bytes) if n is not None), 1 << 20)
    answer = _explain.ask(_native.load().explain, **question)
    print(json.dumps(answer) if parsed.json else _explain.text(answer))
    return 0


def add_simulation(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cluster", type=Path, required=True, metavar="FILE", help="file that describes the cluster (docs/scaling.md)"
    )
    command.add_argument(
        "--op", type=_arguments.collective, default="all_reduce", metavar="COLLECTIVE", help="all_reduce by default"
    )
    command.add_argument(
        "--bytes",
        type=_arguments.sizes,
        default=[100_000_000],
        metavar="SIZES",
        help="lengths of the buffer, or of each rank's block: one, a list (8,64K) or a range (8-100MB); 100MB by "
        f"default; {_SIZES}",
    )
    command.add_argument(
        "--hosts",
        type=_arguments.counts,
        default=[0],
        metavar="NUMBERS",
        help="number of hosts instead of the described one: one, a list (64,512) or a range (1-8192)",
    )
    command.add_argument(
        "--method",
        choices=["simulated", "closed form"],
        default="",
        help="how times are predicted; by default the method that suits the size",
    )
    command.add_argument(
        "--png",
        type=_arguments.picture,
        metavar="FILE",
        help=f"draw predicted times against ranks or bytes ({', '.join(_arguments.PICTURES)}); needs matplotlib",
    )


def print_simulation(parsed: argparse.Namespace) -> int:
    from sagecomm import _native, _simulate

    ask = _native.load().simulate
    answers = _simulate.ask(ask, parsed.cluster, parsed.op, parsed.bytes, parsed.hosts, parsed.method)
    print(json.dumps(answers) if parsed.json else _simulate.text(answers))
    if parsed.png is not None:
        _simulate.draw(answers, parsed.png)
    return 0


def add_tuning(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ranks",
        type=_arguments.sizes_of_groups,
        default=_arguments.powers(),
        metavar="NUMBERS",
        help="sizes of the groups to measure; 2,4,8 by default, as far as each rank has a processor; under torchrun "
        "the group is that of its ranks",
    )
    command.add_argument(
        "--ops",
        type=_arguments.collectives,
        default=_arguments.COLLECTIVES,
        metavar="COLLECTIVES",
        help=f"list of collectives to measure, out of {','.join(_arguments.COLLECTIVES)}; all by default",
    )
    command.add_argument(
        "--bytes",
        type=_arguments.lengths,
        default=_arguments.LENGTHS,
        metavar="SIZES",
        help="lengths of the buffer, or of each rank's block: a list (8,64K) or a range (8-1MiB), multiples of 4; 20 "
        f"lengths from 8 to 64M by default; {_SIZES}",
    )
    command.add_argument(
        "--launches",
        type=_arguments.positive,
        default=3,
        metavar="N",
        help="how many times to start new processes for each group; 3 by default",
    )
    command.add_argument(
        "--blocks",
        type=_arguments.positive,
        default=5,
        metavar="N",
        help="rounds of measuring in each launch; 5 by default",
    )
    command.add_argument(
        "--pin", action="store_true", help="bind each rank to a processor; choose it if your programs do so"
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("sagecomm-tune.json"),
        metavar="FILE",
        help="file to write; sagecomm-tune.json by default",
    )


def read_launcher() -> None:
    """Sets what SAGECOMM_LAUNCHER asks for: torch imports no package that the command is importing."""
    try:
        launchers.apply()
    except ValueError as err:
        raise RuntimeError(str(err)) from err


def print_tuning(parsed: argparse.Namespace) -> int:
    from sagecomm import _measuring, _tune

    read_launcher()
    job = _measuring.Job(parsed.ops, parsed.bytes, parsed.launches, parsed.blocks, seconds=0.01, pin=parsed.pin)
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


def add_benchmark(command: argparse.ArgumentParser) -> None:
    from sagecomm._bench import arguments

    arguments.add(command)


def print_benchmark(parsed: argparse.Namespace) -> int:
    """1 if elements are wrong or nothing could be measured, 130 after Ctrl-C."""
    from sagecomm._bench import arguments

    read_launcher()
    job = arguments.job_of(parsed)
    ranks = arguments.launched_ranks(parsed.spawn, job.backends)
    from sagecomm._bench import launching, output, picture

    if parsed.png is not None:
        picture.figure_module()  # fails before an hour is spent
    for path in (parsed.png, parsed.output_file):
        if path is not None and not path.absolute().parent.is_dir():
            raise RuntimeError(f"sagecomm: bench: {path} cannot be written: there is no directory {path.parent}")
    report = launching.run(job, ranks)
    if report is None:
        return 0
    if parsed.output_file is not None:
        parsed.output_file.write_text(output.as_json(report) + "\n")
    if parsed.png is not None and report.rows:
        picture.draw(report, parsed.png)
    if parsed.json:
        print(output.as_json(report))
    elif parsed.csv:
        print(output.as_csv(report), end="")
    else:
        print(output.as_text(report, parsed.percentiles))
    if report.interrupted:
        print("sagecomm: bench: interrupted", file=sys.stderr)
        return 130
    measured = [row for row in report.rows if row["refused"] is None]
    return 1 if not measured or any(row["wrong"] for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
