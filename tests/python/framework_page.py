"""The scripts of docs/frameworks.md: what `make test-frameworks` runs is what the page shows.

    python framework_page.py DIRECTORY     writes the scripts there, prints `FILE<tab>COMMAND` for those with a command

The first line of a script is a comment. For a script that others import it is the file's name (`# digits.py`); for
others it is the command, which ends in the file's name.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "frameworks.md"
REQUIREMENTS = ROOT / "requirements-frameworks.txt"


@dataclass(frozen=True)
class Script:
    file: str
    command: str  # empty if the file is only imported by others
    text: str


def scripts() -> list[Script]:
    return [script(text) for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)]


def script(text: str) -> Script:
    first = text.splitlines()[0]
    named = re.fullmatch(r"# (?:(\S.*) )?(\w+\.py)", first)
    if named is None:
        raise ValueError(f"{PAGE}: the first line of a script must be a comment that ends in its file, not: {first}")
    return Script(named[2], f"{named[1]} {named[2]}" if named[1] else "", text)


def pins() -> dict[str, str]:
    """Versions by package. A line is `name==version` or `name[extra]==version`; nothing looser is accepted."""
    found = {}
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith("#"):
            continue
        pinned = re.fullmatch(r"([\w-]+)(?:\[\w+\])?==([\d.]+)", line)
        if pinned is None:
            raise ValueError(f"{REQUIREMENTS}: not a pinned version: {line}")
        found[pinned[1]] = pinned[2]
    return found


def main(directory: Path) -> None:
    for each in scripts():
        (directory / each.file).write_text(each.text)
        if each.command:
            print(f"{each.file}\t{each.command}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
