"""Stands in for mpiexec and its ranks in tests of bench: processes that speak peers.py's protocol and need no MPI.

    bench_stub.py BEHAVIOUR -n RANKS PYTHON PROGRAM SOCKET PINNED

Each measured iteration takes 2 ms by what they say. BEHAVIOUR is `answer`, `refuse` (every operation), `die` (in the
first operation) or `fail` (to start).
"""

from __future__ import annotations

import json
import os
import socket
import sys


def rank_main(rank: int, behaviour: str, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)
        for line in connected.makefile("r"):
            request, answer = json.loads(line), {}
            if request.get("phase") == "hello":
                answer = {"rank": rank, "version": "Stub 1.0"}
            elif "op" in request:
                if behaviour == "die":
                    return
                answer = {"laps": [2e-3] * request["iterations"]}
                if behaviour == "refuse":
                    answer = {"refused": f"the stub has no {request['op']}"}
            connected.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    behaviour, _, size, _, _, path, _ = sys.argv[1:]
    if behaviour == "fail":
        raise SystemExit("RuntimeError: the stub does not start")
    children = []
    for rank in range(int(size)):
        child = os.fork()
        if child == 0:
            rank_main(rank, behaviour, path)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


main()
