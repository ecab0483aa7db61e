"""torch's analyser of flight recorder dumps, as tests run it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from torch.distributed.flight_recorder.components.types import Op

from programs import Programs

# Runs the analyser's command in a process that has imported torch. Output is redirected before the import, because the
# analyser's logger keeps the standard output that it finds when it is made.
SCRIPT = """
    import contextlib
    with open({printed!r}, "w") as to, contextlib.redirect_stdout(to), contextlib.redirect_stderr(to):
        from torch.distributed.flight_recorder.fr_trace import main
        main([{directory!r}, "-p", "rank_", "-o", {output!r}])
"""


def prefix() -> str:
    """Returns the backend name that this torch's analyser accepts in operations' names. Older analysers accept only
    two."""
    try:
        Op({"profiling_name": "c10d:barrier"}, {}, "")
    except AssertionError:
        return "xccl"
    except KeyError:  # the analyser accepted the name and misses another field of the event
        pass
    return "c10d"


def analyse(directory: Path) -> tuple[Any, str]:
    """Returns the analyser's database of the files rank_N in a directory, and its output."""
    output, printed = directory.parent / "database", directory.parent / "printed"
    script = SCRIPT.format(directory=str(directory), output=str(output), printed=str(printed))
    with Programs(script) as analyser:
        analyser.end_well()
    return pickle.loads(output.read_bytes())[1], printed.read_text()
