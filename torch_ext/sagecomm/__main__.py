"""Command line: python -m sagecomm env"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sagecomm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="print every configuration variable with its default and value")
    env.add_argument("--json", action="store_true", help="as JSON")
    parsed = parser.parse_args(arguments)

    from sagecomm import _native

    try:
        described = _native.load().describe_environment()
    except RuntimeError as err:
        print(err, file=sys.stderr)
        return 1
    variables = json.loads(described)
    print(described if parsed.json else environment_table(variables))
    return 1 if any("error" in variable for variable in variables) else 0


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
